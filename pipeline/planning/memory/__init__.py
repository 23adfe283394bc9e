"""The memory of a run in bytes: what stays from first step to last, what each step needs, and their peak."""

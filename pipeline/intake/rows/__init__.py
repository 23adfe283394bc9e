"""The meaning of a row of any known form: its turns, tools, calls, reasoning, marks and verdicts."""

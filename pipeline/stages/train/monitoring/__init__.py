"""What is logged while training runs, and the rules that say what is wrong with it."""

"""The state of every stage, why it is out of date, and what a run would do. Nothing here starts DVC."""

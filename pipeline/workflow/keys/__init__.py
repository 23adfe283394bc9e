"""Keys that change with the code of a stage or with the dates of files."""

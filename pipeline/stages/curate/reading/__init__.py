"""Readers of files of any known format as rows."""

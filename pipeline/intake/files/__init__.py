"""Readers of files of any known kind as rows: containers, archives, tables, documents."""

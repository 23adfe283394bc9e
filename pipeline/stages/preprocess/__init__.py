"""Tokenize rows, pack them into tables, and prove the tables against the rows' text."""

"""Readers of conversations that other programs export: a module per program, all listed in `registry`."""

"""Rows to token tables, packed, and proven to be what was said."""

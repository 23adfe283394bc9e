"""Command lines of `quench`, one module per topic.

They import a command only when it runs, so help is instant.
"""

"""The command lines of `quench`, one module per topic. They import their commands when one is run, so help is
instant.
"""

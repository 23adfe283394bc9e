"""The page that compares what could be shipped."""

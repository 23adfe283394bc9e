"""The page that compares the models that could be shipped."""

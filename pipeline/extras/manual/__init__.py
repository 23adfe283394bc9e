"""Build the manual: a site of the pages in docs/ and of those that are made from the code."""

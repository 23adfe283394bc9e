"""`quench data get`: download a data set into data/raw, with a record of its origin."""

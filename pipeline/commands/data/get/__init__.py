"""`quench data get`: bring a data set into data/raw, and write down where it comes from."""

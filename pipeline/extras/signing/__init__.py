"""`quench ship --sign` and `--check --key`: the signature of a bundle."""

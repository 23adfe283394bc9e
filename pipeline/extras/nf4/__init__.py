"""`quench model nf4`: a check that quantization is faithful on this machine."""

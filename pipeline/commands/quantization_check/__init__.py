"""`quench model nf4`: whether quantization is faithful on this machine."""

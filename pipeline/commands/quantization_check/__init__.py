"""`quench quantization-check`: whether quantization is faithful on this machine."""

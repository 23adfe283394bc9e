"""`quench fidelity`: whether quantization is faithful on this machine."""

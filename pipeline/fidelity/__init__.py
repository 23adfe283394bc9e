"""Is the NF4 model the model it stands for? Finite numbers, outputs against 16 bit, memory measured, adapters that can be switched."""

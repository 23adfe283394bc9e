"""llama-server for people: keys, restarts, adapters, load."""

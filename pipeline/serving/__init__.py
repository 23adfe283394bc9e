"""Serving beyond one start of llama-server: adapters, restarts, streams, load tests."""

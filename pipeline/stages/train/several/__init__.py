"""One training by several processes: how they meet, share the micro-batches and stay equal."""

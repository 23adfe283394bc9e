"""Comparison of any GGUF files on the user's own held-out chats."""

"""Any GGUF files against each other, on the user's own held-out chats."""

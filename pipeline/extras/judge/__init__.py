"""Comparison of any GGUF files on the user's own held-out chats."""

from pipeline.core.extras import Extra

EXTRA = Extra(page="docs/judging.md", verbs="verb")

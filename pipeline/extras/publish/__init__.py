"""Take a bundle further: to a repository on the hub, into Ollama, into LM Studio (docs/shipping.md)."""

"""Take a bundle further: to a repository on the hub, into Ollama, into LM Studio (docs/shipping.md)."""

from pipeline.core.extras import Extra

EXTRA = Extra(page="docs/shipping.md", provides={"ship --push": "delivery", "ship --to": "delivery"})

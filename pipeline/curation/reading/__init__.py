"""Whatever lies in data/raw: containers, formats, and the canonical rows that become of them."""

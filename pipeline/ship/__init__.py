"""The bundle: evidence, lineage, card, bill of materials, signature."""

"""The ways from a base and data to a model that is served at a level, by key, in the order in which tables show them."""

from pathlib import Path

MERGED_16, MERGED_NF4, LORA_NF4, LORA_LEVEL = "merged_16", "merged_nf4", "lora_nf4", "lora_level"
# {level}: its name
WAYS = {
    MERGED_16: "train on NF4, merge into 16 bit, make {level}",
    MERGED_NF4: "train on NF4, merge into NF4, make {level}",
    LORA_NF4: "train on NF4, put the adapter on the base's {level}",
    LORA_LEVEL: "train on {level} itself, put the adapter on it",
}
# what takes a user there; {level}: its name
REMEDIES = {
    MERGED_16: "set merge.base to w16",
    MERGED_NF4: "set merge.base to nf4",
    LORA_NF4: "add base-{level} to quantize.levels and run `quench serve base-{level} --lora`",
    LORA_LEVEL: "set base.quantization to gguf and base.level to {level} (recipe demo-gguf shows how)",
}
FOLDER = Path("models/.compare")  # below the project's: sub-projects and records; no artifact, so neither Snakemake nor DVC looks at it
CHANCE = 0.05  # a difference whose p is not below it may be chance, as for `pipeline.gate.drops`


def title(way: str, level: str) -> str:
    """What a way is called: "train on Q4_K_M itself, put the adapter on it"."""
    return WAYS[way].format(level=level)

"""Mixtral's tensors are called otherwise in its files than in transformers' model: `block_sparse_moe` for
`mlp`, and an expert's `w1`, `w3` and `w2` for `gate_proj`, `up_proj` and `down_proj`.
"""

import re

STORED = re.compile(r"\.block_sparse_moe\.(?:gate\.|experts\.\d+\.w[123]\.)")
PARTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
# the same as patterns, for transformers' `from_pretrained`
KEY_MAPPING = {
    r"\.block_sparse_moe\.gate\.": ".mlp.gate.",
    **{
        rf"\.block_sparse_moe\.experts\.(\d+)\.{old}\.": rf".mlp.experts.\1.{new}."
        for old, new in PARTS.items()
    },
}


def in_model(name: str) -> str:
    """The name in transformers' model of a tensor that its file calls `name`; of other models the same."""
    for pattern, new in KEY_MAPPING.items() if STORED.search(name) else ():
        name = re.sub(pattern, new, name)
    return name

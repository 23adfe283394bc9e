"""What PEFT's DoRA keeps beside its matrices: it makes B·A of a unit matrix to have the weight's lengths
(peft 0.21.2, `tuners/lora/dora.py`).

An upper bound. The unit matrices are in × in: of wide linears they outweigh all else, unless layers are
recomputed.
"""

from pipeline.config.sections import Train
from pipeline.config.targets import rank_of
from pipeline.planning.shape import Linear
from pipeline.planning.weights import FLOAT


def dora_kept(
    train: Train, layer: int, targets: list[Linear], tokens: int, element: int, lora_element: int
) -> int:
    """Bytes that a layer's forward keeps under DoRA above LoRA's; `element` and `lora_element` are bytes of
    an activation outside and inside the adapter.
    """
    dropout, kept = train.dropout > 0, 0
    for one in targets:
        kept += tokens * one.outputs * (element * (2 if dropout else 1) + lora_element)
        # the unit matrix, and A of it
        kept += one.inputs * (one.inputs + rank_of(one.path(layer), train)) * lora_element
        # the dequantized weight, and as the product reads it; its rows' lengths
        kept += (2 * element * one.weights if dropout else 0) + 3 * one.outputs * FLOAT
    return kept

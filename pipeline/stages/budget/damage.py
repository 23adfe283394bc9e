"""The damage that each type does to each tensor: sensitivities (`pipeline.stages.budget.gradient`) times the
errors of the real files.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.gguf.tensors import gguf_tensors

if TYPE_CHECKING:
    from pipeline.stages.budget.gradient import Sensitivity

# a tensor whose ⟨gradient, error⟩ is below this part of its kind's, by weighted error, counts as that: a few
# dozen rows measure small tensors with noise, and rounding does not improve a model
LEAST = 0.1
Errors = Mapping[str, Mapping[str, float]]  # {tensor: {type: weighted squared error}}


def weighted_errors(source: Path, rounded: Path, found: "Mapping[str, Sensitivity]") -> dict[str, float]:
    """{tensor: Σ r_i · c_j · (difference)²} of a GGUF `rounded` from the 16-bit `source`, block by block."""
    (_, before), (_, after) = gguf_tensors(source), gguf_tensors(rounded)
    errors = {}
    for name, each in found.items():
        one, other, summed = before[name], after[name], 0.0
        for first, last in one.blocks():
            error = other.values(first, last) - one.values(first, last)
            summed += float(each.rows[first:last] @ (np.square(error, dtype=np.float64) @ each.columns))
        errors[name] = summed
    return errors


def damages(found: "Mapping[str, Sensitivity]", low: Mapping[str, str], errors: Errors) -> dict[str, dict[str, float]]:
    """{tensor: {type: part of the mean KL divergence, in nats}}; `low` are the types at which the gradient
    was taken.
    """
    products = {name: 0.5 * float(each.products.mean()) for name, each in found.items()}
    rates = {}  # nats by weighted error
    for name, product in products.items():
        mates = [mate for mate in found if kind_of(mate) == kind_of(name)]
        spent = sum(errors[mate][low[mate]] for mate in mates)
        usual = max(sum(products[mate] for mate in mates), 0.0) / spent if spent else 0.0
        own = errors[name][low[name]]
        rates[name] = max(product / own if own else 0.0, LEAST * usual)
    return {name: {kind: rates[name] * error for kind, error in errors[name].items()} for name in found}


def kind_of(tensor: str) -> str:
    """A tensor's name without its layer: attn_q.weight."""
    return re.sub(r"^blk\.\d+\.", "", tensor)

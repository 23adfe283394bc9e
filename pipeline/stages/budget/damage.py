"""The damage that each type does to each tensor: the curvature times the errors of the real files, on the
scale of the divergence's gradient (`pipeline.stages.budget.gradient`).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.gguf.tensors import gguf_tensors

if TYPE_CHECKING:
    from pipeline.stages.budget.gradient import Sensitivity

# how far a kind's scale may be from that of all tensors: beyond, a few dozen rows are more noise than that
FARTHEST = 4.0
Errors = Mapping[str, Mapping[str, float]]  # {tensor: {type: ½ Σ H_ij · e_ij², in nats}}


def curved_errors(source: Path, rounded: Path, found: "Mapping[str, Sensitivity]") -> dict[str, float]:
    """{tensor: ½ Σ H_ij · (difference)²} of a GGUF `rounded` from the 16-bit `source` in nats, block by
    block; H_ij is r_i · c_j ÷ Σ r.
    """
    (_, before), (_, after) = gguf_tensors(source), gguf_tensors(rounded)
    errors = {}
    for name, each in found.items():
        one, other, summed = before[name], after[name], 0.0
        for first, last in one.blocks():
            error = other.values(first, last) - one.values(first, last)
            summed += float(each.rows[first:last] @ (np.square(error) @ each.columns))
        whole = float(each.rows.sum())
        errors[name] = 0.5 * summed / whole if whole else 0.0
    return errors


def damages(
    found: "Mapping[str, Sensitivity]", low: Mapping[str, str], errors: Errors
) -> dict[str, dict[str, float]]:
    """{tensor: {type: part of the mean KL divergence, in nats}}; `low` are the types at which the gradient
    was taken.
    """
    products = {name: 0.5 * float(each.products.mean()) for name, each in found.items()}
    spent = {name: errors[name][low[name]] for name in found}

    def scale(names: list[str]) -> float:
        curved = sum(spent[name] for name in names)
        return sum(products[name] for name in names) / curved if curved else 1.0

    usual = max(scale(list(found)), 1e-6)
    scales = {
        kind: min(
            max(scale([name for name in found if kind_of(name) == kind]), usual / FARTHEST), usual * FARTHEST
        )
        for kind in {kind_of(name) for name in found}
    }
    return {
        name: {kind: scales[kind_of(name)] * error for kind, error in errors[name].items()} for name in found
    }


def kind_of(tensor: str) -> str:
    """A tensor's name without its layer: attn_q.weight."""
    return re.sub(r"^blk\.\d+\.", "", tensor)

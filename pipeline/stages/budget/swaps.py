"""Swaps: what the prediction can't see is tried out. A swap raises a group of tensors to their next type and
lowers others to pay for it; it is kept if the divergence falls beyond noise.

A group is one kind of tensor in a third of the layers: a swap of two single tensors of a model moves the
divergence by less than rounding does anyway.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config.strategies import CHANCE
from pipeline.metrics.paired import compare_scores
from pipeline.stages.budget.damage import kind_of
from pipeline.stages.budget.knapsack import Damages, undominated
from pipeline.stages.budget.sizes import Allocation, Sizes, choices, total

MOST = 24  # swaps that are measured
PARTS = 3  # of the layers


@dataclass(frozen=True)
class Swap:
    """Groups that are raised and lowered, the types after it, and by how much the prediction falls, in
    nats.
    """

    raised: str
    lowered: str
    allocation: Allocation
    predicted: float


@dataclass(frozen=True)
class Verdict:
    """A second model's mean KL divergence less the first's on the same rows, in nats, its 95 % interval, and
    the two-sided p of no difference.
    """

    difference: float
    low: float
    high: float
    p_value: float

    def better(self, chance: float = CHANCE) -> bool:
        """Whether the second is closer, beyond noise."""
        return self.difference < 0 and self.p_value < chance

    def record(self) -> dict[str, float]:
        """As reports have it."""
        return {
            "difference": self.difference,
            "low": self.low,
            "high": self.high,
            "p_value": self.p_value,
        }


def paired(first: Sequence[float], second: Sequence[float], seed: int) -> Verdict:
    """Two models' KL divergences, row by row (`pipeline.metrics.paired`)."""
    found = compare_scores(first, second, seed)
    return Verdict(found.points / 100, found.low / 100, found.high / 100, found.p_value)


def groups(tensors: Sequence[str]) -> dict[str, list[str]]:
    """{name: tensors}: each kind in each third of the layers, "attn_v.weight 1/3"; a tensor outside of layers
    is one alone.
    """
    layers = 1 + max((number for name in tensors if (number := layer_of(name)) is not None), default=0)
    found: dict[str, list[str]] = {}
    for name in tensors:
        layer = layer_of(name)
        part = "" if layer is None else f" {layer * PARTS // layers + 1}/{PARTS}"
        found.setdefault(kind_of(name) + part, []).append(name)
    return found


def layer_of(tensor: str) -> int | None:
    """The layer of a tensor, None if it is in none."""
    found = re.match(r"blk\.(\d+)\.", tensor)
    return int(found[1]) if found else None


def proposals(allocation: Allocation, damages: Damages, sizes: Sizes, most: int) -> list[Swap]:
    """Swaps of `allocation` with at most `most` bytes, those with the best prediction first."""
    ladders = {
        name: list(undominated(damages[name], each)) for name, each in choices(sizes).items()
    }  # types from the smallest to the largest
    by_group = groups(sorted(ladders))
    found = []
    for raised, above in by_group.items():
        higher = {name: next_type(ladders[name], sizes[name], allocation[name], 1) for name in above}
        up = {name: kind for name, kind in higher.items() if kind}
        if not up:
            continue
        for lowered, below in by_group.items():
            if lowered == raised:
                continue
            after = dict(allocation) | up
            for name in cheapest(below, allocation, ladders, damages, sizes):
                if total(sizes, after) <= most:
                    break
                after[name] = next_type(ladders[name], sizes[name], allocation[name], -1) or after[name]
            if total(sizes, after) <= most:
                gain = predicted(damages, allocation) - predicted(damages, after)
                found.append(Swap(raised, lowered, after, gain))
    return sorted(found, key=lambda swap: (-swap.predicted, swap.raised, swap.lowered))


def next_type(ladder: Sequence[str], sizes: Mapping[str, int], kind: str, step: int) -> str | None:
    """The type after (`step` 1) or before (-1) `kind` on a ladder of types; None if there is none."""
    others = [one for one in ladder if (sizes[one] - sizes[kind]) * step > 0]
    return (others[0] if step > 0 else others[-1]) if others else None


def cheapest(
    tensors: Sequence[str],
    allocation: Allocation,
    ladders: Mapping[str, Sequence[str]],
    damages: Damages,
    sizes: Sizes,
) -> Iterator[str]:
    """The tensors that can be lowered, those first that lose least by byte."""
    price = {}
    for name in tensors:
        kind = allocation[name]
        if lower := next_type(ladders[name], sizes[name], kind, -1):
            lost = damages[name][lower] - damages[name][kind]
            price[name] = lost / (sizes[name][kind] - sizes[name][lower])
    return iter(sorted(price, key=lambda name: (price[name], name)))


def predicted(damages: Damages, allocation: Allocation) -> float:
    """The mean KL divergence of an allocation as predicted, in nats."""
    return sum(damages[name][kind] for name, kind in allocation.items())


def swapped(
    start: Allocation,
    damages: Damages,
    sizes: Sizes,
    most: int,
    measure: Any,
    seed: int,
    tries: int | None = None,
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """(the allocation after the swaps that were kept, a record of each that was tried).

    `measure` gives an allocation's KL divergence by row. Of `tries` looks (`MOST` by default) at the same
    rows some would find something by chance: each is held to a `tries`-th of the usual chance (Bonferroni).
    """
    tries = MOST if tries is None else tries
    allocation, rows = dict(start), measure(start)
    if 2 / 2 ** len(rows) >= CHANCE / tries:
        return allocation, []  # too few rows: the paired test could keep none
    tried: set[tuple[str, str]] = set()
    log: list[dict[str, Any]] = []
    while len(log) < tries:
        waiting = (
            swap
            for swap in proposals(allocation, damages, sizes, most)
            if (swap.raised, swap.lowered) not in tried
        )
        swap = next(waiting, None)
        if swap is None:
            break
        tried.add((swap.raised, swap.lowered))
        after = measure(swap.allocation)
        verdict = paired(rows, after, seed)
        kept = verdict.better(CHANCE / tries)
        log.append(
            {
                "raised": swap.raised,
                "lowered": swap.lowered,
                "predicted": -swap.predicted,
                **verdict.record(),
                "kept": kept,
            }
        )
        if kept:
            allocation, rows = dict(swap.allocation), after
    return allocation, log

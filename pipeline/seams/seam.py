"""One seam: a hand-over with its figure, its limit and its verdict."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Seam:
    """One hand-over: `figure` against `limit` in `unit`; verdict pass, fail or "not measured"."""

    title: str
    what: str
    figure: float | None
    limit: float | None
    unit: str
    verdict: str
    detail: str


def equal_seam(title: str, what: str, pairs: Iterable[tuple[Any, Any]]) -> Seam:
    """A seam of pairs (training's, llama-server's) that must all be equal; shows where the first unequal one parts."""
    compared, unequal = 0, []
    for ours, theirs in pairs:
        compared += 1
        if ours != theirs:
            unequal.append((ours, theirs))
    return count_seam(title, what, len(unequal), compared, first_difference(*unequal[0]) if unequal else "")


def count_seam(title: str, what: str, different: int, compared: int, first: str) -> Seam:
    """A seam where nothing may differ; not measured where nothing was compared."""
    if not compared:
        return Seam(title, what, None, None, "", "not measured", "nothing to compare")
    detail = f"{compared} compared" + (f"; first difference: {first}" if first else "")
    return Seam(title, what, float(different), 0.0, "differences", "fail" if different else "pass", detail)


def first_difference(ours: Any, theirs: Any) -> str:
    """Where two sequences part, with what stands there on both sides."""
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return f"at {at} training has {ours[at : at + 12]!r}, llama-server {theirs[at : at + 12]!r}"

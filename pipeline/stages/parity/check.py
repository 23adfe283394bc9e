"""One seam: a hand-over with its figure, its limit and its verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Seam:
    """One hand-over: `figure` against `limit` in `unit`; verdict pass, fail or "not measured".

    `cause` is one sentence with the likely cause of a failure and its remedy; `figures` are further numbers that have no limit.
    """

    title: str
    what: str
    figure: float | None
    limit: float | None
    unit: str
    verdict: str
    detail: str
    cause: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


def count_seam(title: str, what: str, different: int, compared: int, first: str, cause: str = "") -> Seam:
    """A seam where nothing may differ, with the likely `cause` where something does; not measured where nothing was compared."""
    if not compared:
        return Seam(title, what, None, None, "", "not measured", "nothing to compare")
    detail = f"{compared} compared" + (f"; first difference: {first}" if first else "")
    return Seam(title, what, float(different), 0.0, "differences", "fail" if different else "pass", detail, cause if different else "")


def first_difference(ours: Any, theirs: Any) -> str:
    """Where two sequences part, with what stands there on both sides."""
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return f"at {at} training has {ours[at : at + 12]!r}, llama-server {theirs[at : at + 12]!r}"

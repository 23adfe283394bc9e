"""Checks of hand-overs, and the keys under which reports/parity.json has them."""

from collections.abc import Mapping
from typing import Any

from pipeline.core.checks import Check, Verdict
from pipeline.metrics.divergence import Divergence
from pipeline.metrics.text import common_start

# a key of a report's entry: the field of `Check`
KEYS = {
    "title": "name",
    "what": "what",
    "figure": "figure",
    "limit": "limit",
    "unit": "unit",
    "verdict": "verdict",
    "detail": "sentence",
    "cause": "remedy",
    "figures": "figures",
}
DIVERGENCE = "mean KL divergence of the next token"
Figures = Mapping[str, float]
NONE: Figures = {}


def failure(
    title: str, count: float, unit: str, sentence: str, cause: str, what: str, figures: Figures = NONE
) -> Check:
    """What should be 0 and is not, with its likely `cause`."""
    return Check(
        title, "fail", sentence, cause, what=what, figure=float(count), limit=0.0, unit=unit, figures=figures
    )


def exact(
    title: str, count: int, unit: str, sentence: str, cause: str, what: str, figures: Figures = NONE
) -> Check:
    """A check that fails unless `count` is 0."""
    if count:
        return failure(title, count, unit, sentence, cause, what, figures)
    return Check(title, "pass", sentence, what=what, figure=0.0, limit=0.0, unit=unit, figures=figures)


def count_check(title: str, what: str, different: int, compared: int, first: str, cause: str = "") -> Check:
    """A check where nothing may differ; not measured if nothing was compared."""
    if not compared:
        return Check(title, "not measured", "nothing to compare", what=what)
    return exact(
        title,
        count=different,
        unit="differences",
        sentence=f"{compared} compared" + (f"; first difference: {first}" if first else ""),
        cause=cause,
        what=what,
    )


def divergence_check(
    title: str, found: Divergence, limit: float, sentence: str, cause: str, more: Figures = NONE
) -> Check:
    """How far two models are apart; it fails if there is a `cause`."""
    verdict: Verdict = "fail" if cause else "pass"
    return Check(
        title,
        verdict,
        sentence,
        cause,
        what=DIVERGENCE,
        figure=found.kld,
        limit=limit,
        unit="nats",
        figures={**figures_of(found), **more},
    )


def incomparable(title: str, found: Divergence, sentence: str, cause: str) -> Check:
    """Two models whose logits can't be compared: a count of NaN and Inf, or how vocabularies differ."""
    count, unit = (
        (found.strange, "positions") if found.strange else (abs(found.widths[0] - found.widths[1]), "tokens")
    )
    return failure(title, count, unit, sentence, cause, "logits that can't be compared")


def figures_of(found: Divergence) -> dict[str, float]:
    """The numbers beside a divergence."""
    return {
        "nmse": found.nmse,
        "kld_max": found.kld_max,
        "same_top": found.same_top,
        "positions": float(found.positions),
    }


def first_difference(ours: Any, theirs: Any) -> str:
    """Where two sequences differ first, with what is there on both sides."""
    at = common_start(ours, theirs)
    return f"at {at} training has {ours[at : at + 12]!r}, llama-server {theirs[at : at + 12]!r}"

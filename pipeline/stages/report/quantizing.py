"""What quantizing costs: each level of the untuned base beside the tuned model's, and whether fine-tuning or
an importance matrix or distilling recovers it.

A level's divergence is from its own 16-bit model (base-LEVEL from base-F16, LEVEL from F16), so the two
columns show the same rounding done to two models.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.config.budgets import is_budget
from pipeline.config.levels import DISTILLED, SUFFIX, improved_from
from pipeline.config.sections import UNTUNED
from pipeline.gate.recommend import is_base
from pipeline.pages.formats import percent, signed
from pipeline.stages.report.comparisons import compare

RECOVERED, PARTLY, WORSE = 0.5, 0.8, 1.25  # of the divergence before: below, below, above
IMPROVED = {SUFFIX: "An importance matrix", DISTILLED: "Distilling the scales"}
Evaluations = Mapping[str, Mapping[str, Any]]
Scores = Mapping[str, Sequence[float | None]]


def quantizing_values(evaluations: Evaluations, scores: Scores, reference: str, seed: int) -> dict[str, Any]:
    """What the section's template needs: a row per level, and sentences that follow from the figures."""
    rows = [_row(level, evaluations, scores, reference, seed) for level in _levels(evaluations)]
    return {
        "rows": rows,
        "sentences": [*_between_levels(rows), *(sentence for row in rows if (sentence := _recovery(row)))],
        "improved": _improved(evaluations, scores, seed),
        "missing": _missing(rows, reference),
    }


def _levels(evaluations: Evaluations) -> list[str]:
    """The fixed levels, tuned or not, as llama-quantize makes them by itself."""
    spelled = dict.fromkeys(model.removeprefix(UNTUNED) for model in evaluations)
    return [
        level
        for level in spelled
        if level not in ("F16", "BF16") and not improved_from(level) and not is_budget(level)
    ]


def _row(level: str, evaluations: Evaluations, scores: Scores, reference: str, seed: int) -> dict[str, Any]:
    """{"level", "fallback", "tensors", "base": side, "tuned": side, "ratio": tuned KLD over base KLD, None
    where one is missing}.
    """
    base = _side(UNTUNED + level, UNTUNED + reference, evaluations, scores, seed)
    tuned = _side(level, reference, evaluations, scores, seed)
    either = evaluations.get(level) or evaluations[UNTUNED + level]
    return {
        "level": level,
        "fallback": either.get("fallback_tensors"),
        "tensors": either.get("tensors"),
        "base": base,
        "tuned": tuned,
        "ratio": tuned["kld_mean"] / base["kld_mean"]
        if base["kld_mean"] and tuned["kld_mean"] is not None
        else None,
    }


def _side(model: str, reference: str, evaluations: Evaluations, scores: Scores, seed: int) -> dict[str, Any]:
    """One model's divergence from its own 16-bit model; figures that compare it with another one count as not
    measured.
    """
    found = evaluations.get(model) or {}
    like = found if found.get("reference", reference if not is_base(model) else None) == reference else {}
    everywhere = like.get("all_tokens") or {}
    return {
        "model": model,
        "measured": bool(found),
        "kld_mean": like.get("kld_mean"),
        "same_top": like.get("same_top"),
        "all_kld": everywhere.get("kld_mean"),
        "all_top": everywhere.get("same_top"),
        "task": compare(reference, model, scores, seed),
    }


def _between_levels(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How much more of the untuned base its worst level loses than its best."""
    known = sorted(
        (row for row in rows if row["base"]["kld_mean"]), key=lambda row: float(row["base"]["kld_mean"])
    )
    if len(known) < 2:
        return []
    best, *_, worst = known
    times = worst["base"]["kld_mean"] / best["base"]["kld_mean"]
    if times < WORSE:
        return [
            f"On the untuned base {best['level']} and {worst['level']} lose about the same (mean KLD "
            f"{_nats(best)} and {_nats(worst)})."
        ]
    return [
        f"On the untuned base {best['level']} keeps what {worst['level']} loses: mean KLD {_nats(best)} "
        f"against {_nats(worst)}, {times:.1f} times as much{_tops(best, worst)}."
    ]


def _nats(row: Mapping[str, Any]) -> str:
    return f"{row['base']['kld_mean']:.3g}"


def _tops(best: Mapping[str, Any], worst: Mapping[str, Any]) -> str:
    one, other = best["base"]["same_top"], worst["base"]["same_top"]
    return (
        ""
        if one is None or other is None
        else f"; the same top token at {percent(one)} against {percent(other)} of the positions"
    )


def _recovery(row: Mapping[str, Any]) -> str:
    """Whether the tuned model suffers less from the same rounding."""
    if row["ratio"] is None:
        return ""
    figures = f"mean KLD {_nats(row)} on the base, {row['tuned']['kld_mean']:.3g} after fine-tuning"
    verdict = _change(
        row["ratio"],
        "fine-tuning recovers most of the damage",
        "fine-tuning recovers part of the damage",
        "fine-tuning changes nothing much",
        "fine-tuning makes the damage worse",
    )
    return f"{row['level']}: {verdict} where the assistant speaks ({figures}){_elsewhere(row)}."


def _elsewhere(row: Mapping[str, Any]) -> str:
    before, after = row["base"]["all_kld"], row["tuned"]["all_kld"]
    if not before or after is None:
        return ""
    verdict = _change(
        after / before,
        "it recovers most of it too",
        "it recovers part of it",
        "it changes nothing much",
        "it makes it worse",
    )
    return f"; over all tokens, the user's among them, {verdict} ({before:.3g} and {after:.3g})"


def _change(ratio: float, recovered: str, partly: str, nothing: str, worse: str) -> str:
    return (
        recovered if ratio < RECOVERED else partly if ratio < PARTLY else nothing if ratio <= WORSE else worse
    )


def _improved(evaluations: Evaluations, scores: Scores, seed: int) -> list[str]:
    """What the importance matrix or distilling did to each level that was made with and without it, and which
    of the two is better.
    """
    sentences = []
    for model, found in evaluations.items():
        level = improved_from(model)
        plain = evaluations.get(level) if level else None
        if not level or not plain or found.get("kld_mean") is None or not plain.get("kld_mean"):
            continue
        before, after = plain["kld_mean"], found["kld_mean"]
        verdict = _change(
            after / before,
            "recovers most of what is left",
            "recovers part of what is left",
            "changes nothing much",
            "makes it worse",
        )
        sentences.append(
            f"{IMPROVED[model[len(level) :].lower()]} {verdict}: {level} has a mean KLD of {before:.3g} "
            f"without and {after:.3g} with it.{_better(level, model, after < before, scores, seed)}"
        )
    return sentences


def _better(plain: str, improved: str, nearer: bool, scores: Scores, seed: int) -> str:
    """Which of the two is better on the held-out rows, as a sentence; "" where they were not scored.

    Where the scores don't tell, divergence does: `nearer` says that of `improved` is the lower.
    """
    found = compare(plain, improved, scores, seed)
    if found is None:
        return ""
    if found.verdict == "noise":
        best, by = improved if nearer else plain, "divergence"
    else:
        best, by = improved if found.verdict == "better" else plain, "the scores"
    return (
        f" On the same {found.rows} held-out rows {improved} scores {signed(found.difference.points)} points "
        f"({found.interval}) against {plain}, {found.words}: by {by} {best} is the better of the two."
    )


def _missing(rows: Sequence[Mapping[str, Any]], reference: str) -> str:
    """Which levels can't be compared, and what would measure them; "" where none is missing."""
    lacking = [
        row[side]["model"] for row in rows for side in ("base", "tuned") if row[side]["kld_mean"] is None
    ]
    if not lacking:
        return ""
    return (
        f"Not measured against their own 16-bit model ({reference}, {UNTUNED}{reference}): "
        f"{', '.join(lacking)}; name them in quantize.levels and evaluate.models."
    )

"""Words for the parity checks: their groups, their place in the chain, their figures as text and the verdict
in a sentence.

A parity check's key begins with its group (`weights_merged`, `outputs_q4_k_m`, `tokens_corpus`); its `place`
is the model that it judges.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markupsafe import Markup

ParityChecks = Mapping[str, Mapping[str, Any]]  # {key: parity check of reports/parity.json}

GROUPS = {
    "text": "Text",
    "tokens": "Tokens",
    "weights": "Weights",
    "outputs": "Outputs",
    "behavior": "Behavior",
}
OTHER = "Other"
VERDICTS = ("fail", "warn", "not measured", "pass")  # the most severe first
MARKS = {"pass": "✓", "warn": "▲", "fail": "✕", "not measured": "○"}
# Places: the merged model, which both what training had and the 16-bit base with its adapter are converted
# to; its GGUF; a level by its name.
MERGED = "merged"
SIXTEEN = "16-bit GGUF"
LORA = "+lora"  # suffix of one of the two latter: that GGUF of the base, with the adapter applied
# Places if nothing is merged: the file that is trained on and served, and the same with the adapter's GGUF or
# with trained scales.
BASE, SERVED, TUNED = "base GGUF", "base GGUF + LoRA", "tuned GGUF"


def place_of(check: Mapping[str, Any]) -> str:
    """Return the model that a parity check judges; "" if that is not one model."""
    return str(check.get("place") or "")


def served_unmerged(checks: ParityChecks) -> str:
    """Return `SERVED` or `TUNED`, whichever the checks judge; "" if models are merged."""
    places = map(place_of, checks.values())
    return next((place for place in places if place in (SERVED, TUNED)), "")


def most_severe(verdicts: Iterable[str]) -> str:
    """Return the verdict over several parity checks: fail before warn before not measured before pass; not
    measured if there is none.
    """
    return min(verdicts, key=VERDICTS.index, default="not measured")


def grouped(checks: ParityChecks) -> dict[str, list[dict[str, Any]]]:
    """Return the parity checks by group, each with its key; a group without any is left out."""
    groups: dict[str, list[dict[str, Any]]] = {name: [] for name in (*GROUPS.values(), OTHER)}
    for key, check in checks.items():
        group = GROUPS.get(key.partition("_")[0], OTHER)
        groups[group].append({**check, "key": key, "group": group})
    return {name: rows for name, rows in groups.items() if rows}


def counts(checks: ParityChecks) -> dict[str, int]:
    """Count the parity checks of each verdict."""
    verdicts = [check["verdict"] for check in checks.values()]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}


def in_words(report: Mapping[str, Any]) -> tuple[str, str]:
    """Return the verdict in a few words, and in a sentence: the first failure and its remedy, or what is
    proven. A parity check that was not measured is never among the proven ones.
    """
    checks = report["checks"]
    verdicts = counts(checks)
    passed = verdicts["pass"]
    unmeasured = verdicts["not measured"]
    total = sum(verdicts.values())
    failed = first(checks, "fail")
    if failed:
        return (
            f"Something was lost: {verdicts['fail']} of {total} parity checks failed",
            f"The first that failed is “{failed['title']}”: do not serve these files before its cause is "
            "repaired.",
        )
    if report["verdict"] != "pass" or not passed:
        return (
            "Parity did not pass",
            f"None of {total} parity checks failed, {passed} hold: run `snakemake --force parity`, which "
            "measures them again.",
        )
    warned = first(checks, "warn")
    if warned and warned["group"] != GROUPS["outputs"]:
        return (
            f"Nothing was damaged, but {verdicts['warn']} parity checks warn",
            f"“{warned['title']}”: {warned.get('cause') or ''} {unmeasured} were not measured.",
        )
    if warned:
        return (
            f"Nothing was damaged, but rounding costs much: {verdicts['warn']} parity checks warn",
            f"“{warned['title']}” lost more than is usual, by rounding that was asked for: "
            f"`report.gate` judges whether that is too much. {unmeasured} were not measured.",
        )
    if not unmeasured:
        return (
            "Every parity check holds",
            f"All {passed} were measured and are within their limits: nothing was lost between "
            "training and serving that they can show.",
        )
    return (
        "No parity check failed, but not all were measured",
        f"{passed} of {total} parity checks hold; {unmeasured} {'was' if unmeasured == 1 else 'were'} not "
        "measured, so what they would show is not known.",
    )


def first(checks: ParityChecks, verdict: str) -> Mapping[str, Any] | None:
    """Return the first parity check of this verdict on the way from text to behavior, because later ones may
    only follow from one that failed.
    """
    return next((row for rows in grouped(checks).values() for row in rows if row["verdict"] == verdict), None)


def code(sentence: str) -> "Markup":
    """Return a sentence with the text between backticks as `<code>`; escaped."""
    from markupsafe import Markup

    parts = sentence.split("`")
    if len(parts) % 2 == 0:  # a backtick that nothing closes
        return Markup("{}").format(sentence)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts)
    )

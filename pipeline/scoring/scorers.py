"""The scorers by their spelling in `evaluate.scorers` of params.yaml; docs/evaluation.md has the table."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import ConfigError
from pipeline.scoring import code, judging, own, rouge, text
from pipeline.scoring.score import Scorer

if TYPE_CHECKING:
    from pipeline.sections import Judge

PLAIN = {**text.PLAIN, "rouge_l": rouge.rouge_l, "code": code.passes}
SLOTS = {"code": 2, "judge": 4}
SPELLINGS = f"{', '.join(PLAIN)}, number:MARKER, regex:PATTERN, python:FILE.py:FUNCTION or judge"


def parse(spelling: str, judge: "Judge | None" = None, root: Path = Path()) -> Scorer:
    """The scorer that `spelling` names; `judge` is evaluate.judge, user's own functions lie in `root`/data/evaluation.

    Raises `ConfigError` for what is no scorer, a pattern that can't be read, a function that isn't there, a judge that isn't set.
    """
    try:
        check([spelling], judge)
    except ValueError as error:
        raise ConfigError(f"evaluate.scorers: {error}") from error
    kind, _, argument = spelling.partition(":")
    match kind:
        case "number":
            return Scorer(spelling, text.number_after(argument))
        case "regex":
            return Scorer(spelling, text.first_group(argument))
        case "python":
            return Scorer(spelling, own.function(argument, root / "data/evaluation"))
        case "judge" if judge:
            return Scorer(spelling, judging.judged_by(judge, root), SLOTS["judge"])
    return Scorer(spelling, PLAIN[kind], SLOTS.get(kind, 1))


def check(spellings: Sequence[str], judge: "Judge | None") -> None:
    """Raise `ValueError`, in one sentence, for what can't be a list of scorers; no file is opened and no address asked."""
    if twice := sorted({one for one in spellings if spellings.count(one) > 1}):
        raise ValueError(f"{', '.join(twice)} is named twice: leave it out once")
    for spelling in spellings:
        kind, colon, argument = spelling.partition(":")
        if kind in PLAIN or (kind == "judge" and not colon):
            if colon:
                raise ValueError(f"{spelling!r}: {kind} takes nothing after it: write {kind}")
            if kind == "judge" and judge is None:
                raise ValueError("judge is named and evaluate.judge is null: give its url, model and key_file, or leave the judge out")
        elif kind == "number" and not argument.strip():
            raise ValueError(f"{spelling!r} names no marker: write what stands before the number, number:#### for example")
        elif kind == "regex":
            text.check_pattern(argument)
        elif kind == "python":
            own.check_name(argument)
        elif kind != "number":
            raise ValueError(f"{spelling!r} is no scorer: write {SPELLINGS}")

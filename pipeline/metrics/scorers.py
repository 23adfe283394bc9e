"""The scorers by their spelling in `evaluate.scorers` of params.yaml; docs/evaluation.md has the table."""

from pathlib import Path

from pipeline.config.scorers import scorer_problems
from pipeline.config.sections import Judge
from pipeline.core.errors import ConfigError
from pipeline.metrics import code, judging, own, text
from pipeline.metrics.score import Scorer

PLAIN = {**text.PLAIN, "code": code.passes}
SLOTS = {"code": 2, "judge": 4}
TEXT_ALONE = {*text.PLAIN, "number", "regex"}


def parse(spelling: str, judge: Judge | None = None, root: Path = Path()) -> Scorer:
    """The scorer that `spelling` names; `judge` is evaluate.judge, user's own functions lie in
    `root`/data/evaluation.

    Raises `ConfigError` for what is no scorer, a pattern that can't be read, a function that is missing, a
    judge that isn't set.
    """
    for problem in scorer_problems([spelling], judge is not None):
        raise ConfigError("Q-METRICS-014", f"evaluate.scorers: {problem}")
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


def looks_at_text_alone(spelling: str) -> bool:
    """Whether a scorer asks no model and runs no code, so that trying it costs nothing."""
    return spelling.partition(":")[0] in TEXT_ALONE

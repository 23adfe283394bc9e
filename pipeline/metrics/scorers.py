"""Scorers by their spelling in `evaluate.scorers` of params.yaml (docs/evaluation.md has the table), and the
scores of many answers by one of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

from pipeline.chat.rows import other_references
from pipeline.config.scorers import TOOL_CALLS, scorer_problems
from pipeline.config.sections import External, Judge
from pipeline.core.errors import ConfigError, DataError
from pipeline.metrics import code, judging, own, text_scorers
from pipeline.metrics.external import ExternalScorer
from pipeline.metrics.score import Measure, Score, Scorer, best_score
from pipeline.metrics.tool_calls import EXPECTED, tool_calls

MEASURES = {**text_scorers.TEXT_MEASURES, "code": code.passes, TOOL_CALLS: tool_calls}
SLOTS = {"code": 2, "judge": 4, "external": 4}
# Scorers that query no model and run no code, so that trying one costs nothing.
TEXT_ALONE = {*text_scorers.TEXT_MEASURES, "number", "regex"}


def parse(
    spelling: str, judge: Judge | None = None, root: Path = Path(), program: External | None = None
) -> Scorer:
    """Return the scorer that `spelling` names. `judge` is evaluate.judge, `program` evaluate.external; user's
    own functions are in `root`/data/evaluation.

    Raises `ConfigError` for an unknown scorer, an invalid pattern, a missing function, or a judge that isn't
    set.
    """
    for problem in scorer_problems([spelling], judge is not None, program is not None):
        raise ConfigError("Q-METRICS-014", f"evaluate.scorers: {problem}")
    kind, _, argument = spelling.partition(":")
    match kind:
        case "number":
            return Scorer(spelling, text_scorers.number_after(argument))
        case "regex":
            return Scorer(spelling, text_scorers.first_group(argument))
        case "python":
            return Scorer(spelling, own.function(argument, root / "data/evaluation"))
        case "external" if program:
            scorer = ExternalScorer(program.command, program.seconds, program.start_seconds, root)
            return Scorer(spelling, points(scorer), SLOTS["external"], scorer)
        case "judge" if judge:
            return Scorer(spelling, judging.judged_by(judge, root), SLOTS["judge"])
    return Scorer(spelling, MEASURES[kind], SLOTS.get(kind, 1))


def points(scorer: ExternalScorer) -> Measure:
    """Return the measure that queries `scorer`, which has to run, about one answer at a time, with the
    prompt's last turn. It raises `DataError` for a reward that is not from 0 to 1, otherwise what
    `ExternalScorer.rewards` does.
    """
    numbers = count(1)  # Two answers may belong to one row.

    def measure(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
        prompt = [{"role": "user", "content": row.get("prompt") or ""}]
        [reward] = scorer.rewards(f"{row.get('id')}-{next(numbers)}", prompt, [answer], reference)
        if not 0 <= reward <= 1:
            raise DataError(
                "Q-EXTERNAL-005",
                f"the scorer `{scorer.name}` gave {reward:g} for row {row.get('id')}: evaluate.scorers wants "
                "points from 0 to 1",
            )
        return Score(reward, bool(answer.strip()))

    return measure


def check_references(rows: Iterable[dict[str, Any]], scorers: Sequence[str], root: Path) -> None:
    """Prove that each row's reference can be scored, by scoring it against itself; scorers that query a model
    or run code are not tried. Raises `Unscorable`, and what `parse` does.
    """
    tried = [parse(spelled, root=root) for spelled in scorers if spelled.partition(":")[0] in TEXT_ALONE]
    for row in rows:
        last = row["messages"][-1]
        if "tool_calls" in last:
            continue  # Only `tool_calls` scores it.
        reference = last["content"]
        answer = {"id": row["id"], "reference": reference, "answer": reference} | other_references(row)
        for scorer in tried:
            _score(scorer, answer)


class Unscorable(DataError):
    """Error for a reference that a scorer can't score by."""


def _score(scorer: Scorer, answer: dict[str, Any]) -> Score:
    if answer.get(EXPECTED) and scorer.name != TOOL_CALLS:
        return Score(None, False)  # The reference's words are not what is expected.
    try:
        return best_score(scorer.measure, answer)
    except ValueError as error:
        raise Unscorable(
            "Q-METRICS-001",
            f"row {answer['id']} can't be scored by {scorer.name} ({error}): correct the row, or take "
            "another scorer in evaluate.scorers (exact_match scores anything, [] nothing)",
        ) from error


def scored(scorer: Scorer, answers: list[dict[str, Any]]) -> tuple[list[Score], list[str]]:
    """Return a score for each answer, and the reasons why references can't be scored.

    The answers to such references are not measured.
    """
    refused: list[str] = []

    def score(answer: dict[str, Any]) -> Score:
        try:
            return _score(scorer, answer)
        except Unscorable as error:
            refused.append(error.sentence)
            return Score(None, False)

    if scorer.slots == 1:
        return [score(answer) for answer in answers], refused
    with ThreadPoolExecutor(scorer.slots) as pool:
        # If one fails, the executor cancels those that wait: a judge that can't be reached is not queried
        # again for every row.
        return list(pool.map(score, answers)), refused

"""Which of the answers to one request are the pair: the best and the worst by a scorer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline.chat.rows import ABOUT_TRAINING, other_references
from pipeline.chat.tokens import Row
from pipeline.config.sections import Evaluate
from pipeline.core.jsonl import BadLine, dump_line, parse_line
from pipeline.metrics.answers import score_answers
from pipeline.metrics.refusals import is_refusal


def score(
    rows: Sequence[Row],
    answers: Sequence[Sequence[Mapping[str, Any]]],
    scorer: str,
    settings: Evaluate,
    root: Path,
) -> list[list[dict[str, Any]]]:
    """The answers with their `score` (None: not measured), by row."""
    by_row = [
        [
            dict(answer)
            | {
                "id": row["id"],
                "domain": row.get("domain"),
                "prompt": row["messages"][-2]["content"],
                "reference": row["messages"][-1]["content"],
                **other_references(row),
                "answer": answer["turn"]["content"],
                "refused": is_refusal(answer["turn"]["content"]),
            }
            for answer in of_row
        ]
        for row, of_row in zip(rows, answers, strict=True)
    ]
    flat = [answer for of_row in by_row for answer in of_row]
    score_answers(flat, [scorer], judge=settings.judge, external=settings.external, root=root)
    return by_row


def problem_of(answer: Mapping[str, Any]) -> str | None:
    """Why an answer can't be half of a pair."""
    problems = {
        "calls_a_tool": answer["calls"],
        "cut_off": not answer["stopped"],
        "empty": not answer["answer"].strip(),
        "not_measured": answer["score"] is None,
        "unreadable": not _is_read(answer["turn"]),  # a control character, say
    }
    return next((name for name, occurs in problems.items() if occurs), None)


def _is_read(turn: Mapping[str, Any]) -> bool:
    """Whether curate would read a line with this turn."""
    with suppress(BadLine):
        return bool(parse_line(dump_line(dict(turn))))
    return False


def own_answer(row: Row) -> dict[str, Any]:
    """Return the row's own answer as one that was sampled."""
    turn = {key: value for key, value in row["messages"][-1].items() if key not in ABOUT_TRAINING}
    return {"turn": turn, "stopped": True, "calls": False}


def pair_of(
    row: Row,
    answers: Sequence[Mapping[str, Any]],
    min_gap: float,
    reference: Mapping[str, Any] | None = None,
) -> dict[str, Any] | str:
    """The best (or `reference`, the row's own) and the worst answer as a row that curate reads as a
    preference, or why there is none.
    """
    usable = [answer for answer in answers if problem_of(answer) is None]
    if reference is not None and (problem_of(reference) or not usable):
        return "reference_not_measured" if problem_of(reference) else "no_answer"
    if reference is None and len(usable) < 2:
        return "fewer_than_two"
    best = reference or max(usable, key=lambda answer: answer["score"])
    worst = min(usable, key=lambda answer: answer["score"])
    gap = best["score"] - worst["score"]
    if gap <= 0 or gap < min_gap:
        return "all_equal" if gap <= 0 else "gap_too_small"
    prompt = [
        {key: value for key, value in turn.items() if key not in ABOUT_TRAINING}
        for turn in row["messages"][:-1]
    ]
    return {
        "prompt": prompt,
        "chosen": [best["turn"]],
        "rejected": [worst["turn"]],
        **({"tools": row["tools"]} if "tools" in row else {}),
        "domain": row["domain"],
        "meta": {
            "of": row["id"],
            "source": row["source"],
            "chosen_score": best["score"],
            "rejected_score": worst["score"],
        },
    }


def counts(
    outcomes: Sequence[dict[str, Any] | str], scored: Sequence[Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """The outcome of every request and every answer, and mean scores: of the best, the worst and all answers
    that count, over the requests that have two or more.
    """
    usable = [[answer["score"] for answer in of_row if problem_of(answer) is None] for of_row in scored]
    groups = [of_row for of_row in usable if len(of_row) > 1]
    problems = Counter(problem for of_row in scored for answer in of_row if (problem := problem_of(answer)))
    return {
        "requests": len(outcomes),
        "pairs": sum(isinstance(outcome, dict) for outcome in outcomes),
        "no_pair": dict(sorted(Counter(outcome for outcome in outcomes if isinstance(outcome, str)).items())),
        "answers_left_out": dict(sorted(problems.items())),
        "best_score": round(fmean(map(max, groups)), 4) if groups else None,
        "mean_score": round(fmean(map(fmean, groups)), 4) if groups else None,
        "worst_score": round(fmean(map(min, groups)), 4) if groups else None,
    }

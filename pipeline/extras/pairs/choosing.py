"""Choose the pair among the answers to one request: the best and the worst by a scorer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline.chat.rows import other_references, untrained_turns
from pipeline.chat.tokens import Row
from pipeline.config.sections import Evaluate
from pipeline.core.jsonl import can_be_read
from pipeline.metrics.asking import score_answers
from pipeline.metrics.refusals import is_refusal


def score(
    rows: Sequence[Row],
    answers: Sequence[Sequence[Mapping[str, Any]]],
    scorer: str,
    settings: Evaluate,
    root: Path,
) -> list[list[dict[str, Any]]]:
    """Return the answers by row, each with its `score` (None: not measured)."""
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
    """Return the reason why an answer can't be half of a pair, or None."""
    problems = {
        "calls_a_tool": answer["calls"],
        "cut_off": not answer["stopped"],
        "empty": not answer["answer"].strip(),
        "not_measured": answer["score"] is None,
        "unreadable": not can_be_read(answer["turn"]),  # It may contain a control character, for example.
    }
    return next((name for name, occurs in problems.items() if occurs), None)


def own_answer(row: Row) -> dict[str, Any]:
    """Return the row's own answer in the form of a sampled one."""
    (turn,) = untrained_turns(row["messages"][-1:])
    return {"turn": turn, "stopped": True, "calls": False}


def pair_of(
    row: Row,
    answers: Sequence[Mapping[str, Any]],
    min_gap: float,
    reference: Mapping[str, Any] | None = None,
) -> dict[str, Any] | str:
    """Return the best (or `reference`, the row's own) and the worst answer as a row that curate reads as a
    preference. Returns the reason as a string if there is no pair.
    """
    usable = [answer for answer in answers if problem_of(answer) is None]
    if reference is None:
        if len(usable) < 2:
            return "fewer_than_two"
    elif problem_of(reference):
        return "reference_not_measured"
    elif not usable:
        return "no_answer"
    best = reference or max(usable, key=lambda answer: answer["score"])
    worst = min(usable, key=lambda answer: answer["score"])
    gap = best["score"] - worst["score"]
    if gap <= 0:
        return "all_equal"
    if gap < min_gap:
        return "gap_too_small"
    return {
        "prompt": untrained_turns(row["messages"][:-1]),
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
    """Count the outcomes of all requests and all answers. Give the mean scores of the best, the worst and all
    usable answers, over the requests with two or more.
    """
    usable = [[answer["score"] for answer in of_row if problem_of(answer) is None] for of_row in scored]
    groups = [of_row for of_row in usable if len(of_row) > 1]
    problems = Counter(filter(None, (problem_of(answer) for of_row in scored for answer in of_row)))
    return {
        "requests": len(outcomes),
        "pairs": sum(isinstance(outcome, dict) for outcome in outcomes),
        "no_pair": dict(sorted(Counter(outcome for outcome in outcomes if isinstance(outcome, str)).items())),
        "answers_left_out": dict(sorted(problems.items())),
        "best_score": round(fmean(map(max, groups)), 4) if groups else None,
        "mean_score": round(fmean(map(fmean, groups)), 4) if groups else None,
        "worst_score": round(fmean(map(min, groups)), 4) if groups else None,
    }

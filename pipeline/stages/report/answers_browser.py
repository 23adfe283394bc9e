"""All held-out answers next to each other, for the page. Rows that score differently come first, because the
space is limited.

The rows are embedded as JSON, and the page's script shows them one at a time. The first of them are plain
HTML as well.
"""

import json
from collections.abc import Sequence
from typing import Any

from pipeline.config.products import is_base
from pipeline.gate.evaluations import Answer, Answers
from pipeline.metrics.tool_calls import answer_text
from pipeline.pages.differences import clipped
from pipeline.stages.report.calls_section import answer_with_calls

BYTES = 3_000_000  # bytes of embedded rows; the entire page stays below 5 MB
LONGEST = 4000  # characters of an answer; prompts and references may have as many
PLAIN_ROWS = 4  # rows shown without JavaScript


def browser_values(answers: Answers, room: int = BYTES) -> dict[str, Any] | None:
    """Return the values of the section's template; None if nothing was answered.

    {"rows": number of rows, "kept": how many are embedded, "apart": on how many scores differ, "domains",
    "models", "examples": rows of the plain HTML, "json": the embedded data}
    """
    if not answers:
        return None
    unequal = differing(answers)
    rows = [
        _row(same) | {"apart": number in unequal}
        for number, same in enumerate(zip(*answers.values(), strict=True))
    ]
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
    kept = _within(room, [len(safe(line).encode()) for line in lines], first=unequal)
    shown = [number for number in kept if number in unequal or not unequal][:PLAIN_ROWS]
    return {
        "rows": len(rows),
        "kept": len(kept),
        "apart": len(unequal),
        "models": list(answers),
        "domains": list(dict.fromkeys(row["domain"] for row in rows if row["domain"])),
        "examples": [rows[number] for number in shown],
        "json": safe(
            f'{{"models":{json.dumps(list(answers))},"rows":[{",".join(lines[number] for number in kept)}]}}'
        ),
    }


def differing(answers: Answers) -> set[int]:
    """Return the rows (by number) that tuned models score differently on. If there are none, return those
    that any models score differently on.
    """
    rows = list(zip(*answers.values(), strict=True))
    tuned = [place for place, model in enumerate(answers) if not is_base(model)]
    chosen = {number for number, row in enumerate(rows) if differ([row[place] for place in tuned])}
    return chosen or {number for number, row in enumerate(rows) if differ(row)}


def differ(row: Sequence[Answer]) -> bool:
    """Return True if models' scores of one row differ. If one has no score, their answers are compared."""
    scored = all(answer.score is not None for answer in row)
    return len({answer.score if scored else answer_with_calls(answer) for answer in row}) > 1


def safe(data: str) -> str:
    """Return JSON that is safe in a `<script>` of any type: it can't end the element or open a comment."""
    return data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _row(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return a row for the page; `answers` by model: [text, score or null, stopped or null,
    refused or null].
    """
    first = answers[0]
    return {
        "id": first.id,
        "domain": first.domain or "",
        "prompt": _text(first.prompt),
        "reference": _reference(first),
        "answers": [[_text(answer_with_calls(row)), row.score, row.stopped, row.refused] for row in answers],
    }


def _reference(answer: Answer) -> str:
    """Return the reference and the other accepted ones, or its text and the expected calls."""
    if answer.expected_calls:
        return _text(answer_text(answer.reference, answer.expected_calls))
    return "\nor: ".join(map(_text, (answer.reference, *(answer.other_references or ()))))


def _within(room: int, sizes: Sequence[int], first: set[int]) -> list[int]:
    """Return the rows that fit into `room` bytes, in their own order. Those of `first` have priority."""
    kept = []
    for number in sorted(range(len(sizes)), key=lambda number: number not in first):
        room -= sizes[number]
        if room < 0:
            break
        kept.append(number)
    return sorted(kept)


def _text(value: Any) -> str:
    return clipped(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2), LONGEST
    )

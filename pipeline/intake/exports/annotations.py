"""Rows of annotation tools: what was shown to people (fields), and what they answered (questions), both under
names that the user of the tool gave.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.intake.exports.view import View


def annotated_row(
    fields: Mapping[str, Any], answers: Mapping[str, Sequence[Any]], written: Sequence[str]
) -> dict[str, Any]:
    """Return the row of one text that was shown and one that was `written` about it, with the single other
    answers beside it.

    Otherwise it is not certain which field is the question: the row then has `fields` and `answers`, which no
    format knows, so that a mapping in `curate.fields` chooses.
    """
    asked = [name for name, value in fields.items() if is_question(value)]
    is_text = len(written) == 1 and all(isinstance(answer, str) for answer in answers[written[0]])
    if len(asked) != 1 or not is_text:
        stated = {name: values[0] if len(values) == 1 else list(values) for name, values in answers.items()}
        return {"fields": dict(fields), "answers": stated}
    beside = {
        name: values[0]
        for name, values in answers.items()
        if name not in (*written, "prompt", "completion") and len(values) == 1
    }
    return {"prompt": fields[asked[0]], "completion": list(dict.fromkeys(answers[written[0]])), **beside}


def is_question(value: Any) -> bool:
    """Return True for a text with words, and for a list of turns."""
    if isinstance(value, str):
        return bool(value.strip())
    turns = value if isinstance(value, list) else []
    return bool(turns) and all({"role", "content"} <= View(turn).keys() for turn in turns)

"""Label Studio's exports JSON and JSON-MIN, also of pairwise comparisons.

After <https://labelstud.io/guide/task_format> (2024): a task has `data`, which was shown, `annotations` with
the `result` of each control (`textarea`, `choices`, `pairwise` …) and `predictions` of models. Skipped
annotations have `was_cancelled`. JSON-MIN has a line for each annotation, with the names of data and of
controls side by side. These names are the user's own, so only a task with one text and one written answer is
certain.
"""

import re
from collections.abc import Iterator
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.core.text import listed
from pipeline.intake.exports.annotations import annotated_row, is_question
from pipeline.intake.exports.export import Export, Notes, any_record, each_record
from pipeline.intake.exports.view import View


def _is_record(value: View) -> bool:
    """Return True for a task with annotations, and for an annotation of JSON-MIN."""
    return _is_task(value) or _is_min(value)


def _is_task(value: View) -> bool:
    if not value.has("data", dict) or not value.has("annotations", list):
        return False
    are_answered = all("result" in item for item in value.objects("annotations"))
    return are_answered and ("predictions" in value or bool(value["annotations"]))


def _is_min(value: View) -> bool:
    return {"annotation_id", "annotator", "lead_time"} <= value.keys()


def rows_of(value: View, notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield a row for each annotation that was submitted; of a task with a ground truth, for that alone.

    Raises `BadLine` for a comparison that names no better text, or whose two texts are not certain.
    """
    if _is_min(value):
        yield _min_row(value)
        return
    if not _is_task(value):
        raise BadLine("bad_shape", "a task of Label Studio has data and annotations with a result")
    notes["predictions_not_read"] += len(value.objects("predictions"))
    annotations = value.objects("annotations")
    submitted = [item for item in annotations if not item.get("was_cancelled")]
    notes["annotations_skipped"] += len(annotations) - len(submitted)
    truths = [item for item in submitted if item.get("ground_truth") is True]
    notes["annotations_beside_truth"] += len(submitted) - len(truths) if truths else 0
    notes["tasks_without_annotation"] += not submitted
    for annotation in truths or submitted:
        yield _row(value["data"], annotation.objects("result"))


def _min_row(value: View) -> dict[str, Any]:
    """Return an annotation of JSON-MIN. `prompt` and `answer` speak for themselves, and are a chat here."""
    no_data = ("annotation_id", "annotator", "created_at", "id", "lead_time", "updated_at")
    row = View({key: item for key, item in value.items() if key not in no_data})
    if is_question(row.get("prompt")) and row.has("answer", str | list) and "completion" not in row:
        row["completion"] = row.pop("answer")
    return row


# Keys of a control's value, with its answer.
VALUES = ("text", "choices", "taxonomy", "rating", "number", "datetime")


def _row(data: dict[str, Any], results: list[View]) -> dict[str, Any]:
    answers: dict[str, list[Any]] = {}
    written = []
    for result in results:
        if not result.has("value", dict):
            continue
        stated = result.object("value")
        if result.get("type") == "pairwise":
            return _pair(data, str(result.get("to_name")), stated.get("selected"))
        name = str(result.get("from_name"))
        key = next((key for key in VALUES if key in stated), None)
        if key is not None:
            answers.setdefault(name, []).extend(stated[key] if stated.has(key, list) else [stated[key]])
            if result.get("type") == "textarea" and name not in written:
                written.append(name)
    if not answers:
        raise BadLine("no_assistant", "an annotation without a text, a choice or a rating")
    return annotated_row(data, answers, written or list(answers))


def _pair(data: dict[str, Any], compared: str, selected: Any) -> dict[str, Any]:
    """Return a preference of two texts of the data."""
    texts = [name for name, value in data.items() if is_question(value)]
    sides = _sides(texts, compared)
    asked = [name for name in texts if sides is None or name not in sides]
    if sides is None or len(asked) != 1:
        raise BadLine(
            "unknown_format",
            f"of the texts {listed(texts)} it is not certain which two were compared, and which is the "
            "prompt: name the two NAME_left and NAME_right in the task's data, beside one prompt",
        )
    if selected not in ("left", "right"):
        raise BadLine("no_preference", "the comparison selects neither left nor right")
    better, worse = sides if selected == "left" else sides[::-1]
    return {"prompt": data[asked[0]], "chosen": data[better], "rejected": data[worse]}


# Ends of the names of two texts that are compared.
SIDES = (("1", "2"), ("0", "1"), ("a", "b"), ("left", "right"))


def _sides(texts: list[str], compared: str) -> tuple[str, str] | None:
    """Return the names of the left and the right text: those that the control names, or the only two that
    count on.
    """
    named = tuple(name.strip() for name in compared.split(","))
    if len(named) == 2 and set(named) <= set(texts):
        return named
    pairs = [
        (left, right)
        for left in texts
        for right in texts
        for first, second in SIDES
        if re.sub(rf"{first}$", second, left, flags=re.IGNORECASE).lower() == right.lower() and left != right
        if left.lower().endswith(first)
    ]
    return pairs[0] if len(pairs) == 1 else None


EXPORT = Export("label_studio", any_record(_is_record), each_record(rows_of), has_rows=True)

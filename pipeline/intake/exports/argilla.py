"""Argilla's records: version 1 (`FeedbackDataset` as `datasets` or JSON), version 2 flat and with `fields`.

After docs.argilla.io (versions 1 and 2, 2023 to 2025). A record has fields, which were shown, and for each
question the responses of people, each submitted, discarded or a draft, and a model's suggestion. Only what
was submitted is an answer. The names of fields and questions are the user's own.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.annotations import annotated_row
from pipeline.intake.exports.export import Export, Notes, any_record, each_record
from pipeline.intake.exports.view import View

SUBMITTED = "submitted"
SUGGESTION = "-suggestion"  # ending in version 1
RESPONSES = ".responses"  # ending in version 2
Responses = dict[str, list[tuple[Any, Any]]]  # values and status of each question's responses


def _is_record(value: View) -> bool:
    """Return True for responses with a status, and suggestions or who gave the responses."""
    return _is_nested(value) or bool(_flat(value) or _questions(value))


def _is_nested(value: View) -> bool:
    return value.has("fields", dict) and {"responses", "suggestions"} <= value.keys()


def _flat(value: View) -> list[str]:
    """Return the questions of a flat record of version 2."""
    keys = [key for key in value if key.endswith(RESPONSES)]
    return [
        key.removesuffix(RESPONSES) for key in keys if f"{key}.status" in value or f"{key}.users" in value
    ]


def _questions(value: View) -> list[str]:
    """Return the questions of a record of version 1."""
    return [key for key, stated in value.items() if _is_responses(stated) or f"{key}{SUGGESTION}" in value]


def _is_responses(stated: Any) -> bool:
    keys = {"user_id", "value", "status"}
    if isinstance(stated, dict):  # by columns, as `datasets` stores them
        return keys == stated.keys() and all(isinstance(cells, list) for cells in stated.values())
    responses = stated if isinstance(stated, list) else []
    return bool(responses) and all(keys <= View(response).keys() for response in responses)


# Keys of a record that are neither fields nor questions.
OF_RECORD = ("_server_id", "external_id", "id", "inserted_at", "metadata", "status", "updated_at", "vectors")


def rows_of(value: View, notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the row of a record with a submitted response.

    Raises `BadLine` for an object that is no record.
    """
    if _is_nested(value):
        fields = value["fields"]
        responses = _nested_responses(value)
        suggestions = len(value["suggestions"]) if value.has("suggestions", dict | list) else 0
    elif _flat(value):
        names = _flat(value)
        responses = {name: _flat_responses(value, name) for name in names}
        fields = {
            key: item for key, item in value.items() if key.partition(".")[0] not in (*names, *OF_RECORD)
        }
        suggestions = sum(value.get(f"{name}.suggestion") is not None for name in names)
    elif _questions(value):
        names = _questions(value)
        responses = {name: _stated(value, name) for name in names}
        others = (*names, *OF_RECORD)
        fields = {key: item for key, item in value.items() if key not in others and SUGGESTION not in key}
        suggestions = sum(value.get(name + SUGGESTION) is not None for name in names)
    else:
        raise BadLine("bad_shape", "a record of Argilla has fields, and responses to questions")
    notes["suggestions_not_read"] += suggestions
    answers = {}
    for name, stated in responses.items():
        submitted = [answer for answer, status in stated if status == SUBMITTED]
        notes["responses_not_submitted"] += len(stated) - len(submitted)
        if submitted:
            answers[name] = submitted
    if answers:
        written = [
            name for name, values in answers.items() if all(isinstance(value, str) for value in values)
        ]
        yield annotated_row({key: item for key, item in fields.items() if item is not None}, answers, written)
    else:
        notes["records_without_response"] += 1


def _stated(value: View, name: str) -> list[tuple[Any, Any]]:
    """Return the responses to a question of version 1."""
    columns = value.object(name)
    if _is_responses(columns):
        return list(zip(columns["value"], columns["status"], strict=False))
    return [(response.get("value"), response.get("status")) for response in value.objects(name)]


def _flat_responses(value: View, name: str) -> list[tuple[Any, Any]]:
    given = value[name + RESPONSES] or []
    statuses = value.get(f"{name}{RESPONSES}.status") or []
    if not isinstance(given, list) or not isinstance(statuses, list) or len(given) != len(statuses):
        raise BadLine("bad_shape", f"{name}{RESPONSES} and their status are not two lists of one length")
    return list(zip(given, statuses, strict=True))


def _nested_responses(value: View) -> Responses:
    """Return the responses of a record with `fields`: by question (version 2), or a list of people's, each
    with values by question (version 1).
    """
    responses: Responses = {}
    if value.has("responses", dict):
        # Records of version 2 leave out the status of a response, and are completed when enough are
        # submitted.
        default = SUBMITTED if value.get("status") == "completed" else None
        by_question = value.object("responses")
        for name in by_question:
            given = by_question.objects(name)
            responses[name] = [(item.get("value"), item.get("status", default)) for item in given]
        return responses
    for person in value.objects("responses"):
        for name, item in person.object("values").items():
            answer = item.get("value") if isinstance(item, dict) else item
            responses.setdefault(name, []).append((answer, person.get("status")))
    return responses


EXPORT = Export("argilla", any_record(_is_record), each_record(rows_of), has_rows=True)

"""Compare a model's tool calls with those that its row expects: equal by name and by arguments as JSON
values, in the same order.

Numbers are equal by value (1 and 1.0), texts by their characters, lists in order, objects in any order; true
is not 1, and a missing argument is not null. Of E expected and M made calls, of which C are equal in the same
order (a longest common subsequence), the points are 2C ÷ (E + M), the F1 of calls: 1 only if all are equal.
The Berkeley Function Calling Leaderboard (`ast_checker.py` of ShishirPatil/gorilla) counts a row as right or
wrong, accepts parallel calls in any order, and compares texts without case, spaces and some punctuation. Here
a row is right only if the tools get what they got in the row.

The calls are those that llama-server's own parser read, as a client gets them: the answer's row has `calls`,
and `expected_calls` of its own. Arguments that are not a JSON object stay the text that the parser gave.
"""

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from pipeline.core.jsonl import BadLine, parse_record
from pipeline.metrics.score import Score
from pipeline.metrics.text_scorers import common_words

CALLS, EXPECTED, UNPARSED = "calls", "expected_calls", "unparsed"  # keys of an answer's row
# Findings of a row that expects calls, in the order in which pages show them.
FINDINGS = {
    "equal": "all equal",
    "arguments": "name right, arguments wrong",
    "missing": "a call is missing",
    "extra": "a call too many",
    "order": "in another order",
    "text": "text instead of a call",
    "invalid_json": "arguments that are not a JSON object",
    "unparsed": "not readable by llama-server",
}
Call = Mapping[str, Any]
Key = tuple[str, Hashable]  # a call's name, and its arguments by `_key`


def expected_calls(turn: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the name and arguments of each call of a row's turn."""
    return [
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in turn.get("tool_calls") or ()
    ]


def made_calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the name and arguments of each call of a message that llama-server answered with."""
    return [
        {
            "name": call["function"].get("name") or "",
            "arguments": _read_arguments(call["function"].get("arguments") or ""),
        }
        for call in message.get("tool_calls") or ()
    ]


def _read_arguments(text: str) -> dict[str, Any] | str:
    """Return the object that arguments encode; the text itself if it is not one that a row may contain."""
    try:
        return parse_record(text.encode("utf-8", "surrogatepass"))
    except BadLine:
        return text


def tool_calls(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
    """Return the F1 of the calls that are equal in the same order. Not measured if the row expects none: what
    is measured depends on the row only, so models are compared on the same rows.
    """
    expected = row.get(EXPECTED)
    if not expected:
        return Score(None, False)
    made = row.get(CALLS) or []
    common = common_words(_keys(expected), _keys(made))
    points = 2 * common / (len(expected) + len(made))
    is_valid = bool(made) and all(map(_is_readable, made))
    return Score(points, is_valid)


def equal_calls(expected: Sequence[Call], made: Sequence[Call]) -> bool:
    """Return True if the calls are equal in the same order."""
    return _keys(expected) == _keys(made)


def findings(row: Mapping[str, Any]) -> set[str]:
    """Return the `FINDINGS` of an answer's row that expects calls."""
    if row.get(UNPARSED):
        return {"unparsed"}
    expected = row[EXPECTED]
    made = row.get(CALLS) or []
    if not made:
        return {"text"}
    wanted, given = Counter(_keys(expected)), Counter(_keys(made))
    missing, extra = wanted - given, given - wanted
    readable = Counter(_keys(filter(_is_readable, made))) & extra
    # A call with the name of a missing one is that call with other arguments.
    renamed = _names(missing) & _names(extra)
    holds = {
        "arguments": bool(renamed & _names(readable)),
        "missing": bool(_names(missing) - renamed),
        "extra": bool(_names(extra) - renamed),
        "invalid_json": not all(map(_is_readable, made)),
    }
    if not missing and not extra:
        holds["equal" if equal_calls(expected, made) else "order"] = True
    return {name for name, is_so in holds.items() if is_so}


def answer_text(text: str | None, calls: Iterable[Call] | None) -> str:
    """Return the answer's text, and the calls below it."""
    return "\n".join(filter(None, (text, call_text(calls or ()))))


def call_text(calls: Iterable[Call]) -> str:
    """Return calls as text, one a line: `name {"argument": 1}`."""
    return "\n".join(f"{call['name']} {_arguments_text(call)}" for call in calls)


def _arguments_text(call: Call) -> str:
    """Return the arguments as JSON, or as the text that they are."""
    arguments = call["arguments"]
    return json.dumps(arguments, ensure_ascii=False) if _is_readable(call) else str(arguments)


def call_figures(answers: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Count the rows that expect calls, those with each of `FINDINGS`, and of the other rows those that were
    asked with tools and those where a call was made.
    """
    figures = {"rows": 0} | dict.fromkeys(FINDINGS, 0) | {"others": 0, "unexpected": 0}
    for row in answers:
        if row.get(EXPECTED):
            figures["rows"] += 1
            for name in findings(row):
                figures[name] += 1
        else:
            figures["others"] += 1
            figures["unexpected"] += bool(row.get(CALLS))
    return figures


def _is_readable(call: Call) -> bool:
    return isinstance(call["arguments"], dict)


def _names(calls: Counter[Key]) -> Counter[str]:
    """Return the number of calls of each name."""
    names = Counter[str]()
    for (name, _), count in calls.items():
        names[name] += count
    return names


def _keys(calls: Iterable[Call]) -> list[Key]:
    """Return a hashable value for each call, the same one for equal calls."""
    return [(call["name"], _key(call["arguments"])) for call in calls]


def _key(value: Any) -> Hashable:
    """Return a hashable value that is equal for equal JSON values."""
    if isinstance(value, dict):
        return "object", frozenset((key, _key(item)) for key, item in value.items())
    if isinstance(value, list):
        return "list", tuple(map(_key, value))
    # Python's True equals 1, JSON's does not.
    return isinstance(value, bool), value

"""The turns of a conversation while a log of it is read item by item. In a log the parts of an answer
(reasoning, text, calls) are several items; in a row they are one turn.
"""

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from pipeline.core.jsonl import CONTROL

# ECMA-48 control sequences (colors, cursor), operating system commands (titles, links), other escapes.
TERMINAL_CODE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
Turn = dict[str, Any]
Call = dict[str, Any]


class Draft:
    """Turns in OpenAI's form, to which a reader adds what it finds. Neighboring texts of one side become one
    turn, with an empty line between its parts.
    """

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    def say(self, role: str, text: str) -> None:
        """Add a text of the user, or a system text."""
        last = self.turns[-1] if self.turns else {}
        if last.get("role") == role:
            last["content"] = joined(last["content"], text)
        elif text.strip():
            self.turns.append({"role": role, "content": text})

    def answer(self, text: str = "", reasoning: str = "", call: Call | None = None) -> None:
        """Add a part of an answer to the last turn if this is the assistant's, otherwise to a new one."""
        if not self.turns or self.turns[-1]["role"] != "assistant":
            self.turns.append({"role": "assistant", "content": ""})
        turn = self.turns[-1]
        turn["content"] = joined(turn["content"], text)
        if reasoning.strip():
            turn["reasoning_content"] = joined(turn.get("reasoning_content", ""), reasoning)
        if call is not None:
            turn.setdefault("tool_calls", []).append(call)

    def result(self, call_id: Any, text: str, name: Any = None) -> None:
        """Add the result of a call, which its log identifies by an id or by the function's name."""
        turn: Turn = {"role": "tool", "tool_call_id": _identity(call_id), "content": text}
        self.turns.append(turn | ({"name": name} if isinstance(name, str) else {}))

    def interrupt(self) -> bool:
        """Keep the last answer out of training, because the user interrupted it.

        Return False if there is none.
        """
        for turn in reversed(self.turns):
            if turn["role"] == "assistant":
                turn["train"] = False
                return True
            if turn["role"] == "user":
                return False
        return False


def joined(text: str, more: str) -> str:
    """Return both texts with an empty line between them. If one is blank, return the other."""
    if not more.strip():
        return text
    return f"{text}\n\n{more}" if text.strip() else more


def call_of(name: Any, arguments: Any, identity: Any) -> Call:
    """Return a call in OpenAI's form."""
    function = {"name": name, "arguments": arguments}
    return {"id": _identity(identity), "type": "function", "function": function}


def _identity(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def settled(turns: list[Turn], notes: Counter[str]) -> list[Turn]:
    """Return the turns without the broken parts of a log: calls without a result, unless the conversation
    stops there, results without a call, calls whose arguments are not a JSON object, and answers without
    content.

    Terminal codes and other control characters are removed from the texts. `notes` counts all of it.
    """
    kept: list[Turn] = []
    place = 0
    while place < len(turns):
        turn = turns[place]
        end = place + 1
        while end < len(turns) and turns[end]["role"] == "tool":
            end += 1
        results = turns[place + 1 : end]
        if turn["role"] == "tool":  # a result without a call
            notes["results_without_call"] += end - place
        else:
            kept += _exchange(turn, results, is_last=end == len(turns), notes=notes)
        place = end
    for turn in kept:
        turn["content"] = printable(turn["content"], notes)
        if "reasoning_content" in turn:
            turn["reasoning_content"] = printable(turn["reasoning_content"], notes)
    return kept


def _exchange(turn: Turn, results: list[Turn], *, is_last: bool, notes: Counter[str]) -> list[Turn]:
    """Return a turn and its tools' results, without calls and results that have no counterpart."""
    calls = turn.pop("tool_calls", [])
    readable = [call for call in calls if _is_readable(call)]
    notes["calls_unreadable"] += len(calls) - len(readable)
    answered = {result["tool_call_id"] for result in results}
    complete = [call for call in readable if call["id"] in answered]
    if not (is_last and not results):  # Otherwise the conversation stops at its calls.
        notes["calls_without_result"] += len(readable) - len(complete)
        readable = complete
    called = {call["id"] for call in readable}
    kept = [result for result in results if result["tool_call_id"] in called]
    notes["results_without_call"] += len(results) - len(kept)
    if readable:
        turn["tool_calls"] = readable
    if turn["role"] == "assistant" and not readable and not turn["content"].strip():
        notes["empty_answers"] += 1
        return []
    return [turn, *kept]


def _is_readable(call: Call) -> bool:
    """Return True for a call of a function by its name, with arguments that are a JSON object or its text."""
    function = call["function"]
    arguments = function["arguments"]
    if isinstance(arguments, str):
        with suppress(orjson.JSONDecodeError):
            arguments = orjson.loads(arguments.strip() or "{}")
    return isinstance(function["name"], str) and isinstance(arguments, Mapping | None)


def printable(text: str, notes: Counter[str]) -> str:
    """Return the text without control characters, which no row may contain. `notes` counts such texts."""
    if text.isprintable() or not CONTROL.search(text):
        return text
    notes["control_characters"] += 1
    return CONTROL.sub("", TERMINAL_CODE.sub("", text))

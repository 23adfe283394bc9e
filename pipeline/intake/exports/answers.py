"""Turns of an answer, built from a program's blocks in order: thoughts, text, tool calls and results."""

from pathlib import PurePosixPath
from typing import Any

from pipeline.core.jsonl import BadLine, lax_text, object_in
from pipeline.intake.exports.export import Notes
from pipeline.intake.exports.view import View
from pipeline.intake.wire.draft import Turn, joined

IMAGES = (".avif", ".bmp", ".gif", ".heic", ".jpeg", ".jpg", ".png", ".svg", ".tif", ".tiff", ".webp")


class Answer:
    """Turns of one answer.

    A new turn begins after the result of a call, because the model spoke again there.
    """

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.turns: list[Turn] = []
        self.open_calls: list[str] = []

    def think(self, words: str) -> None:
        """Add thoughts."""
        if words.strip():
            turn = self._turn(("content", "tool_calls"))
            turn["reasoning_content"] = joined(turn.get("reasoning_content", ""), words)

    def say(self, words: str) -> None:
        """Add text."""
        if words.strip():
            turn = self._turn(("tool_calls",))
            turn["content"] = joined(turn["content"], words)

    def call(self, place: str, name: str, arguments: Any) -> None:
        """Add a tool call. Arguments that are not a JSON object are stored below `input`."""
        given = _object(arguments)
        function = {"name": name, "arguments": given if given is not None else {"input": arguments}}
        calls = self._turn(()).setdefault("tool_calls", [])
        calls.append({"id": place, "type": "function", "function": function})
        self.open_calls.append(place)

    def result(self, place: str | None, words: str) -> None:
        """Add the result of the call with this id; without an id, of the first call that has none."""
        place = place or next(iter(self.open_calls), None)
        if place is None or place not in self.open_calls:
            self.notes["results_without_call"] += 1
            return
        self.open_calls.remove(place)
        self.turns.append({"role": "tool", "tool_call_id": place, "content": words})

    def finished(self, *, aborted: bool = False, is_down: bool = False) -> list[Turn]:
        """Return the turns, without calls that have no result.

        An answer that was interrupted, or has a thumb down, is kept out of training.
        """
        self.notes["calls_without_result"] += len(self.open_calls)
        kept: list[Turn] = []
        for turn in self.turns:
            if "tool_calls" in turn:
                turn["tool_calls"] = [
                    call for call in turn["tool_calls"] if call["id"] not in self.open_calls
                ]
                if not turn["tool_calls"]:
                    del turn["tool_calls"]
            if kept and turn["role"] == "assistant" == kept[-1]["role"] and "tool_calls" not in kept[-1]:
                _join(kept[-1], turn)
            elif (
                turn["role"] == "tool" or turn.keys() & {"tool_calls", "reasoning_content"} or turn["content"]
            ):
                kept.append(turn)
        self.notes["aborted"] += aborted and bool(kept)
        self.notes["thumbs_down_not_trained"] += is_down
        if aborted or is_down:
            for turn in kept:
                if turn["role"] == "assistant":
                    turn["train"] = False
        return kept

    def _turn(self, closed_by: tuple[str, ...]) -> Turn:
        """Return the open turn of the assistant, or a new one if it has one of these keys."""
        last = self.turns[-1] if self.turns else None
        if last is None or last["role"] == "tool" or any(last.get(key) for key in closed_by):
            last = {"role": "assistant", "content": ""}
            self.turns.append(last)
        return last


def _join(turn: Turn, more: Turn) -> None:
    """Append the turn after a call that was left out to an assistant's turn."""
    for key in ("content", "reasoning_content"):
        words = joined(turn.get(key, ""), more.get(key, ""))
        if words or key in turn:
            turn[key] = words
    if "tool_calls" in more:
        turn["tool_calls"] = more["tool_calls"]


def user_turn(words: str, names: list[str], notes: Notes, *, shows_image: bool = False) -> list[Turn]:
    """Return the user's turn with files of these names. `shows_image` is True if one of them is an image.

    Raises `BadLine` if the turn has no content without them.
    """
    if shows_image or any(PurePosixPath(name.lower()).suffix in IMAGES for name in names):
        raise BadLine("unsupported_field", "the user shows an image, without which the rest can't be told")
    if names and not words.strip():
        raise BadLine("unsupported_field", "a turn of the user is nothing but an attachment")
    notes["attachments"] += len(names)
    return [{"role": "user", "content": words}]


def result_text(value: Any) -> str:
    """Return a tool's result as text: its own, that of its parts, or its JSON. Raises `BadLine` if that is
    nested too deep.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all("text" in View(part) for part in value):
        return "\n".join(str(part["text"]) for part in value)
    return "" if value is None else lax_text(value)


def _object(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        return object_in(value or "{}")
    return value if isinstance(value, dict) else None

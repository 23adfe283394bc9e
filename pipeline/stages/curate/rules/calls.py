"""The rule that parses tool calls, their results and the tools themselves if they are written as text.

A text is a call if it parses as one (`pipeline.intake.rows.text_calls`) and its row shows that it
is meant as one: it is the entire turn, a tool's result follows, or the row offers the called tool. So an
answer that explains how calls are written stays as it is.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from pipeline.chat.rows import TURN_LISTS, BadRow, Row
from pipeline.intake.rows.text_calls import (
    GLAIVE_RESULT,
    MARKS,
    THOUGHT,
    NotCalls,
    TextCalls,
    find_calls,
    is_result,
    split_results,
    tagged,
    untagged_calls,
    value_of,
)
from pipeline.intake.rows.turns import read_call, read_tools
from pipeline.stages.curate.rules.changes import Change, Changes, excerpts
from pipeline.stages.curate.rules.template import ChatTemplate

Turn = dict[str, Any]
# All begin with the same character, so that most texts are checked quickly.
MARKED = re.compile("|".join(re.escape(mark) for mark in (*MARKS, "<tools>") if mark.startswith("<")))
# Tags in the lines in which Hermes and Qwen explain how to call.
ABOUT_CALLS = re.compile(r"</?tools>|</?tool_call>")
QWEN_HEADING = re.compile(r"# Tools\s+You may call one or more functions[^\n]*\s*")


# With this Glaive's rows introduce the functions, of which each is an object in a paragraph of its own.
GLAIVE_OFFER = " with access to the following functions. Use them if required -"


class Offer(NamedTuple):
    """Tools of a row: those in its `tools`, and the text that may contain others."""

    names: frozenset[str]
    text: str

    def has(self, name: object) -> bool:
        """Return True if the row offers a tool of this name."""
        return name in self.names or any(f"{quote}{name}{quote}" in self.text for quote in "\"'")


class ReadCalls:
    """Rule for a base with this chat template. Without a base the template is taken to show calls."""

    def __init__(self, template: Callable[[], ChatTemplate] | None) -> None:
        self.template = template

    @cached_property
    def are_shown(self) -> bool:
        """Return True if the base's template shows calls and results.

        Otherwise a call can only be shown as text.
        """
        return self.template is None or self.template().shows_calls()

    def __call__(self, row: Row, changes: Changes) -> Row:
        """Return the row with calls and results as structured fields.

        Raises `BadRow` (`bad_tool_call`) for a broken call.
        """
        if not _is_candidate(row) or not self.are_shown:
            return row
        row = read_system_tools(row, changes)
        system = "\n".join(turn["content"] for turn in row["messages"] if turn["role"] == "system")
        names = frozenset(tool["function"]["name"] for tool in row.get("tools", ()))
        offer = Offer(names, system)
        read = dict(row)
        for field in filter(row.__contains__, TURN_LISTS):
            before = read["messages"][-1:] if field != "messages" else []
            read[field] = list(_read_turns(row[field], field, before, offer, changes))
        return row if read == row else read


def _is_candidate(row: Row) -> bool:
    """Return True if the row may contain calls as text. Most rows do not, so this is quick."""
    if "tools" in row:
        return True
    for field in TURN_LISTS:
        for turn in row.get(field, ()):
            content = turn["content"]
            if turn["role"] == "tool" or content.startswith(("[TOOL_CALLS]", GLAIVE_RESULT)):
                return True
            if MARKED.search(content) or (turn["role"] == "system" and GLAIVE_OFFER in content):
                return True
    return False


def _read_turns(
    turns: Sequence[Turn], field: str, before: Sequence[Turn], offer: Offer, changes: Changes
) -> Iterator[Turn]:
    """Yield the turns with calls and results as structured fields.

    `before` has the turn in front of them, if any.
    """
    last = next(iter(before), {})
    for number, turn in enumerate(turns, start=1):
        place = f"{field} {number}"
        new = [turn]
        if turn["role"] == "assistant":
            new = [_read_answer(turn, place, _is_answered(turns, number), offer, changes)]
        elif turn["role"] == "tool" or ("tool_calls" in last or last.get("role") == "tool"):
            new = _read_results(turn, place, changes)
        yield from new
        last = new[-1]


def _is_answered(turns: Sequence[Turn], number: int) -> bool:
    """Return True if the next turn of another side is a tool's result."""
    follower = next((turn for turn in turns[number:] if turn["role"] != "assistant"), None)
    if follower is None:
        return False
    return follower["role"] == "tool" or (follower["role"] == "user" and is_result(follower["content"]))


def _read_answer(turn: Turn, place: str, answered: bool, offer: Offer, changes: Changes) -> Turn:
    """Return the turn with its calls as structured fields. Raises `BadRow` for a text that is meant as a call
    and is invalid.
    """
    content = turn["content"]
    try:
        parsed = find_calls(content)
    except NotCalls as why:
        if why.whole or answered or offer.names:
            raise BadRow("bad_tool_call", f"{place} has a call as text, but {why}") from None
        return turn
    if parsed is None:
        if "tool_calls" in turn:
            return turn
        calls = untagged_calls(content)
        if not calls or not (answered or all(offer.has(_name(call)) for call in calls)):
            return turn
        parsed = TextCalls("", calls)
    is_alone = not THOUGHT.sub("", parsed.before, count=1).strip()
    if not (is_alone or answered or all(offer.has(_name(call)) for call in parsed.calls)):
        return turn  # an example in an answer about calls
    calls = [read_call(call, f"{place} call {number}") for number, call in enumerate(parsed.calls, start=1)]
    stated = turn.get("tool_calls", calls)
    if [call["function"] for call in stated] != [call["function"] for call in calls]:
        raise BadRow("bad_tool_call", f"{place} has tool_calls, and other calls in its text")
    shown = json.dumps([call["function"] for call in calls], ensure_ascii=False)
    changes.append(Change("calls", place, *excerpts(content, f"{parsed.before} ‹calls {shown}›".lstrip())))
    return {**turn, "content": parsed.before, "tool_calls": stated}


def _name(call: dict[str, Any]) -> object:
    return call.get("function", call).get("name")


def _read_results(turn: Turn, place: str, changes: Changes) -> list[Turn]:
    """Return the turn as results of tools, one each, and the user's text after them. Without results, return
    the turn itself.
    """
    content = turn["content"]
    if turn["role"] not in ("tool", "user") or not is_result(content):
        return [turn]
    results, rest = split_results(content)
    if not results or (rest and turn["role"] == "tool"):
        return [turn]
    shared = turn if turn["role"] == "tool" else {}
    new: list[Turn] = [{**shared, "role": "tool", "content": result} for result in results]
    if rest:
        new.append({**turn, "content": rest})
    after = " ".join(f"‹{new_turn['role']}› {new_turn['content']}" for new_turn in new)
    changes.append(Change("calls", place, *excerpts(content, after)))
    return new


def read_system_tools(row: Row, changes: Changes) -> Row:
    """Return the row with the tools between `<tools>` and `</tools>` of its first turn, or those behind
    Glaive's introduction, as `tools`.

    The lines that name these tags or `<tool_call>`, or are between two of them, are removed because the
    base's template writes its own. Nothing changes if the tools can't be parsed, or if the row has others
    already.
    """
    first = next(iter(row["messages"]), None)
    if first is None or first["role"] != "system":
        return row
    blocks = [
        block for block in tagged(first["content"], "<tools>", "</tools>") if block.startswith(("[", "{"))
    ]
    before, _, offered = first["content"].partition(GLAIVE_OFFER)
    is_glaive = bool(offered) and not blocks
    if is_glaive:
        blocks = [offered]
    tools = _tools(blocks[0]) if len(blocks) == 1 else None
    if tools is None or ("tools" in row and _names(row["tools"]) != _names(tools)):
        return row
    left = f"{before}." if is_glaive else _without_passage(first["content"])
    changes.append(
        Change(
            "calls", "messages 1", *excerpts(first["content"], f"{left} ‹and tools {_names(tools)}›".lstrip())
        )
    )
    others = row["messages"][1:]
    messages = [{**first, "content": left}, *others] if left else others
    return {**row, "messages": messages, "tools": row.get("tools", tools)}


def _tools(block: str) -> list[dict[str, Any]] | None:
    """Return the tools of a list, of one object, or of an object in each line or paragraph; None if they are
    something else.
    """
    for words in ([block], block.splitlines(), block.split("\n\n")):
        try:
            values = [value_of(line.strip()) for line in words if line.strip()]
            tools: list[Any] = []
            for value in values:
                tools += value if isinstance(value, list) else [value]
            return read_tools(tools)
        except ValueError:  # A `BadRow` is one too.
            continue
    return None


def _names(tools: Sequence[dict[str, Any]]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def _without_passage(text: str) -> str:
    """Return the text without the lines that name the tags or are between two of them."""
    ends = {closing: text.rfind(closing) for closing in ("</tools>", "</tool_call>")}
    kept = []
    inside = ""
    place = 0
    for line in text.splitlines(keepends=True):
        place += len(line)
        tags = ABOUT_CALLS.findall(line)
        if not tags and not inside:
            kept.append(line)
        for tag in tags:
            closing = tag.replace("<", "</")
            inside = closing if not tag.startswith("</") else ""
        # A tag that is only mentioned opens nothing.
        if inside and ends[inside] < place:
            inside = ""
    return QWEN_HEADING.sub("", "".join(kept)).strip()

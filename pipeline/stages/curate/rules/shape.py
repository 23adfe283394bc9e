"""Rules for the form of a row: composed Unicode, reasoning in its own field, and turns in the order that a
chat template expects.

Reasoning inside the answer, `<think>…</think>` at its beginning, moves to the field that templates read. So
does all text before a single `</think>`, because many templates write the opening tag themselves, so that
logs do not have it. This applies only to a base whose tokenizer has these tokens: there they would be control
tokens inside text, and its template writes them itself around `reasoning_content`. For other bases they are
plain text and stay.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from pipeline.chat.rows import ANSWERED, SIDES, TURN_LISTS, BadRow, Row, edit_texts
from pipeline.core.text import plural
from pipeline.stages.curate.rules.changes import Change, Changes, Rule, excerpts
from pipeline.stages.curate.rules.references import edit_references
from pipeline.stages.curate.rules.results import check_results, sort_results

MOST_MARKS = 64  # Unicode's own limit for text streams is 30 (UAX #15, Stream-Safe Text Format).
OPENING, CLOSING = "<think>", "</think>"
THOUGHT = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
ENDED_THOUGHT = re.compile(r"(.*?)(?<![`'\"])</think>(?![`'\"])\s*", re.DOTALL)  # In quotes it is a word.
MARKS_BY_PARTS = "\u0f73\u0f75\u0f81"  # characters of class 0 that are composed of marks
Turn = dict[str, Any]
Turns = list[Turn]
Followers = Mapping[str, tuple[str, ...]]

# Followers of each kind of turn. A "call" is an assistant's turn with `tool_calls`. An error names the last
# of them.
FOLLOWERS = {
    "start": ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user",),
    "call": ("tool",),
    "tool": ("tool", "assistant"),
}
# Followers that are also allowed if the base's template shows them: a greeting before the user's first turn,
# and the user after a tool's result. A system turn may precede whatever is due.
LOOSE_FOLLOWERS = FOLLOWERS | {
    "start": ("system", "assistant", "user"),
    "system": ("assistant", "user"),
    "greeting": ("user",),
    "tool": ("tool", "user", "assistant"),
}
SAID = ("assistant", "call")  # last turns of a conversation to learn from
ASKED = ("user", "tool")  # last turns of a prompt


def normalize(row: Row, changes: Changes) -> Row:
    """Return the row with every text in Unicode's composed form (NFC).

    Raises `BadRow` if that makes two keys of an object equal, and if a character has `MOST_MARKS` marks or
    more: Python sorts a run of marks in quadratic time.
    """

    def compose(place: str, text: str) -> str:
        if text.isascii():
            return text
        if has_endless_marks(text):
            raise BadRow(
                "endless_marks", f"{place} has {MOST_MARKS} or more combining marks on one character"
            )
        if unicodedata.is_normalized("NFC", text):
            return text
        composed = unicodedata.normalize("NFC", text)
        changes.append(Change("normalize", place, *excerpts(text, composed)))
        return composed

    return edit_texts(row, compose)


def has_endless_marks(text: str) -> bool:
    """Return True if `MOST_MARKS` combining marks follow each other.

    Such a run covers a multiple of that number.
    """
    for hit in range(0, len(text), MOST_MARKS):
        if not _is_mark(text[hit]):
            continue
        first = hit
        end = hit + 1
        while first > 0 and end - first < MOST_MARKS and _is_mark(text[first - 1]):
            first -= 1
        while end < len(text) and end - first < MOST_MARKS and _is_mark(text[end]):
            end += 1
        if end - first >= MOST_MARKS:
            return True
    return False


def _is_mark(character: str) -> bool:
    return unicodedata.combining(character) > 0 or character in MARKS_BY_PARTS


def reasoning(added_tokens: Iterable[str]) -> Rule | None:
    """Return the rule for a tokenizer with these added tokens; None if it has no `<think>`."""
    return move_reasoning if {OPENING, CLOSING} <= set(added_tokens) else None


def move_reasoning(row: Row, changes: Changes) -> Row:
    """Return the row with each assistant turn's thoughts in its `reasoning_content`, without their tags.

    The thoughts of answers that are only compared with are removed.
    """
    moved = row
    for field in TURN_LISTS:
        for number, turn in enumerate(row.get(field, ()), start=1):
            if turn["role"] != "assistant":
                continue
            new = _with_reasoning_apart(turn)
            if new is turn:
                continue
            moved = {**moved, field: [*moved[field][: number - 1], new, *moved[field][number:]]}
            if new["content"] != turn["content"]:
                place = f"{field} {number}"
                before, after = turn["content"], new["content"]
            else:
                place = f"{field} {number} reasoning_content"
                before, after = turn["reasoning_content"], new.get("reasoning_content", "")
            changes.append(Change("reasoning", place, *excerpts(before, after)))
    return edit_references(moved, _without_thought, "reasoning", changes)


def _without_thought(answer: str) -> str:
    """Return the answer after its thought, or the entire answer if there is no other text."""
    thought = _thought(answer)
    return answer if thought is None else answer[thought.end() :] or answer


def _with_reasoning_apart(turn: Turn) -> Turn:
    """Return the turn with its thought apart, or the turn itself if nothing is to be done. A second thought
    stays in the text, unless it is the same.
    """
    reasoning = turn.get("reasoning_content")
    stated = _without_tags(reasoning) if reasoning else ""
    new = turn
    if reasoning and stated != reasoning:
        new = {key: turn[key] for key in turn if key != "reasoning_content"}
        # Templates write an empty thought if there is none.
        new |= {"reasoning_content": stated} if stated else {}
    thought = _thought(turn["content"])
    if thought is None or (stated and thought[1].strip() != stated):
        return new
    stated = thought[1].strip()
    new = {**new, "content": turn["content"][thought.end() :]}
    return new | ({"reasoning_content": stated} if stated else {})


def _thought(content: str) -> re.Match[str] | None:
    """Return the thought at the beginning of an answer. Its opening tag may be missing."""
    if CLOSING not in content:
        return None
    if OPENING in content or content.count(CLOSING) > 1:
        return THOUGHT.match(content)
    return ENDED_THOUGHT.match(content)


def _without_tags(reasoning: str) -> str:
    """Return a thought without the tags around it."""
    if not reasoning.lstrip().startswith(OPENING) and not reasoning.rstrip().endswith(CLOSING):
        return reasoning
    return reasoning.strip().removeprefix(OPENING).removesuffix(CLOSING).strip()


def turns(mode: Literal["repair", "reject"], is_shown: Callable[[Row], bool] | None = None) -> Rule:
    """Return the rule that brings turns into the order of `check_turns` after the repairs of `repair_turns`.

    With `repair`, turns in one of the orders of `LOOSE_FOLLOWERS` stay as well if `is_shown` returns True:
    the base's template shows them.
    """

    def rule(row: Row, changes: Changes) -> Row:
        try:
            check_turns(row)
            return row
        except BadRow:
            if mode == "reject":
                raise
        row = repair_turns(row, changes)
        try:
            check_turns(row)
            return row
        except BadRow as why:
            if why.code != "bad_order" or is_shown is None:
                raise
            row = _without_greeting(row, changes)
            check_turns(row, LOOSE_FOLLOWERS)
            if not is_shown(row):
                raise BadRow("bad_order", f"{why}, and the base's chat template doesn't show it so") from None
        return row

    return rule


def check_turns(row: Row, followers: Followers = FOLLOWERS) -> None:
    """Raise `BadRow` unless the turns are in order and each of them has content.

    The order is: at most one system turn, first; then user and assistant in turn; after an assistant's
    `tool_calls` one or more tool turns in the order of the calls, then the assistant. A chat ends with the
    assistant, a prompt with the user (or a tool), and an answer of a preference continues its prompt as in a
    chat. By then, rules may have made two answers of a preference the same.
    """
    if row["kind"] == "text":
        _check_segments(row["segments"])
    elif row["kind"] in ANSWERED:
        _check_answer(row["messages"], "messages", "start", followers)
    else:
        last = _walk(row["messages"], "messages", "start", followers)
        if last not in ASKED:
            raise BadRow("bad_order", "the last turn of the prompt is neither the user's nor a tool's")
        for field in filter(row.__contains__, SIDES):
            _check_answer(row[field], field, last, followers)
        if row["kind"] == "preference" and row["chosen"] == row["rejected"]:
            raise BadRow("no_preference", "chosen and rejected are the same")


def _check_answer(turns: Turns, field: str, before: str, followers: Followers) -> None:
    answers = [turn for turn in turns if turn["role"] == "assistant"]
    if not answers:
        raise BadRow("no_assistant", f"{field} has no assistant's turn")
    if _walk(turns, field, before, followers) not in SAID:
        raise BadRow("bad_order", f"the last turn of {field} is not the assistant's")
    if not any(turn.get("train", True) for turn in answers):
        raise BadRow("nothing_to_train", f"every assistant's turn of {field} is kept out of training")


def _walk(turns: Turns, field: str, state: str, followers: Followers) -> str:
    """Return the state (a key of `followers`) at the end of a walk along the turns. Raises `BadRow`."""
    has_results = False
    for number, turn in enumerate(turns, start=1):
        role = turn["role"]
        has_results = has_results or role == "tool"
        if role == "system" and followers is LOOSE_FOLLOWERS and _may_stand(turns, number, state):
            continue  # The expected follower stays the same.
        if role not in followers[state]:
            raise BadRow("bad_order", f"{field} {number} is {role}, where {followers[state][-1]} is due")
        calls = role == "assistant" and bool(turn.get("tool_calls"))
        if not calls and role in ("user", "assistant") and not turn["content"].strip():
            raise BadRow("empty_turn", f"{field} {number} ({role}) is empty")
        if role == "assistant" and state in ("start", "system"):
            state = "greeting"
            if calls:
                raise BadRow("bad_order", f"{field} {number} calls a tool before a user's turn")
        else:
            state = "call" if calls else role
    if state == "greeting":
        raise BadRow("bad_order", f"{field} has no user's turn")
    if has_results:
        check_results(turns, field)
    return state


def _may_stand(turns: Turns, number: int, state: str) -> bool:
    """Return True if the system turn of this number is in the middle, but not between call and result."""
    return state not in ("start", "call") and number < len(turns)


def _without_greeting(row: Row, changes: Changes) -> Row:
    """Return the row with an answer before the user's first turn kept out of training."""
    messages = row["messages"]
    place = next((place for place, turn in enumerate(messages) if turn["role"] != "system"), 0)
    greeting = messages[place]
    if row["kind"] not in ANSWERED or greeting["role"] != "assistant" or not greeting.get("train", True):
        return row
    changes.append(Change("turns", f"messages {place + 1}", *excerpts("", "‹a greeting: read, not trained›")))
    kept = [*messages[:place], {**greeting, "train": False}, *messages[place + 1 :]]
    return {**row, "messages": kept}


def _check_segments(segments: list[dict[str, Any]]) -> None:
    if not any(segment["text"].strip() for segment in segments):
        raise BadRow("empty_turn", "no segment holds any text")
    if not any(segment["train"] and segment["text"] for segment in segments):
        raise BadRow("nothing_to_train", "every segment is kept out of training")


def repair_turns(row: Row, changes: Changes) -> Row:
    """Return the row without the turns after its last answer, with the results of tools in the order of their
    calls, and with neighboring turns of one side joined by an empty line.

    Nothing is added. All that is joined, moved or dropped is noted in `changes`, by its place in the original
    row.
    """
    answers = ("messages",) if row["kind"] in ANSWERED else SIDES
    repaired = dict(row)
    for field in filter(row.__contains__, TURN_LISTS):
        kept = _drop_tail(row[field], field, changes) if field in answers else row[field]
        repaired[field] = _join_neighbors(sort_results(kept, field, changes), field, changes)
    return repaired


def _drop_tail(turns: Turns, field: str, changes: Changes) -> Turns:
    """Return the turns up to the last one with text or calls of the assistant; all if there is none."""
    end = next(
        (
            i
            for i in range(len(turns), 0, -1)
            if turns[i - 1]["role"] == "assistant" and _text_of(turns[i - 1]).strip()
        ),
        len(turns),
    )
    for number, turn in enumerate(turns[end:], start=end + 1):
        changes.append(Change("turns", f"{field} {number}", *excerpts(_text_of(turn), "")))
    return turns[:end]


def _join_neighbors(turns: Turns, field: str, changes: Changes) -> Turns:
    """Return the turns with each run of one side's joined.

    A run gives one note, at the place of its first turn.
    """
    runs: list[tuple[int, Turns]] = []
    for number, turn in enumerate(turns, start=1):
        if runs and _is_joined(runs[-1][1][-1], turn):
            runs[-1][1].append(turn)
        else:
            runs.append((number, [turn]))
    joined: Turns = []
    for number, run in runs:
        first, *others = run
        if others:
            together = "\n\n".join(filter(str.strip, (turn["content"] for turn in run)))
            calls = [call for turn in run for call in turn.get("tool_calls", ())]
            new = {**first, "content": together} | ({"tool_calls": calls} if calls else {})
            before, after = excerpts(_text_of(first), _text_of(new) if len(run) < len(calls) else together)
            before += f" ‹and {plural(len(others), 'more turn')}›"
            changes.append(Change("turns", f"{field} {number}", before, after))
            first = new
        joined.append(first)
    return joined


def _is_joined(turn: Turn, follower: Turn) -> bool:
    """Return True if two neighboring turns are one: they differ only in their text or calls.

    A tool's turn is joined to no other, and a call only to text or calls before it: the order in an answer is
    reasoning, text, calls.
    """
    if turn["role"] == "tool" or follower.get("reasoning_content") or _rest(turn) != _rest(follower):
        return False
    if not follower.get("tool_calls"):
        return not turn.get("tool_calls") and not turn.get("reasoning_content")
    return not turn.get("tool_calls") or not follower["content"].strip()


def _rest(turn: Turn) -> Turn:
    """Return the keys that neighboring turns must have in common: all but their text or calls."""
    return {
        key: value for key, value in turn.items() if key not in ("content", "tool_calls", "reasoning_content")
    }


def _text_of(turn: Turn) -> str:
    """Return the content of a turn: its text, or its calls."""
    calls = turn.get("tool_calls")
    return str(turn["content"]) or (json.dumps(calls, ensure_ascii=False) if calls else "")

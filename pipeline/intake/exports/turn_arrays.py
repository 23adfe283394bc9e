"""Files that are one array of turns, which is one conversation: `api_conversation_history.json` of Cline and
Roo Code, and the messages that other programs save after sending them.

Cline 3 and Roo Code 3 (2025-01 to 2026-10) store the messages of Anthropic's API there, with `ts` and, in Roo
Code, `isSummary` (cline/cline `src/core/storage/disk.ts`, RooCodeInc/Roo-Code `src/core/task-persistence`).
Tool calls that are XML inside the text, as these programs require, stay so. `tool_use` blocks become calls.
"""

from collections.abc import Iterable, Iterator

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.blocks import add_answer, add_results, blocks_of, text_of
from pipeline.intake.exports.export import Conversation, Export, Head, Notes, Record
from pipeline.intake.exports.view import View
from pipeline.intake.wire.draft import Draft, settled
from pipeline.intake.wire.items import reasoning_of_item

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
# Keys of turns that belong to one of several conversations.
SEVERAL = (
    *("chat_id", "conversation_id", "dialogue_id", "session_id", "thread_id"),
    *("chatId", "conversationId", "dialogueId", "sessionId", "threadId"),
)


def is_head(head: Head) -> bool:
    """Return True if an array begins with a turn and its first elements are mostly turns of one chat."""
    are_turns = [_is_turn(View(value)) for value in head.values]
    is_array = head.layout == "array" and bool(are_turns) and are_turns[0]
    return is_array and 2 * sum(are_turns) > len(are_turns) and all(map(_is_alone, head.objects()))


def _is_turn(value: View) -> bool:
    return value.get("role") in ROLES


def _is_alone(value: View) -> bool:
    of_rows = ("messages", "conversations", "prompt", "completion", "chosen", "rejected")
    return value.keys().isdisjoint((*SEVERAL, *of_rows))


def read(records: Iterable[Record], notes: Notes) -> Iterator[Conversation]:
    """Yield one row, and another for the turns after each of Roo Code's summaries."""
    turns: list[View] = []
    begin: tuple[int, int | None] = (1, 0)
    for record in records:
        try:
            turn = _checked(record)
        except BadLine as why:
            yield Conversation(record.number, record.offset, why)
            continue
        if turn.get("isSummary") is True:
            notes["compactions"] += 1
            yield from _rows(turns, begin, notes)
            turns = []
        if not turns:
            begin = (record.number, record.offset)
        turns.append(turn)
    yield from _rows(turns, begin, notes)


def _checked(record: Record) -> View:
    """Return a turn. Raises `BadLine` for any other value."""
    turn = record.view()
    if not _is_turn(turn):
        why = f"not a turn: in an array of turns each has a role of {', '.join(ROLES)}"
        raise BadLine("bad_role", why)
    return turn


# All keys of Cline's and Roo Code's turns. In an array with others each turn is read as in a row of messages.
CLINE = frozenset(
    (
        *("role", "content", "ts", "id", "type", "text", "summary", "encrypted_content", "reasoning_content"),
        *("isSummary", "condenseId", "condenseParent", "truncationId", "truncationParent"),
        *("isTruncationMarker", "modelInfo", "metrics"),
    )
)


def _rows(turns: list[View], begin: tuple[int, int | None], notes: Notes) -> Iterator[Conversation]:
    if not all(CLINE.issuperset(turn) and turn["role"] in ("user", "assistant") for turn in turns):
        yield Conversation(*begin, {"messages": turns})
        return
    draft = Draft()
    try:
        for turn in turns:
            _add(draft, turn, notes)
    except BadLine as why:
        yield Conversation(*begin, why)
        return
    kept = settled(draft.turns, notes)
    if kept:
        yield Conversation(*begin, {"messages": kept})


def _add(draft: Draft, turn: View, notes: Notes) -> None:
    """Add a turn. Raises `BadLine` for a result that is nested too deep."""
    blocks = blocks_of(turn.get("content"))
    if turn["role"] == "user" or turn.get("isSummary") is True:
        rest = add_results(draft, blocks, notes)
        draft.say("user", text_of(rest, notes))
    elif turn.get("type") == "reasoning":  # a turn of its own in Roo Code
        draft.answer(reasoning=reasoning_of_item(turn) or turn.label("text"))
    else:
        if turn.has("reasoning_content", str):
            draft.answer(reasoning=turn["reasoning_content"])
        add_answer(draft, blocks, notes)


EXPORT = Export("turn_array", is_head, read)

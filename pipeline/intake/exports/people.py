"""Chats between people, and with bots: their division into conversations, and the choice of the assistant.

A bot is the assistant, anybody else is the user. `curate.fields` can name others who answer (`roles`), by the
`author` of each turn. Apart from that, names are not kept: neighboring messages of one side are joined.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pipeline.intake.exports.export import Conversation, Notes
from pipeline.intake.wire.draft import Turn

SILENCE = 6 * 3600  # seconds after which a direct conversation ends
BREATH = 300  # seconds within which a message continues its author's message before
FEW = 2  # people of a direct conversation


class Message(NamedTuple):
    """Message of a person or a bot."""

    place: str  # id of the message
    number: int  # number of the record
    author: str
    is_bot: bool
    words: str
    time: float = 0.0  # seconds
    follows: str | None = None  # message or thread that it answers


def turn_of(message: Message) -> Turn:
    """Return a message as a turn."""
    role = "assistant" if message.is_bot else "user"
    return {"role": role, "content": message.words, "author": message.author}


def row_of(messages: Sequence[Message]) -> dict[str, Any]:
    """Return messages as a row."""
    return {"messages": [turn_of(message) for message in messages]}


def conversation_of(messages: Sequence[Message]) -> Conversation:
    """Return messages as a row, which begins at the record of the first."""
    return Conversation(messages[0].number, None, row_of(messages))


def is_direct(messages: Sequence[Message]) -> bool:
    """Return True if so few people write that there is one conversation at a time."""
    return len({message.author for message in messages}) <= FEW


def direct_conversations(messages: Sequence[Message], notes: Notes) -> Iterator[list[Message]]:
    """Yield the messages between two long silences."""
    current: list[Message] = []
    for message in messages:
        if current and message.time - current[-1].time > SILENCE:
            yield from spoken(current, notes)
            current = []
        current.append(message)
    yield from spoken(current, notes)


def reply_chains(messages: Sequence[Message], notes: Notes) -> Iterator[list[Message]]:
    """Yield each chain of replies, from its first message to one that nobody answers."""
    known = {message.place: message for message in messages}
    answered: set[str] = set()
    parents: dict[str, str] = {}
    before: Message | None = None
    for message in messages:
        follows = message.follows
        if follows is not None and follows not in known:
            notes["replies_to_missing"] += 1
            follows = None
        elif follows is None and before is not None and _goes_on(before, message):
            follows = before.place
        if follows is not None and follows != message.place:
            parents[message.place] = follows
            answered.add(follows)
        before = message
    for message in messages:
        if message.place not in answered:
            yield from spoken(_chain(message.place, parents, known), notes)


def _goes_on(before: Message, message: Message) -> bool:
    return before.author == message.author and 0 <= message.time - before.time <= BREATH


def _chain(place: str, parents: dict[str, str], known: dict[str, Message]) -> list[Message]:
    chain: dict[str, Message] = {}
    here: str | None = place
    while here is not None and here not in chain:
        chain[here] = known[here]
        here = parents.get(here)
    return [*reversed(chain.values())]


def spoken(messages: list[Message], notes: Notes) -> Iterator[list[Message]]:
    """Yield the messages if more than one person speaks; otherwise count them."""
    if len({message.author for message in messages}) > 1:
        yield messages
    else:
        notes["messages_without_answer"] += len(messages)


def seconds(stamp: Any) -> float:
    """Return the seconds of an ISO time; 0 for any other value."""
    try:
        return datetime.fromisoformat(str(stamp)).timestamp()
    except (ValueError, OverflowError):
        return 0.0

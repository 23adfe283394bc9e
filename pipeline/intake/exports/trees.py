"""Conversations that are trees: an edited question or another answer begins a branch.

The branch that was current becomes the conversation. Two answers to one turn become a preference if one has a
thumb up and the other a thumb down. Other branches are counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.export import Notes, conversation_rows
from pipeline.intake.exports.view import View
from pipeline.intake.wire.draft import Turn

NO_THUMBS: Mapping[str, bool] = {}


@dataclass(frozen=True)
class Tree:
    """Messages by their ids, and the id of the message that each follows."""

    messages: Mapping[str, View]
    parents: Mapping[str, str | None]

    def branch(self, leaf: str) -> list[str]:
        """Return the ids from the root to `leaf`. Raises `BadLine` if they form a circle."""
        ids: dict[str, None] = {}
        place: str | None = leaf
        while place is not None and place in self.messages:
            if place in ids:
                raise BadLine("bad_shape", "the messages of the conversation follow each other in a circle")
            ids[place] = None
            place = self.parents.get(place)
        return [*reversed(ids)]

    def of(self, places: Sequence[str]) -> list[View]:
        """Return the messages with these ids."""
        return [self.messages[place] for place in places]

    def leaves(self) -> list[str]:
        """Return the ids of the messages that none follows."""
        followed = set(self.parents.values())
        return [place for place in self.messages if place not in followed]


def parents_of(messages: Mapping[str, View], key: str) -> dict[str, str | None]:
    """Return the id of the message that each follows, from its key `key`; None for a value that is
    not an id.
    """
    return {place: message.text_or_none(key) for place, message in messages.items()}


@dataclass(frozen=True)
class Reader:
    """Functions that read a program's messages: a branch as turns, and True for a message of the user."""

    turns: Callable[[Iterable[View], Notes], list[Turn]]
    is_user: Callable[[View], bool]


def by_message(
    turns_of: Callable[[View, Notes], list[Turn]], is_user: Callable[[View], bool], system: str = ""
) -> Reader:
    """Return the reader of messages that are read one by one, below a system text if there is one."""

    def turns(branch: Iterable[View], notes: Notes) -> list[Turn]:
        leading: list[Turn] = [{"role": "system", "content": system}] if system else []
        return [*leading, *(turn for message in branch for turn in turns_of(message, notes))]

    return Reader(turns, is_user)


def thumbs_of(messages: Mapping[str, View], thumb: Callable[[View], bool | None]) -> dict[str, bool]:
    """Return the ids of the messages that have a thumb, and True for a thumb up."""
    thumbs = {place: thumb(message) for place, message in messages.items()}
    return {place: up for place, up in thumbs.items() if up is not None}


def tree_rows(
    tree: Tree, leaf: str, reader: Reader, notes: Notes, thumbs: Mapping[str, bool] = NO_THUMBS
) -> Iterator[dict[str, Any]]:
    """Yield the current branch's conversation, and preferences of rated answers."""
    current = tree.branch(leaf)
    others = [place for place in tree.leaves() if place != leaf]
    notes["branches_not_current"] += len(others)
    yield from conversation_rows(reader.turns(tree.of(current), notes), notes)
    rated = {place: up for place, up in thumbs.items() if place in tree.messages}
    if rated:
        yield from _preferences(tree, rated, reader, notes)


def _preferences(
    tree: Tree, rated: Mapping[str, bool], reader: Reader, notes: Notes
) -> Iterator[dict[str, Any]]:
    """Yield a preference for each thumb up next to a thumb down after the same turn of the user."""
    ups: dict[str, list[list[str]]] = {}
    downs: dict[str, list[list[str]]] = {}
    for place, up in rated.items():
        branch = tree.branch(place)
        asked = next((asking for asking in reversed(branch) if reader.is_user(tree.messages[asking])), None)
        if asked is None or asked == place:
            notes["thumbs_without_pair"] += 1
            continue
        (ups if up else downs).setdefault(asked, []).append(branch)
    for asked in {**ups, **downs}:
        better, worse = ups.get(asked, []), downs.get(asked, [])
        pairs = min(len(better), len(worse))
        notes["thumbs_without_pair"] += len(better) + len(worse) - 2 * pairs
        for chosen, rejected in zip(better, worse, strict=False):
            notes["thumbs_paired"] += 1
            yield _preference(tree, chosen, rejected, asked, reader)


def _preference(
    tree: Tree, chosen: Sequence[str], rejected: Sequence[str], asked: str, reader: Reader
) -> dict[str, Any]:
    unreported = Counter[str]()  # dropped, because omissions are counted only for the current branch
    prompt = reader.turns(tree.of(chosen[: chosen.index(asked) + 1]), unreported)
    sides = []
    for branch in (chosen, rejected):
        turns = reader.turns(tree.of(branch), unreported)
        sides.append([_trained(turn) for turn in turns[len(prompt) :]])
    return {"prompt": prompt, "chosen": sides[0], "rejected": sides[1]}


def _trained(turn: Turn) -> Turn:
    return {key: value for key, value in turn.items() if key != "train"}

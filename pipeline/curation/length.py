"""The token budget: what is longer is split between exchanges, or rejected; nothing is ever cut in silence."""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pipeline.curation.changes import Change, Changes, excerpts
from pipeline.curation.token_count import TokenCounter
from pipeline.rows import BadRow, Row, row_id

Turns = list[dict[str, Any]]


class Length:
    """The rule: `max_tokens` of the tokenizer and template in `tokenizer_folder`; without a folder everything passes."""

    def __init__(self, tokenizer_folder: Path | None, max_tokens: int, mode: Literal["split", "reject"]) -> None:
        self.folder, self.max_tokens, self.mode = tokenizer_folder, max_tokens, mode

    @cached_property
    def counter(self) -> TokenCounter:
        """Loaded with the first row: 0.2 s and 40 MB (measured)."""
        assert self.folder is not None
        return TokenCounter(self.folder)

    def parts(self, row: Row, changes: Changes) -> list[Row]:
        """The row itself where it fits, else its parts, all within the budget; their sources end in `#1`, `#2` …

        A chat is split in front of a user's turn only. Each part starts with the chat's system turn and takes as many
        whole exchanges as fit; so what is asked and answered stays together, but a part doesn't see the parts before it.
        An exchange that is too long by itself, or a part in which nothing is trained, is left out and goes to `changes`.
        Raises `BadRow` (`over_budget`) where no part is left, where `mode` is reject, and for all rows that only make
        sense as a whole: preferences, feedback, prompts, chats with a reward, text.
        """
        if self.folder is None:
            return [row]
        bound = self.counter.bound(row)
        if bound is not None and bound <= self.max_tokens:
            return [row]
        tokens = self.counter.count_row(row)
        if tokens <= self.max_tokens:
            return [row]
        if self.mode == "reject" or row["kind"] != "chat" or "reward" in row:
            raise BadRow("over_budget", f"{tokens:,} tokens, the budget is {self.max_tokens:,}")
        return self._split(row, tokens, changes)

    def _split(self, row: Row, tokens: int, changes: Changes) -> list[Row]:
        system, exchanges = exchanges_of(row["messages"])

        def turns_of(first: int, end: int) -> Turns:
            return [turn for exchange in exchanges[first:end] for turn in exchange]

        def size(first: int, end: int) -> int:
            return self.counter.count_row(row | {"messages": system + turns_of(first, end)})

        parts: list[Row] = []
        sizes: list[str] = []
        for first, end, fits in spans(len(exchanges), size, self.max_tokens):
            turns = turns_of(first, end)
            if fits and any(turn["role"] == "assistant" and turn.get("train", True) for turn in turns):
                parts.append(row | {"source": f"{row['source']}#{len(parts) + 1}", "messages": system + turns})
                sizes.append(f"{size(first, end):,}")
                continue
            start = len(system) + len(turns_of(0, first)) + 1
            text = "\n".join(turn["content"] for turn in turns)
            changes.append(Change("length", f"messages {start} to {start + len(turns) - 1}", *excerpts(text, "")))
        if not parts:
            raise BadRow("over_budget", f"{tokens:,} tokens in {_exchanges(len(exchanges))}, none of which fits the budget of {self.max_tokens:,}")
        changes.append(Change("length", "messages", f"{tokens:,} tokens in {_exchanges(len(exchanges))}", f"in parts of {', '.join(sizes)} tokens"))
        return [part | {"id": row_id(part)} if "id" in row else part for part in parts]


def spans(exchanges: int, size: Callable[[int, int], int], most: int) -> Iterator[tuple[int, int, bool]]:
    """(first, one past the last, whether it fits) of neighbouring exchanges, each as long as `size` stays within `most` tokens.

    An exchange that doesn't fit comes alone. `size` is dear, so where to look is guessed from the sizes of single exchanges.
    """
    alone = [size(i, i + 1) for i in range(exchanges)]
    shared = alone[0] + alone[1] - size(0, 2) if exchanges > 1 else 0  # what each part has once: the system turn
    first = 0
    while first < exchanges:
        end, guess = first + 1, alone[first]
        while end < exchanges and guess + alone[end] - shared <= most:
            guess += alone[end] - shared
            end += 1
        while end > first + 1 and size(first, end) > most:
            end -= 1
        while alone[first] <= most and end < exchanges and size(first, end + 1) <= most:
            end += 1
        yield first, end, alone[first] <= most
        first = end


def exchanges_of(messages: Turns) -> tuple[Turns, list[Turns]]:
    """The leading system turns, and the rest cut in front of each user's turn that follows another side's."""
    start = next((i for i, turn in enumerate(messages) if turn["role"] != "system"), len(messages))
    exchanges: list[Turns] = []
    for before, turn in zip([None, *messages[start:]], messages[start:], strict=False):
        if before is None or (turn["role"] == "user" and before["role"] != "user"):
            exchanges.append([])
        exchanges[-1].append(turn)
    return messages[:start], exchanges


def _exchanges(number: int) -> str:
    return "one exchange" if number == 1 else f"{number:,} exchanges"

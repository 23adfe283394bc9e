"""The token budget: what is longer is split between exchanges, or rejected; nothing is ever cut in
silence.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from pipeline.chat.rows import BadRow, Row, row_id
from pipeline.core.jsonl import dump_line
from pipeline.core.wording import plural
from pipeline.stages.curate.rules.changes import Change, Changes, excerpts
from pipeline.stages.curate.rules.text_parts import CHARACTERS_PER_TOKEN, Unbreakable, farthest, text_parts
from pipeline.stages.curate.rules.token_count import MOST_DEAR, TokenCounter

Turns = list[dict[str, Any]]

EXACT = 4  # a row of more than so many budgets is not counted to its end
MOST_TURNS = 20_000  # of a row that is split
MOST_PARTS = 2000  # of one row, with those that are lost
LISTED = 20  # parts whose sizes are told
MARKUP = 24  # characters that a template adds to a turn, about
# what splitting may cost, in characters counted: for a row of ordinary turns three quarters of it are enough
WORK, WORK_PER_CHARACTER = 1 << 20, 4
REPEATED = 1 << 16  # characters of system turns and tools that parts may repeat, above their own length


class Length:
    """The rule: `max_tokens` of the tokenizer and template in `tokenizer_folder`; without a folder everything
    passes.
    """

    def __init__(
        self, tokenizer_folder: Path | None, max_tokens: int, mode: Literal["split", "reject"]
    ) -> None:
        self.folder, self.max_tokens, self.mode = tokenizer_folder, max_tokens, mode

    @cached_property
    def counter(self) -> TokenCounter:
        """Loaded with the first row: 0.2 s and 40 MB (measured)."""
        assert self.folder is not None
        return TokenCounter(self.folder)

    def parts(self, row: Row, changes: Changes) -> list[Row]:
        """The row itself where it fits, else its parts, all within the budget; their sources end in `#1`,
        `#2` …

        A chat is split in front of a user's turn only. Each part starts with the chat's system turn and takes
        as many whole exchanges as fit; so what is asked and answered stays together, but a part doesn't see
        the parts before it. An exchange that is too long by itself, or a part in which nothing is trained, is
        left out and goes to `changes`. A text is split where `text_parts` says; of its parts only the last
        one ends in an end of text that is learned. Raises `BadRow` (`over_budget`) if no part is left, if a
        text has a stretch that can't be cut, if `mode` is reject, and for all rows that only make sense as a
        whole: preferences, feedback, prompts, chats with a reward, text in several segments. Also where
        counting or splitting would take seconds (`MOST_DEAR`, `MOST_TURNS`, `MOST_PARTS`, `WORK`) or would
        mainly repeat the system turn (`REPEATED`).
        """
        if self.folder is None:
            return [row]
        if self.mode == "split" and len(row.get("segments", ())) == 1:
            return self._text_parts(row, changes)
        # a turn has at least one token, so there is no need to count
        many = len(row["messages"]) > self.max_tokens
        if not many:
            bound = self.counter.bound(row, self.max_tokens)
            if bound is not None and bound <= self.max_tokens:
                return [row]
        splits = self.mode == "split" and row["kind"] == "chat" and "reward" not in row
        described = f"more than {self.max_tokens:,} tokens"
        if not many:
            tokens = self._count(row, splits)
            if tokens <= self.max_tokens:
                return [row]
            described = f"{tokens:,} tokens" if tokens <= EXACT * self.max_tokens else described
        elif splits:
            self._check_cost([" ".join(map(_text_of, row["messages"]))])
        if not splits:
            raise BadRow("over_budget", f"{described}, the budget is {self.max_tokens:,}")
        return self._split(row, described, changes)

    def _count(self, row: Row, splits: bool) -> int:
        """The row's tokens; above `EXACT` times the budget just some number there. Raises `BadRow` if
        counting would take seconds.
        """
        texts = self.counter.rendered(row)
        most = EXACT * self.max_tokens
        least = max(map(self.counter.at_least, texts), default=0)
        if least > most and not splits:
            return least
        self._check_cost(texts)
        return self.counter.count_row(row, most)

    def _check_cost(self, texts: list[str]) -> None:
        if sum(map(self.counter.dear, texts)) > MOST_DEAR:
            raise BadRow("over_budget", "too many different words, or too long ones, to count its tokens")

    def _text_parts(self, row: Row, changes: Changes) -> list[Row]:
        text, most, count = row["segments"][0]["text"], self.max_tokens, self.counter
        if (
            count.at_least(text) <= most
            and count.dear(text) <= MOST_DEAR
            and count.count_row(row, most) <= most
        ):
            return [row]
        described, work = plural(len(text), "character"), WORK + WORK_PER_CHARACTER * len(text)

        def part(start: int, end: int) -> Row:
            segments = [row["segments"][0] | {"text": text[start:end]}]
            # without an end of text, which the tokenizer puts behind a last segment that is trained
            return row | {
                "segments": segments if end == len(text) else [*segments, {"text": "", "train": False}]
            }

        def size(start: int, end: int) -> int:
            nonlocal work
            work -= end - start
            if work < 0:
                raise BadRow("over_budget", f"{described}: too much work to split")
            return count.count_row(part(start, end), most)

        parts: list[Row] = []
        sizes: list[int] = []
        try:
            for start, end, tokens in text_parts(text, size, most):
                parts.append(part(start, end) | {"source": f"{row['source']}#{len(parts) + 1}"})
                sizes.append(tokens)
                if len(parts) > MOST_PARTS:
                    raise BadRow(
                        "over_budget",
                        f"{described}: too long to split, it would come in more than "
                        f"{plural(MOST_PARTS, 'part')}",
                    )
        except Unbreakable as stretch:
            where = (
                f"the stretch from character {stretch.place + 1:,} on has no place to cut within the "
                f"budget of {plural(most, 'token')}"
            )
            raise BadRow("over_budget", f"{described}: {where}") from None
        if len(parts) == 1:
            return [row]
        changes.append(Change("length", "segments 1", described, f"in parts of {_listed(sizes)} tokens"))
        return [part | {"id": row_id(part)} if "id" in row else part for part in parts]

    def _split(self, row: Row, described: str, changes: Changes) -> list[Row]:
        system, exchanges = exchanges_of(row["messages"])
        described = f"{described} in {plural(len(exchanges), 'exchange')}"
        if len(row["messages"]) > MOST_TURNS:
            raise BadRow("over_budget", f"{described}: too long to split, {MOST_TURNS:,} turns are the most")
        starts = [*accumulate(map(len, exchanges), initial=len(system))]  # in the row's messages
        weights = [*accumulate((sum(map(_weight, exchange)) for exchange in exchanges), initial=0)]
        repeated = sum(map(_weight, system)) + len(dump_line({"tools": row.get("tools")}))
        work = WORK + WORK_PER_CHARACTER * (weights[-1] + repeated)

        def turns_of(first: int, end: int) -> Turns:
            turns: Turns = row["messages"][starts[first] : starts[end]]
            return turns

        def size(first: int, end: int) -> int:
            nonlocal work
            work -= repeated + weights[end] - weights[first]
            if work < 0:
                raise BadRow("over_budget", f"{described}: too much work to split")
            return self.counter.count_row(row | {"messages": system + turns_of(first, end)}, self.max_tokens)

        if sum(self.counter.count(turn["content"], self.max_tokens) for turn in system) >= self.max_tokens:
            raise BadRow(
                "over_budget",
                f"{described}, none of which fits the budget of {self.max_tokens:,} behind the system turn",
            )
        parts: list[Row] = []
        sizes: list[int] = []
        for number, (first, end, tokens) in enumerate(spans(weights, size, self.max_tokens)):
            if number >= MOST_PARTS:
                raise BadRow(
                    "over_budget",
                    f"{described}: too long to split, it would come in more than {MOST_PARTS:,} parts",
                )
            turns = turns_of(first, end)
            if tokens <= self.max_tokens and any(
                turn["role"] == "assistant" and turn.get("train", True) for turn in turns
            ):
                parts.append(
                    row | {"source": f"{row['source']}#{len(parts) + 1}", "messages": system + turns}
                )
                sizes.append(tokens)
                if repeated * len(parts) > REPEATED + weights[-1]:
                    raise BadRow(
                        "over_budget",
                        f"{described}: the parts would hold more of the repeated system turn and tools than "
                        "of the conversation",
                    )
                continue
            text = "\n".join(turn["content"] for turn in turns)
            changes.append(
                Change("length", f"messages {starts[first] + 1} to {starts[end]}", *excerpts(text, ""))
            )
        if not parts:
            raise BadRow("over_budget", f"{described}, none of which fits the budget of {self.max_tokens:,}")
        changes.append(Change("length", "messages", described, f"in parts of {_listed(sizes)} tokens"))
        return [part | {"id": row_id(part)} if "id" in row else part for part in parts]


def spans(
    weights: Sequence[int], size: Callable[[int, int], int], most: int
) -> Iterator[tuple[int, int, int]]:
    """(first, one past the last, tokens) of neighboring exchanges, in each as many as `size` finds within
    `most` tokens.

    An exchange that doesn't fit comes alone. `weights`: their running sum, one more than there are exchanges
    (see `farthest`).
    """
    exchanges, first, rate = len(weights) - 1, 0, CHARACTERS_PER_TOKEN
    while first < exchanges:
        end, tokens, rate = farthest(weights, size, most, first, rate, enough=math.inf)
        yield first, max(end, first + 1), tokens if end > first else most + 1
        first = max(end, first + 1)


def exchanges_of(messages: Turns) -> tuple[Turns, list[Turns]]:
    """The leading system turns, and the rest cut in front of each user's turn that follows another side's."""
    start = next((i for i, turn in enumerate(messages) if turn["role"] != "system"), len(messages))
    exchanges: list[Turns] = []
    for before, turn in zip([None, *messages[start:]], messages[start:], strict=False):
        if before is None or (turn["role"] == "user" and before["role"] != "user"):
            exchanges.append([])
        exchanges[-1].append(turn)
    return messages[:start], exchanges


def _text_of(turn: dict[str, Any]) -> str:
    """All that a template may show of a turn."""
    content: str = turn["content"]
    if len(turn) == 2:
        return content
    calls = dump_line({"": turn["tool_calls"]}).decode() if "tool_calls" in turn else ""
    return f"{content} {turn.get('reasoning_content', '')} {calls}"


def _weight(turn: dict[str, Any]) -> int:
    """What a turn costs, in characters."""
    return len(_text_of(turn)) + MARKUP


def _listed(sizes: list[int]) -> str:
    more = f" … {sizes[-1]:,} ({len(sizes):,} of them)" if len(sizes) > LISTED else ""
    return ", ".join(f"{size:,}" for size in sizes[:LISTED]) + more

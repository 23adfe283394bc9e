"""Truncation of rows over the token budget until they fit (`curate.overlong: truncate`).

Whole exchanges are removed first, the oldest first. If the newest one is too long by itself, its long texts
are cut, all to the same length. Text that is only read loses its beginning. An answer or a text loses the end
that `curate.cut` sets. System turns, tools, calls, reasoning and the answer that a checker expects stay
whole.
"""

import math
import re
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from pipeline.chat.rows import SIDES, BadRow, Row, completed
from pipeline.core.text import plural
from pipeline.intake.rows.text_calls import MARKS
from pipeline.stages.curate.rules.changes import Change, Changes, excerpts
from pipeline.stages.curate.rules.exchanges import exchanges_of, weight_of
from pipeline.stages.curate.rules.text_parts import (
    CHARACTERS_PER_TOKEN,
    SLOWER,
    farthest,
    kept_beginning,
    kept_end,
)
from pipeline.stages.curate.rules.token_counter import MOST_COST, TokenCounter

End = Literal["end", "beginning"]

LEAST = 32  # characters that are left of a text that is cut, at least
FULL = 0.95  # share of the budget; a row of this size is not cut less
TRIES = 12  # lengths that are tried once texts end between words
# Half a call or half a thought would teach the model to write one.
WHOLE = re.compile("|".join(map(re.escape, (*MARKS, "<think>", "</think>"))))


class Pieces(NamedTuple):
    """Turns or segments of a row. The first `head` always stay; after them exchanges begin at `starts`."""

    field: Literal["messages", "segments"]
    head: int
    starts: list[int]
    weights: list[int]  # characters of each exchange


class Text(NamedTuple):
    """A text that may be cut: its turn or segment, and the end of it that is removed."""

    field: str
    number: int  # index from 0
    key: Literal["content", "text"]
    text: str
    cut: End


class Truncated(NamedTuple):
    """A row that fits, and the counts of what was removed."""

    row: Row
    exchanges: int  # exchanges that were removed
    texts: int  # texts that were cut


class Truncation:
    """Truncation of rows to `max_tokens` by this counter. `cut` is the end that an answer or a text loses."""

    def __init__(self, counter: TokenCounter, max_tokens: int, cut: End) -> None:
        self.counter = counter
        self.max_tokens = max_tokens
        self.cut = cut

    def fits(self, row: Row) -> bool:
        """Return True if the row is within the budget. Raises `BadRow` as the template does."""
        # A turn has at least one token.
        return len(row["messages"]) <= self.max_tokens and self.tokens(row) <= self.max_tokens

    def tokens(self, row: Row) -> int:
        """Return the row's tokens as stage preprocess limits them, or some number above the budget.

        For a pair both answers count with their prompts, for a prompt the expected answer counts too.
        """
        texts = self._rendered(row)
        if sum(map(self.counter.at_least, texts)) > self.max_tokens:
            return self.max_tokens + 1
        if sum(map(self.counter.counting_cost, texts)) > MOST_COST:  # The row is far longer than any budget.
            return self.max_tokens + 1
        if row["kind"] == "text":
            return self.counter.count_row(row, self.max_tokens)
        return sum(self.counter.count(text, self.max_tokens) for text in texts)

    def _rendered(self, row: Row) -> list[str]:
        if row["kind"] == "prompt":
            return [self.counter.template.render(completed(row), row.get("tools"))]
        return self.counter.template.rendered(row)

    def truncated(self, row: Row, changes: Changes) -> Truncated:
        """Return the row within the budget, with every cut noted in `changes`.

        Raises `BadRow` (`over_budget`) if no part of it that can be trained fits, and `no_preference` if both
        answers are the same once they are cut.
        """
        pieces = pieces_of(row)
        total = len(pieces.starts)
        kept = self._newest(row, pieces)
        start = pieces.starts[total - max(kept, 1)] if total else pieces.head
        fitting = row | {pieces.field: row[pieces.field][: pieces.head] + row[pieces.field][start:]}
        if not is_trained(fitting):
            raise BadRow(
                "over_budget", f"the newest of its {plural(total, 'exchange')} that fit train nothing"
            )
        went = start - pieces.head
        if went:
            turns = row[pieces.field][pieces.head : start]
            text = "\n".join(turn.get("content", turn.get("text")) for turn in turns)
            place = f"{pieces.field} {pieces.head + 1} to {start}"
            changes.append(Change("length", place, *excerpts(text, "")))
        texts = 0
        if not kept:
            fitting, texts = self._shortened(fitting, pieces.head, went, changes)
        if all(side in fitting for side in SIDES) and _turns(fitting, "chosen") == _turns(
            fitting, "rejected"
        ):
            raise BadRow("no_preference", "both answers are the same once they are cut to fit")
        described = f"{plural(sum(pieces.weights), 'character')} in {plural(total, 'exchange')}"
        after = f"{plural(self.tokens(fitting), 'token')} in {plural(max(kept, 1), 'exchange')}"
        changes.append(Change("length", pieces.field, described, after))
        return Truncated(fitting, total - max(kept, 1) if total else 0, texts)

    def _newest(self, row: Row, pieces: Pieces) -> int:
        """Return the number of newest exchanges that fit together."""
        newest_first = [*accumulate(reversed(pieces.weights), initial=0)]

        def size(_: int, count: int) -> int:
            start = pieces.starts[-count]
            kept = row[pieces.field][: pieces.head] + row[pieces.field][start:]
            if len(kept) > self.max_tokens:  # A turn has at least one token.
                return self.max_tokens + 1
            return self.tokens(row | {pieces.field: kept})

        fits, _, _ = farthest(newest_first, size, self.max_tokens, 0, CHARACTERS_PER_TOKEN, enough=math.inf)
        return fits

    def _shortened(self, row: Row, head: int, went: int, changes: Changes) -> tuple[Row, int]:
        """Return the row with its long texts cut to one length, and the number of cut texts. `went` turns
        were before it.
        """
        texts = list(self._texts(row, head))
        longest = max((len(text.text) for text in texts), default=0)
        too_long = f"the newest exchange is longer than the budget of {self.max_tokens:,} tokens"
        if len(row["messages"]) > self.max_tokens or longest <= LEAST:
            raise BadRow("over_budget", f"{too_long}, and no text in it can be cut")
        if self.tokens(self._replaced(row, texts, LEAST, _sliced)) > self.max_tokens:
            raise BadRow(
                "over_budget",
                f"{too_long}, however short its texts are: what stays whole (system turn, tools, calls, "
                "reasoning, an expected answer) leaves no room",
            )

        def size(_: int, limit: int) -> int:
            return self.tokens(self._replaced(row, texts, limit, _sliced))

        limit, _, _ = farthest(
            range(longest + 1),
            size,
            self.max_tokens,
            0,
            CHARACTERS_PER_TOKEN,
            enough=FULL * self.max_tokens,
        )
        for _ in range(TRIES):
            limit = max(limit, LEAST)
            shorter = self._replaced(row, texts, limit, self._neat)
            if self.tokens(shorter) <= self.max_tokens:
                break
            limit = int(limit * SLOWER)
        else:
            raise BadRow("over_budget", f"{too_long}, and its texts have no place to cut within it")
        cut = 0
        for text in texts:
            after = shorter[text.field][text.number][text.key]
            if after == text.text:
                continue
            if not after.strip():
                raise BadRow("over_budget", f"{too_long}, and a text has no place to cut within it")
            number = text.number + 1
            if text.field in ("messages", "segments") and text.number >= head:
                number += went
            changes.append(Change("length", f"{text.field} {number}", *excerpts(text.text, after)))
            cut += 1
        return shorter, cut

    def _texts(self, row: Row, head: int) -> Iterator[Text]:
        """Yield the texts that may be cut, in the row's order."""
        for number, segment in enumerate(row.get("segments", ())):
            yield Text(
                "segments", number, "text", segment["text"], self.cut if segment["train"] else "beginning"
            )
        judged = ("messages",) if row["kind"] in ("chat", "feedback") else SIDES
        for field in ("messages", *SIDES):
            for number, turn in enumerate(row.get(field, ())):
                if turn["role"] == "system" or "tool_calls" in turn or WHOLE.search(turn["content"]):
                    continue
                if field == "messages" and number < head:
                    continue
                is_answer = turn["role"] == "assistant" and turn.get("train", True) and field in judged
                yield Text(field, number, "content", turn["content"], self.cut if is_answer else "beginning")

    def _replaced(self, row: Row, texts: list[Text], limit: int, shorten: Callable[[Text, int], str]) -> Row:
        """Return the row with texts longer than `limit` characters shortened to it."""
        changed: Row = {field: list(row[field]) for field in {text.field for text in texts}}
        for text in texts:
            if len(text.text) <= limit:
                continue
            item: dict[str, Any] = {**changed[text.field][text.number], text.key: shorten(text, limit)}
            changed[text.field][text.number] = item | ({"cut": text.cut} if text.key == "content" else {})
        last = texts[-1]
        is_cut_off = last.field == "segments" and last.cut == "end" and len(last.text) > limit
        if is_cut_off and last.number + 1 == len(row["segments"]):
            # The empty segment prevents an end of text, which the tokenizer puts after a last segment that is
            # trained.
            changed["segments"].append({"text": "", "train": False})
        return row | changed

    def _neat(self, text: Text, limit: int) -> str:
        """Return the text in at most `limit` characters, cut as a reader would cut it."""
        shorten = kept_beginning if text.cut == "end" else kept_end
        kept = shorten(text.text, limit, self.counter.marks)
        return kept.strip() if text.key == "content" else kept


def _sliced(text: Text, limit: int) -> str:
    return text.text[:limit] if text.cut == "end" else text.text[-limit:]


def _turns(row: Row, side: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in turn.items() if key != "cut"} for turn in row[side]]


def pieces_of(row: Row) -> Pieces:
    """Return the row's exchanges. In a text each exchange ends after a segment that is trained."""
    if row["kind"] == "text":
        return _pieces_of_segments(row["segments"])
    system, exchanges = exchanges_of(row["messages"])
    starts = [*accumulate(map(len, exchanges), initial=len(system))][:-1]
    return Pieces("messages", len(system), starts, [sum(map(weight_of, turns)) for turns in exchanges])


def _pieces_of_segments(segments: list[dict[str, Any]]) -> Pieces:
    trained = [number for number, segment in enumerate(segments) if segment["train"]]
    starts = [0, *(number + 1 for number in trained[:-1])]
    ends = [*starts[1:], len(segments)]
    weights = [
        sum(len(segment["text"]) for segment in segments[start:end])
        for start, end in zip(starts, ends, strict=True)
    ]
    return Pieces("segments", 0, starts, weights)


def is_trained(row: Row) -> bool:
    """Return True if some method may learn something from the row."""
    if row["kind"] == "text":
        return any(segment["train"] and segment["text"] for segment in row["segments"])
    answers = [turn for turn in row["messages"] if turn["role"] == "assistant"]
    if row["kind"] == "chat":
        return any(turn.get("train", True) for turn in answers)
    return bool(answers) or row["kind"] != "feedback"

"""The token budget: longer rows are split between exchanges, cut or rejected. Nothing is lost silently."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Literal

from pipeline.chat.rows import OTHERS, BadRow, Row, is_one_text, row_id
from pipeline.core.jsonl import dump_line
from pipeline.core.text import plural
from pipeline.stages.curate.rules.changes import Change, Changes, excerpts
from pipeline.stages.curate.rules.exchanges import exchanges_of, text_of, weight_of
from pipeline.stages.curate.rules.text_parts import Size, Span, Unbreakable, spans, text_parts
from pipeline.stages.curate.rules.token_counter import MOST_COST, TokenCounter
from pipeline.stages.curate.rules.truncation import End, Truncation

EXACT = 4  # Counting stops at this multiple of the budget.
MOST_TURNS = 20_000  # turns of a row that is split
MOST_PARTS = 2000  # parts of one row, including those that are lost
LISTED = 20  # parts whose sizes are listed
# Limit of the work of splitting, in characters counted: a constant, and a multiple of the row's characters.
# A row of ordinary turns needs three quarters of it.
WORK = 1 << 20
WORK_PER_CHARACTER = 4
REPEATED = 1 << 16  # characters of system turns and tools that parts may repeat, above their own length
CUT = "#cut"  # suffix of the source of a row of which something was cut off


class Length:
    """Rule that limits rows to `max_tokens`, by the files in `tokenizer_folder`.

    Without a folder all rows pass. `cut` is the end that answers and texts lose if `mode` is truncate.
    """

    def __init__(
        self,
        tokenizer_folder: Path | None,
        max_tokens: int,
        mode: Literal["split", "truncate", "reject"],
        cut: End = "end",
    ) -> None:
        self.folder = tokenizer_folder
        self.max_tokens = max_tokens
        self.mode = mode
        self.cut = cut
        self.counts = Counter[str]()

    @cached_property
    def counter(self) -> TokenCounter:
        """Return the token counter. It is loaded with the first row: 0.2 s and 40 MB (measured)."""
        assert self.folder is not None
        return TokenCounter(self.folder)

    @cached_property
    def truncation(self) -> Truncation:
        """Return the object that cuts rows if `mode` is truncate."""
        return Truncation(self.counter, self.max_tokens, self.cut)

    def take_counts(self) -> Counter[str]:
        """Return counts since the last call: `split`, `truncated` rows, `exchanges_left_out`, `texts_cut`."""
        counts = self.counts
        self.counts = Counter()
        return counts

    def parts(self, row: Row, changes: Changes) -> list[Row]:
        """Return the row itself if it fits, otherwise its parts, all within the budget. Their sources end in
        `#1`, `#2` …

        A chat is split only in front of a user's turn. Each part starts with the chat's system turn and
        contains as many exchanges as fit. So a question stays with its answer, but a part doesn't see the
        parts before it. An exchange that is too long by itself, or a part in which nothing is trained, is
        left out, counted, and written to `changes`. A text is split at the places that `text_parts` gives;
        only the last of its parts ends in an end of text that is learned. If `mode` is truncate, each row
        gives one row (`pipeline.stages.curate.rules.truncation`), with `#cut` after its source.

        Raises `BadRow` (`over_budget`) if no part is left, if a text has a stretch that can't be cut, or if
        `mode` is reject. It is also raised, unless `mode` is truncate, for all rows that only make sense as a
        whole: preferences, feedback, prompts, chats with a reward or several accepted answers, text in
        several segments. And it is raised if counting or splitting would take seconds (`MOST_COST`,
        `MOST_TURNS`, `MOST_PARTS`, `WORK`) or would mainly repeat the system turn (`REPEATED`).
        """
        if self.folder is None:
            return [row]
        if self.mode == "truncate":
            return [self._truncated(row, changes)]
        if self.mode == "split" and is_one_text(row):
            return self._text_parts(row, changes)
        splits = self.mode == "split" and row["kind"] == "chat" and not {"reward", OTHERS} & row.keys()
        described = f"more than {self.max_tokens:,} tokens"
        if len(row["messages"]) <= self.max_tokens:
            if self._is_short(row):
                return [row]
            tokens = self._count(row, splits)
            if tokens <= self.max_tokens:
                return [row]
            if tokens <= EXACT * self.max_tokens:
                described = f"{tokens:,} tokens"
        elif splits:  # Counting is not needed: a turn has at least one token.
            self._check_cost([" ".join(map(text_of, row["messages"]))])
        if not splits:
            raise BadRow("over_budget", f"{described}, the budget is {self.max_tokens:,}")
        return self._split(row, described, changes)

    def _truncated(self, row: Row, changes: Changes) -> Row:
        has_room = len(row["messages"]) <= self.max_tokens  # A turn has at least one token.
        if (has_room and self._is_short(row)) or self.truncation.fits(row):
            return row
        done = self.truncation.truncated(row, changes)
        self.counts.update(truncated=1, exchanges_left_out=done.exchanges, texts_cut=done.texts)
        marked = done.row | {"source": row["source"] + CUT}
        return marked | {"id": row_id(marked)} if "id" in row else marked

    def _is_short(self, row: Row) -> bool:
        """Return True if the row is certain to fit, at a hundredth of the cost of counting."""
        bound = self.counter.bound(row, self.max_tokens)
        return bound is not None and bound <= self.max_tokens

    def _count(self, row: Row, splits: bool) -> int:
        """Return the row's tokens, or some larger number above `EXACT` times the budget. Raises `BadRow`."""
        texts = self.counter.template.rendered(row)
        most = EXACT * self.max_tokens
        least = max(map(self.counter.at_least, texts), default=0)
        if least > most and not splits:
            return least
        self._check_cost(texts)
        return self.counter.count_row(row, most)

    def _check_cost(self, texts: list[str]) -> None:
        if sum(map(self.counter.counting_cost, texts)) > MOST_COST:
            raise BadRow("over_budget", "too many different words, or too long ones, to count its tokens")

    def _text_parts(self, row: Row, changes: Changes) -> list[Row]:
        text = row["segments"][0]["text"]
        most = self.max_tokens
        count = self.counter
        if (
            count.at_least(text) <= most
            and count.counting_cost(text) <= MOST_COST
            and count.count_row(row, most) <= most
        ):
            return [row]
        described = plural(len(text), "character")

        def part(start: int, end: int) -> Row:
            segments = [row["segments"][0] | {"text": text[start:end]}]
            # An empty segment prevents an end of text, which the tokenizer puts after a trained last segment.
            goes_on = end < len(text) or len(row["segments"]) > 1
            return row | {"segments": [*segments, {"text": "", "train": False}] if goes_on else segments}

        size = self._limited_size(part, lambda start, end: end - start, len(text), described)
        try:
            parts = [
                (part(start, end), tokens)
                for start, end, tokens in _not_too_many(text_parts(text, size, most), described)
            ]
        except Unbreakable as stretch:
            where = (
                f"the stretch from character {stretch.place + 1:,} on has no place to cut within the "
                f"budget of {plural(most, 'token')}"
            )
            raise BadRow("over_budget", f"{described}: {where}") from None
        if len(parts) == 1:
            return [row]
        self.counts["split"] += 1
        return _numbered(row, parts, "segments 1", described, changes)

    def _split(self, row: Row, described: str, changes: Changes) -> list[Row]:
        system, exchanges = exchanges_of(row["messages"])
        described = f"{described} in {plural(len(exchanges), 'exchange')}"
        none_fits = f"{described}, none of which fits the budget of {self.max_tokens:,}"
        if len(row["messages"]) > MOST_TURNS:
            raise BadRow("over_budget", f"{described}: too long to split, {MOST_TURNS:,} turns are the most")
        if sum(self.counter.count(turn["content"], self.max_tokens) for turn in system) >= self.max_tokens:
            raise BadRow("over_budget", f"{none_fits} after the system turn")
        starts = [*accumulate(map(len, exchanges), initial=len(system))]  # indices in the row's messages
        weights = [*accumulate((sum(map(weight_of, exchange)) for exchange in exchanges), initial=0)]
        repeated = sum(map(weight_of, system)) + len(dump_line({"tools": row.get("tools")}))

        def part(first: int, end: int) -> Row:
            return row | {"messages": system + row["messages"][starts[first] : starts[end]]}

        def weight(first: int, end: int) -> int:
            return repeated + weights[end] - weights[first]

        size = self._limited_size(part, weight, weight(0, len(exchanges)), described)
        parts: list[tuple[Row, int]] = []
        left_out = 0
        for first, end, tokens in _not_too_many(spans(weights, size, self.max_tokens), described):
            turns = row["messages"][starts[first] : starts[end]]
            if tokens > self.max_tokens or not any(
                turn["role"] == "assistant" and turn.get("train", True) for turn in turns
            ):
                text = "\n".join(turn["content"] for turn in turns)
                place = f"messages {starts[first] + 1} to {starts[end]}"
                changes.append(Change("length", place, *excerpts(text, "")))
                left_out += end - first
                continue
            parts.append((part(first, end), tokens))
            if repeated * len(parts) > REPEATED + weights[-1]:
                raise BadRow(
                    "over_budget",
                    f"{described}: the parts would hold more of the repeated system turn and tools than "
                    "of the conversation",
                )
        if not parts:
            raise BadRow("over_budget", none_fits)
        self.counts.update(split=1, exchanges_left_out=left_out)
        return _numbered(row, parts, "messages", described, changes)

    def _limited_size(
        self, part: Callable[[int, int], Row], weight: Callable[[int, int], int], total: int, described: str
    ) -> Size:
        """Return a function that counts a part's tokens. It raises `BadRow` once parts weigh far more than
        `total`, the weight of the row.
        """
        left = WORK + WORK_PER_CHARACTER * total

        def size(first: int, end: int) -> int:
            nonlocal left
            left -= weight(first, end)
            if left < 0:
                raise BadRow("over_budget", f"{described}: too much work to split")
            return self.counter.count_row(part(first, end), self.max_tokens)

        return size


def _not_too_many(spans: Iterable[Span], described: str) -> Iterator[Span]:
    """Yield the spans. Raises `BadRow` if there are more than `MOST_PARTS`."""
    for number, span in enumerate(spans):
        if number >= MOST_PARTS:
            raise BadRow(
                "over_budget",
                f"{described}: too long to split, it would come in more than {MOST_PARTS:,} parts",
            )
        yield span


def _numbered(
    row: Row, parts: list[tuple[Row, int]], place: str, described: str, changes: Changes
) -> list[Row]:
    """Return the parts (each with its tokens) with sources and ids of their own, and note the change."""
    sizes = [f"{tokens:,}" for _, tokens in parts]
    more = f" … {sizes[-1]} ({len(sizes):,} of them)" if len(sizes) > LISTED else ""
    after = f"in parts of {', '.join(sizes[:LISTED])}{more} tokens"
    changes.append(Change("length", place, described, after))
    named = [part | {"source": f"{row['source']}#{i}"} for i, (part, _) in enumerate(parts, start=1)]
    return [part | {"id": row_id(part)} if "id" in row else part for part in named]

"""The token budget: what is longer is split between exchanges, or rejected; nothing is ever cut in
silence. Tokens are counted exactly, or shown to be few without counting.
"""

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, chain, product
from pathlib import Path
from typing import Any, Literal

from pipeline.chat.rows import BadRow, Message, Row, row_id
from pipeline.chat.tokens import plain_tokenizer
from pipeline.core.errors import DataError, QuenchError
from pipeline.core.jsonl import dump_line
from pipeline.core.text import plural
from pipeline.stages.curate.rules.changes import Change, Changes, excerpts
from pipeline.stages.curate.rules.shape import has_endless_marks
from pipeline.stages.curate.rules.template import ChatTemplate
from pipeline.stages.curate.rules.text_parts import (
    CHARACTERS_PER_TOKEN,
    Size,
    Span,
    Unbreakable,
    farthest,
    text_parts,
)

EXACT = 4  # a row of more than so many budgets is not counted to its end
MOST_TURNS = 20_000  # of a row that is split
MOST_PARTS = 2000  # of one row, with those that are lost
LISTED = 20  # parts whose sizes are listed
# what splitting may cost, in characters counted: for a row of ordinary turns three quarters of it are enough
WORK, WORK_PER_CHARACTER = 1 << 20, 4
REPEATED = 1 << 16  # characters of system turns and tools that parts may repeat, above their own length
Turns = list[Message]

MARKUP = 24  # characters that a template adds to a turn, about
Shape = tuple[tuple[str, str], ...]  # roles, each with a letter where the turn says something

LONE_SPACE = re.compile(r" (?<=\S )(?=\S)")  # what is looked for first is a character: the fastest way
NFC_GROWTH = 3  # NFC makes no text longer than this in UTF-8 bytes (unicode.org/faq/normalization.html)
NFC_SHRINKS = 4  # so many characters can become one (Greek letters with three marks)
# words whose tokens are remembered, and their length together
CACHED_WORDS, CACHED_CHARACTERS = 1 << 17, 1 << 20
# units of what counting a row may cost, and what a word costs above its characters
MOST_DEAR, NEW_WORD = 1 << 19, 4
# turns of the longest order of roles that is remembered, and how many are
CACHED_SHAPE, CACHED_SHAPES = 64, 1 << 13
STRETCH = 4096  # words between two looks at whether it is enough
# one of each kind of character that the rules before merging treat differently
KINDS = "aBéжß東ا9½_-'’\"()<>|#$&+.,!?:;@/\\~*{}[]=🙂\u0301\u200d£\ufe0f"


class TokenCounter:
    """The tokenizer and the template of a Hugging Face folder. Raises `DataError` if they can't be read."""

    def __init__(self, folder: Path) -> None:
        try:
            self.tokenizer = plain_tokenizer(folder)
            self.template = ChatTemplate(folder)
        except QuenchError:  # there is no chat template
            raise
        except Exception as error:  # tokenizers raises bare Exception on a broken file
            why = " ".join(str(error).split())[:200]
            raise DataError(
                "Q-CURATE-004",
                f"{folder}: its tokenizer or chat template can't be read ({why}): run `python -m pipeline "
                "base` again",
            ) from error
        self.added = list(self.tokenizer.get_added_tokens_decoder().values())
        longest_first = sorted((token.content for token in self.added), key=len, reverse=True)
        # what is cut out first, one token each
        self.marks = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self.normalized = _state(self.tokenizer.normalizer).get("type")
        self.bounded = self._is_bounded()
        self.words = (
            [_Words(before, self.count_by_tokenizer) for before in ("", " ")]
            if self._cuts_at_spaces()
            else None
        )
        self.longest = self._longest()
        self.overhead = lru_cache(CACHED_SHAPES)(self._overhead)

    def count(self, text: str, most: int | None = None) -> int:
        """The number of tokens; of a text with more than `most`, some number above it, at less cost."""
        if most is not None and (least := self.at_least(text)) > most:
            return least
        if self.words is None:
            return self.count_by_tokenizer(text)
        # words repeat, and looking them up is many times faster than merging them again
        sections = self.marks.split(text)
        tokens = len(sections) - 1
        for section in filter(None, sections):
            words = LONE_SPACE.split(section)
            tokens += self.words[0][words[0]]
            for start in range(1, len(words), STRETCH):
                tokens += sum(map(self.words[1].__getitem__, words[start : start + STRETCH]))
                if most is not None and tokens > most:
                    return tokens
        return tokens

    def at_least(self, text: str) -> int:
        """A number of tokens that the text can't go below, by its length alone; 0 where none is known."""
        if self.longest is None:
            return 0
        shrinks = NFC_SHRINKS if self.normalized and not text.isascii() else 1
        return len(text) // (self.longest * shrinks)

    def dear(self, text: str) -> int:
        """What counting costs, in microseconds, about: one for each character, but `NEW_WORD` more and only
        once for each word; two for each character where words are no short cut.

        Not above `MOST_DEAR` means: a second at most.
        """
        if self.words is None:
            return 2 * len(text)
        if (1 + NEW_WORD) * len(text) <= MOST_DEAR:
            return len(text)
        words = set(chain.from_iterable(map(LONE_SPACE.split, self.marks.split(text))))
        return sum(map(len, words)) + NEW_WORD * len(words)

    def count_by_tokenizer(self, text: str) -> int:
        """The number of tokens, by the tokenizer alone."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def count_row(self, row: Row, most: int | None = None) -> int:
        """Tokens of the row as it is trained; of a preference, those of the prompt with its longer answer.

        With `most`, as in `count`. Raises `BadRow` as the template does.
        """
        if row["kind"] == "text":
            return self._count_segments(row["segments"], most) if row["segments"] else 0
        return max(self.count(text, most) for text in self.rendered(row))

    def rendered(self, row: Row) -> list[str]:
        """The texts a row is trained as: one, of a preference two, of segments each. Raises `BadRow`."""
        messages, tools = row["messages"], row.get("tools")
        if row["kind"] == "text":
            return [segment["text"] for segment in row["segments"]]
        if row["kind"] == "preference":
            return [self.template.render(messages + row[side], tools) for side in ("chosen", "rejected")]
        return [self.template.render(messages, tools, prompt=row["kind"] == "prompt")]

    def _count_segments(self, segments: list[dict[str, Any]], most: int | None) -> int:
        """One by one, with a beginning and an end of text where the text has none, as
        `pipeline.chat.tokens.encode_segments` makes them.
        """
        bos, eos = (self.template.special.get(f"{end}_token", "") for end in ("bos", "eos"))
        begins = (
            bool(bos)
            and self.tokenizer.encode("").tokens[:1] == [bos]
            and not segments[0]["text"].startswith(bos)
        )
        ends = bool(segments[-1]["train"]) and not segments[-1]["text"].endswith(eos or "\0")
        tokens = begins + ends
        for segment in segments:
            tokens += self.count(segment["text"], most)
            if most is not None and tokens > most:
                break
        return tokens

    def bound(self, row: Row, most: float = math.inf) -> int | None:
        """A number of tokens that a plain chat can't exceed, at a hundredth of the cost of counting.

        None if there is no such short cut, or where the texts alone go over `most`.

        A byte-level tokenizer makes at most one token of a byte; what the template adds is measured for each
        order of roles, blank turns apart: a template can put its own words where a system turn says nothing.
        Raises `BadRow` as the template does.
        """
        if not self.bounded or "tools" in row or row["kind"] not in ("chat", "feedback"):
            return None
        shape, size = [], 0
        for turn in row["messages"]:
            text = turn["content"]
            if len(turn) > 2 and turn.keys() - {"role", "content", "train"}:
                return None
            shape.append((turn["role"], "x" if text.strip() else ""))
            size += len(text) if text.isascii() else self._bytes(text)
        if size > most:
            return None
        overhead = self.overhead if len(shape) <= CACHED_SHAPE else self._overhead
        return size + overhead(tuple(shape))

    def _overhead(self, shape: Shape) -> int:
        """The most tokens that the template can add: one for each added token, else one for each byte."""
        rendered = self.template.render([{"role": role, "content": content} for role, content in shape])
        markup, marks = self.marks.subn("", rendered)
        return marks + len(markup.encode())

    def _bytes(self, text: str) -> int:
        grows = self.normalized is not None and (
            has_endless_marks(text) or not unicodedata.is_normalized("NFC", text)
        )
        return len(text.encode()) * (NFC_GROWTH if grows else 1)

    def _is_bounded(self) -> bool:
        """Whether no byte can become two tokens: byte-level BPE on text that is at most normalized to NFC."""
        from tokenizers.models import BPE

        byte_level = any(
            step.get("type") == "ByteLevel" and not step["add_prefix_space"] for step in self._steps()
        )
        return isinstance(self.tokenizer.model, BPE) and byte_level and self.normalized in (None, "NFC")

    def _steps(self) -> list[dict[str, Any]]:
        """The steps of the pre-tokenizer."""
        before = _state(self.tokenizer.pre_tokenizer)
        return list(before.get("pretokenizers", [before]))

    def _longest(self) -> int | None:
        """The most characters that one token can stand for; None if that is not known."""
        from tokenizers.pre_tokenizers import ByteLevel

        words = self.tokenizer.get_vocab()
        keeps = all(
            step.get("type") in ("ByteLevel", "Digits") or step.get("behavior", "Removed") != "Removed"
            for step in self._steps()
        )
        if not self.bounded or not keeps or any(token.lstrip or token.rstrip for token in self.added):
            return None
        return max(map(len, words)) if words.keys() >= set(ByteLevel.alphabet()) else None

    def _cuts_at_spaces(self) -> bool:
        """Whether a space between other characters always starts a piece, so that pieces add up."""
        if not self.bounded or any(
            token.lstrip
            or token.rstrip
            or token.single_word
            or token.content == " "
            or " " in token.content.strip()
            for token in self.added
        ):
            return False
        cut = self.tokenizer.pre_tokenizer.pre_tokenize_str
        pairs = map(" ".join, product(KINDS, KINDS))
        return all(any(start == 1 for _, (start, _) in cut(pair)) for pair in pairs)


class _Words(dict[str, int]):
    """Tokens of each word behind `before`, counted once."""

    def __init__(self, before: str, count: Callable[[str], int]) -> None:
        self.before, self.count, self.characters = before, count, 0

    def __missing__(self, word: str) -> int:
        if len(self) >= CACHED_WORDS or self.characters >= CACHED_CHARACTERS:
            self.clear()
            self.characters = 0
        self.characters += len(word)
        self[word] = tokens = self.count(self.before + word)
        return tokens


def _state(part: Any) -> dict[str, Any]:
    """A normalizer or pre-tokenizer as `tokenizer.json` describes it; empty if there is none."""
    return dict(json.loads(part.__getstate__())) if part is not None else {}


class Length:
    """The rule: `max_tokens` by the files in `tokenizer_folder`; without a folder everything passes."""

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
        as many exchanges as fit; so what is asked and answered stays together, but a part doesn't see
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
        splits = self.mode == "split" and row["kind"] == "chat" and "reward" not in row
        described = f"more than {self.max_tokens:,} tokens"
        if len(row["messages"]) <= self.max_tokens:
            bound = self.counter.bound(row, self.max_tokens)
            if bound is not None and bound <= self.max_tokens:
                return [row]
            tokens = self._count(row, splits)
            if tokens <= self.max_tokens:
                return [row]
            if tokens <= EXACT * self.max_tokens:
                described = f"{tokens:,} tokens"
        elif splits:  # there is no need to count: a turn has at least one token
            self._check_cost([" ".join(map(text_of, row["messages"]))])
        if not splits:
            raise BadRow("over_budget", f"{described}, the budget is {self.max_tokens:,}")
        return self._split(row, described, changes)

    def _count(self, row: Row, splits: bool) -> int:
        """The row's tokens; above `EXACT` times the budget some number there. Raises `BadRow`."""
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
        described = plural(len(text), "character")

        def part(start: int, end: int) -> Row:
            segments = [row["segments"][0] | {"text": text[start:end]}]
            # without an end of text, which the tokenizer puts behind a last segment that is trained
            return row | {
                "segments": segments if end == len(text) else [*segments, {"text": "", "train": False}]
            }

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
        return [row] if len(parts) == 1 else _numbered(row, parts, "segments 1", described, changes)

    def _split(self, row: Row, described: str, changes: Changes) -> list[Row]:
        system, exchanges = exchanges_of(row["messages"])
        described = f"{described} in {plural(len(exchanges), 'exchange')}"
        none_fits = f"{described}, none of which fits the budget of {self.max_tokens:,}"
        if len(row["messages"]) > MOST_TURNS:
            raise BadRow("over_budget", f"{described}: too long to split, {MOST_TURNS:,} turns are the most")
        if sum(self.counter.count(turn["content"], self.max_tokens) for turn in system) >= self.max_tokens:
            raise BadRow("over_budget", f"{none_fits} behind the system turn")
        starts = [*accumulate(map(len, exchanges), initial=len(system))]  # in the row's messages
        weights = [*accumulate((sum(map(weight_of, exchange)) for exchange in exchanges), initial=0)]
        repeated = sum(map(weight_of, system)) + len(dump_line({"tools": row.get("tools")}))

        def part(first: int, end: int) -> Row:
            return row | {"messages": system + row["messages"][starts[first] : starts[end]]}

        def weight(first: int, end: int) -> int:
            return repeated + weights[end] - weights[first]

        size = self._limited_size(part, weight, weight(0, len(exchanges)), described)
        parts: list[tuple[Row, int]] = []
        for first, end, tokens in _not_too_many(spans(weights, size, self.max_tokens), described):
            turns = row["messages"][starts[first] : starts[end]]
            if tokens > self.max_tokens or not any(
                turn["role"] == "assistant" and turn.get("train", True) for turn in turns
            ):
                text = "\n".join(turn["content"] for turn in turns)
                place = f"messages {starts[first] + 1} to {starts[end]}"
                changes.append(Change("length", place, *excerpts(text, "")))
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
        return _numbered(row, parts, "messages", described, changes)

    def _limited_size(
        self, part: Callable[[int, int], Row], weight: Callable[[int, int], int], total: int, described: str
    ) -> Size:
        """Counts a part's tokens. Raises `BadRow` once parts weigh far more than `total`, the row."""
        left = WORK + WORK_PER_CHARACTER * total

        def size(first: int, end: int) -> int:
            nonlocal left
            left -= weight(first, end)
            if left < 0:
                raise BadRow("over_budget", f"{described}: too much work to split")
            return self.counter.count_row(part(first, end), self.max_tokens)

        return size


def _not_too_many(found: Iterable[Span], described: str) -> Iterator[Span]:
    """The spans, as long as they are at most `MOST_PARTS`."""
    for number, span in enumerate(found):
        if number >= MOST_PARTS:
            raise BadRow(
                "over_budget",
                f"{described}: too long to split, it would come in more than {MOST_PARTS:,} parts",
            )
        yield span


def _numbered(
    row: Row, parts: list[tuple[Row, int]], place: str, described: str, changes: Changes
) -> list[Row]:
    """The parts (each with its tokens) with sources and ids of their own, and a note of the change."""
    sizes = _listed([tokens for _, tokens in parts])
    changes.append(Change("length", place, described, f"in parts of {sizes} tokens"))
    named = [part | {"source": f"{row['source']}#{i}"} for i, (part, _) in enumerate(parts, start=1)]
    return [part | {"id": row_id(part)} if "id" in row else part for part in named]


def _listed(sizes: list[int]) -> str:
    more = f" … {sizes[-1]:,} ({len(sizes):,} of them)" if len(sizes) > LISTED else ""
    return ", ".join(f"{size:,}" for size in sizes[:LISTED]) + more


def spans(weights: Sequence[int], size: Size, most: int) -> Iterator[Span]:
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


def text_of(turn: Message) -> str:
    """All that a template may show of a turn."""
    content = turn["content"]
    if len(turn) == 2:
        return content
    calls = dump_line({"": turn["tool_calls"]}).decode() if "tool_calls" in turn else ""
    return f"{content} {turn.get('reasoning_content', '')} {calls}"


def weight_of(turn: Message) -> int:
    """What a turn costs, in characters."""
    return len(text_of(turn)) + MARKUP

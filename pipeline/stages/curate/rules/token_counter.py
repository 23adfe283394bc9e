"""Counting of a row's tokens, exactly, or bounding them without counting.

The properties of a tokenizer are determined once: if words can be counted separately, and a bound by a text's
bytes.
"""

import json
import math
import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from itertools import chain, product
from pathlib import Path
from typing import Any

from pipeline.chat.rows import ANSWERED, Row
from pipeline.chat.tokenizer_file import plain_tokenizer
from pipeline.core.errors import DataError
from pipeline.core.text import shortened
from pipeline.stages.curate.rules.shape import has_endless_marks
from pipeline.stages.curate.rules.template import ChatTemplate

Shape = tuple[tuple[str, str], ...]  # Roles, each with a letter if the turn has text.

# The pattern starts with a character, which is the fastest search.
LONE_SPACE = re.compile(r" (?<=\S )(?=\S)")
NFC_GROWTH = 3  # NFC makes no text longer than this in UTF-8 bytes (unicode.org/faq/normalization.html).
NFC_SHRINKS = 4  # This many characters can become one (Greek letters with three marks).
CACHED_WORDS = 1 << 17  # words whose tokens are cached
CACHED_CHARACTERS = 1 << 20  # characters of all of these words together
MOST_COST = 1 << 19  # limit of the cost of counting a row
NEW_WORD = 4  # cost of a word in addition to its characters
CACHED_SHAPE = 64  # turns of the longest order of roles that is cached
CACHED_SHAPES = 1 << 13  # orders of roles that are cached
STRETCH = 4096  # words between two checks of the limit
# One of each kind of character that the rules before merging treat differently.
KINDS = "aBéжß東ا9½_-'’\"()<>|#$&+.,!?:;@/\\~*{}[]=🙂\u0301\u200d£\ufe0f"


class TokenCounter:
    """The tokenizer and the template of a Hugging Face folder. Raises `DataError` if they can't be read."""

    def __init__(self, folder: Path) -> None:
        try:
            self.tokenizer = plain_tokenizer(folder)
            self.template = ChatTemplate(folder)
        except Exception as error:  # tokenizers raises a bare Exception on a broken file.
            why = shortened(error)
            raise DataError(
                "Q-CURATE-004",
                f"{folder}: its tokenizer or chat template can't be read ({why}): run `python -m pipeline "
                "base` again",
            ) from error
        self.added = list(self.tokenizer.get_added_tokens_decoder().values())
        longest_first = sorted((token.content for token in self.added), key=len, reverse=True)
        # Tokens that are split off first, one token each.
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
        """Return the number of tokens.

        For a text with more than `most`, return some number above it, at less cost.
        """
        if most is not None and (least := self.at_least(text)) > most:
            return least
        if self.words is None:
            return self.count_by_tokenizer(text)
        # Words repeat, and looking them up is many times faster than merging them again.
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
        """Return a lower bound of the number of tokens by the text's length; 0 if none is known."""
        if self.longest is None:
            return 0
        shrinks = NFC_SHRINKS if self.normalized and not text.isascii() else 1
        return len(text) // (self.longest * shrinks)

    def counting_cost(self, text: str) -> int:
        """Return the approximate cost of counting in microseconds.

        It is one for each character, and `NEW_WORD` more for each word, counted only once. It is two for each
        character if words can't be counted separately. A cost up to `MOST_COST` means a second at most.
        """
        if self.words is None:
            return 2 * len(text)
        if (1 + NEW_WORD) * len(text) <= MOST_COST:
            return len(text)
        words = set(chain.from_iterable(map(LONE_SPACE.split, self.marks.split(text))))
        return sum(map(len, words)) + NEW_WORD * len(words)

    def count_by_tokenizer(self, text: str) -> int:
        """Return the number of tokens by the tokenizer, without the cache of words."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def count_row(self, row: Row, most: int | None = None) -> int:
        """Return the tokens of the row as it is trained; of a preference, the prompt and its longer answer.

        With `most`, as in `count`. Raises `BadRow` as the template does.
        """
        if row["kind"] == "text":
            return self._count_segments(row["segments"], most) if row["segments"] else 0
        return max(self.count(text, most) for text in self.template.rendered(row))

    def _count_segments(self, segments: list[dict[str, Any]], most: int | None) -> int:
        """Return the tokens of segments, counted one by one. A beginning and an end of text are added if the
        text has none, as in `pipeline.chat.tokens.encode_segments`.
        """
        bos = self.template.special.get("bos_token", "")
        eos = self.template.special.get("eos_token", "")
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
        """Return an upper bound of the tokens of a plain chat, at a hundredth of the cost of counting.

        None if there is no such bound, or if the texts without the template exceed `most`.

        A byte-level tokenizer makes at most one token of a byte. The tokens that the template adds are
        measured for each order of roles. Blank turns are distinguished, because a template can put its own
        words in place of an empty system turn. Raises `BadRow` as the template does.
        """
        if not self.bounded or "tools" in row or row["kind"] not in ANSWERED:
            return None
        shape = []
        size = 0
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
        """Return the most tokens that the template can add: one per added token, otherwise one per byte."""
        rendered = self.template.render([{"role": role, "content": content} for role, content in shape])
        markup, marks = self.marks.subn("", rendered)
        return marks + len(markup.encode())

    def _bytes(self, text: str) -> int:
        grows = self.normalized is not None and (
            has_endless_marks(text) or not unicodedata.is_normalized("NFC", text)
        )
        return len(text.encode()) * (NFC_GROWTH if grows else 1)

    def _is_bounded(self) -> bool:
        """Return True if no byte can become two tokens: byte-level BPE on text normalized by NFC at most."""
        from tokenizers.models import BPE

        byte_level = any(
            step.get("type") == "ByteLevel" and not step["add_prefix_space"] for step in self._steps()
        )
        return isinstance(self.tokenizer.model, BPE) and byte_level and self.normalized in (None, "NFC")

    def _steps(self) -> list[dict[str, Any]]:
        """Return the steps of the pre-tokenizer."""
        before = _state(self.tokenizer.pre_tokenizer)
        return list(before.get("pretokenizers", [before]))

    def _longest(self) -> int | None:
        """Return the most characters that one token can cover; None if that is not known."""
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
        """Return True if a space between other characters always starts a piece.

        Counts of pieces then add up.
        """
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
    """Cache of the tokens of each word after `before`."""

    def __init__(self, before: str, count: Callable[[str], int]) -> None:
        self.before = before
        self.count = count
        self.characters = 0

    def __missing__(self, word: str) -> int:
        if len(self) >= CACHED_WORDS or self.characters >= CACHED_CHARACTERS:
            self.clear()
            self.characters = 0
        self.characters += len(word)
        tokens = self.count(self.before + word)
        self[word] = tokens
        return tokens


def _state(part: Any) -> dict[str, Any]:
    """Return a normalizer or pre-tokenizer as `tokenizer.json` describes it; empty if there is none."""
    return dict(json.loads(part.__getstate__())) if part is not None else {}

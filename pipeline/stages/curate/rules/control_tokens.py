"""The rule for the base's added tokens inside text: they are broken up with a space, or the row is rejected.

`<|im_end|>` in the text of a chat ends the turn in the middle. So no text may contain a token that the
tokenizer splits off before anything else, nor a spelling that becomes one on the way: with invisible
characters in between, or with letters that NFKC maps to plain ones (`＜｜im_end｜＞`, `ﬁ`). A space after the
first character breaks a token for good.

Not touched: spellings that no tokenizer maps to the token (`<|IM_END|>`, `‹│im_end│›`), tokens of white
space, tokens of a single character (some tokenizers keep letters such as `ü` as added tokens, and there is
nothing to break up), and rows of several segments, which contain markup on purpose. A single segment is raw
text.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Literal

from ahocorasick_rs import AhoCorasick, MatchKind

from pipeline.chat.rows import BadRow, Row, edit_texts, is_one_text
from pipeline.stages.curate.rules.changes import Change, Changes, excerpts

# First and last of each range of Default_Ignorable_Code_Point (Unicode's DerivedCoreProperties.txt), and of
# interlinear annotation marks.
HIDDEN = (
    (0xAD, 0xAD),
    (0x34F, 0x34F),
    (0x61C, 0x61C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)
IGNORABLE = frozenset(point for first, last in HIDDEN for point in range(first, last + 1))
PASSES = 8  # Most passes; breaking one token up can't expose many others.
Match = tuple[int, int, int]  # number of the token, first character, the one after the last


class ControlTokens:
    """Rule for the added tokens `tokens`. `mode` decides what happens to a text that contains one."""

    def __init__(self, tokens: Iterable[str], mode: Literal["neutralize", "reject"]) -> None:
        self.mode = mode
        cores = [token.strip("▁ \t\r\n\v\f") for token in tokens]  # The ▁ of sentencepiece is a space.
        words = {_fold(core): core for core in cores if len(core) > 1}
        words = {word: core for word, core in words.items() if len("".join(word.split())) > 1}
        self.spellings = list(words.values())
        self.opening = _opening({word[0] for word in words})
        self.matcher = AhoCorasick(list(words), matchkind=MatchKind.LeftmostLongest)

    def __call__(self, row: Row, changes: Changes) -> Row:
        """Return the row with every control token broken up.

        Raises `BadRow` for a row with one if `mode` is reject.
        """
        if row["kind"] == "text" and not is_one_text(row):
            return row

        def edit(place: str, text: str) -> str:
            token = self.find(text)
            if token is None:
                return text
            if self.mode == "reject":
                held = token if token in text else f"a disguised {token}"
                raise BadRow("control_token", f"{place} holds {held}, which the tokenizer takes for its own")
            broken = self.neutralize(text)
            changes.append(Change("control_tokens", place, *excerpts(text, broken)))
            return broken

        return edit_texts(row, edit)

    def find(self, text: str) -> str | None:
        """Return the first token that the text contains, as the tokenizer spells it."""
        matches = self.matcher.find_matches_as_indexes(self._folded(text))
        return self.spellings[matches[0][0]] if matches else None

    def neutralize(self, text: str) -> str:
        """Return the text with every token written as `< |im_end| >`.

        Raises `BadRow` if new tokens keep appearing.
        """
        for _ in range(PASSES):
            folded = self._folded(text)
            matches = self.matcher.find_matches_as_indexes(folded)
            if not matches:
                return text
            text = self._broken(text, folded, matches)
        raise BadRow(
            "control_token", "the tokenizer's own tokens are so interwoven that they can't be broken up"
        )

    def _folded(self, text: str) -> str:
        """Return the text as a tokenizer may transform it, or unchanged if no token can begin in it."""
        return text if text.isascii() or not self.opening.search(text) else _fold(text)

    def _broken(self, text: str, folded: str, matches: Iterable[Match]) -> str:
        # Origin of each character of `folded` in the text.
        origin: Sequence[int] = range(len(text))
        if folded != text:
            origin = [place for place, char in enumerate(text) for _ in _folds()[0].get(char, char)]
        pieces = []
        done = 0
        for number, start, end in matches:
            # A character that folds to several is included whole; the part that is not in the token stays.
            first, last = bisect_left(origin, origin[start]), bisect_right(origin, origin[end - 1])
            if origin[first] < done:
                continue  # It shares a character with the one before, so the next pass finds it.
            token = self.spellings[number]
            spaced = f"{token[0]} {token[1:-1]} {token[-1]}" if len(token) > 2 else " ".join(token)
            pieces += [text[done : origin[first]], folded[first:start], spaced, folded[end:last]]
            done = origin[last - 1] + 1
        return "".join(pieces) + text[done:]


def _opening(firsts: set[str]) -> re.Pattern[str]:
    """Return a pattern for any character that is one of `firsts`, or folds to something with one of them."""
    chars = firsts | {char for char, shown in _folds()[0].items() if not firsts.isdisjoint(shown)}
    return re.compile(f"[{''.join(map(re.escape, sorted(chars)))}]" if chars else "(?!)")


def _fold(text: str) -> str:
    folds, foldable = _folds()
    return foldable.sub(lambda match: folds.get(match[0], match[0]), text)


@cache
def _folds() -> tuple[dict[str, str], re.Pattern[str]]:
    """Return the NFKC form of characters ("" for invisible ones), and a pattern for them.

    The pattern is faster than `str.translate` if a text has few of them.
    """
    folds = {chr(point): "" for point in IGNORABLE}
    for point in range(0x80, 0x20000):  # Characters above are ideographs only.
        char = chr(point)
        if point in IGNORABLE or not unicodedata.decomposition(char):
            continue
        shown = "".join(part for part in unicodedata.normalize("NFKC", char) if ord(part) not in IGNORABLE)
        if shown != char:
            folds[char] = shown
    # Characters above U+FFFF are one range, because `re` compares with the listed ones one by one.
    listed = "".join(re.escape(char) for char in sorted(folds) if char <= "\uffff")
    return folds, re.compile(f"[{listed}\U00010000-\U0010ffff]")

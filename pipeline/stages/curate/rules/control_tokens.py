"""The base's added tokens inside text: broken up with a space, or the row rejected.

`<|im_end|>` in the text of a chat ends the turn in the middle; so no text may hold a token that the
tokenizer cuts out before anything else. Nor a spelling that becomes one on the way: characters that show
nothing in between, and letters that NFKC makes plain (`＜｜im_end｜＞`, `ﬁ`). A space after the first
character breaks a token for good.

Not touched: spellings that no tokenizer takes for the token (`<|IM_END|>`, `‹│im_end│›`), tokens of white
space, tokens of a single character (some tokenizers keep letters such as `ü` as added tokens; there is
nothing to break up), and rows of several segments, which hold markup on purpose; a single one is raw text.
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

# first and last of each range of Default_Ignorable_Code_Point (Unicode's DerivedCoreProperties.txt), and of
# interlinear annotation marks
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
PASSES = 8  # breaking one token up can't bring many others to light
Match = tuple[int, int, int]  # the token's number, first character, the one after the last


class ControlTokens:
    """The rule: `tokens` are the added tokens, `mode` says what happens to a text that holds one."""

    def __init__(self, tokens: Iterable[str], mode: Literal["neutralize", "reject"]) -> None:
        self.mode = mode
        cores = [token.strip("▁ \t\r\n\v\f") for token in tokens]  # sentencepiece's ▁ stands for a space
        words = {_fold(core): core for core in cores if len(core) > 1}
        words = {word: core for word, core in words.items() if len("".join(word.split())) > 1}
        self.spellings = list(words.values())
        self.opening = _opening({word[0] for word in words})
        self.matcher = AhoCorasick(list(words), matchkind=MatchKind.LeftmostLongest)

    def __call__(self, row: Row, changes: Changes) -> Row:
        """The row with every control token broken up. Raises `BadRow` for one where `mode` is reject."""
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
        """The first token that the text holds, as the tokenizer spells it."""
        matches = self.matcher.find_matches_as_indexes(self._folded(text))
        return self.spellings[matches[0][0]] if matches else None

    def neutralize(self, text: str) -> str:
        """The text with every token written `< |im_end| >`. Raises `BadRow` if tokens keep coming up."""
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
        """The text as a tokenizer may come to see it; as it is where no token can begin."""
        return text if text.isascii() or not self.opening.search(text) else _fold(text)

    def _broken(self, text: str, folded: str, matches: Iterable[Match]) -> str:
        # where each character of `folded` comes from
        origin: Sequence[int] = range(len(text))
        if folded != text:
            origin = [place for place, char in enumerate(text) for _ in _folds()[0].get(char, char)]
        pieces, done = [], 0
        for number, start, end in matches:
            # a character that folds to several is taken whole; what of it is not part of the token stays
            first, last = bisect_left(origin, origin[start]), bisect_right(origin, origin[end - 1])
            if origin[first] < done:
                continue  # shares a character with the one before: the next pass finds it
            token = self.spellings[number]
            spaced = f"{token[0]} {token[1:-1]} {token[-1]}" if len(token) > 2 else " ".join(token)
            pieces += [text[done : origin[first]], folded[first:start], spaced, folded[end:last]]
            done = origin[last - 1] + 1
        return "".join(pieces) + text[done:]


def _opening(firsts: set[str]) -> re.Pattern[str]:
    """Any character that is, or folds to something with, one of `firsts`."""
    chars = firsts | {char for char, shown in _folds()[0].items() if not firsts.isdisjoint(shown)}
    return re.compile(f"[{''.join(map(re.escape, sorted(chars)))}]" if chars else "(?!)")


def _fold(text: str) -> str:
    folds, foldable = _folds()
    return foldable.sub(lambda match: folds.get(match[0], match[0]), text)


@cache
def _folds() -> tuple[dict[str, str], re.Pattern[str]]:
    """What characters count as, by NFKC, and "" where they show nothing; and a pattern for them, which is
    faster than `str.translate` where few are in a text.
    """
    folds = {chr(point): "" for point in IGNORABLE}
    for point in range(0x80, 0x20000):  # above are ideographs only
        char = chr(point)
        if point in IGNORABLE or not unicodedata.decomposition(char):
            continue
        shown = "".join(part for part in unicodedata.normalize("NFKC", char) if ord(part) not in IGNORABLE)
        if shown != char:
            folds[char] = shown
    # all above U+FFFF: `re` compares characters with these one by one
    listed = "".join(re.escape(char) for char in sorted(folds) if char <= "\uffff")
    return folds, re.compile(f"[{listed}\U00010000-\U0010ffff]")

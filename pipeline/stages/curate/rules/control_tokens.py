"""The base's added tokens inside text: broken up with a space, or the row rejected.

Whoever writes `<|im_end|>` into a chat ends the turn in the middle; so no text may hold a token that the
tokenizer cuts out before anything else. Nor a spelling that becomes one on the way: characters that show
nothing in between, letters that NFKC makes plain (`＜｜im_end｜＞`, `ﬁ`), and, for tokens with a bar such as
`<|im_end|>`, other cases, white space inside, brackets and bars that look alike. Tokens without a bar can be
other people's tags (`<s>`), titles (`《think》`) or words, so there only what a tokenizer or NFKC takes for the
token counts. A space behind the first character breaks a token for good.

Not touched: tokens of white space, tokens of a single character (some tokenizers keep letters such as `ü` as
added tokens; there is nothing to break up), and rows of several segments, which hold markup on purpose; a
single one is raw text.
"""  # noqa: E501

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from typing import Literal

from pipeline.chat.rows import BadRow, Row, edit_texts
from pipeline.stages.curate.rules.changes import Change, Changes, excerpts

Fold = dict[int, str]  # code point → what it counts as, "" where it shows nothing

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
LOOK_ALIKE = str.maketrans(
    dict.fromkeys("‹〈⟨《⟪«˂ᐸ❮❰❬⧼⦑≮", "<")
    | dict.fromkeys("›〉⟩》⟫»˃ᐳ❯❱❭⧽⦒≯", ">")
    | dict.fromkeys("│┃∣ǀ❘❙❚⏐⎪⎮¦׀丨〡", "|")
    | {"▁": "_"}
)
PASSES = 8  # breaking one token up can't bring many others to light


class ControlTokens:
    """The rule: `tokens` are the tokenizer's added tokens, `mode` says what becomes of a text that holds
    one.
    """

    def __init__(self, tokens: Iterable[str], mode: Literal["neutralize", "reject"]) -> None:
        self.mode = mode
        strict, loose = _folds()
        cores = [token.strip("▁ \t\r\n\v\f") for token in tokens]  # sentencepiece's ▁ stands for a space
        cores = [core for core in cores if len(core) > 1 and len(_bare(core.translate(loose))) > 1]
        barred = {
            _bare(core.translate(loose)).lower(): core for core in cores if "|" in core.translate(loose)
        }
        plain = {core.translate(strict): core for core in cores}
        self.families = [
            _Family(words, fold, fold is loose) for words, fold in ((plain, strict), (barred, loose)) if words
        ]
        folded = [*plain, *barred]
        self.opening, self.ascii_opening = _openings(
            frozenset(word[0] for word in folded), frozenset(word[1] for word in folded)
        )

    def __call__(self, row: Row, changes: Changes) -> Row:
        """The row with every control token broken up. Raises `BadRow` if one is found and `mode` is
        reject.
        """
        if row["kind"] == "text" and len(row["segments"]) > 1:
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
        """The first token that the text holds in whatever spelling, as the tokenizer spells it."""
        if not (self.ascii_opening if text.isascii() else self.opening).search(text):
            return None
        return next((token for family in self.families if (token := family.find(text))), None)

    def neutralize(self, text: str) -> str:
        """The text with every token written `< |im_end| >`; such a text stays as it is. Raises `BadRow` if
        tokens come up again and again.
        """
        for _ in range(PASSES):
            if self.find(text) is None:
                return text
            for family in self.families:
                text = family.broken(text)
        raise BadRow(
            "control_token", "the tokenizer's own tokens are so interwoven that they can't be broken up"
        )


class _Family:
    """Tokens that are looked for in the same way: `words` maps a token as folded to the token as spelled."""

    def __init__(self, words: dict[str, str], fold: Fold, loose: bool) -> None:
        self.fold, self.loose = fold, loose  # loose: whatever the case, with white space inside
        self.spellings: list[str] = []  # by the number of the pattern's group
        self.pattern = re.compile(self._regex(sorted(words.items()), 0))

    def _regex(self, words: list[tuple[str, str]], depth: int) -> str:
        """A pattern for what follows the `depth` characters that all these words share; the number of its
        empty group says which word it was.
        """
        longer = [(word, spelling) for word, spelling in words if len(word) > depth]
        ahead = [
            _one_of(_cases(char) if self.loose else {char}) + self._regex(list(group), depth + 1)
            for char, group in groupby(longer, key=lambda each: each[0][depth])
        ]
        # a space behind the first character is what breaks a token
        gap = r"\s*+" if self.loose and depth > 1 else ""
        branches = [f"{gap}(?:{'|'.join(ahead)})"] if ahead else []
        if len(longer) < len(words):  # the first of them ends here
            self.spellings.append(words[0][1])
            branches.append("()")
        return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"

    def find(self, text: str) -> str | None:
        found = self.pattern.search(self._folded(text))
        return self._spelling(found) if found else None

    def broken(self, text: str) -> str:
        folded = self._folded(text)
        if not self.pattern.search(folded):
            return text
        # where each character of `folded` comes from
        origin: Sequence[int] = range(len(text))
        if folded is not text:
            origin = [place for place, char in enumerate(text) for _ in self.fold.get(ord(char), char)]
        pieces, done = [], 0
        for found in self.pattern.finditer(folded):
            # a character that folds to several is taken whole; what of it is no part of the token stays
            first, last = (
                bisect_left(origin, origin[found.start()]),
                bisect_right(origin, origin[found.end() - 1]),
            )
            if origin[first] < done:
                continue  # shares a character with the one before: the next pass finds it
            apart = _apart(self._spelling(found))
            pieces += [
                text[done : origin[first]],
                folded[first : found.start()],
                apart,
                folded[found.end() : last],
            ]
            done = origin[last - 1] + 1
        return "".join(pieces) + text[done:]

    def _spelling(self, found: re.Match[str]) -> str:
        return self.spellings[(found.lastindex or 0) - 1]

    def _folded(self, text: str) -> str:
        return text if text.isascii() else text.translate(self.fold)


def _apart(token: str) -> str:
    """`<|im_end|>` as `< |im_end| >`."""
    return f"{token[0]} {token[1:-1]} {token[-1]}" if len(token) > 2 else " ".join(token)


@cache
def _openings(firsts: frozenset[str], seconds: frozenset[str]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What a token's first two characters look like in a text that is not folded yet, whatever it is or
    ASCII: what rules out nearly all texts.
    """
    hidden = "".join(f"{chr(first)}-{chr(last)}" for first, last in HIDDEN)
    # may hold both of them
    several = {char for char in _variants(firsts, anywhere=True) if len(char.translate(_folds()[0])) > 1}
    # one class in front, which `re` looks for far faster than for alternatives
    whatever = f"{_one_of(_variants(firsts) | several)}(?:(?<={_one_of(several)})|[{hidden}]*+{_one_of(_variants(seconds))})"  # noqa: E501
    pair = ({char for char in _variants(ends) if char.isascii()} for ends in (firsts, seconds))
    return re.compile(whatever), re.compile("".join(map(_one_of, pair)))


def _variants(chars: frozenset[str], anywhere: bool = False) -> set[str]:
    """All that folds to one of `chars` in either case, or to several characters that start with one (or hold
    one `anywhere`).
    """
    wanted = {case for char in chars for case in _cases(char)}
    folds = ((chr(point), shown) for fold in _folds() for point, shown in fold.items())
    return wanted | {char for char, shown in folds if not wanted.isdisjoint(shown if anywhere else shown[:1])}


def _one_of(chars: set[str]) -> str:
    return f"[{''.join(map(re.escape, sorted(chars)))}]" if chars else "(?!)"


def _cases(char: str) -> set[str]:
    """The character itself, and in the other case where that is one character too."""
    return {case for case in (char, char.lower(), char.upper()) if len(case) == 1}


def _bare(text: str) -> str:
    """The text without any white space."""
    return "".join(text.split())


@cache
def _folds() -> tuple[Fold, Fold]:
    """What code points count as in a token without a bar (by NFKC alone), and in one with a bar (look-alikes
    too).
    """
    strict: Fold = dict.fromkeys(IGNORABLE, "")
    loose: Fold = dict.fromkeys(IGNORABLE, "")
    for point in range(0x80, 0x20000):  # above are ideographs only
        char = chr(point)
        if point in IGNORABLE or not (unicodedata.decomposition(char) or point in LOOK_ALIKE):
            continue
        shown = "".join(part for part in unicodedata.normalize("NFKC", char) if ord(part) not in IGNORABLE)
        for fold, folded in ((strict, shown), (loose, shown.translate(LOOK_ALIKE))):
            if folded != char:
                fold[point] = folded
    return strict, loose

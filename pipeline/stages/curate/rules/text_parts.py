"""Splitting of a text over the token budget as a reader would split it: between paragraphs, otherwise
sentences, otherwise lines, otherwise words; in any script. A word that is too long by itself (data in base
64, for example) is cut between characters.

Joined in order, the parts are exactly the text: the white space at a cut stays at the end of the part before
it (a new line's indentation begins the part after it).
"""

import math
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any

CHARACTERS_PER_TOKEN = 4.0  # the first guess
GUESSES = 6  # guesses of the end of a part, before the rest is bisected
SLOWER = 0.9  # factor that lowers the next guess after one that was too high
FULL = 0.9  # share of the budget; a stretch of text of this size is searched for a place to cut
BEYOND = 64  # characters after a place that are read to judge it
PARAGRAPH, SENTENCE, LINE = range(3)  # places to cut, the best first
LONGEST_WORD = 256  # characters before a place that are searched for the end of a word
LONGEST_MARK = 128  # characters of an added token
REGIONAL = "\U0001f1e6", "\U0001f1ff"  # first and last of the letters that make flags
JOINER = "\u200d"  # character between the parts of one picture
SPACED = ".!?…"  # These end a sentence only in front of white space: 3.14, example.org.

Size = Callable[[int, int], int]  # tokens of text[start:end] as a part
Span = tuple[int, int, int]  # start, end and tokens of a part


class Unbreakable(Exception):
    """Error for a character with its marks, or white space without text, that is longer than the budget, at
    the text's `place`.
    """

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


def text_parts(text: str, size: Size, most: int) -> Iterator[Span]:
    """Yield (start, end, tokens) of each part, in order, at most `most` tokens by `size`.

    Raises `Unbreakable`.
    """
    places = range(len(text) + 1)
    start = 0
    rate = CHARACTERS_PER_TOKEN
    while start < len(text):
        end, tokens, rate = farthest(places, size, most, start, rate, enough=FULL * most)
        if (
            FULL * (len(text) - start) <= end - start < len(text) - start
            and (rest := size(start, len(text))) <= most
        ):
            end = len(text)
            tokens = rest
        if end < len(text):
            end, tokens = _cut(text, size, most, start, end, rate)
        yield start, end, tokens
        start = end


def _cut(text: str, size: Size, most: int, start: int, reach: int, rate: float) -> tuple[int, int]:
    """Return (end, tokens) of the part from `start` to the best place up to `reach`. Raises `Unbreakable`."""
    while (cut := last_cut(text, start, reach)) is not None:
        tokens = size(start, cut)
        if tokens <= most:
            return cut, tokens
        reach = cut - 1  # The beginning of a text can have more tokens than a longer part of it.
    reach, _, _ = farthest(range(len(text) + 1), size, most, start, rate, enough=math.inf)
    first = min(
        chain((place for _, place in cuts(text, start, reach)), word_ends(text, start, reach)), default=None
    )
    if first is not None and (tokens := size(start, first)) <= most:
        return first, tokens
    torn = last_character(text, start, reach)
    while torn is not None and (tokens := size(start, torn)) > most:
        torn = last_character(text, start, torn - 1)
    if torn is None:
        raise Unbreakable(start)
    return torn, tokens


def farthest(
    weights: Sequence[int], size: Size, most: int, first: int, rate: float, enough: float
) -> tuple[int, int, float]:
    """Return (end, tokens, rate) of the longest range from item `first` of `most` tokens at most, by `size`.

    The range is the longest, or has at least `enough` tokens. `size` is slow, so the end is guessed from the
    running sum of the items' `weights` (one more than there are items) and the weight of a token so far,
    `rate`. Then it is bracketed from both sides.
    """
    fits = first
    fails = len(weights)
    tokens = 0
    tries = 0
    while fails - fits > 1 and tokens < enough:
        reach = weights[fits] + int((most - tokens) * rate)
        guess = bisect_right(weights, reach) - 1 if tries < GUESSES else (fits + fails) // 2
        end = min(max(guess, fits + 1), fails - 1)
        length = size(first, end)
        tries += 1
        if length <= most:
            fits = end
            tokens = length
            rate = (weights[end] - weights[first]) / max(length, 1)
        else:
            fails = end
            rate *= SLOWER
    return fits, tokens, rate


def spans(weights: Sequence[int], size: Size, most: int) -> Iterator[Span]:
    """Yield (first, one past the last, tokens) of neighboring items, as many as `most` tokens by `size` hold.

    An item that doesn't fit comes by itself. `weights` is their running sum (see `farthest`).
    """
    items = len(weights) - 1
    first = 0
    rate = CHARACTERS_PER_TOKEN
    while first < items:
        end, tokens, rate = farthest(weights, size, most, first, rate, enough=math.inf)
        yield first, max(end, first + 1), tokens if end > first else most + 1
        first = max(end, first + 1)


def last_cut(text: str, start: int, reach: int) -> int | None:
    """Return the best place to cut after `start`, at most at `reach`. No sentence is cut if one ends there,
    and no word if there is space.

    A paragraph's end and mere space count only if they leave a part that is half full.
    """
    best: dict[int, int] = dict(cuts(text, start, reach))  # the last place of each kind
    ends = [best[kind] for kind in (PARAGRAPH, SENTENCE, LINE) if kind in best]
    half = (start + reach) // 2
    if ends:
        return next((place for place in ends if place >= half), max(ends))
    words = (
        place for place in range(reach, half, -1) if text[place - 1].isspace() and not text[place].isspace()
    )
    return next((place for place in words if text[start:place].strip()), None) or max(
        word_ends(text, start, reach), default=None
    )


def kept_beginning(text: str, limit: int, marks: re.Pattern[str]) -> str:
    """Return the text's beginning in at most `limit` characters, cut as parts are if that leaves half of
    them, and not within a word, a character with its marks, or one of `marks`.
    """
    place = _tidy_place(text, limit // 2, limit, last=True)
    place = max((at for at in _characters(text, place) if at <= place), default=place)
    return text[: next((mark.start() for mark in _across(marks, text, place)), place)]


def kept_end(text: str, limit: int, marks: re.Pattern[str]) -> str:
    """Return the text's end in at most `limit` characters, cut like `kept_beginning`."""
    start = len(text) - limit
    place = _tidy_place(text, start, start + limit // 2, last=False)
    place = min((at for at in _characters(text, place) if at >= place), default=place)
    return text[next((mark.end() for mark in _across(marks, text, place)), place) :]


def _tidy_place(text: str, start: int, reach: int, *, last: bool) -> int:
    """Return the last (or first) of the best places to cut after `start`, at most at `reach`."""
    places: dict[int, int] = {}
    for kind, place in cuts(text, start, reach):
        if last or kind not in places:
            places[kind] = place
    for kind in (PARAGRAPH, SENTENCE, LINE):
        if kind in places:
            return places[kind]
    if last:
        return max(word_ends(text, max(start, reach - LONGEST_WORD), reach), default=reach)
    return next(word_ends(text, start, min(start + LONGEST_WORD, reach)), start)


def _characters(text: str, place: int) -> Iterator[int]:
    """Yield ends of characters with all marks, from one before `place` to the first at or after it."""
    start = max(place - LONGEST_WORD, 0)
    start = max(start, *(text.rfind(space, start, place) for space in " \n"))
    while start > 0 and (REGIONAL[0] <= text[start - 1] <= REGIONAL[1] or text[start - 1] == "\r"):
        start -= 1  # Flags are pairs of letters, and a line's end may be a pair too.
    yield start
    for character in _patterns()[2].finditer(text, start):
        yield character.end()
        if character.end() >= place:
            return


def _across(marks: re.Pattern[str], text: str, place: int) -> Iterator[re.Match[str]]:
    """Yield the one of `marks` that begins before `place` and ends after it, if there is one."""
    near = marks.finditer(text, max(place - LONGEST_MARK, 0), place + LONGEST_MARK)
    return (mark for mark in near if mark.start() < place < mark.end())


def last_character(text: str, start: int, reach: int) -> int | None:
    """Return the last place after `start`, at most at `reach`, at which a character ends with all its marks,
    and which has more than white space before it.
    """
    for place in range(min(reach, len(text) - 1), start, -1):
        joined = unicodedata.category(text[place])[0] == "M" or JOINER in text[place - 1 : place + 1]
        if not joined and text[start:place].strip():
            return place
    return None


def cuts(text: str, start: int, reach: int) -> Iterator[tuple[int, int]]:
    """Yield (kind, place) of ends of paragraphs, sentences and lines from `start` to `reach`.

    The place is after line breaks.
    """
    stretch = text[start : reach + BEYOND]
    first = len(stretch) - len(stretch.lstrip())  # Before that there is only white space.
    for match in _patterns()[0].finditer(stretch):
        space = match["space"]
        end = match.end()
        lines = space.count("\n")
        place = start + end - (len(space) - space.rindex("\n") - 1 if lines else 0)
        if end == len(stretch) or match.start() < first or place > reach:
            continue
        if lines > 1:
            yield PARAGRAPH, place
        elif match["ends"] and _ends_sentence(match["ends"], space, stretch[end]):
            yield SENTENCE, place
        elif lines:
            yield LINE, place


def word_ends(text: str, start: int, reach: int) -> Iterator[int]:
    """Yield the places after `start` up to `reach` at which a word ends (UAX 29).

    In scripts without spaces these are the ends of any character.
    """
    stretch = text[start : reach + BEYOND]
    first = len(stretch) - len(stretch.lstrip())
    for match in _patterns()[1].finditer(stretch):
        if first < match.start() < len(stretch) and start + match.start() <= reach:
            yield start + match.start()


def _ends_sentence(ends: str, space: str, following: str) -> bool:
    """Return True if `ends` (marks, then quotes, brackets) ends a sentence before `space` and `following`."""
    if any(mark in SPACED for mark in ends):
        return bool(space) and not following.islower()
    return bool(space) or not unicodedata.category(following).startswith("M")


@cache
def _patterns() -> tuple[Any, Any, Any]:
    """Return patterns, compiled at the first use: ends of sentences and lines with the space after; ends of
    words; characters with all their marks.
    """
    import regex  # type: ignore[import-untyped]

    ends = r"(?<ends>[\p{Sentence_Terminal}…]++\p{Sentence_Break=Close}*+)(?<space>\s*+)|(?<!\s)(?<space>[^\S\n]*+\n\s*+)"  # noqa: E501
    return regex.compile(ends), regex.compile(r"\b(?!\s)", regex.WORD), regex.compile(r"\X")

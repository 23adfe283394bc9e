"""Scorers that read only the text: equality, JSON fields, ROUGE-L, number after a marker, pattern."""

import json
import re
import unicodedata
from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import Any

from pipeline.metrics.score import UNREADABLE, Measure, Score

PATTERN_SECONDS = 1.0  # seconds; stops a pattern that backtracks for ever
# Possessive (`*+`) wherever two parts could share a long run of characters, so that no answer makes it slow.
NUMBER = re.compile(
    # What may precede the number: marks of Markdown and LaTeX, a currency.
    r"(?>(?:[\s:=*_`\"'(\[{$€£¥₹~≈]|\\boxed|\\(?=[(\[$]))*)"
    r"(?P<sign>[-+−–]?)\s*+(?:[$€£¥₹]|US\$|USD|EUR|GBP)?\s*+(?P<sign2>[-+−]?)"
    r"(?P<digits>\d{1,3}(?:(?P<gap>[ "
    r",'’_\u00a0\u2009\u202f])\d{3})(?>(?:(?P=gap)\d{3})*)(?!\d)|\d++|(?=\.\d))(?P<decimals>\.\d++)?"
    r"(?:(?:[eE]| ?(?:[×xX*·]|\\times|\\cdot) ?10\^\{?)(?P<power>[-+−]?\d{1,3}))?"
    # What would make it another number, or none: 1.2.3, 5/2, 12:30, 2 1/2, 1e1000, 5-3, 5 - 3, 0x10.
    r"(?![/,.:'’_]*+\d| \d|[eE][-+]?\d|(?P<space> ?)(?:[-+−–*×·÷^xX/]++|\\times|\\cdot)(?P=space)\d)"
)
# Han, Kana, Thai, Lao, Burmese and Khmer are written without spaces.
UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"


def exact_match(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
    """Return 1 if the answer equals the reference, apart from white space around both."""
    return Score(float(answer.strip() == reference.strip()), bool(answer.strip()))


def json_fields(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
    """Return the share of the reference object's fields that the answer's object has with an equal value. 1
    and 1.0 are one number; `true` is not a number.
    """
    expected, actual = _object(reference), _object(answer)
    if expected is None:
        raise ValueError("the reference is not a JSON object")
    if actual is None:
        return UNREADABLE
    try:
        right = sum(key in actual and _same(value, actual[key]) for key, value in expected.items())
    except RecursionError:
        return UNREADABLE
    return Score(right / len(expected) if expected else float(actual == expected), True)


def rouge_l(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
    """Return ROUGE-L (Lin 2004): F1 of the longest common subsequence of words, 0 to 1, as the library
    `rouge-score` computes it, in every script.
    """
    expected, actual = (_words(text) for text in (reference, answer))
    if not expected:
        raise ValueError("the reference has no words")
    common = common_words(expected, actual)
    if not common:
        return Score(0.0, bool(answer.strip()))
    precision, recall = common / len(actual), common / len(expected)
    return Score(2 * precision * recall / (precision + recall), True)


def common_words(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Return the length of the longest common subsequence: the zeros that are left of a row of ones.

    The library fills a table of every word against every word: 11 s for 4,000 words each. Here a row of that
    table is the bits of one integer (Crochemore et al. 2001, "A fast and practical bit-vector algorithm for
    the longest common subsequence problem"): 0.01 s.
    """
    places: dict[Hashable, int] = {}  # places of each word in `left`, one bit each
    for place, word in enumerate(left):
        places[word] = places.get(word, 0) | 1 << place
    ones = row = (1 << len(left)) - 1
    for word in right:
        met = row & places.get(word, 0)
        row = (row + met | row - met) & ones
    return len(left) - row.bit_count()


TEXT_MEASURES: dict[str, Measure] = {  # of scorers without an argument, by their spelling in params.yaml
    "exact_match": exact_match,
    "json_fields": json_fields,
    "rouge_l": rouge_l,
}


def number_after(marker: str) -> Measure:
    r"""Return a measure that gives 1 if the number after the last `marker` of the answer equals the
    reference's: 1,000.0 and $1000. are equal, as are 7 and +7.

    12 000 is 12,000, 2×10^3 is 2,000, \boxed{5} is 5. A calculation (5/2, 5 - 3), a time, a hexadecimal
    number and 1e1000 are not numbers. Words after a number are its unit and not read: 10 million is 10.
    """

    def measure(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
        expected, actual = _number(reference, marker), _number(answer, marker)
        if expected is None:
            raise ValueError(f"the reference has no number after {marker!r}")
        return UNREADABLE if actual is None else Score(float(actual == expected), True)

    return measure


def first_group(pattern: str) -> Measure:
    """Return a measure that gives 1 if the first match of `pattern` is equal in both: its first group, or all
    of the match if it has none.

    Not measured if the search in the answer takes longer than `PATTERN_SECONDS`.
    """
    import regex  # type: ignore[import-untyped]

    compiled = regex.compile(pattern)

    def first_match(text: str) -> str | None:
        match = compiled.search(text, timeout=PATTERN_SECONDS)
        group: str | None = match and match[1 if compiled.groups else 0]
        return group

    def measure(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
        try:
            expected = first_match(reference)
        except TimeoutError:
            raise ValueError(
                f"the pattern looks at the reference for more than {PATTERN_SECONDS:.0f} s: make it simpler"
            ) from None
        if expected is None:
            raise ValueError("the pattern finds nothing in the reference")
        try:
            actual = first_match(answer)
        except TimeoutError:
            return Score(None, False)
        return UNREADABLE if actual is None else Score(float(actual == expected), True)

    return measure


def _words(text: str) -> list[str]:
    """Return the words of a text in small letters; one character each in scripts without spaces.

    The library's words contain only a-z and 0-9, so that Chinese against Chinese would score 0; for ASCII
    both are the same. A letter keeps its marks (most of Hindi's vowels are such): they are word characters to
    regex, and not to re.
    """
    return list(_word().findall(unicodedata.normalize("NFC", text.lower())))


@cache
def _word() -> Any:
    import regex

    return regex.compile(rf"(?=[{UNSPACED}])[^\W_]\p{{M}}*|(?:(?![{UNSPACED}])[^\W_])+")


def _number(text: str, marker: str) -> Decimal | None:
    _, has_marker, after = text.rpartition(marker)
    match = NUMBER.match(after) if has_marker else None
    if match is None or (match["sign"] and match["sign2"]) or not (match["digits"] or match["decimals"]):
        return None
    digits = re.sub(r"\D", "", match["digits"])
    minus = (match["sign"] or match["sign2"]) in ("-", "−", "–")
    return Decimal(
        f"{'-' if minus else ''}{digits}{match['decimals'] or ''}e{(match['power'] or '0').replace('−', '-')}"
    )


def _same(left: Any, right: Any) -> bool:
    """Return JSON's equality; in Python `true` equals 1."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None

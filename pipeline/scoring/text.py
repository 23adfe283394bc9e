"""Scorers that look at the text alone: equal, JSON fields, the number after a marker, what a pattern finds."""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pipeline.scoring.score import UNREADABLE, Measure, Score

PATTERN_SECONDS = 1.0  # a pattern that backtracks for ever is stopped
# a sign, a currency, digits in groups of three or without groups, decimals; "5/2", "3,5" and "1.2.3" are no numbers rather than 5, 3 and 1.2
NUMBER = re.compile(
    r"[\s:=*_`\"'(\[{$€£¥₹~≈]*(?P<sign>[-+−–]?)\s*(?:[$€£¥₹]|US\$|USD|EUR|GBP)?\s*(?P<sign2>[-+−]?)"
    r"(?P<digits>\d{1,3}(?:(?P<gap>[,'’_\u00a0\u2009\u202f])\d{3})(?:(?P=gap)\d{3})*|\d+|(?=\.\d))(?P<decimals>\.\d+)?(?:[eE](?P<power>[-+]?\d{1,3}))?"
    r"(?![\d/,.'’_]*\d)"
)


def exact_match(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
    """1 where the answer is the reference, white space around both aside."""
    return Score(float(answer.strip() == reference.strip()), bool(answer.strip()))


def json_fields(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
    """Share of the reference object's fields that the answer's object has with an equal value of the same type."""
    wanted, given = _object(reference), _object(answer)
    if wanted is None:
        raise ValueError("the reference is no JSON object")
    if given is None:
        return UNREADABLE
    right = sum(key in given and given[key] == value and type(given[key]) is type(value) for key, value in wanted.items())
    return Score(right / len(wanted) if wanted else float(given == wanted), True)


def number_after(marker: str) -> Measure:
    """1 where the number after the last `marker` of the answer equals the reference's: 1,000.0 and $1000. are equal, as are 7 and +7."""

    def measure(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
        wanted, given = _number(reference, marker), _number(answer, marker)
        if wanted is None:
            raise ValueError(f"the reference has no number after {marker!r}")
        return UNREADABLE if given is None else Score(float(given == wanted), True)

    return measure


def check_pattern(pattern: str) -> None:
    """Raise `ValueError` where `pattern` is empty or can't be read."""
    import regex  # type: ignore[import-untyped]

    if not pattern:
        raise ValueError("'regex:' names no pattern: write one after the colon")
    try:
        regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"regex:{pattern} can't be read as a regular expression ({error}): mend it") from error


def first_group(pattern: str) -> Measure:
    """1 where what `pattern` finds first is equal in both: its first group, all of the match where it has none.

    Not measured where the search in the answer takes longer than `PATTERN_SECONDS`.
    """
    import regex

    compiled = regex.compile(pattern)

    def found(text: str) -> str | None:
        match = compiled.search(text, timeout=PATTERN_SECONDS)
        group: str | None = match and match[1 if compiled.groups else 0]
        return group

    def measure(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
        try:
            wanted = found(reference)
        except TimeoutError:
            raise ValueError(f"the pattern looks at the reference for more than {PATTERN_SECONDS:.0f} s: make it simpler") from None
        if wanted is None:
            raise ValueError("the pattern finds nothing in the reference")
        try:
            given = found(answer)
        except TimeoutError:
            return Score(None, False)
        return UNREADABLE if given is None else Score(float(given == wanted), True)

    return measure


def _number(text: str, marker: str) -> Decimal | None:
    _, there, after = text.rpartition(marker)
    match = NUMBER.match(after) if there else None
    if match is None or (match["sign"] and match["sign2"]) or not (match["digits"] or match["decimals"]):
        return None
    digits = re.sub(r"\D", "", match["digits"])
    minus = (match["sign"] or match["sign2"]) in ("-", "−", "–")
    return Decimal(f"{'-' if minus else ''}{digits}{match['decimals'] or ''}e{match['power'] or 0}")


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None

"""What a kind of secret looks like: its pattern, what it can't be without, and which matches are examples or
words.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

PLACEHOLDER = re.compile(r"\[[A-Z][A-Z0-9_]*\]")  # what redaction leaves: no part of a secret
_SWITCH = re.compile(r"[A-Za-z](?=[0-9])|[0-9](?=[A-Za-z])")


def mixed(value: str) -> bool:
    """Neither `xxxxxxxx` nor an example from a vendor's documentation?"""
    return len(set(value)) > 7 and "EXAMPLE" not in value


def random_looking(value: str) -> bool:
    """Is this a generated key rather than a word, a path or a variable's name?"""
    return mixed(value) and len(_SWITCH.findall(value)) > 2


class Format(NamedTuple):
    """What a kind of secret looks like."""

    kind: str
    needles: tuple[str, ...]  # no such secret without one of these in the text
    pattern: re.Pattern[str]  # its group `value` is the secret where there is one, else the entire match
    source: str  # where the format is published
    before: tuple[int, ...] = (0,)  # characters that a match may begin before its needle
    valid: Callable[[str], bool] = mixed
    rank: int = 2


def key(kind: str, prefixes: str, tail: str, source: str) -> Format:
    """A key that is one of the prefixes and then `tail`; it goes on to the end of its run of letters and
    digits.
    """
    needles = tuple(prefixes.split())
    return Format(
        kind,
        needles,
        re.compile(
            rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, needles))})(?:{tail})[A-Za-z0-9]*+", re.ASCII
        ),
        source,
    )


def library(
    kind: str, needles: str, rules: Iterable[re.Pattern[str]], before: tuple[int, ...] = (0,)
) -> Format:
    """A key by rules of detect-secrets, with a bound on the left and its entire run on the right: some of the
    rules stop within the key.
    """
    either = "|".join(
        f"(?{'i' * bool(rule.flags & re.I)}{'x' * bool(rule.flags & re.X)}:{rule.pattern})" for rule in rules
    )
    return Format(
        kind,
        tuple(needles.split()),
        re.compile(rf"(?<![A-Za-z0-9])(?:{either})[\w-]*+", re.ASCII),
        "detect-secrets",
        before,
    )


_NO_PASSWORD = re.compile(  # a word, a hole of a template, a variable
    r"(?i:pass(?:w(?:or)?d)?\d*|change_?me\w*|test\d*|\w*secret|example\w*|[*x.]+|[<{$%].*)|(?:my|your)[a-z_-]*|(?:MY|YOUR)[A-Z_-]*|(?:My|Your)[A-Za-z]*"
)


def password_looking(value: str) -> bool:
    """Is this a real password, not a word, a template's hole, a variable, or a call?"""
    various = re.search(r"[A-Za-z]", value) and re.search(r"[0-9!@#^&*+?]", value)
    return bool(various and len(set(value)) > 4 and url_password(value))


def url_password(value: str) -> bool:
    return len(value) > 2 and not _NO_PASSWORD.fullmatch(value) and not PLACEHOLDER.search(value)


def real_pem(value: str) -> bool:
    return bool(re.search(r"[A-Za-z0-9+/=]{30}", value))


def context(
    kind: str, needles: str, pattern: str, valid: Callable[[str], bool] = random_looking, rank: int = 1
) -> Format:
    """A secret that only its surroundings give away; the pattern begins at the needle."""
    return Format(
        kind,
        tuple(needles.split("|")),
        re.compile(pattern, re.ASCII),
        "name of a variable, header or field",
        (0,),
        valid,
        rank,
    )

"""How a scorer is spelled in `evaluate.scorers`; what each does is in `pipeline.metrics.scorers`."""

import re
from collections.abc import Sequence
from math import prod

from pipeline.core.strict_yaml import printable

PLAIN = (  # take nothing after their name
    "exact_match",
    "json_fields",
    "rouge_l",
    "code",
)
SPELLINGS = f"{', '.join(PLAIN)}, number:MARKER, regex:PATTERN, python:FILE.py:FUNCTION or judge"
MOST_REPEATS = 100_000  # of a pattern's {n} multiplied: 0.2 s to compile
# can't lead out of the folder
NAME = re.compile(r"(?P<file>[^./\\:][^/\\:]*(?:/[^./\\:][^/\\:]*)*\.py):(?P<function>[^\W\d]\w*)")


def check_scorers(spellings: Sequence[str], has_judge: bool) -> None:
    """Raise `ValueError`, in one sentence, for what can't be a list of scorers; `has_judge`: evaluate.judge
    is set. No file is opened.
    """
    if twice := sorted({one for one in spellings if spellings.count(one) > 1}):
        raise ValueError(f"{', '.join(twice)} is named twice: leave it out once")
    for spelling in spellings:
        kind, colon, argument = spelling.partition(":")
        if kind in PLAIN or (kind == "judge" and not colon):
            if colon:
                raise ValueError(f"{spelling!r}: {kind} takes nothing after it: write {kind}")
            if kind == "judge" and not has_judge:
                raise ValueError(
                    "judge is named and evaluate.judge is null: give its url, model and key_file, or leave "
                    "the judge out"
                )
        elif kind == "number" and not argument.strip():
            raise ValueError(
                f"{spelling!r} names no marker: write what stands before the number, number:#### for example"
            )
        elif kind == "regex":
            _check_pattern(argument)
        elif kind == "python":
            if not NAME.fullmatch(argument):
                raise ValueError(
                    f"python:{argument} names no function: write python:FILE.py:FUNCTION, the file below "
                    "data/evaluation"
                )
        elif kind != "number":
            raise ValueError(f"{spelling!r} is no scorer: write {SPELLINGS}")


def _check_pattern(pattern: str) -> None:
    """Raise `ValueError` where `pattern` is empty or can't be read."""
    import regex  # type: ignore[import-untyped]

    if not pattern:
        raise ValueError("'regex:' names no pattern: write one after the colon")
    counts = [int(number[-10:]) for number in re.findall(r"(\d+)\s*,?\s*\}", pattern)]
    if prod(max(1, count) for count in counts) > MOST_REPEATS:  # the library writes them out, in memory
        raise ValueError(
            f"regex:{printable(pattern, 80)} repeats more than {MOST_REPEATS:,} times in all: write + or * "
            f"for large numbers in {{}}"
        )
    try:
        regex.compile(pattern)
    except (regex.error, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"regex:{printable(pattern, 80)} can't be read as a regular expression ({error}): correct it"
        ) from error

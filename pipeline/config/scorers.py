"""The spelling of scorers in `evaluate.scorers`. `pipeline.metrics.scorers` looks up what implements each."""

import re
from collections.abc import Iterator, Sequence
from math import prod

from pipeline.core.text import safe

WITHOUT_ARGUMENT = {  # The words appear next to the setting.
    "exact_match": "",
    "json_fields": "share of fields equal",
    "rouge_l": "words in the same order: for chats whose answers can be put in other words",
    "code": "a Python answer runs the row's tests, sandboxed",
    "tool_calls": "name and arguments of calls equal",
}
WORDS = WITHOUT_ARGUMENT | {
    "number:MARKER": "the number after it",
    "regex:PATTERN": "its first group, or all of it",
    "python:FILE.py:FUNCTION": "yours, below data/evaluation",
    "external": "any program, see evaluate.external",
    "judge": "a model gives marks, see evaluate.judge",
}
SPELLINGS = ", ".join(WORDS).replace(", judge", " or judge")
TOOL_CALLS = "tool_calls"  # scores turns that call tools, and all others by words
MOST_REPEATS = 100_000  # product of a pattern's {n}: 0.2 s to compile
# The path can't leave the folder.
NAME = re.compile(r"(?P<file>[^./\\:][^/\\:]*(?:/[^./\\:][^/\\:]*)*\.py):(?P<function>[^\W\d]\w*)")


def scorer_problems(spellings: Sequence[str], has_judge: bool, has_external: bool = False) -> Iterator[str]:
    """Yield a sentence for each fault in a list of scorers.

    `has_judge` and `has_external` are True if evaluate.judge and evaluate.external are set. No file is
    opened.
    """
    for spelling in spellings:
        kind, colon, argument = spelling.partition(":")
        if kind in WITHOUT_ARGUMENT and colon:
            yield f"{spelling!r}: {kind} takes nothing after it: write {kind}"
        elif spelling == "judge" and not has_judge:
            yield (
                "judge is named and evaluate.judge is null: give its url, model and key_file, or leave "
                "the judge out"
            )
        elif spelling == "external" and not has_external:
            yield ("external is named and evaluate.external is null: give its command, or leave external out")
        elif kind == "number" and not argument.strip():
            yield (
                f"{spelling!r} names no marker: write what stands before the number, number:#### for example"
            )
        elif kind == "regex":
            yield from _pattern_problems(argument)
        elif kind == "python" and not NAME.fullmatch(argument):
            yield (
                f"python:{argument} names no function: write python:FILE.py:FUNCTION, the file below "
                "data/evaluation"
            )
        elif spelling not in ("judge", "external") and kind not in (*WITHOUT_ARGUMENT, "number", "python"):
            yield f"{spelling!r} is not a scorer: write {SPELLINGS}"


def _pattern_problems(pattern: str) -> Iterator[str]:
    """Yield the reasons why `pattern` is empty or can't be read."""
    import regex  # type: ignore[import-untyped]

    if not pattern:
        yield "'regex:' names no pattern: write one after the colon"
    counts = [int(number[-10:]) for number in re.findall(r"(\d+)\s*,?\s*\}", pattern)]
    if prod(max(1, count) for count in counts) > MOST_REPEATS:  # The library expands them in memory.
        yield (
            f"regex:{safe(pattern, 80)} repeats more than {MOST_REPEATS:,} times in all: write + or * "
            f"for large numbers in {{}}"
        )
    try:
        regex.compile(pattern)
    except (regex.error, ValueError, OverflowError, RecursionError, MemoryError) as error:
        yield f"regex:{safe(pattern, 80)} can't be read as a regular expression ({error}): correct it"

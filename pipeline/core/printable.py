"""Anybody's text where people read it: a name of a file or a tensor, an error of a library, a model's answer.

`screen` is around every program of the project: what it prints, and what its errors say, steers no terminal,
whoever wrote it. `console` is for what has colors. The rest cuts and quotes for one sentence.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

# control characters but newline and tab, what turns the text after it around, half surrogates
STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LINE_ENDS = str.maketrans({"\n": "\\n", "\t": "\\t"})
# what a progress bar writes beside its text (to the line's start, up), and `quench chat` (dim, plain again)
MOVES = re.compile(r"(?:[\r\n]|\x1b\[(?:A|2m|0m))+")
SHOWN = 3  # faults in a message


def plain(text: str) -> str:
    """`text` with escapes for what a terminal would obey; they are JSON's where JSON lets the characters
    stand.
    """
    return STEERS.sub(_escape, text)


def printable(text: str, longest: int | None = None) -> str:
    """`text`, or its first `longest` characters, on one line, without what a terminal would obey."""
    line = plain(text if longest is None else text[: longest + 1]).translate(LINE_ENDS)
    return line if longest is None or len(line) <= longest else f"{line[: longest - 1]}…"


def quoted(value: Any) -> str:
    """A value for a message, cut to 80 characters, its escapes shown."""
    return printable(repr(value), 80)


def one_line(text: str, longest: int = 100) -> str:
    """The text's beginning on one line, white space as single spaces."""
    return printable(" ".join(text.split()), longest)


@contextmanager
def screen() -> Iterator[None]:
    """Have everything that this process prints meanwhile go through `plain`.

    After an exception it stays so: a traceback is still to be printed.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _Screen(stream)) for stream in before)
    yield
    sys.stdout, sys.stderr = before


def console(**options: Any) -> "Console":
    """A console of rich's on standard output, with `stderr` on standard error: its own colors and movements
    reach the terminal, and nobody else's.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(plain(segment.text), segment.style)

    stream = sys.stderr if options.pop("stderr", False) else sys.stdout
    return Plain(file=getattr(stream, "below", stream), **options)


class _Screen:
    """A stream of text that escapes what is written to the one below."""

    def __init__(self, below: TextIO) -> None:
        self.below = getattr(below, "below", below)

    def write(self, text: str) -> int:
        start = 0
        if self.below.isatty():  # a progress bar
            start = len(text) if MOVES.fullmatch(text) else text.startswith("\r")
        self.below.write(text[:start] + plain(text[start:]))  # Snakemake's stream returns nothing
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if character < "\x7f":
        return character.encode("unicode_escape").decode()
    return f"\\u{ord(character):04x}"


def faults(error: Any, name: Callable[[Sequence[str]], str]) -> str:
    """The first of pydantic's faults on one line: each wrong field, as `name` calls its place, with its value
    and what is wrong; of a list its first wrong entry.
    """
    found: dict[str, str] = {}
    for fault in error.errors(include_url=False):
        field, reason = name([str(part) for part in fault["loc"]]), fault["msg"].removeprefix("Value error, ")
        value = "" if fault["type"] in ("missing", "value_error") else f" is {quoted(fault['input'])}"
        what = printable(f"{reason[0].lower()}{reason[1:]}", 120)
        found.setdefault(field, f"{printable(field, 80)}{value}: {what}")
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return "; ".join([*list(found.values())[:SHOWN], *more])

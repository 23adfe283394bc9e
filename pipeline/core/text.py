"""Text where people read it: numbers and lists in words; and untrusted text (a name of a file or a tensor,
an error of a library, a model's answer), escaped so that it can't steer a terminal.

`screen` is around every program of the project: what it prints, and what its errors say, steers no
terminal. `console` is for what has colors. The rest cuts and quotes for one sentence.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

# control characters but newline and tab, what turns the text after it around, half surrogates
STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LINE_ENDS = str.maketrans({"\n": "\\n", "\t": "\\t"})
# what a progress bar writes beside its text (to the line's start, up), and `quench chat` (dim, plain again)
MOVES = re.compile(r"(?:[\r\n]|\x1b\[(?:A|2m|0m))+")
SHOWN = 3  # faults in a message


def safe(text: str, longest: int | None = None, *, lines: bool = False) -> str:
    """`text`, or its first `longest` characters, with control characters escaped, JSON's where
    JSON lets the characters stand; on one line, unless `lines` may stay.
    """
    shown = STEERS.sub(_escape, text if longest is None else text[: longest + 1])
    shown = shown if lines else shown.translate(LINE_ENDS)
    return shown if longest is None or len(shown) <= longest else f"{shown[: longest - 1]}…"


def quoted(value: Any) -> str:
    """A value for a message, cut to 80 characters, its escapes shown."""
    return safe(repr(value), 80)


def one_line(text: str, longest: int = 100) -> str:
    """The text's beginning on one line, white space as single spaces."""
    return safe(" ".join(text.split()), longest)


def shortened(error: object, longest: int = 200) -> str:
    """Return what an error says on one line, cut to `longest` characters; its class if it says nothing."""
    return " ".join(str(error).split())[:longest] or type(error).__name__


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, cut to 200 characters; its class if it says nothing."""
    return safe(next(iter(str(error).strip().splitlines()), type(error).__name__), 200)


def common_start(left: Sequence[Any], right: Sequence[Any]) -> int:
    """Return how many first items (letters, tokens) are the same in both."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


@contextmanager
def screen(*, lasting: bool = False) -> Iterator[None]:
    """Have everything that this process prints meanwhile go through `safe`.

    `lasting`: what has no reader any more (`| head`) is dropped, and the work goes on. After an exception it
    stays so: a traceback is still to be printed.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _Screen(stream, lasting)) for stream in before)
    yield
    sys.stdout, sys.stderr = before


def console(**options: Any) -> "Console":
    """A console of rich's on standard output, with `stderr` on standard error: its own colors and movements
    reach the terminal, no others.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(safe(segment.text, lines=True), segment.style)

        def on_broken_pipe(self) -> None:
            if not getattr(stream, "lasting", False):
                super().on_broken_pipe()
            to_nowhere(stream)

    stream = sys.stderr if options.pop("stderr", False) else sys.stdout
    return Plain(file=getattr(stream, "below", stream), **options)


def to_nowhere(stream: TextIO) -> None:
    """Have what is still to be written to a stream of this process go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class _Screen:
    """A stream of text that escapes what is written to the one below."""

    def __init__(self, below: TextIO, lasting: bool) -> None:
        self.below, self.lasting = getattr(below, "below", below), lasting

    def write(self, text: str) -> int:
        start = 0
        if self.below.isatty():  # a progress bar
            start = len(text) if MOVES.fullmatch(text) else text.startswith("\r")
        with self._unless_unread():
            self.below.write(text[:start] + safe(text[start:], lines=True))
        return len(text)  # Snakemake's stream returns nothing

    def flush(self) -> None:
        with self._unless_unread():
            self.below.flush()

    @contextmanager
    def _unless_unread(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            if not self.lasting:
                raise
            to_nowhere(self.below)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character < "\x7f":
        return character.encode("unicode_escape").decode()
    return f"\\u{ord(character):04x}"


def faults(error: Any, name: Callable[[Sequence[str]], str]) -> str:
    """The first of pydantic's faults on one line: each wrong field, as `name` calls its place, with its value
    and what is wrong; of a list its first wrong entry.
    """
    sentences: dict[str, str] = {}
    for fault in error.errors(include_url=False):
        field, reason = name([str(part) for part in fault["loc"]]), fault["msg"].removeprefix("Value error, ")
        value = "" if fault["type"] in ("missing", "value_error") else f" is {quoted(fault['input'])}"
        problem = safe(f"{reason[0].lower()}{reason[1:]}", 120)
        sentences.setdefault(field, f"{safe(field, 80)}{value}: {problem}")
    more = [f"and {len(sentences) - SHOWN} more"] if len(sentences) > SHOWN else []
    return "; ".join([*list(sentences.values())[:SHOWN], *more])


def count(value: Any) -> str:
    """A whole number with thousands marked: 1,770; a dash if there is none."""
    return f"{value:,.0f}" if isinstance(value, int | float) and not isinstance(value, bool) else "–"


def percent(value: Any) -> str:
    """A share of 1 as 97.9 %; never 0 for something, nor 100 for less than all."""
    if not isinstance(value, int | float):
        return "–"
    shown = f"{value * 100:.1f}"
    return (
        "< 0.1 %"
        if shown == "0.0" and value > 0
        else "> 99.9 %"
        if shown == "100.0" and value < 1
        else f"{shown} %"
    )


def plural(number: int, noun: str, many: str = "") -> str:
    """1 row, 2 rows, 1,000 rows; without `many` it is `noun` with an s."""
    return f"{count(number)} {noun if number == 1 else many or noun + 's'}"


def words(identifier: Any) -> str:
    """A snake_case id as words."""
    return str(identifier).replace("_", " ")


def most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The entries of a counter, largest first."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def listed(items: Sequence[str], word: str = "and") -> str:
    """a, b and c."""
    return f" {word} ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))

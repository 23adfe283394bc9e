"""Text for people: numbers and lists in words; and untrusted text (a name of a file or a tensor, an error of
a library, a model's answer), escaped so that it can't control a terminal.

`screen` is active in every program of the project: neither its output nor its errors control a terminal.
`console` is for output with colors. The other functions shorten and quote for one sentence.
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

# Control characters except newline and tab, characters that reverse the text after them, half surrogates.
STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LINE_ENDS = str.maketrans({"\n": "\\n", "\t": "\\t"})
# Control sequences that a progress bar writes besides its text (to the line's start, up), and those of
# `quench chat` (dim, plain again).
MOVES = re.compile(r"(?:[\r\n]|\x1b\[(?:A|2m|0m))+")
SHOWN = 3  # most faults that one message lists


def safe(text: str, longest: int | None = None, *, lines: bool = False) -> str:
    """Return `text`, or its first `longest` characters, with control characters escaped.

    The escapes are JSON's for characters that JSON allows unescaped. The text is put on one line, unless
    `lines` may stay.
    """
    if longest is not None:
        text = text[: longest + 1]
    shown = STEERS.sub(_escape, text)
    if not lines:
        shown = shown.translate(LINE_ENDS)
    if longest is None or len(shown) <= longest:
        return shown
    return f"{shown[: longest - 1]}…"


def quoted(value: Any) -> str:
    """Return a value for a message, cut to 80 characters, with visible escapes."""
    return safe(repr(value), 80)


def one_line(text: str, longest: int = 100) -> str:
    """Return the text's beginning on one line, with white space as single spaces."""
    return safe(" ".join(text.split()), longest)


def shortened(error: object, longest: int = 200) -> str:
    """Return an error's text on one line, cut to `longest` characters; its class if the text is empty."""
    return " ".join(str(error).split())[:longest] or type(error).__name__


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, cut to 200 characters; its class if the text is empty."""
    return safe(next(iter(str(error).strip().splitlines()), type(error).__name__), 200)


def common_start(left: Sequence[Any], right: Sequence[Any]) -> int:
    """Return the number of first items (letters, tokens) that are equal in both."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


@contextmanager
def screen(*, lasting: bool = False) -> Iterator[None]:
    """Pass everything that this process prints in the body through `safe`.

    With `lasting`, output that has no reader any more (`| head`) is dropped, and the work goes on. After an
    exception the streams stay wrapped, because a traceback is still to be printed.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _Screen(stream, lasting)) for stream in before)
    yield
    sys.stdout, sys.stderr = before


def console(**options: Any) -> "Console":
    """Return a rich console on standard output, or with `stderr` on standard error.

    Only its own colors and movements reach the terminal.
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
    """Discard the rest of the output to a stream of this process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class _Screen:
    """A text stream that escapes what is written to the one below."""

    def __init__(self, below: TextIO, lasting: bool) -> None:
        self.below = getattr(below, "below", below)
        self.lasting = lasting

    def write(self, text: str) -> int:
        start = 0
        if self.below.isatty():  # The text is that of a progress bar.
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
    """Return the first of pydantic's faults on one line: each wrong field with its value and what is wrong.

    `name` maps a field's place to its name. Of a list only the first wrong entry counts.
    """
    sentences: dict[str, str] = {}
    for fault in error.errors(include_url=False):
        field = name([str(part) for part in fault["loc"]])
        reason = fault["msg"].removeprefix("Value error, ")
        value = "" if fault["type"] in ("missing", "value_error") else f" is {quoted(fault['input'])}"
        problem = safe(f"{reason[0].lower()}{reason[1:]}", 120)
        sentences.setdefault(field, f"{safe(field, 80)}{value}: {problem}")
    more = [f"and {len(sentences) - SHOWN} more"] if len(sentences) > SHOWN else []
    return "; ".join([*list(sentences.values())[:SHOWN], *more])


def count(value: Any) -> str:
    """Return a whole number with thousands separators: 1,770; a dash if it is not a number."""
    return f"{value:,.0f}" if isinstance(value, int | float) and not isinstance(value, bool) else "–"


def percent(value: Any) -> str:
    """Return a share of 1 as 97.9 %; never 0 for something, nor 100 for less than all."""
    if not isinstance(value, int | float):
        return "–"
    shown = f"{value * 100:.1f}"
    if shown == "0.0" and value > 0:
        return "< 0.1 %"
    if shown == "100.0" and value < 1:
        return "> 99.9 %"
    return f"{shown} %"


def plural(number: int, noun: str, many: str = "") -> str:
    """Return 1 row, 2 rows, 1,000 rows; without `many` the plural is `noun` with an s."""
    return f"{count(number)} {noun if number == 1 else many or noun + 's'}"


def words(identifier: Any) -> str:
    """Return a snake_case id as words."""
    return str(identifier).replace("_", " ")


def most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the entries of a counter, largest first."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def listed(items: Sequence[str], word: str = "and") -> str:
    """Return a list in words: a, b and c."""
    return f" {word} ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))

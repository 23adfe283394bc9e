"""Anybody's text in a message: on one line, cut, and without what a terminal would obey."""

from typing import Any


def printable(text: str, longest: int) -> str:
    """The beginning of `text` on one line, with escapes for what a terminal would obey or not show."""
    line = "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text[: longest + 1]
    )
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def quoted(value: Any) -> str:
    """A value for a message, cut to 80 characters, its escapes shown."""
    return printable(repr(value), 80)

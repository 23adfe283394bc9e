"""`quench data …`: look at rows before, in and between the versions of `data/final`."""

import unicodedata

DIRECTIONS = frozenset(["LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"])  # characters that turn the text after them around


def plain(text: str) -> str:
    """Text that can't steer the terminal: control characters (but newline and tab), overrides of direction and half surrogates as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if one in "\n\t" or not _steers(one) else one.encode("unicode_escape").decode() for one in text)


def one_line(text: str, longest: int = 100) -> str:
    """The text's beginning on one line."""
    line = plain(" ".join(text.split()))
    return line if len(line) <= longest else line[: longest - 1] + "…"


def _steers(one: str) -> bool:
    return unicodedata.category(one) in ("Cc", "Cs") or unicodedata.bidirectional(one) in DIRECTIONS

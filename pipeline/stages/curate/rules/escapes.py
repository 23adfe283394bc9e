"""Escapes in a text, of JSON, URLs and HTML: blanked or decoded, so that what they hide can be found."""

import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import unquote

# in JSON and code: the `n` of `\nghp_…` is no letter before the key
_ESCAPE = re.compile(r"\\(?:[bfnrt]|u[0-9a-fA-F]{4})")
# `\u0040` and `\/`, with all the backslashes that escaping twice puts before them (`\\u0040`, `\u005cu0040`);
# surrogate pairs are one character
_SLASHES = r"\\++(?:u005[cC])*"
_JSON = re.compile(
    rf"(?<!\\){_SLASHES}(?:(?:u(?P<high>[dD][89abAB][0-9a-fA-F]{{2}}){_SLASHES}(?=u[dD][c-fC-F]))?u(?P<unit>[0-9a-fA-F]{{4}})|/)"
)
_JSON_URL_HTML = re.compile(  # `%40` and `%C3%AB`, `&#64;`, `&#x40;` and `&euml;` as well
    rf"{_JSON.pattern}|%(?:[0-7][0-9a-fA-F]|[c-fC-F][0-9a-fA-F](?:%[89abAB][0-9a-fA-F]){{1,3}})"
    r"|&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,8}[0-9]{0,2});"
)


def blanked(text: str) -> str:
    """The text with blanks for escapes: as long as before."""
    return _ESCAPE.sub(lambda match: " " * len(match[0]), text) if "\\" in text else text


def decodings(text: str) -> Iterator[tuple[str, list[int]]]:
    """The text with JSON's escapes decoded, and with those of URLs and HTML as well; nothing if it has none.

    Each with the place in `text` where each of its characters, and its end, began.
    """
    for pattern in (_JSON, _JSON_URL_HTML) if "%" in text or "&" in text else (_JSON,):
        if pattern.search(text):
            yield _decoded(text, pattern)


def _decoded(text: str, pattern: re.Pattern[str]) -> tuple[str, list[int]]:
    """The text with one character for every escape, and where in `text` each of its characters, and its end,
    began.
    """
    pieces: list[str] = []
    origin: list[int] = []
    end = 0
    for match in pattern.finditer(text):
        character = _character(match)
        pieces += [text[end : match.start()], character]
        origin += range(end, match.start() + len(character))
        end = match.end()
    return "".join([*pieces, text[end:]]), [*origin, *range(end, len(text) + 1)]


def _character(escape: re.Match[str]) -> str:
    if escape["unit"]:
        return bytes.fromhex((escape["high"] or "") + escape["unit"]).decode("utf-16-be", "replace")
    if escape[0][0] == "\\":
        return "/"
    return (unquote(escape[0]) if escape[0][0] == "%" else unescape(escape[0]))[:1]

"""Replacement of secrets and personal data by typed placeholders such as `[EMAIL_1]`.

The same value gets the same placeholder everywhere in its row. Numbers count per kind, in order of
appearance. A redacted row has nothing left to redact: the search is repeated on its result until it finds
nothing. Escapes of JSON, URLs and HTML are blanked or decoded, so that values hidden by them are found.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from html import unescape
from itertools import chain
from typing import Literal
from urllib.parse import unquote

from ahocorasick_rs import AhoCorasick

from pipeline.chat.rows import TURN_LISTS, BadRow, Row, edit_texts, texts
from pipeline.stages.curate.rules.changes import Change, Changes
from pipeline.stages.curate.rules.personal import KINDS, find_personal, identity
from pipeline.stages.curate.rules.secrets import Span, blanked, find_private_keys, find_secrets, repeats_of

PASSES = 10  # A placeholder can expose a value that its neighbor hid; two passes are usual.
SHOWN = 5  # matches that the change of one text names
_NUMBERED = re.compile(r"\[([A-Z][A-Z0-9_]*)_(\d{1,9})\]")
Namer = Callable[[str, str], str]  # (kind, value) → placeholder
# `\u0040` and `\/`, with all the backslashes that double escaping puts before them (`\\u0040`,
# `\u005cu0040`). Surrogate pairs are one character.
_SLASHES = r"\\++(?:u005[cC])*"
_JSON = re.compile(
    rf"(?<!\\){_SLASHES}(?:(?:u(?P<high>[dD][89abAB][0-9a-fA-F]{{2}}){_SLASHES}(?=u[dD][c-fC-F]))?u(?P<unit>[0-9a-fA-F]{{4}})|/)"
)
_JSON_URL_HTML = re.compile(  # adds `%40` and `%C3%AB`, `&#64;`, `&#x40;` and `&euml;`
    rf"{_JSON.pattern}|%(?:[0-7][0-9a-fA-F]|[c-fC-F][0-9a-fA-F](?:%[89abAB][0-9a-fA-F]){{1,3}})"
    r"|&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,8}[0-9]{0,2});"
)


class Redactor:
    """Rule that redacts rows by its settings and counts the occurrences per kind."""

    def __init__(
        self,
        secrets: Literal["redact", "reject", "keep"] = "redact",
        personal: tuple[str, ...] = KINDS,
        names: tuple[str, ...] = (),
    ) -> None:
        self._secrets = secrets
        self._personal = personal
        spellings = [spelling for name in names if name.strip() for spelling in (name, name.upper())]
        self._names = AhoCorasick(spellings) if spellings else None
        self.counts: Counter[str] = Counter()

    def take_counts(self) -> Counter[str]:
        """Return the occurrences replaced per kind since the last call."""
        counts = self.counts
        self.counts = Counter()
        return counts

    def rule(self, row: Row, changes: Changes) -> Row:
        """Return the row with placeholders, and note a change per text and rule.

        Raises `BadRow` if settings say reject.
        """
        secrets = self._secrets != "keep"
        pairs = list(_argument_pairs(row)) if secrets else []
        content = [text for _, text in texts(row)] + pairs
        together = "\n".join(content)
        if next(self._spans(together, secrets), None) is None:
            return row
        if self._secrets == "reject":
            self._check(row, pairs)
        repeats = repeats_of(content if secrets else ())
        name = _namer(together)
        counts: Counter[str] = Counter()

        def edit(place: str, text: str) -> str:
            spans = _disjoint([*self._spans(text, secrets), *repeats(text)])
            if not spans:
                return text
            counts.update(span.kind for span in spans)
            changes.extend(_changes(place, text, spans, name))
            return _replaced(text, spans, name)

        for _ in range(PASSES):
            edited = edit_texts(row, edit)
            if edited is row:
                self.counts += counts
                return row
            row = edited
        raise BadRow("unredactable", f"something is left to redact after {PASSES} passes")

    def scrub(self, text: str) -> str:
        """Return a text fit for any report: `[KIND]` for its secrets, whatever the settings, and for personal
        data according to the settings.

        Values are recognized in their escaped forms too (`bob\\u0040acme.dev`), whether or not the text is
        JSON. The rest stays as written.
        """
        text = text.encode("utf-8", "replace").decode()  # Halves of surrogate pairs are replaced.
        for _ in range(PASSES):
            spans = list(self._escaped_spans(text))
            if not spans:
                return text
            text = _replaced(
                text, _disjoint([*spans, *repeats_of([text])(text)]), lambda kind, _: f"[{kind.upper()}]"
            )
        return "[REDACTED]"

    def is_clean(self, text: str) -> bool:
        """Return True if `scrub` would change nothing. Used for labels and file names, which have no row to
        be redacted in.
        """
        return self.scrub(text) == text

    def _escaped_spans(self, text: str) -> Iterator[Span]:
        """Yield the spans to scrub, found in the text as it is, and with its escapes decoded."""
        for shown, origin in [(text, range(len(text) + 1)), *decodings(text)]:
            for span in chain(self._spans(shown, secrets=True), find_private_keys(shown)):
                yield span._replace(start=origin[span.start], end=origin[span.end])

    def _spans(self, text: str, secrets: bool) -> Iterator[Span]:
        text = blanked(text)
        if secrets:
            yield from find_secrets(text)
        yield from find_personal(text, self._personal)
        if self._names:
            for _, start, end in self._names.find_matches_as_indexes(text, overlapping=True):
                # It may be a placeholder.
                bracketed = text[start - 1 : start] == "[" and text[end : end + 1] == "]"
                if not (
                    bracketed
                    or _one_word(text[start], text[start - 1 : start])
                    or _one_word(text[end - 1], text[end : end + 1])
                ):
                    yield Span(start, end, "name", 0)

    def _check(self, row: Row, pairs: list[str]) -> None:
        for place, text in [*texts(row), *(("tool_calls", pair) for pair in pairs)]:
            for span in find_secrets(blanked(text)):
                raise BadRow("secret", f"{place} holds a secret of kind {span.kind}")


def _one_word(edge: str, beyond: str) -> bool:
    """Return True if a name's last character joins the next one. From U+2E80 on, in scripts without spaces,
    it never does.
    """
    return edge < "\u2e80" and (edge.isalnum() or edge == "_") and (beyond.isalnum() or beyond == "_")


def _argument_pairs(row: Row) -> Iterator[str]:
    """Yield `"key": "value"` of strings in tool calls' arguments; only the key may reveal a secret."""
    pending = [
        turn["tool_calls"] for field in TURN_LISTS for turn in row.get(field, ()) if "tool_calls" in turn
    ]
    while pending:
        value = pending.pop()
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(item, (dict, list)):
                pending.append(item)
            elif isinstance(item, str) and isinstance(key, str):
                yield f'"{key}": "{item}"'


def _disjoint(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order.

    Of those that overlap, the one of higher rank is kept, then the longer one.
    """
    kept: list[Span] = []
    for span in sorted(spans, key=lambda each: (each.start, -each.end, -each.rank)):
        if kept and span.start < kept[-1].end:
            if _precedence(span) > _precedence(kept[-1]):
                kept[-1] = span
        else:
            kept.append(span)
    return kept


def _precedence(span: Span) -> tuple[bool, int, int]:
    return span.rank > 0, span.end - span.start, span.rank


def _namer(text: str) -> Namer:
    """Return a function that numbers a row's values per kind, from 1 or after the text's highest number."""
    last: Counter[str] = Counter()
    for kind, number in _NUMBERED.findall(text):
        last[kind] = max(last[kind], int(number))

    @cache
    def placeholder(kind: str, value: str) -> str:
        last[kind] += 1
        return f"[{kind}_{last[kind]}]"

    return lambda kind, value: placeholder(kind.upper(), identity(kind, value))


def _replaced(text: str, spans: list[Span], name: Namer) -> str:
    """Return the text with placeholders. `spans` are in order and disjoint."""
    pieces = []
    end = 0
    for span in spans:
        pieces += [text[end : span.start], name(span.kind, text[span.start : span.end])]
        end = span.end
    return "".join(pieces) + text[end:]


def _changes(place: str, text: str, spans: list[Span], name: Namer) -> Iterator[Change]:
    """Yield a text's changes, per rule: kinds and lengths before, placeholders after, never the text."""
    for rule in ("secrets", "personal"):
        hits = [span for span in spans if (span.rank > 0) == (rule == "secrets")]
        if hits:
            more = f" and {len(hits) - SHOWN} more" if len(hits) > SHOWN else ""
            before = ", ".join(f"‹{span.kind}, {span.end - span.start} characters›" for span in hits[:SHOWN])
            after = ", ".join(name(span.kind, text[span.start : span.end]) for span in hits[:SHOWN])
            yield Change(rule, place, before + more, after + more)


def decodings(text: str) -> Iterator[tuple[str, list[int]]]:
    """Yield the text with JSON's escapes decoded, then also those of URLs and HTML; nothing if it has none.

    Each comes with the place in `text` at which each of its characters, and its end, began.
    """
    for pattern in (_JSON, _JSON_URL_HTML) if "%" in text or "&" in text else (_JSON,):
        if pattern.search(text):
            yield _decoded(text, pattern)


def _decoded(text: str, pattern: re.Pattern[str]) -> tuple[str, list[int]]:
    """Return the text with escapes decoded, and the place in `text` of each character and the end."""
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

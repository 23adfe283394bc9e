"""Readers of YAML: a strict one for what people write (`params.yaml`: YAML 1.2 without anchors and tags,
bounded, every fault with its line), and a fast one for what DVC writes.

DVC reads `params.yaml` by the same library and agrees on every value that is accepted here. A bare value is
refused if older readers (YAML 1.1: `on`, `010`, `1:30`) or DVC (`2020-01-01`, `1_000`) would read something
else, so that it means the same to every reader. Numbers that only YAML 1.2 knows are accepted: `2e-4`,
`0o17`.
"""

import re
import stat
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import ruamel.yaml
import yaml
from ruamel.yaml import events
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.resolver import implicit_resolvers
from ruamel.yaml.scanner import Scanner

from pipeline.core.errors import ConfigError
from pipeline.core.text import quoted, safe

UNREADABLE = (yaml.YAMLError, ValueError, RecursionError)  # errors of `read_fast` for a file that is not YAML
MAX_BYTES = 1 << 16  # four times the size of our own files, comments included
MAX_VALUES = 4000
MAX_DEPTH = 10  # lists and mappings inside each other
MAX_TEXT = 1000  # characters of a text
MAX_NUMBER = 40  # characters of a number
UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]"
)
Place = tuple[str | int, ...]  # a value's keys and indices from the top

# Bare scalars of YAML 1.2's core schema; anything else is text.
CORE: dict[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    "null": (re.compile("null|Null|NULL|~|"), lambda text: None),
    "bool": (re.compile("true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    "int": (re.compile("[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+"), lambda text: int(text, 0)),
    "float": (
        re.compile(
            r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
        ),
        lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
    ),
}
WORDS = {
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
    "timestamp": "a date",
    "null": "nothing",
    "str": "text",
}
TOO_DEEP = (
    f"lists and mappings are nested more than {MAX_DEPTH} deep, and no setting is: remove brackets, or quote "
    "a text that has them"
)


def read_fast(file: Path) -> Any:
    """Return what DVC wrote into `file`, or a user into dvc.yaml, as DVC reads it.

    There are no bounds. It parses in C if PyYAML has that (ten times as fast).
    """
    return parse_fast(file.read_bytes())


def parse_fast(content: bytes) -> Any:
    """Return the value of such a file's content."""
    return yaml.load(content, _Fast)  # noqa: S506 (a SafeLoader)


_DVC = [
    (tag.rpartition(":")[2], pattern, first)
    for versions, tag, pattern, first in implicit_resolvers
    if (1, 2) in versions
]


class _Fast(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's loader with YAML 1.2's scalars: DVC writes 1e-05 for a number and a bare on for a text."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


for _kind, _pattern, _first in _DVC:
    _Fast.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _pattern, _first)


def dvc_kind(text: str) -> str:
    """Return the type of a bare scalar for ruamel.yaml, with which DVC reads."""
    return next((kind for kind, pattern, first in _DVC if text[:1] in first and pattern.match(text)), "str")


def old_kind(text: str) -> str:
    """Return the type of a bare scalar for PyYAML, a reader of YAML 1.1."""
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers.get(text[:1], [])
    return next((tag.rpartition(":")[2] for tag, pattern in resolvers if pattern.match(text)), "str")


def is_plain_text(text: str) -> bool:
    """Return True if `text` may be written unquoted, because every YAML reader reads it as text."""
    return bool(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_./-]*", text)) and {
        dvc_kind(text),
        old_kind(text),
    } == {"str"}


class Fault(Exception):
    """A fault in a text, with its line and column (from 1)."""

    def __init__(self, words: str, mark: Any = None) -> None:
        super().__init__(f"line {mark.line + 1}, column {mark.column + 1}: {words}" if mark else words)


def read_strict(path: Path) -> tuple[Any, dict[Place, int]]:
    """Return the file's value, and the line of each value in it.

    Raises `ConfigError`, with the file's name and the place, if it can't be read.
    """
    try:
        return deepcopy(_document(_text(path)))
    except OSError as error:
        raise ConfigError(
            "Q-CONFIG-001",
            f"{path} can't be read ({error.strerror}): run in the project's folder, or name the right file",
        ) from error
    except Fault as fault:
        raise ConfigError("Q-CONFIG-002", f"{path}: {fault}") from None


def read_value(text: str, where: str) -> Any:
    """Return a value as it would be written in a file.

    Raises `ConfigError`, naming `where`, if it can't be read.
    """
    try:
        return deepcopy(_document(text)[0])
    except Fault as fault:
        raise ConfigError("Q-CONFIG-002", f"{safe(where, 120)}: {fault}") from None


# The library needs 15 ms for a params.yaml, and a command or stage reads it several times.
@lru_cache(maxsize=32)
def _document(text: str) -> tuple[Any, dict[Place, int]]:
    return _Reader(text).document()


def _text(path: Path) -> str:
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(0, "it is not a regular file")  # Reading a pipe or a device may block, or never end.
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise Fault(
            f"more than {MAX_BYTES:,} bytes, too many for a configuration: this is another file, or lists "
            "in it have to be shorter"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Fault(
            f"line {line}: not UTF-8 text (byte {error.start} of the file): save it as UTF-8"
        ) from None
    control = UNPRINTABLE.search(text.removeprefix("\ufeff"))
    if control:
        line = text.count("\n", 0, control.start()) + 1
        raise Fault(f"line {line}: the control character {quoted(control[0])} can't stand in YAML: remove it")
    return text


class _BoundedScanner(Scanner):
    """A scanner with a limit on nesting.

    Without it, thousands of brackets on one line take minutes before the first event.
    """

    def fetch_more_tokens(self) -> Any:
        try:
            return super().fetch_more_tokens()
        # On an impossible escape the library raises these errors of Python.
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise Fault(
                f"not valid YAML ({safe(str(error), 200)}): correct or quote it", self.reader.get_mark()
            ) from None

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:
        if len(self.flow_context) >= MAX_DEPTH:
            raise Fault(TOO_DEEP, self.reader.get_mark())
        super().fetch_flow_collection_start(TokenClass, to_push)


class _Reader:
    """A builder of the value from the library's events. It constructs nothing that was not requested."""

    def __init__(self, text: str) -> None:
        loader = ruamel.yaml.YAML(typ="safe", pure=True)
        loader.Scanner = _BoundedScanner
        self._events = _faults(loader.parse(text))
        self.lines: dict[Place, int] = {}
        self.values = 0

    def document(self) -> tuple[Any, dict[Place, int]]:
        """Return the only document and its lines; None as the value of an empty text."""
        next(self._events)
        event = next(self._events)
        value = None
        if isinstance(event, events.DocumentStartEvent):
            if event.version or event.tags:
                raise Fault("directives (%YAML, %TAG) are not read here: remove them", event.start_mark)
            value = self.value(next(self._events), ())
            next(self._events)
            event = next(self._events)
        if not isinstance(event, events.StreamEndEvent):
            raise Fault("a second document begins here: keep one", event.start_mark)
        return value, self.lines

    def value(self, event: Any, place: Place) -> Any:
        """Return the value that `event` begins. Raises `Fault` if it is not accepted here."""
        self.values += 1
        too_many = f"more than {MAX_VALUES:,} values: this is another file, or lists in it have to be shorter"
        anchored = "anchors and aliases (&, *) are not read: write the value out, or quote it if it is text"
        tagged = "tags (!) are not read here: remove it, or quote the value if it is text"
        for refused, words in (
            (self.values > MAX_VALUES, too_many),
            (event.anchor is not None, anchored),
            (getattr(event, "tag", None) is not None, tagged),
            (len(place) >= MAX_DEPTH, TOO_DEEP),
        ):
            if refused:
                raise Fault(words, event.start_mark)
        self.lines[place] = event.start_mark.line + 1
        if isinstance(event, events.ScalarEvent):
            return _scalar(event)
        if isinstance(event, events.MappingStartEvent):
            return self.mapping(place)
        return [
            self.value(item, (*place, index))
            for index, item in enumerate(self.until(events.SequenceEndEvent))
        ]

    def mapping(self, place: Place) -> dict[str, Any]:
        """Return the rest of a mapping. Raises `Fault` for a key that is not text or occurs twice."""
        values: dict[str, Any] = {}
        for event in self.until(events.MappingEndEvent):
            key = self.value(event, (*place, -1))  # a place that no value has
            if not isinstance(key, str):
                raise Fault(f"a key has to be text, and this is {quoted(key)}: quote it", event.start_mark)
            if key in values:
                raise Fault(
                    f"key {quoted(key)} is written twice, in line {self.lines[(*place, key)]} too: keep one",
                    event.start_mark,
                )
            values[key] = self.value(next(self._events), (*place, key))
            # the key's line, because a value may begin below it
            self.lines[(*place, key)] = event.start_mark.line + 1
        return values

    def until(self, end: type) -> Iterator[Any]:
        """Yield the events that begin the items up to the event `end`."""
        while not isinstance(event := next(self._events), end):
            yield event


def _faults(parsed: Iterator[Any]) -> Iterator[Any]:
    """Yield the library's events. Raises `Fault` for what it can't parse."""
    try:
        yield from parsed
    except MarkedYAMLError as error:
        words = ", ".join(part for part in (error.context, error.problem) if part)
        raise Fault(
            f"not valid YAML ({safe(words, 200)}): correct or quote it",
            error.problem_mark or error.context_mark,
        ) from None
    except YAMLError as error:
        raise Fault(f"not valid YAML ({safe(str(error), 200)})") from None


def _scalar(event: Any) -> Any:
    """Return a scalar's value. Raises `Fault` if it is too long, or if readers disagree on it."""
    text: str = event.value
    if len(text) > MAX_TEXT:
        raise Fault(
            f"a text of {len(text):,} characters, more than {MAX_TEXT:,}: shorten it", event.start_mark
        )
    control = UNPRINTABLE.search(text)
    if control:
        raise Fault(f"the text holds the control character {quoted(control[0])}: remove it", event.start_mark)
    if not event.implicit[0]:
        return text
    kind, convert = next(
        ((name, make) for name, (pattern, make) in CORE.items() if pattern.fullmatch(text)), ("str", str)
    )
    number = kind in ("int", "float")
    if number and len(text) > MAX_NUMBER:
        raise Fault(
            f"a number of {len(text):,} characters, more than {MAX_NUMBER}: quote it if it is text",
            event.start_mark,
        )
    others = [other for other in (dvc_kind(text), old_kind(text) if not number else kind) if other != kind]
    if others:
        raise Fault(
            f"{quoted(text)} is {WORDS[kind]} to one reader of YAML and {WORDS.get(others[0], 'a command')} "
            "to another: put it in quotes "
            "if it is text; write a number like 12 or 0.5, a switch as true or false",
            event.start_mark,
        )
    return convert(text)

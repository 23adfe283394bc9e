"""Describe the columns of unread rows: those with texts, those with a list of turns, and the meaning of their
names. A column is a key, or a path of keys joined by dots.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.core.jsonl import BadLine, parse_value
from pipeline.intake.rows.letter_case import spelling
from pipeline.intake.rows.reasoning import WORDS as REASONING
from pipeline.intake.rows.values import NUMBER

DEPTH = 3  # levels of nested objects that are searched
DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}.*")
IDENTITY = re.compile(r"[0-9a-fA-F]{8,}|[0-9a-fA-F-]{32,36}|https?://\S+|\S*\d{4,}\S*")
IDS = frozenset(("id", "ids", "uuid", "guid"))  # words in names of columns without texts
MOST = 0.8  # share of a column's values that decides its type
MOST_WORDS = 8  # words of a column's name
FEW_TURNS = 2  # turns that may repeat the same text
FEW_OF = 20  # number of rows from which a column with few different values counts as a class
SHORT = 40  # characters of a short value, such as a label or a speaker's name
SHORT_WORDS = 5


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


# words in column names, by the column's content
WORDS: Mapping[str, frozenset[str]] = {
    "question": _words(
        "q question query prompt instruction instructions input user human nl request ask asked problem task",
        "title source src utterance customer client intent description",
        "frage anfrage kundenfrage nachricht anliegen eingabe aufgabe demande pregunta consulta",
    ),
    "answer": _words(
        "a answer ans response reply output completion assistant gpt bot chatgpt model ai command cmd bash",
        "code sql target tgt solution fix summary translation agent generation result",
        "antwort erwiderung lösung ausgabe réponse respuesta solución",
    ),
    "system": _words("system persona"),
    "context": _words("context passage document background schema article body input"),
    "chosen": _words("chosen preferred better best accepted winner winning win positive good"),
    "rejected": _words("rejected worse worst loser losing lose negative bad dispreferred refused"),
    "reasoning": REASONING,
    "no text": _words(
        "id ids uuid guid hash url uri link date time timestamp created updated ts lang language split type",
        "status version author score rating label category topic tags tag domain index role state",
        "license dataset subset corpus email mail phone telefon telephone address adresse",
    ),
    "label": _words(
        "label labels class category categories intent sentiment emotion topic tag rating stars polarity",
        "kategorie klasse thema absicht stimmung",
        "catégorie classe étiquette categoría categoria clase etiqueta",
    ),
    "speaker": _words(
        "author nick nickname speaker sender username participant role",
        "absender sprecher verfasser autor auteur expéditeur remitente mittente",
    ),
    "name": _words("name user who from by handle character"),  # of a speaker too, if its values repeat
    "side": _words("user me assistant agent customer outgoing incoming"),  # of a true or false
}
ROLE_WORDS = _words("role from speaker sender author who side name participant type")
CONTENT_WORDS = _words("content value text message utterance body says said words")
GENERIC = ("content", "value", "text", "message", "body")  # keys that say nothing of what the text is


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case."""
    return [word for word in re.split(r"[\W_]+", spelling(name)) if word]


def name_speaks_of(name: str, what: str) -> bool:
    """Return True if a word of a name is one of those for `what`."""
    return not WORDS[what].isdisjoint(words_of(name))


@dataclass
class Column:
    """Values of one column in a sample of rows."""

    path: str
    place: int  # position in the order of the row's keys
    texts: list[str] = field(default_factory=list)
    stated: list[str] = field(default_factory=list)  # single texts, whole numbers, true and false, as text
    lists: list[list[Any]] = field(default_factory=list)  # lists of objects
    others: int = 0  # values of other types

    @property
    def words(self) -> list[str]:
        """Return the words of the last key of its path in lower case."""
        return words_of(self.path.rpartition(".")[2])

    def speaks_of(self, what: str) -> bool:
        """Return True if a word of the last key that names a content is one of those for `what`."""
        keys = self.path.split(".")
        while len(keys) > 1 and (keys[-1].isdigit() or keys[-1].lower() in GENERIC):
            keys.pop()
        return name_speaks_of(keys[-1], what)

    @property
    def different(self) -> int:
        """Return the number of different single values. Case and white space around them do not count."""
        return len({value.strip().casefold() for value in self.stated if value.strip()})

    @property
    def is_short(self) -> bool:
        """Return True if all single values are as short as a label or a name, and there are no others."""
        if not self.stated or self.lists or len(self.stated) < len(self.texts) + self.others:
            return False
        return all(len(value) <= SHORT and len(value.split()) <= SHORT_WORDS for value in self.stated)

    @property
    def is_few(self) -> bool:
        """Return True for short values of which there are several, and most are repeated."""
        filled = sum(bool(value.strip()) for value in self.stated)
        return self.is_short and 1 < self.different <= (filled + 1) // 2 and not self._are_mostly(DATE)

    @property
    def is_number(self) -> bool:
        """Return True if the single values are numbers, true or false."""
        return self._are_mostly(NUMBER) or {value.lower() for value in self.stated} <= {"true", "false"}

    def _are_mostly(self, pattern: re.Pattern[str]) -> bool:
        filled = [value.strip() for value in self.stated if value.strip()]
        return sum(bool(pattern.fullmatch(value)) for value in filled) >= MOST * len(filled)

    @property
    def length(self) -> float:
        """Return the mean number of characters."""
        return sum(map(len, self.texts)) / max(1, len(self.texts))

    @property
    def says_something(self) -> bool:
        """Return True if the values are not empty, and not the same many times."""
        return self.length > 0 and (len(self.texts) <= FEW_TURNS or len(set(self.texts)) > 1)

    @property
    def is_text(self) -> bool:
        """Return True if people or models wrote the values: they are not numbers, dates, ids or classes."""
        filled = [text.strip() for text in self.texts if text.strip()]
        if not filled or len(filled) <= self.others:
            return False
        for pattern in (NUMBER, DATE, IDENTITY):
            if sum(bool(pattern.fullmatch(text)) for text in filled) >= MOST * len(filled):
                return False
        if not IDS.isdisjoint(self.words) and not any(" " in text for text in filled):
            return False
        different = len(set(filled))
        named = self.speaks_of("question") or self.speaks_of("answer")
        if len(filled) > 1 and different == 1 and not self.speaks_of("system"):
            return False
        if len(filled) >= FEW_OF and different * 10 <= len(filled) and not named:
            return self.speaks_of("system")
        return not (self.speaks_of("no text") and not named and self.length < 40)


def are_values(names: Sequence[str]) -> bool:
    """Return True if the names of a table's columns look like a row. The table lacks a line of names then."""
    for name in names:
        is_sentence = " " in name.strip() and name.rstrip().endswith(("?", "!", "."))
        if is_sentence or len(name.split()) > MOST_WORDS:
            return True
    return False


def repeat_names(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if a column's name is a value of it, so that it is a row's label and no name. A row that
    repeats all names is a second line of names.
    """
    for row in rows:
        repeats = [
            key for key, value in row.items() if isinstance(value, str) and value.strip() == key.strip()
        ]
        if repeats and len(repeats) < len(row):
            return True
    return False


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the columns of a sample of rows, in the order of their keys."""
    columns: dict[str, Column] = {}
    for row in rows:
        for path, value in _values(row, "", DEPTH):
            column = columns.setdefault(path, Column(path, len(columns)))
            if isinstance(value, str):
                column.texts.append(value)
                column.stated.append(value)
            elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
                column.lists.append(value)
            elif isinstance(value, list) and value and all(isinstance(item, str) for item in value):
                column.texts.append(value[0])
            elif value is not None:
                column.others += 1
                if isinstance(value, int):
                    column.stated.append(json.dumps(value))
    return [*columns.values(), *_inside_answers(list(columns.values()))]


def _inside_answers(columns: Sequence[Column]) -> Iterator[Column]:
    """Yield the columns of the only object in each list below an answer's key."""
    for column in columns:
        if column.lists and max(map(len, column.lists)) == 1 and column.speaks_of("answer"):
            for inner in columns_of([only for (only,) in column.lists]):
                yield replace(inner, path=f"{column.path}.0.{inner.path}", place=column.place)


def _values(row: Mapping[str, Any], above: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, str) and value.lstrip().startswith(("[{", "{")):
            value = _json(value)
        path = f"{above}{key}"
        if isinstance(value, dict) and depth and value:
            yield from _values(value, f"{path}.", depth - 1)
        else:
            yield path, value


def _json(text: str) -> Any:
    """Return the text as JSON if it is a list or an object, otherwise unchanged."""
    try:
        value = parse_value(text.encode("utf-8", "surrogatepass"))
    except BadLine:
        return text
    return value if isinstance(value, list | dict) else text


@dataclass(frozen=True)
class TurnKeys:
    """Keys of the turns in a column of lists: of role and text, or of both sides of an exchange."""

    role: str = ""
    content: str = ""
    user: str = ""
    assistant: str = ""
    names: tuple[str, ...] = ()  # values of the role; those that speak first come first


def turn_keys(lists: Sequence[Sequence[Mapping[str, Any]]]) -> TurnKeys | None:
    """Return the keys of the turns with the speaker and the text. Returns None if there are none."""
    turns = columns_of([turn for turns in lists for turn in turns])
    texts = [column for column in turns if column.texts]
    roles = [column for column in texts if _is_role(column, lists)]
    spoken = [column for column in texts if column not in roles and column.says_something]
    if not roles:
        asked = [column for column in spoken if column.speaks_of("question")]
        answered = [column for column in spoken if column.speaks_of("answer") and column not in asked]
        if asked and answered:
            return TurnKeys(user=asked[0].path, assistant=answered[0].path)
        return None
    if not spoken:
        return None
    role = max(roles, key=lambda column: (not ROLE_WORDS.isdisjoint(column.words), -column.place))
    content = max(spoken, key=lambda column: (not CONTENT_WORDS.isdisjoint(column.words), column.length))
    return TurnKeys(role.path, content.path, names=_speakers(lists, role.path))


def _is_role(column: Column, lists: Sequence[Sequence[Mapping[str, Any]]]) -> bool:
    """Return True for short values with only a few different ones per conversation, like speakers' names."""
    different = set(column.texts)
    if max(map(len, different)) > 40 or CONTENT_WORDS.intersection(column.words) - ROLE_WORDS:
        return False
    named = not ROLE_WORDS.isdisjoint(column.words)
    alternates = len(different) == 2 and len(column.texts) > 2
    return (named or alternates) and len(different) <= max(8, 2 * len(lists))


def _speakers(lists: Sequence[Sequence[Mapping[str, Any]]], path: str) -> tuple[str, ...]:
    first = Counter[str]()
    every = Counter[str]()
    for turns in lists:
        names = [text for column in columns_of(turns) if column.path == path for text in column.texts]
        first.update(names[:1])
        every.update(names)
    return tuple(sorted(every, key=lambda name: (-first[name], -every[name], name)))

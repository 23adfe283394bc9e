"""Verdicts beside a row: keys by which somebody threw it out, such as `status: discarded`, `isCorrect: false`
or `deleted_at`.

Words decide, those of the key and those of its value. Each word of the key must speak of a verdict or of the
row, so `order_status` and `thread_safe`, which judge something else, are no verdicts. `verdict_words` has the
words, by language.
"""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from pipeline.intake.rows.marks import words_in
from pipeline.intake.rows.verdict_words import ALL, words_of

Kind = Literal["bad", "good", "moment", "state"]


BAD_STATES = ALL.bad | words_of("declined disapproved nonsense unapproved")
FAILED = words_of("fail failed")
OF_ROWS = ALL.verbs | ALL.of_rows
ABOUT_ROWS = ("annotation", "meta", "metadata", "moderation", "review")  # objects that may hold a verdict
TURNS = ("messages", "conversations", "conversation")
OTHER_ROLES = ("system", "developer", "tool", "function", "observation")
LONGEST_STATE = 60  # characters
KNOWN_KEYS = 4096
TASK = frozenset(("_input_hash", "_task_hash", "_view_id"))  # keys of Prodigy's rows, of which each has one
THROWN_OUT = ("reject", "ignore")  # what the annotator decided, below the key `answer`
DECISIONS = ("accept", *THROWN_OUT)


def verdict_on(row: Mapping[str, Any], read: frozenset[str]) -> str | None:
    """Return the verdict by which a row is bad, `status: discarded` for example; None if there is none.

    Verdicts on a turn of the user or the assistant count. The keys `read` are the row's content.
    """
    return next(_verdicts(row, read), None)


def states_in(row: Mapping[str, Any], read: frozenset[str]) -> Iterator[str]:
    """Yield `status: solved` and the like for each key beside a row whose word is known neither as a reason
    to throw the row out nor as one to keep it. The keys `read` are the row's content.
    """
    for key, value in row.items():
        if key in read or not isinstance(value, str) or len(value) > LONGEST_STATE:
            continue
        words = set(plain_words(value))
        if words and kind_of(key) == "state" and bad_word(key, value) is None and not words <= ALL.good:
            yield f"{key}: {value.strip()}"


def decision_on(row: Mapping[str, Any]) -> str | None:
    """Return the decision by which an annotator threw out a row of Prodigy; None for any other row."""
    answer = row.get("answer")
    is_bad = answer in THROWN_OUT and not TASK.isdisjoint(row)
    return f"answer: {answer}" if is_bad else None


def without_decision(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of Prodigy without the decision on its label, which is no text; any other as it is."""
    if row.get("answer") not in DECISIONS or "label" not in row or TASK.isdisjoint(row):
        return row
    return {key: value for key, value in row.items() if key != "answer"}


def _verdicts(row: Mapping[str, Any], read: frozenset[str]) -> Iterator[str]:
    for key, value in row.items():
        if key in TURNS and isinstance(value, list):
            for turn in value:
                if isinstance(turn, dict) and turn.get("role", turn.get("from")) not in OTHER_ROLES:
                    yield from (f"a turn's {verdict}" for verdict in _among(turn))
        elif key not in read:
            if key in ABOUT_ROWS and isinstance(value, dict):
                yield from (f"{key}.{verdict}" for verdict in _among(value))
            word = bad_word(key, value)
            if word is not None:
                yield f"{key}: {word}"


def _among(item: Mapping[str, Any]) -> Iterator[str]:
    for key, value in item.items():
        word = bad_word(key, value)
        if word is not None:
            yield f"{key}: {word}"


def bad_word(key: str, value: Any) -> str | None:
    """Return the word for a value by which a key says that its row is bad; None if it does not say so."""
    kind = kind_of(key)
    if kind is None or value is None:
        return None
    if kind == "state":
        judging = [word for word in plain_words(key) if word not in OF_ROWS]
        return _bad_state(
            value, BAD_STATES if judging and ALL.of_runs.issuperset(judging) else BAD_STATES | FAILED
        )
    if kind == "moment":
        return "set" if _is_filled(value) else None
    is_bad = kind == "bad"
    return str(is_bad).lower() if _says(value, plain_words(key), truth=is_bad) else None


@lru_cache(KNOWN_KEYS)
def kind_of(key: str) -> Kind | None:
    """Return how a key states a verdict: `bad` by true, `good` by false, `moment` by any time or person,
    `state` by a word. None for other keys.
    """
    words = plain_words(key)
    judging = [word for word in words if word not in OF_ROWS]
    if "_".join(words) in ALL.reviews:
        return "state"
    if words and words[-1] in ALL.moments and ALL.bad.intersection(words):
        return "moment" if ALL.bad.issuperset(word for word in judging if word not in ALL.moments) else None
    if not judging:
        return None
    if ALL.states.issuperset(judging):
        return "state"
    # `correct_answer` and `rejected_response` hold a text; `answer_correct` and `is_correct_answer` judge.
    if ALL.open.intersection(words) and words[-1] not in ALL.open and words[0] not in ALL.verbs:
        return None
    if ALL.bad.issuperset(judging):
        return "bad"
    return "good" if ALL.good.issuperset(judging) else None


def _says(value: Any, words: Sequence[str], *, truth: bool) -> bool:
    """Return True if a value is true (or false, for `truth` False), also as text or, where that is no count,
    as a number.
    """
    if isinstance(value, bool):
        return value is truth
    if not isinstance(value, str | int | float):
        return False
    stated = _plain(str(value).strip().lower())
    if stated in (ALL.true if truth else ALL.false):
        return True
    if ALL.open.intersection(words) and words[0] not in ALL.verbs:
        return False
    return stated in (ALL.yes if truth else ALL.no)


def _is_filled(value: Any) -> bool:
    """Return True for a time or a person, and not for zeros such as 0000-00-00 and words for nothing."""
    if isinstance(value, list | dict):
        return False
    stated = _plain(str(value).strip().lower())
    return stated not in ALL.nothing and bool(stated.strip("0-/.: "))


def _bad_state(value: Any, bad: frozenset[str]) -> str | None:
    """Return the word by which a state is one of the `bad`; None for other states, and for sentences."""
    if not isinstance(value, str) or len(value) > LONGEST_STATE:
        return None
    words = [word for word in plain_words(value) if word not in OF_ROWS]
    if words[:1] and words[0] in ALL.negations:
        return " ".join(words[:2]) if ALL.good.intersection(words[1:2]) else None
    if not words or words[0] not in bad or not ALL.good.isdisjoint(words):
        return None
    return words[0]


def plain_words(name: str) -> list[str]:
    """Return the words of a name or a value in small letters and without accents."""
    return words_in(_plain(name))


def _plain(text: str) -> str:
    """Return a text without accents, so that `rejeté` and `rejete` are one word."""
    if text.isascii():
        return text
    parts = unicodedata.normalize("NFKD", text.replace("ł", "l").replace("Ł", "L"))  # which has no accent
    return "".join(character for character in parts if not unicodedata.combining(character))

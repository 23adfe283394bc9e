"""The formats of `data/raw`: how each is recognized by its keys, and how its rows become canonical ones.

docs/data-formats.md shows an example of each. A cleaning rule checks that turns alternate and have content.
Only rows that can't be represented are refused here.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import chain, islice
from typing import NamedTuple

from pipeline.chat.rows import OTHERS, BadRow, Row
from pipeline.core.text import listed, one_line
from pipeline.intake.rows.chats import (
    CONVERSATIONS,
    KTO,
    TOOLS,
    Content,
    conversation,
    dialogue,
    exchange_of,
    function_calls,
    is_dialogue,
    kto,
    logged,
    prompt_completion,
    prompt_of,
    requests,
)
from pipeline.intake.rows.choices import FEW
from pipeline.intake.rows.marks import check_row_mark, marks_of
from pipeline.intake.rows.pairs import PAIRS, UNDECIDED, WORSE, preference
from pipeline.intake.rows.reasoning import add_reasoning
from pipeline.intake.rows.texts import (
    PUT_TOGETHER,
    SPEAKERS,
    check_is_no_message,
    check_is_not_labelled,
    input_output,
    text_of,
)
from pipeline.intake.rows.turns import MEDIA, is_list, with_marks
from pipeline.intake.rows.unread import OF_QUESTIONS, check_choices, check_unread
from pipeline.intake.rows.values import UNREAD, Value, domain_of, filled


class Format(NamedTuple):
    """A format: its groups of keys (a row has one group, none null), its reader, and the keys with content in
    other formats that would be `lost`.
    """

    keys: tuple[tuple[str, ...], ...]
    read: Callable[..., Content]
    lost: tuple[str, ...] = ()


# In the order in which `auto` tries them. The more specific ones come first: a label before prompt and
# completion, both of them before only a prompt.
FORMATS = {
    "preference": Format((*PAIRS, *WORSE, *UNDECIDED), preference),
    "input_output": Format((("segments",),), input_output, TOOLS),
    "kto": Format(KTO, kto),
    "requests": Format((("request", "response"), ("messages", "response"), ("messages", "choices")), logged),
    "messages": Format((("messages",),), conversation),
    "sharegpt": Format((("conversations",), ("conversation",)), conversation),
    "function_calls": Format(
        (("query", "answers", "tools"), ("question", "answers", "tools")), function_calls
    ),
    "alpaca": Format((("instruction", "output"), ("instruction", "response")), exchange_of),
    "prompt_completion": Format((("prompt", "completion"),), prompt_completion),
    "query_response": Format(
        (
            ("query", "response"),
            ("query", "answer"),
            ("question", "response"),
            ("question", "answer"),
            ("prompt", "response"),
            ("input", "output"),
            ("input", "response"),
        ),
        exchange_of,
    ),
    "prompt": Format((("prompt", "answer"), ("question", "answer"), ("messages", "answer")), prompt_of),
    "gemini": Format((("contents", "candidates"), ("contents", "response"), ("contents",)), requests),
    "text": Format((("text",),), text_of),
    "dialogue": Format((("data",),), dialogue),
}
ANSWERED_BY_TEXT = ("alpaca", "prompt_completion", "query_response")
GROUPS = [(keys, name) for name, format in FORMATS.items() for keys in format.keys]
FORMAT_KEYS = frozenset(chain(*(keys for keys, _ in GROUPS)))
KEYS_READ = {name: frozenset(chain(*format.keys, ("label",))) for name, format in FORMATS.items()}
# Keys that a format does not read and that would change what is learned, such as an answer of a pair.
ANSWERS_OF_PAIRS = frozenset((*chain(*PAIRS), *(worse for _, worse in WORSE), "chosen_messages"))
LOST_KEYS = {
    name: {*MEDIA, *format.lost, *(ANSWERS_OF_PAIRS if name != "preference" else ())}
    for name, format in FORMATS.items()
}
# Keys with a list: of turns, calls, pairs, texts, pieces or tools; and keys with turns or a text.
LIST_KEYS = frozenset((*CONVERSATIONS, "answers", "history", OTHERS, "segments", *TOOLS))
TURN_KEYS = frozenset(("prompt", "completion", *ANSWERS_OF_PAIRS, *chain(*UNDECIDED)))
KNOWN_ROWS = 1024  # sets of keys whose format is cached
KEYS_SHOWN = 6  # keys of a row that fits no format
KEY_SHOWN = 40  # characters of such a key


def detect(value: Value) -> str:
    """Return the name of the row's format, detected only by its keys. Raises `BadRow` if it has none."""
    name = _format_of(frozenset(key for key in FORMAT_KEYS.intersection(value) if value[key] is not None))
    if name is None:
        raise BadRow("unknown_format", _unknown(value))
    if name == "text":
        check_is_no_message(filled(value))
        check_is_not_labelled(value)
    if name == "dialogue" and not is_dialogue(value):
        raise BadRow("unknown_format", _unknown(value))
    return name


def _format_of(keys_here: frozenset[str]) -> str | None:
    """Return the first format whose keys a row has."""
    group = group_of(keys_here)
    return None if group is None else group[1]


@lru_cache(KNOWN_ROWS)
def group_of(keys_here: frozenset[str]) -> tuple[tuple[str, ...], str] | None:
    """Return the first keys by which a row has a format, and that format.

    Most rows of a file have the same keys.
    """
    return next((group for group in GROUPS if keys_here.issuperset(group[0])), None)


def _unknown(value: Value) -> str:
    """Return a sentence with the first keys of a row without a format."""
    if not value:
        return "the row has no keys: it is an empty object"
    names = [
        one_line(key, KEY_SHOWN) + (" (null)" if item is None else "")
        for key, item in islice(value.items(), KEYS_SHOWN)
    ]
    if not value.keys().isdisjoint(SPEAKERS) and isinstance(value.get("content"), str):
        return f"looks like one message of a chat (content with {_speaker(value)}): {PUT_TOGETHER}"
    more = f" and {len(value) - KEYS_SHOWN} more" if len(value) > KEYS_SHOWN else ""
    stated = f"the row has the keys {', '.join(names)}{more}"
    missing = _missing(filled(value))
    if missing:
        return f"{stated}, and {listed(missing, 'or')} is missing or empty"
    return f"{stated}, which fit no format: map them in curate.fields (`quench data check` proposes it)"


def _speaker(value: Value) -> str:
    """Return the key that names the speaker of a message."""
    return next(key for key in SPEAKERS if key in value)


def _missing(keys_here: set[str]) -> list[str]:
    """Return keys of which a single one would give the row a format."""
    lacking = [set(keys) - keys_here for keys, _ in GROUPS if not keys_here.isdisjoint(keys)]
    return list(dict.fromkeys(next(iter(keys)) for keys in lacking if len(keys) == 1))


def to_row(value: Value, *, source: str, domain: str, format: str = "auto") -> Row:
    """Return the canonical row of a JSON object, without its id. Strings stay as they are. Raises `BadRow`.

    `format` is a name in `FORMATS` or auto (the first that fits). `domain` is used if the row names none
    itself.
    """
    name = detect(value) if format == "auto" else format
    groups = FORMATS[name].keys
    keys_here = filled(value)
    keys = next(filter(keys_here.issuperset, groups), None)
    if keys is None:
        needs = " or ".join(map(" + ".join, groups))
        raise BadRow("wrong_format", f"curate.formats says {name}, which needs {needs}")
    lost = LOST_KEYS[name]
    if not keys_here.isdisjoint(lost):
        for key in sorted(filter(value.get, keys_here.intersection(lost))):
            raise BadRow("unsupported_field", f"{key} {UNREAD}")
    if len(value) == 1:
        kind, content = FORMATS[name].read(value, *keys)
    else:
        value = _with_row_marks(value, keys)
        kind, content = FORMATS[name].read(value, *keys)
        is_question = name in ANSWERED_BY_TEXT or kind == "prompt"
        check_unread(value, keys, content, OF_QUESTIONS if is_question else frozenset())
        if is_question and len(value) >= FEW + len(keys):
            check_choices(value, keys, content)
        if kind not in ("prompt", "text"):
            add_reasoning(value, content, keys, is_read=name in ANSWERED_BY_TEXT)
        if value.get(OTHERS) and OTHERS not in content:
            raise BadRow("unsupported_field", f"{OTHERS} would be lost")
    return {"source": source, "kind": kind, "domain": domain_of(value, domain), **content}


def _with_row_marks(value: Value, keys: tuple[str, ...]) -> Value:
    """Return the row with the marks next to its turns moved to them. Raises `BadRow` for other marks."""
    marks = marks_of(value)
    if not marks:
        return value
    turns = next((key for key in keys if key in CONVERSATIONS), None)
    for key, mark in marks.items():
        if turns is None or not is_list(mark):
            check_row_mark(key, mark)
    return value if turns is None else with_marks(value, turns)

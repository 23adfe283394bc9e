"""The formats of `data/raw`: how each is recognized by its keys, and how its rows become canonical ones.

docs/data-formats.md shows an example of each. `FORMATS` is the list, in the order in which `auto` tries them.
A cleaning rule checks that turns alternate and have content. Only rows that can't be represented are refused
here.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain, islice, product
from typing import Any, NamedTuple

from pipeline.chat.rows import OTHERS, TURN_LISTS, BadRow, Kind, Row
from pipeline.core.text import listed, one_line, plural
from pipeline.intake.rows.choices import FEW, choices_among
from pipeline.intake.rows.marks import check_row_mark, marks_of, refuse_marks
from pipeline.intake.rows.markup import is_rendered
from pipeline.intake.rows.reasoning import add_reasoning
from pipeline.intake.rows.turns import (
    MEDIA,
    SPEAKER,
    Turn,
    is_list,
    read_call,
    read_tools,
    read_turns,
    shared_prompt,
    system_turn,
    transcript,
    turn,
    turns_of,
    with_marks,
)
from pipeline.intake.rows.values import (
    Value,
    accepted_answers,
    answer_text,
    domain_of,
    is_blank,
    items,
    label_of,
    number_of,
    one_text,
    thumb_of,
)
from pipeline.intake.wire.requests import exchange, request_row
from pipeline.intake.wire.shapes import without_nulls

KNOWN_ROWS = 1024  # sets of keys whose format is cached
PUT_TOGETHER = "put the turns of a conversation into one row of messages"
UNREAD = "would be lost: write it into the row's turns, or set it to null in curate.fields"
OF_CHOICES = "may be choices, which would be lost: put them below the question by curate.fields"
KEYS_SHOWN = 6  # keys of a row that fits no format
KEY_SHOWN = 40  # characters of such a key
Content = tuple[Kind, dict[str, Any]]  # the kind, and the content of the row in canonical order


def detect(value: Value) -> str:
    """Return the name of the row's format, detected only by its keys. Raises `BadRow` if it has none."""
    name = _format_of(frozenset(key for key in FORMAT_KEYS.intersection(value) if value[key] is not None))
    if name is None:
        raise BadRow("unknown_format", _unknown(value))
    if name == "text":
        _check_is_no_message(_filled(value))
        _check_is_not_labelled(value)
    if name == "dialogue" and not _is_dialogue(value):
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


def _check_is_no_message(keys: set[str]) -> None:
    """Raise `BadRow` if a text is one message of a chat's log, which must not be trained without the others.

    If such rows are meant as texts, their file is named in `curate.formats`.
    """
    stated = sorted(keys.intersection(SPEAKERS))
    if not stated and not (keys.intersection(USERS) and keys.intersection(TIMES)):
        return
    program = "Slack's export" if keys.issuperset(("ts", "text")) else "a chat's log"
    names = ", ".join(stated or sorted(keys.intersection((*USERS, *TIMES))))
    raise BadRow(
        "unknown_format",
        f"looks like a message of {program} (text with {names}): {PUT_TOGETHER}, or name the file in "
        "curate.formats as text",
    )


def _check_is_not_labelled(value: Value) -> None:
    """Raise `BadRow` if a text has a label next to it, which is not learned with the text alone. That of a
    rendered chat is a thumb.

    If such rows are meant as texts, their file is named in `curate.formats`.
    """
    label = next((key for key in LABELS if not is_blank(value.get(key))), None)
    text = value["text"]
    if label is not None and not (isinstance(text, str) and is_rendered(text)):
        raise BadRow(
            "unknown_format",
            f"{label} next to a text would not be learned: map {{user: text, assistant: {label}}} in "
            "curate.fields (`quench data check` proposes it), or name the file in curate.formats as text",
        )


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
    missing = _missing(_filled(value))
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
    keys_here = _filled(value)
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
        _check_unread(value, keys, content, OF_QUESTIONS if is_question else frozenset())
        if is_question and len(value) >= FEW + len(keys):
            _check_choices(value, keys, content)
        if kind not in ("prompt", "text"):
            add_reasoning(value, content, keys, is_read=name in ANSWERED_BY_TEXT)
        if value.get(OTHERS) and OTHERS not in content:
            raise BadRow("unsupported_field", f"{OTHERS} would be lost")
    return {"source": source, "kind": kind, "domain": domain_of(value, domain), **content}


def left_out_of_text(value: Value) -> list[str]:
    """Return the keys next to a text that contain something, and are neither read nor a domain's name."""
    return [key for key, item in value.items() if key not in READ_OF_TEXTS and not is_blank(item)]


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


def _check_unread(
    value: Value, keys: tuple[str, ...], content: Mapping[str, Any], offers: frozenset[str]
) -> None:
    """Check that each key that is a prompt or answer in some format was read, or repeats the row's content.

    The same is required of `offers`, keys with the choices of a question or its topic. Raises `BadRow`
    (`unsupported_field`) for one that would be dropped.
    """
    others = [key for key in value if key in SAYING_KEYS and key not in keys and value[key]]
    for key in offers.intersection(value):
        stated = value[key]
        is_long = key in ABOUT and isinstance(stated, str) and len(stated) >= LONG
        if stated and (is_long or isinstance(stated, list | dict) or is_list(stated)):
            others.append(key)
    if not others:
        return
    turns = [turn for field in TURN_LISTS for turn in content.get(field, ())]
    texts = [turn["content"] for turn in turns]
    texts += [turn["reasoning_content"] for turn in turns if "reasoning_content" in turn]
    texts += [segment["text"] for segment in content.get("segments", ())]
    if "answer" in content:
        texts.append(content["answer"])
    texts += content.get(OTHERS, ())
    whole = {text.strip() for text in texts}
    for key in sorted(others):
        stated = value[key]
        plain = isinstance(stated, str) and not is_list(stated)
        strings = (stated.strip(),) if plain else _strings(stated)
        quoted = [words for words in strings if words and words not in whole]
        if len(quoted) > MOST_QUOTED or not all(any(words in text for text in texts) for words in quoted):
            raise BadRow("unsupported_field", f"{key} {UNREAD}")


def _check_choices(value: Value, keys: tuple[str, ...], content: Mapping[str, Any]) -> None:
    """Check that a question contains its choices, if the row has these in columns of their own.

    Raises `BadRow` (`unsupported_field`) if they would be dropped.
    """
    choices = [key for key in choices_among(tuple(value)) if not is_blank(value[key]) and key not in keys]
    if len(choices) < FEW:
        return
    asked = "\n".join(turn["content"] for turn in content["messages"])
    if not all(str(value[key]).strip() in asked for key in choices):
        raise BadRow("unsupported_field", f"{', '.join(choices)} {OF_CHOICES}")


def _strings(value: Any) -> Iterator[str]:
    """Yield the texts of a prompt's key: its own, or those of its turns, pairs or parts."""
    if isinstance(value, str) and is_list(value):
        with suppress(BadRow):
            value = items(value, "")
    if isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        spoken = next((value[key] for key in SPOKEN if value.get(key) is not None), None)
        if spoken is not None or not value.keys() & {"role", "from"}:
            yield from _strings(json.dumps(value) if spoken is None else spoken)
    elif value is not None:
        yield value.strip() if isinstance(value, str) else json.dumps(value)


def _filled(value: Value) -> set[str]:
    """Return the keys that are not null."""
    return {key for key, item in value.items() if item is not None}


def _conversation(value: Value, field: str) -> Content:
    return _chat(value, read_turns(value[field], field))


def _exchange(value: Value, prompt: str, answered: str) -> Content:
    """Return history, question (its input or context after an empty line) and answer.

    An input or an output of turns or items is a request to an API, or its answer.
    """
    if prompt == "input" and _is_logged(value, prompt, answered):
        return _requests(value, prompt, answered)
    return _answered(value, _question(value, prompt), answered)


def _is_logged(value: Value, *keys: str) -> bool:
    """Return True if the value of one of these keys is an object, or a list of them."""
    return any(
        isinstance(value[key], dict) or (isinstance(value[key], list) and dict in map(type, value[key]))
        for key in keys
    )


def _requests(value: Value, request: str, response: str | None = None) -> Content:
    """Return the chat of a request to an API, below the key `request` or next to it, and its answer."""
    stated = value[request]
    if request == "request" or (request == "input" and isinstance(stated, dict)):
        body = stated
    else:
        lists = (key for key in (request, "tools") if is_list(value.get(key)))
        body = {**value, **{key: items(value[key], key) for key in lists}}
    if response is None:
        row = request_row(body)
    else:
        answer = value[response]
        row = exchange(body, {response: answer} if response in ("candidates", "choices") else answer)
    rest = {key: item for key, item in value.items() if key not in ("system", "functions", "tools")}
    return _conversation(rest | row, "messages")


def _logged(value: Value, asked_of: str, answered: str) -> Content:
    """Return the chat of a line of a request log."""
    if asked_of == "messages":
        return _messages_and_response(value, asked_of, answered)
    return _requests(value, asked_of, answered)


def _messages_and_response(value: Value, messages: str, response: str) -> Content:
    """Return a conversation and the answer to it, which has a key of its own."""
    turns = read_turns(value[messages], messages)
    if not turns or turns[-1]["role"] != "assistant":
        return _requests(value, messages, response)
    stated = value[response]
    if not isinstance(stated, str) or stated.strip() != turns[-1]["content"].strip():
        raise BadRow("unsupported_field", f"{messages} ends with an answer, and {response} holds another")
    return _chat(value, turns)


def _question(value: Value, prompt: str) -> list[Turn]:
    """Return the turns of history and of the question, with its input or context after an empty line."""
    turns = []
    history = value.get("history")
    for number, pair in enumerate(items(history, "history") if history else (), start=1):
        where = f"history {number}"
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadRow("bad_shape", f"{where} is not a pair of question and answer")
        turns += [turn("user", pair[0], where), turn("assistant", pair[1], where)]
    fields = [prompt]
    fields += [
        key for key in ("input", "context") if key in value and key != prompt and not is_blank(value[key])
    ]
    texts = [one_text(value[field], field) for field in fields]
    return [*turns, {"role": "user", "content": "\n\n".join(filter(None, texts))}]


def _prompt_completion(value: Value, prompt: str, answered: str) -> Content:
    asked = turns_of(value, prompt, "user")
    stated = value[answered]
    if isinstance(stated, dict) or (isinstance(stated, list) and dict in map(type, stated)):
        return _chat(value, [*asked, *turns_of(value, answered, "assistant")])
    return _answered(value, asked, answered)


def _answered(value: Value, asked: list[Turn], answered: str) -> Content:
    """Return a chat that ends with the row's answer.

    If there are several, it ends with the first, which is trained.
    """
    first, *others = accepted_answers(value[answered], answered)
    return _chat(value, [*asked, turn("assistant", first, answered)], others)


def _function_calls(value: Value, question: str, answered: str, _: str) -> Content:
    """Return a question and the calls that answer it, as in xlam's rows.

    Without a call there is no answer.
    """
    calls = [
        read_call(call, f"{answered} {number}")
        for number, call in enumerate(items(value[answered], answered), start=1)
    ]
    answer: Turn = {"role": "assistant", "content": ""}
    if calls:
        answer["tool_calls"] = calls
    return _chat(value, [*_question(value, question), answer])


def _kto(value: Value, *_: str) -> Content:
    """Return the content of TRL's (`label`) and LLaMA-Factory's (`kto_tag`) unpaired preferences."""
    thumb = thumb_of(value, "label" if value.get("kto_tag") is None else "kto_tag")
    plain = {key: value[key] for key in value if key not in ("kto_tag", "label")} | {"label": thumb}
    fields = next(keys for *keys, _ in KTO if _filled(plain).issuperset(keys))
    if len(fields) == 1:
        return _conversation(plain, *fields)
    return _prompt_completion(plain, *fields)


def _prompt(value: Value, field: str, answer: str) -> Content:
    messages = system_turn(value)
    if field == "messages":
        messages += read_turns(value[field], field)
    else:
        messages += turns_of(value, field, "user")
    return "prompt", _with_tools(value, messages) | _expected(value, answer)


def _preference(value: Value, *sides: str) -> Content:
    """Return the content of a pair. The turns that both conversations share are the prompt, after the row's
    own prompt unless they contain that already.
    """
    if sides in WORSE:
        return _worse_answer(value, *sides)
    asked = value.get("input")
    if isinstance(asked, dict):  # OpenAI's form: the conversation's turns and tools.
        value = {**value, "input": asked.get("messages"), "tools": asked.get("tools") or value.get("tools")}
    prompt = system_turn(value) + _prompt_turns(value)
    better, worse = sides
    if sides in UNDECIDED:
        better, worse = _preferred(value, sides)
    chosen = _side(value, better, prompted=bool(prompt))
    rejected = _side(value, worse, prompted=bool(prompt))
    if chosen == rejected:
        raise BadRow("no_preference", f"{better} and {worse} are the same")
    messages, chosen, rejected = shared_prompt(prompt, chosen, rejected)
    return "preference", _with_tools(value, messages) | {"chosen": chosen, "rejected": rejected}


def _worse_answer(value: Value, field: str, worse: str) -> Content:
    """Return a pair of the conversation below `field`, and the same with a worse last answer (ms-swift)."""
    chosen = read_turns(value[field], field)
    if not chosen or chosen[-1]["role"] != "assistant":
        raise BadRow(
            "bad_shape", f"{field} does not end with an answer, to which {worse} would be the worse one"
        )
    rejected = turns_of(value, worse, "assistant")
    if rejected and rejected[0]["role"] == "assistant":
        rejected = chosen[:-1] + rejected
    if chosen == rejected:
        raise BadRow("no_preference", f"the last answer of {field} and {worse} are the same")
    messages, chosen, rejected = shared_prompt(system_turn(value), chosen, rejected)
    return "preference", _with_tools(value, messages) | {"chosen": chosen, "rejected": rejected}


def _prompt_turns(value: Value) -> list[Turn]:
    """Return the turns of a pair's own prompt, by any of its names; none if it has no prompt."""
    field = next((key for key in PROMPTS if value.get(key) is not None), None)
    if field is None:
        return []
    return _question(value, field) if field in QUESTIONS else turns_of(value, field, "user")


def _side(value: Value, field: str, *, prompted: bool) -> list[Turn]:
    """Return the turns of one of a pair's answers, which is turns, text, a number, true or false.

    Without a prompt, a text is an entire conversation: a transcript, or a rendered chat, which the rule
    `markup` parses.
    """
    stated = value[field]
    if not prompted and isinstance(stated, str) and (SPEAKER.match(stated) or not is_rendered(stated)):
        return transcript(stated, field)
    if isinstance(stated, dict | list):
        return turns_of(value, field, "assistant")
    return [turn("assistant", answer_text(stated, field), field)]


def _preferred(value: Value, sides: tuple[str, ...]) -> tuple[str, str]:
    """Return the better and the worse of two sides such as `response_a` and `response_b`.

    Raises `BadRow` if there is no mark of the better side, or none that is certain.
    """
    marks = [key for key in PREFERRED if value.get(key) is not None]
    if len(marks) != 1:
        raise BadRow(
            "no_preference",
            f"{plural(len(marks), 'key')} of {', '.join(PREFERRED)} says whether {sides[0]} or {sides[1]} is "
            "better: write one",
        )
    # `response_b`, `model_b` and `B` name the second side. A bare number may count from 0 or from 1.
    words = re.findall(r"[^\W_]+", str(value[marks[0]]).lower()) or [""]
    *before, name = words
    if words[0] in TIES:
        raise BadRow("no_preference", f"{marks[0]} says that both are equally good")
    better = [side for side in sides if side.rpartition("_")[2] == name]
    is_name = not before or (len(before) == 1 and before[0] in ANSWERERS)
    is_certain = before or not name.isdigit() or sides[0].endswith("_0")
    if not better or not is_name or not is_certain:
        raise BadRow("unsupported_field", f"{marks[0]} is neither {sides[0]} nor {sides[1]}")
    return better[0], next(side for side in sides if side != better[0])


def _input_output(value: Value, field: str) -> Content:
    segments = []
    for number, item in enumerate(items(value[field], field), start=1):
        stated = without_nulls(item) if isinstance(item, dict) else {}
        train = stated.get("label", stated.get("train"))
        if not isinstance(train, bool):
            raise BadRow("bad_shape", f"segments {number} is not an object with text and a boolean label")
        refuse_marks(item, f"segments {number}", but=("train",))
        segments.append({"text": one_text(item.get("text"), f"segments {number}"), "train": train})
    return "text", {"messages": [], "segments": segments}


def _text(value: Value, field: str) -> Content:
    """Return the content of a text. If it is a rendered chat, the rule `markup` parses the turns, and the row
    may have a system text and tools next to it.
    """
    words = one_text(value[field], field)
    if is_rendered(words):
        return _chat(value, [turn("assistant", words, field)])
    for key in filter(value.get, WITHOUT_TURNS):
        raise BadRow("unsupported_field", f"{key} {UNREAD}")
    return "text", {"messages": [], "segments": [{"text": words, "train": True}]}


def _is_dialogue(value: Value) -> bool:
    """Return True if `data` is a list of texts by its beginning (as JSON in a table), and no other key
    contains lists or long texts, which the list could belong to.
    """
    data = value["data"]
    others = [item for key, item in value.items() if key not in BESIDE_DIALOGUES]
    if any(isinstance(item, list | dict) or (isinstance(item, str) and len(item) >= LONG) for item in others):
        return False
    if isinstance(data, str):
        return data.lstrip().startswith('["')
    return isinstance(data, list) and (not data or isinstance(data[0], str))


def _dialogue(value: Value, field: str) -> Content:
    """Return the chat of texts that alternate between user and assistant, as in UltraChat."""
    turns = []
    for number, words in enumerate(items(value[field], field)):
        turns.append(turn(SIDES[number % 2], words, f"{field} {number + 1}"))
    return _chat(value, turns)


class Format(NamedTuple):
    """A format: its groups of keys (a row has one group, none null), its reader, and the keys with content in
    other formats that would be `lost`.
    """

    keys: tuple[tuple[str, ...], ...]
    read: Callable[..., Content]
    lost: tuple[str, ...] = ()


PAIRS = (
    ("chosen", "rejected"),
    ("chosen_response", "rejected_response"),
    ("preferred_output", "non_preferred_output"),
)
WITHOUT_TURNS = ("tools", "functions")
SIDES = ("user", "assistant")
BESIDE_DIALOGUES = ("data", "system", "system_prompt", *WITHOUT_TURNS, "meta", "metadata")
CONVERSATIONS = ("messages", "conversations", "conversation")
UNDECIDED = (  # Marks name the better side.
    ("response_a", "response_b"),
    ("response_1", "response_2"),
    ("response_0", "response_1"),
    ("conversation_a", "conversation_b"),
)
PREFERRED = ("preference", "preferred", "winner", "choice", "chosen", "better", "better_response_id")
TIES = ("tie", "tied", "equal", "both", "same", "none", "neither")
ANSWERERS = ("answer", "assistant", "candidate", "completion", "model", "option", "output", "response")
# A conversation, and a worse last answer or the same conversation with it.
WORSE = tuple(product(CONVERSATIONS, ("rejected_response", "rejected_messages")))
ANSWERS_OF_PAIRS = frozenset((*chain(*PAIRS), *(worse for _, worse in WORSE), "chosen_messages"))
QUESTIONS = ("instruction", "question", "query")  # Read by `_question`, with input, context and history.
# keys for the prompt of a pair, of which the first present one is read
PROMPTS = ("prompt", *CONVERSATIONS, *QUESTIONS, "input")
PROMPT_KEYS = frozenset((*PROMPTS, "context", "history", "system", "system_prompt"))
ANSWER_KEYS = ("answer", "completion", "output", "response")
SAYING_KEYS = PROMPT_KEYS.union(ANSWER_KEYS)
# Without its choices a question means nothing, and its answer may be the number of one.
OFFERS = ("choices", "options")
ABOUT = ("article", "document", "paragraph", "passage", "story")  # topic of a question, if it is long
OF_QUESTIONS = frozenset((*OFFERS, *ABOUT))
LONG = 100  # characters of a text that is not a name
# Keys with a list: of turns, calls, pairs, texts, pieces or tools; and keys with turns or a text.
LIST_KEYS = frozenset((*CONVERSATIONS, "answers", "history", OTHERS, "segments", *WITHOUT_TURNS))
TURN_KEYS = frozenset(("prompt", "completion", *ANSWERS_OF_PAIRS, *chain(*UNDECIDED)))
SPOKEN = ("content", "value", "text", "messages")  # keys of a turn or part with its text
MOST_QUOTED = 64  # texts of a prompt's key that are searched in others
# A text with one of these, or with a user and a time, is one message of a log.
SPEAKERS = (
    *("bot_id", "from", "from_id", "from_me", "is_user", "nick", "nickname", "role", "sender", "sender_id"),
    "speaker",
)
USERS = ("user", "user_id", "username")
TIMES = ("created_at", "date", "sent_at", "thread_ts", "time", "timestamp", "ts")
LABELS = ("label", "labels", "label_text", "class", "sentiment", "intent", "emotion")
KTO = (("prompt", "completion", "label"), ("messages", "kto_tag"), ("conversations", "kto_tag"))
REQUESTS = (("request", "response"), ("messages", "response"), ("messages", "choices"))
CONTENTS = (("contents", "candidates"), ("contents", "response"), ("contents",))
QUERY_RESPONSE = (
    ("query", "response"),
    ("query", "answer"),
    ("question", "response"),
    ("question", "answer"),
    ("prompt", "response"),
    ("input", "output"),
    ("input", "response"),
)
FUNCTION_CALLS = (("query", "answers", "tools"), ("question", "answers", "tools"))
ANSWERED_BY_TEXT = ("alpaca", "prompt_completion", "query_response")
READ_OF_TEXTS = frozenset(("text", "segments", "domain", "category"))
# The more specific formats come first: a label before prompt and completion, both of them before only a
# prompt.
FORMATS = {
    "preference": Format((*PAIRS, *WORSE, *UNDECIDED), _preference),
    "input_output": Format((("segments",),), _input_output, WITHOUT_TURNS),
    "kto": Format(KTO, _kto),
    "requests": Format(REQUESTS, _logged),
    "messages": Format((("messages",),), _conversation),
    "sharegpt": Format((("conversations",), ("conversation",)), _conversation),
    "function_calls": Format(FUNCTION_CALLS, _function_calls),
    "alpaca": Format((("instruction", "output"), ("instruction", "response")), _exchange),
    "prompt_completion": Format((("prompt", "completion"),), _prompt_completion),
    "query_response": Format(QUERY_RESPONSE, _exchange),
    "prompt": Format((("prompt", "answer"), ("question", "answer"), ("messages", "answer")), _prompt),
    "gemini": Format(CONTENTS, _requests),
    "text": Format((("text",),), _text),
    "dialogue": Format((("data",),), _dialogue),
}
# Keys that a format does not read and that would change what is learned, such as an answer of a pair.
LOST_KEYS = {
    name: {*MEDIA, *format.lost, *(ANSWERS_OF_PAIRS if name != "preference" else ())}
    for name, format in FORMATS.items()
}
KEYS_READ = {name: frozenset(chain(*format.keys, ("label",))) for name, format in FORMATS.items()}
GROUPS = [(keys, name) for name, format in FORMATS.items() for keys in format.keys]
FORMAT_KEYS = frozenset(chain(*(keys for keys, _ in GROUPS)))


def _chat(value: Value, turns: list[Turn], others: Sequence[str] = ()) -> Content:
    """Return the content of a conversation. A label makes it feedback, and an `answer` that the turns lack
    makes it a prompt. A score is kept.

    `others` are the answers that are accepted in addition to the last turn.
    """
    if len(value) == 1:
        return "chat", {"messages": turns}
    content = _with_tools(value, system_turn(value) + turns)
    thumb = label_of(value)
    if thumb is not None:
        if others:
            raise BadRow("bad_shape", "the label is of one answer, and there are several: write a row each")
        return "feedback", content | {"label": thumb}
    if turns and turns[-1]["role"] in ("user", "tool") and value.get("answer") is not None:
        return "prompt", content | _expected(value, "answer")
    scored = next((key for key in ("reward", "score") if value.get(key) not in (None, "")), None)
    content |= {"reward": number_of(value[scored], scored)} if scored else {}
    if turns and turns[-1]["role"] == "assistant":
        content |= _others(value, turns[-1]["content"], others)
    return "chat", content


def _expected(value: Value, field: str) -> dict[str, Any]:
    """Return the answer that a prompt expects, and the others that are accepted."""
    first, *others = accepted_answers(value[field], field)
    return {"answer": first} | _others(value, first, others)


def _others(value: Value, answer: str, others: Sequence[str]) -> dict[str, Any]:
    """Return the accepted answers besides the trained one, including those of the row's own key."""
    stated = value.get(OTHERS) or []
    if not others and not stated:  # The usual case.
        return {}
    if not isinstance(stated, list) or not all(isinstance(other, str) for other in stated):
        raise BadRow("bad_shape", f"{OTHERS} is not a list of texts")
    different = [other for other in dict.fromkeys((*others, *stated)) if other != answer]
    return {OTHERS: different} if different else {}


def _with_tools(value: Value, messages: list[Turn]) -> dict[str, Any]:
    tools = read_tools(value.get("tools") or value.get("functions") or [])
    return {"messages": messages, "tools": tools} if tools else {"messages": messages}

"""The formats of `data/raw`: how each is recognized by its keys, and how its rows become canonical ones.

docs/data-formats.md shows an example of each; `FORMATS` is the list, in the order in which `auto` tries them.
Whether turns alternate or say anything is left to a cleaning rule; here only what can't be represented is
refused.
"""

import json
from collections.abc import Callable
from itertools import takewhile
from typing import Any, NamedTuple

from pipeline.chat.rows import BadRow, Kind, Row
from pipeline.stages.curate.reading.turns import (
    MEDIA,
    Turn,
    read_tools,
    read_turns,
    system_turn,
    transcript,
    turn,
    turns_of,
)
from pipeline.stages.curate.reading.values import (
    Value,
    answer_of,
    domain_of,
    items,
    label_of,
    number_of,
    text,
    thumb_of,
)

Content = tuple[Kind, dict[str, Any]]  # the kind, and what of the row is content, in canonical order


def detect(value: Value) -> str:
    """The name of the row's format, judged by its keys alone. Raises `BadRow` if it has none."""
    keys_here = _filled(value)
    for keys, name in GROUPS:
        if keys_here.issuperset(keys):
            return name
    raise BadRow(
        "unknown_format", f"has none of the keys {'; '.join(' + '.join(keys) for keys, _ in GROUPS)}"
    )


def to_row(value: Value, *, source: str, domain: str, format: str = "auto") -> Row:
    """The canonical row of a JSON object, without its id; strings stay as they are. Raises `BadRow`.

    `format` is a name in `FORMATS` or auto (the first that fits); `domain` counts where the row names none
    itself.
    """
    name = detect(value) if format == "auto" else format
    groups, keys_here = FORMATS[name].keys, _filled(value)
    keys = next(filter(keys_here.issuperset, groups), None)
    if keys is None:
        needs = " or ".join(map(" + ".join, groups))
        raise BadRow("wrong_format", f"curate.formats says {name}, which needs {needs}")
    if lost := sorted(filter(value.get, keys_here.intersection((*MEDIA, *FORMATS[name].lost)))):
        raise BadRow("unsupported_field", f"{lost[0]} would be lost")
    kind, content = FORMATS[name].read(value, *keys)
    return {"source": source, "kind": kind, "domain": domain_of(value, domain), **content}


def _filled(value: Value) -> set[str]:
    """The keys that are not null."""
    return {key for key, item in value.items() if item is not None}


def _conversation(value: Value, field: str) -> Content:
    return _chat(value, read_turns(value[field], field))


def _exchange(value: Value, prompt: str, answered: str) -> Content:
    """History, question (its input or context after an empty line) and answer."""
    turns = []
    for number, pair in enumerate(items(value.get("history") or [], "history"), start=1):
        where = f"history {number}"
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadRow("bad_shape", f"{where} is not a pair of question and answer")
        turns += [turn("user", pair[0], where), turn("assistant", pair[1], where)]
    more = [field for field in ("input", "context") if field != prompt and value.get(field)]
    question = "\n\n".join(filter(None, (text(value[field], field) for field in (prompt, *more))))
    return _chat(
        value, [*turns, turn("user", question, prompt), turn("assistant", value[answered], answered)]
    )


def _prompt_completion(value: Value, prompt: str, answered: str) -> Content:
    return _chat(value, turns_of(value, prompt, "user") + turns_of(value, answered, "assistant"))


def _kto(value: Value, *_: str) -> Content:
    """TRL's (`label`) and LLaMA-Factory's (`kto_tag`) unpaired preferences."""
    thumb = thumb_of(value, "label" if value.get("kto_tag") is None else "kto_tag")
    plain = {key: value[key] for key in value if key not in ("kto_tag", "label")} | {"label": thumb}
    fields = next(keys for *keys, _ in KTO if _filled(plain).issuperset(keys))
    return _conversation(plain, *fields) if len(fields) == 1 else _prompt_completion(plain, *fields)


def _prompt(value: Value, field: str, answer: str) -> Content:
    messages = system_turn(value)
    messages += read_turns(value[field], field) if field == "messages" else turns_of(value, field, "user")
    return "prompt", _with_tools(value, messages) | {"answer": answer_of(value[answer])}


def _preference(value: Value, *sides: str) -> Content:
    """What both conversations share is the prompt, after the row's own prompt unless it has that already."""
    prompt = system_turn(value)
    field = next((key for key in ("prompt", "messages", "conversations") if value.get(key) is not None), None)
    if field:
        prompt += turns_of(value, field, "user")
    chosen, rejected = (
        transcript(value[key], key)
        if not prompt and isinstance(value[key], str)
        else turns_of(value, key, "assistant")
        for key in sides
    )
    if chosen == rejected:
        raise BadRow("no_preference", "chosen and rejected are the same")
    turn_pairs = zip(chosen[:-1], rejected[:-1], strict=False)  # each side keeps a turn
    common = [shared for shared, _ in takewhile(lambda pair: pair[0] == pair[1], turn_pairs)]
    stated = [turn for turn in prompt if turn["role"] != "system"]
    repeated = [turn for turn in common if turn["role"] != "system"][: len(stated)]
    if repeated == stated:  # both sides are complete conversations
        # a set, because `in` on a list takes quadratic time
        stated_systems = {json.dumps(turn) for turn in common if turn["role"] == "system"}
        prompt = [
            turn for turn in prompt if turn["role"] == "system" and json.dumps(turn) not in stated_systems
        ]
    return "preference", _with_tools(value, prompt + common) | {
        "chosen": chosen[len(common) :],
        "rejected": rejected[len(common) :],
    }


def _input_output(value: Value, field: str) -> Content:
    segments = []
    for number, item in enumerate(items(value[field], field), start=1):
        train = item.get("label", item.get("train")) if isinstance(item, dict) else None
        if not isinstance(train, bool):
            raise BadRow("bad_shape", f"segments {number} is not an object with text and a boolean label")
        segments.append({"text": text(item.get("text"), f"segments {number}"), "train": train})
    return "text", {"messages": [], "segments": segments}


def _text(value: Value, field: str) -> Content:
    return "text", {"messages": [], "segments": [{"text": text(value[field], field), "train": True}]}


class Format(NamedTuple):
    """How rows of one format are recognized (one of these groups of keys, none null), what reads them, and
    which keys would be `lost` that say something in other formats.
    """

    keys: tuple[tuple[str, ...], ...]
    read: Callable[..., Content]
    lost: tuple[str, ...] = ()


KTO = (("prompt", "completion", "label"), ("messages", "kto_tag"), ("conversations", "kto_tag"))
QUERY_RESPONSE = (
    ("query", "response"),
    ("query", "answer"),
    ("question", "response"),
    ("question", "answer"),
    ("prompt", "response"),
    ("input", "output"),
)
EARLIER, BESIDE = ("history",), ("history", "input", "context")  # `_exchange` reads them
WITHOUT_TURNS = ("history", "system", "system_prompt", "tools", "functions")
# what says more about the row comes first: a label before prompt and completion, both of them before a prompt
# alone
FORMATS = {
    "preference": Format((("chosen", "rejected"),), _preference, BESIDE),
    "input_output": Format((("segments",),), _input_output, WITHOUT_TURNS),
    "kto": Format(KTO, _kto, BESIDE),
    "messages": Format((("messages",),), _conversation, EARLIER),
    "sharegpt": Format((("conversations",), ("conversation",)), _conversation, EARLIER),
    "alpaca": Format((("instruction", "output"), ("instruction", "response")), _exchange),
    "prompt_completion": Format((("prompt", "completion"),), _prompt_completion, BESIDE),
    "query_response": Format(QUERY_RESPONSE, _exchange),
    "prompt": Format((("prompt", "answer"), ("question", "answer"), ("messages", "answer")), _prompt, BESIDE),
    "text": Format((("text",),), _text, WITHOUT_TURNS),
}
GROUPS = [(keys, name) for name, format in FORMATS.items() for keys in format.keys]


def _chat(value: Value, turns: list[Turn]) -> Content:
    """A conversation; a label makes it feedback, an answer that it lacks a prompt, and a score is kept."""
    if len(value) == 1:
        return "chat", {"messages": turns}
    content = _with_tools(value, system_turn(value) + turns)
    if (thumb := label_of(value)) is not None:
        return "feedback", content | {"label": thumb}
    if turns and turns[-1]["role"] in ("user", "tool") and value.get("answer") is not None:
        return "prompt", content | {"answer": answer_of(value["answer"])}
    scored = next((key for key in ("reward", "score") if value.get(key) not in (None, "")), None)
    return "chat", content | {"reward": number_of(value[scored], scored)} if scored else content


def _with_tools(value: Value, messages: list[Turn]) -> dict[str, Any]:
    tools = read_tools(value.get("tools") or value.get("functions") or [])
    return {"messages": messages, "tools": tools} if tools else {"messages": messages}

"""Rows of conversations, of questions and answers, and of requests to an API, as the content of chats.

A row's system text, tools, label, score and other accepted answers go with it.
"""

from collections.abc import Sequence
from typing import Any

from pipeline.chat.rows import OTHERS, BadRow, Kind
from pipeline.intake.rows.turns import (
    Turn,
    is_list,
    read_call,
    read_tools,
    read_turns,
    system_turn,
    turn,
    turns_of,
)
from pipeline.intake.rows.values import (
    Value,
    accepted_answers,
    filled,
    is_blank,
    items,
    label_of,
    number_of,
    one_text,
    thumb_of,
)
from pipeline.intake.wire.requests import exchange, request_row

Content = tuple[Kind, dict[str, Any]]  # the kind, and the content of the row in canonical order

CONVERSATIONS = ("messages", "conversations", "conversation")
TOOLS = ("tools", "functions")
KTO = (("prompt", "completion", "label"), ("messages", "kto_tag"), ("conversations", "kto_tag"))
LONG = 100  # characters of a text that is not a name
SIDES = ("user", "assistant")
BESIDE_DIALOGUES = ("data", "system", "system_prompt", *TOOLS, "meta", "metadata")


def conversation(value: Value, field: str) -> Content:
    """Return the content of the turns below `field`."""
    return chat_of(value, read_turns(value[field], field))


def exchange_of(value: Value, prompt: str, answered: str) -> Content:
    """Return history, question (its input or context after an empty line) and answer.

    An input or an output of turns or items is a request to an API, or its answer.
    """
    if prompt == "input" and _is_logged(value, prompt, answered):
        return requests(value, prompt, answered)
    return _answered(value, question_of(value, prompt), answered)


def _is_logged(value: Value, *keys: str) -> bool:
    """Return True if the value of one of these keys is an object, or a list of them."""
    return any(
        isinstance(value[key], dict) or (isinstance(value[key], list) and dict in map(type, value[key]))
        for key in keys
    )


def logged(value: Value, asked_of: str, answered: str) -> Content:
    """Return the chat of a line of a request log."""
    if asked_of == "messages":
        return _messages_and_response(value, asked_of, answered)
    return requests(value, asked_of, answered)


def requests(value: Value, request: str, response: str | None = None) -> Content:
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
    return conversation(rest | row, "messages")


def _messages_and_response(value: Value, messages: str, response: str) -> Content:
    """Return a conversation and the answer to it, which has a key of its own."""
    turns = read_turns(value[messages], messages)
    if not turns or turns[-1]["role"] != "assistant":
        return requests(value, messages, response)
    stated = value[response]
    if not isinstance(stated, str) or stated.strip() != turns[-1]["content"].strip():
        raise BadRow("unsupported_field", f"{messages} ends with an answer, and {response} holds another")
    return chat_of(value, turns)


def question_of(value: Value, prompt: str) -> list[Turn]:
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


def prompt_completion(value: Value, prompt: str, answered: str) -> Content:
    """Return the content of a prompt and its answer, each of which is turns or text."""
    asked = turns_of(value, prompt, "user")
    stated = value[answered]
    if isinstance(stated, dict) or (isinstance(stated, list) and dict in map(type, stated)):
        return chat_of(value, [*asked, *turns_of(value, answered, "assistant")])
    return _answered(value, asked, answered)


def _answered(value: Value, asked: list[Turn], answered: str) -> Content:
    """Return a chat that ends with the row's answer.

    If there are several, it ends with the first, which is trained.
    """
    first, *others = accepted_answers(value[answered], answered)
    return chat_of(value, [*asked, turn("assistant", first, answered)], others)


def function_calls(value: Value, question: str, answered: str, _: str) -> Content:
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
    return chat_of(value, [*question_of(value, question), answer])


def kto(value: Value, *_: str) -> Content:
    """Return the content of TRL's (`label`) and LLaMA-Factory's (`kto_tag`) unpaired preferences."""
    thumb = thumb_of(value, "label" if value.get("kto_tag") is None else "kto_tag")
    plain = {key: value[key] for key in value if key not in ("kto_tag", "label")} | {"label": thumb}
    fields = next(keys for *keys, _ in KTO if filled(plain).issuperset(keys))
    if len(fields) == 1:
        return conversation(plain, *fields)
    return prompt_completion(plain, *fields)


def prompt_of(value: Value, field: str, answer: str) -> Content:
    """Return the content of a prompt, with the answer that is expected."""
    messages = system_turn(value)
    if field == "messages":
        messages += read_turns(value[field], field)
    else:
        messages += turns_of(value, field, "user")
    return "prompt", with_tools(value, messages) | expected_of(value, answer)


def is_dialogue(value: Value) -> bool:
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


def dialogue(value: Value, field: str) -> Content:
    """Return the chat of texts that alternate between user and assistant, as in UltraChat."""
    turns = []
    for number, words in enumerate(items(value[field], field)):
        turns.append(turn(SIDES[number % 2], words, f"{field} {number + 1}"))
    return chat_of(value, turns)


def chat_of(value: Value, turns: list[Turn], others: Sequence[str] = ()) -> Content:
    """Return the content of a conversation. A label makes it feedback, and an `answer` that the turns lack
    makes it a prompt. A score is kept.

    `others` are the answers that are accepted in addition to the last turn.
    """
    if len(value) == 1:
        return "chat", {"messages": turns}
    content = with_tools(value, system_turn(value) + turns)
    thumb = label_of(value)
    if thumb is not None:
        if others:
            raise BadRow("bad_shape", "the label is of one answer, and there are several: write a row each")
        return "feedback", content | {"label": thumb}
    if turns and turns[-1]["role"] in ("user", "tool") and value.get("answer") is not None:
        return "prompt", content | expected_of(value, "answer")
    scored = next((key for key in ("reward", "score") if value.get(key) not in (None, "")), None)
    content |= {"reward": number_of(value[scored], scored)} if scored else {}
    if turns and turns[-1]["role"] == "assistant":
        content |= _others(value, turns[-1]["content"], others)
    return "chat", content


def expected_of(value: Value, field: str) -> dict[str, Any]:
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


def with_tools(value: Value, messages: list[Turn]) -> dict[str, Any]:
    """Return the turns, with the tools that the row offers if there are any."""
    tools = read_tools(value.get("tools") or value.get("functions") or [])
    return {"messages": messages, "tools": tools} if tools else {"messages": messages}

"""LangChain's and LangGraph's serialized messages: an array of them, or a record with `messages`.

After langchain-ai/langchain `libs/core/langchain_core/messages` (0.1 to 1.0). `messages_to_dict` writes
`{"type": "human", "data": {"content": …}}`, which chat histories in files and databases contain. `dumps` and
LangGraph's streams write `{"lc": 1, "type": "constructor", "id": [… "HumanMessage"], "kwargs": {…}}`.
`model_dump` and LangGraph's API write `{"type": "human", "content": …, "additional_kwargs": {…}}`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.core.text import quoted
from pipeline.intake.exports.answers import result_text, user_turn
from pipeline.intake.exports.export import Alone, Conversation, Export, Head, Notes, Record, conversation_rows
from pipeline.intake.exports.view import View, text_in, texts
from pipeline.intake.wire.draft import Call, Turn, call_of, settled

# Roles by a message's type, or by its class in small letters without "message".
ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("ai", "assistant"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function"), "tool"),
}
CUT_OFF = ("length", "max_tokens", "MAX_TOKENS", "content_filter")
IMAGES = ("image", "image_url")
CALLS = ("tool_use", "tool_call", "function_call")  # types of parts that repeat the calls


def is_head(head: Head) -> bool:
    """Return True if a record is a conversation of such messages, or a message of an array of them."""
    if head.layout == "array" and head.values and is_message(View(head.values[0])):
        objects = head.objects()
        return len(objects) == len(head.values) and all("messages" not in value for value in objects)
    return any(any(map(is_message, _messages(value) or ())) for value in head.objects())


def is_message(value: View) -> bool:
    """Return True for a message in one of the three forms."""
    if "role" in value:
        return False
    if _is_constructor(value):
        return _class_of(value).endswith(("Message", "MessageChunk"))
    if _type_of(value) not in (*ROLES, "chat", "remove"):
        return False
    if value.has("data", dict):
        return "content" in value["data"]
    of_messages = ("additional_kwargs", "response_metadata", "tool_calls", "tool_call_id")
    return "content" in value and not value.keys().isdisjoint(of_messages)


def _messages(value: View) -> list[View] | None:
    """Return the messages of a record: its own, or those of LangGraph's state."""
    for state in (value, value.object("values")):
        if state.has("messages", list):
            return state.elements("messages")
    return None


def _is_constructor(value: View) -> bool:
    return value.get("lc") == 1 and value.has("id", list)


def _class_of(value: View) -> str:
    return str(next(reversed(value["id"]), ""))


def _type_of(value: View) -> str:
    return str(value.get("type")).removesuffix("MessageChunk").lower()


def read(records: Iterable[Record], notes: Notes) -> Iterator[Conversation]:
    """Yield a row per conversation, and one for all messages that are records, if each can be read."""
    alone = Alone()
    for record in records:
        number = record.number
        listed = _messages(View(record.value))
        try:
            if listed is None:
                alone.add(number, record.offset, turns_of(record.view(), f"message {number}", notes))
                continue
            for row in _row(listed, notes):
                yield Conversation(number, record.offset, row)
        except BadLine as why:
            yield Conversation(number, record.offset, why)
            if listed is None:
                alone.hole = why
    yield from alone.conversation(notes, settled)


def _row(listed: list[View], notes: Notes) -> Iterator[dict[str, Any]]:
    turns: list[Turn] = []
    for number, message in enumerate(listed, start=1):
        turns += turns_of(message, f"messages {number}", notes)
    yield from conversation_rows(settled(turns, notes), notes)


def turns_of(message: View, where: str, notes: Notes) -> list[Turn]:
    """Return the turn of a message, none for one that removes another. Raises `BadLine` for anything that is
    not a message.
    """
    if not is_message(message):
        raise BadLine(
            "bad_shape", f"{where} is no message as LangChain writes them (type with data or content)"
        )
    kind, data = _opened(message)
    if kind == "remove":
        notes["messages_removed"] += 1
        return []
    speaker = str(data.get("role")).lower() if kind == "chat" else kind
    role = ROLES.get(speaker)
    if role is None:
        raise BadLine("bad_role", f"{where}: {quoted(speaker)} is none of {', '.join(ROLES)}")
    may_be_missing = role == "assistant" and data.get("content") is None
    if not data.has("content", str | list) and not may_be_missing:
        raise BadLine("content_not_text", f"{where}: the content is neither text nor a list of parts")
    words = _text_of(data, notes)
    images = sum(part.get("type") in IMAGES for part in data.objects("content"))
    if role == "user":
        return user_turn(words, [], notes, shows_image=images > 0)
    notes["attachments"] += images
    if role == "system":
        return [{"role": "system", "content": words}]
    if role == "tool":
        is_read = bool(words) or data.has("content", str)
        output = words if is_read else result_text(data["content"])
        return [{"role": "tool", "tool_call_id": data.text_or_none("tool_call_id"), "content": output}]
    return [_answer(data, words, notes)]


def _opened(message: View) -> tuple[str, View]:
    """Return the type of a message, and the object with its content."""
    if _is_constructor(message):
        name = _class_of(message).removesuffix("Chunk").removesuffix("Message")
        return name.lower(), message.object("kwargs")
    return _type_of(message), message.object("data") if message.has("data", dict) else message


def _text_of(data: View, notes: Notes) -> str:
    """Return the content's text. Parts that are neither text, reasoning, images nor calls are counted."""
    if not data.has("content", list):
        return data.text("content")
    words = []
    for part in data["content"]:
        kind = View(part).get("type", "text")
        text = text_in(part)
        if kind in ("text", "output_text") and text is not None:
            words.append(text)
        elif kind not in (*CALLS, *IMAGES, "input_json_delta", "thinking", "reasoning"):
            notes["blocks_not_read"] += 1
    return "\n".join(words)


def _answer(data: View, words: str, notes: Notes) -> Turn:
    turn: Turn = {"role": "assistant", "content": words}
    thoughts = [part.get("thinking") or part.get("reasoning") for part in data.objects("content")]
    reasoning = texts(*thoughts) or data.object("additional_kwargs").texts("reasoning_content")
    if reasoning:
        turn["reasoning_content"] = reasoning
    notes["calls_unreadable"] += len(data.objects("invalid_tool_calls"))
    calls = _calls(data)
    if calls:
        turn["tool_calls"] = calls
    ending = data.object("response_metadata")
    if ending.get("finish_reason") in CUT_OFF or ending.get("stop_reason") in CUT_OFF:
        notes["aborted"] += 1
        turn["train"] = False
    return turn


def _calls(data: View) -> list[Call]:
    """Return the calls of an answer, in the newest of the forms that it has."""
    calls = [
        call_of(call.get("name"), call.get("args"), call.get("id")) for call in data.objects("tool_calls")
    ]
    more = data.object("additional_kwargs")
    if not calls:
        listed = more.objects("tool_calls")
        calls = [_call_of(call.object("function"), call.get("id")) for call in listed]
    if not calls and more.has("function_call", dict):
        calls = [_call_of(more.object("function_call"), None)]
    if not calls:  # Before LangChain 0.1.16, Anthropic's calls were only parts.
        calls = [_call_of_part(part) for part in data.objects("content") if part.get("type") in CALLS]
    return calls


def _call_of(function: View, place: Any) -> Call:
    """Return a call from OpenAI's form in older messages."""
    return call_of(function.get("name"), function.get("arguments"), place)


def _call_of_part(part: View) -> Call:
    """Return a call that Anthropic, LangChain 1.0 or OpenAI's Responses put among a content's parts."""
    given = next((part[key] for key in ("input", "args", "arguments") if part.get(key) is not None), None)
    return call_of(part.get("name"), given, part.get("call_id") or part.get("id"))


EXPORT = Export("langchain", is_head, read)

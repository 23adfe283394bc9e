"""LangChain's and LangGraph's serialized messages: an array of them, or a record with `messages`.

After langchain-ai/langchain `libs/core/langchain_core/messages` (0.1 to 1.0). `messages_to_dict` writes
`{"type": "human", "data": {"content": …}}`, which chat histories in files and databases contain. `dumps` and
LangGraph's streams write `{"lc": 1, "type": "constructor", "id": [… "HumanMessage"], "kwargs": {…}}`.
`model_dump` and LangGraph's API write `{"type": "human", "content": …, "additional_kwargs": {…}}`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.core.text import quoted
from pipeline.intake.exports.answers import result_text, user_turn
from pipeline.intake.exports.export import Alone, Conversation, Export, Head, Notes, Record
from pipeline.intake.exports.view import objects, texts
from pipeline.intake.wire.draft import Turn, call_of, settled

# Roles by a message's type, or by its class in small letters without "message".
ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("ai", "assistant"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function"), "tool"),
}
TYPES = (*ROLES, "chat", "remove")
CUT_OFF = ("length", "max_tokens", "MAX_TOKENS", "content_filter")
OF_MESSAGES = ("additional_kwargs", "response_metadata", "tool_calls", "tool_call_id")
IMAGES = ("image", "image_url")
CALLS = ("tool_use", "tool_call", "function_call")  # types of parts that repeat the calls
NO_TEXTS = (*CALLS, "input_json_delta")


def is_head(head: Head) -> bool:
    """Return True if a record is a conversation of such messages, or a message of an array of them."""
    if head.layout == "array" and head.values and is_message(head.values[0]):
        return all(isinstance(value, dict) and "messages" not in value for value in head.values)
    return any(any(map(is_message, _messages(value) or ())) for value in head.objects())


def is_message(value: Any) -> bool:
    """Return True for a message in one of the three forms."""
    if not isinstance(value, dict) or "role" in value:
        return False
    if value.get("lc") == 1 and isinstance(value.get("id"), list):
        return str(next(reversed(value["id"]), "")).endswith(("Message", "MessageChunk"))
    if _type_of(value) not in TYPES:
        return False
    data = value.get("data")
    if isinstance(data, dict):
        return "content" in data
    return "content" in value and not value.keys().isdisjoint(OF_MESSAGES)


def _messages(value: Mapping[str, Any]) -> list[Any] | None:
    """Return the messages of a record: its own, or those of LangGraph's state."""
    state = value.get("values")
    for listed in (value.get("messages"), state.get("messages") if isinstance(state, dict) else None):
        if isinstance(listed, list):
            return listed
    return None


def _type_of(value: Mapping[str, Any]) -> str:
    return str(value.get("type")).removesuffix("MessageChunk").lower()


def read(records: Iterable[Record], notes: Notes) -> Iterator[Conversation]:
    """Yield a row per conversation, and one for all messages that are records, if each can be read."""
    alone = Alone()
    for number, offset, value in records:
        listed = _messages(value) if isinstance(value, dict) else None
        try:
            if isinstance(value, BadLine):
                raise value
            if listed is None:
                alone.add(number, offset, turns_of(value, f"message {number}", notes))
                continue
            for row in _row(listed, notes):
                yield Conversation(number, offset, row)
        except BadLine as why:
            yield Conversation(number, offset, why)
            if listed is None:
                alone.hole = why
    yield from alone.conversation(notes, settled)


def _row(listed: list[Any], notes: Notes) -> Iterator[dict[str, Any]]:
    turns: list[Turn] = []
    for number, message in enumerate(listed, start=1):
        turns += turns_of(message, f"messages {number}", notes)
    kept = settled(turns, notes)
    if kept:
        yield {"messages": kept}
    else:
        notes["empty_conversations"] += 1


def turns_of(message: Any, where: str, notes: Notes) -> list[Turn]:
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
    content = data.get("content")
    if not isinstance(content, str | list) and not (content is None and role == "assistant"):
        raise BadLine("content_not_text", f"{where}: the content is neither text nor a list of parts")
    words = _text_of(content, notes)
    images = sum(part.get("type") in IMAGES for part in objects(content))
    if role == "user":
        return user_turn(words, [], notes, shows_image=images > 0)
    notes["attachments"] += images
    if role == "system":
        return [{"role": "system", "content": words}]
    if role == "tool":
        place = data.get("tool_call_id")
        output = words if isinstance(content, str) or words else result_text(content)
        return [
            {"role": "tool", "tool_call_id": place if isinstance(place, str) else None, "content": output}
        ]
    return [_answer(data, words, notes)]


def _opened(message: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the type of a message, and the object with its content."""
    if message.get("lc") == 1:
        name = str(message["id"][-1]).removesuffix("Chunk").removesuffix("Message")
        kwargs = message.get("kwargs")
        return name.lower(), kwargs if isinstance(kwargs, dict) else {}
    data = message.get("data")
    return _type_of(message), data if isinstance(data, dict) else message


def _text_of(content: Any, notes: Notes) -> str:
    """Return the text of a content. Parts that are neither text, reasoning, images nor calls are counted."""
    if not isinstance(content, list):
        return content or ""
    words = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        text = part.get("text") if isinstance(part, dict) else part
        if kind in ("text", "output_text") and isinstance(text, str):
            words.append(text)
        elif kind not in (*NO_TEXTS, *IMAGES, "thinking", "reasoning"):
            notes["blocks_not_read"] += 1
    return "\n".join(words)


def _answer(data: Mapping[str, Any], words: str, notes: Notes) -> Turn:
    turn: Turn = {"role": "assistant", "content": words}
    more = data.get("additional_kwargs")
    more = more if isinstance(more, dict) else {}
    parts = objects(data.get("content"))
    thoughts = [part.get("thinking") or part.get("reasoning") for part in parts]
    reasoning = texts(*thoughts) or texts(more.get("reasoning_content"))
    if reasoning:
        turn["reasoning_content"] = reasoning
    calls = [
        call_of(call.get("name"), call.get("args"), call.get("id"))
        for call in objects(data.get("tool_calls"))
    ]
    if not calls:
        listed = objects(more.get("tool_calls"))
        calls = [_call_of(call.get("function"), call.get("id")) for call in listed]
    if not calls and isinstance(more.get("function_call"), dict):
        calls = [_call_of(more["function_call"], None)]
    if not calls:  # Before LangChain 0.1.16, Anthropic's calls were only parts.
        calls = [_call_of_part(part) for part in parts if part.get("type") in CALLS]
    notes["calls_unreadable"] += len(objects(data.get("invalid_tool_calls")))
    if calls:
        turn["tool_calls"] = calls
    ending = data.get("response_metadata")
    ending = ending if isinstance(ending, dict) else {}
    if ending.get("finish_reason") in CUT_OFF or ending.get("stop_reason") in CUT_OFF:
        notes["aborted"] += 1
        turn["train"] = False
    return turn


def _call_of(function: Any, place: Any) -> dict[str, Any]:
    """Return a call from OpenAI's form in older messages."""
    given = function if isinstance(function, dict) else {}
    return call_of(given.get("name"), given.get("arguments"), place)


def _call_of_part(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call that Anthropic, LangChain 1.0 or OpenAI's Responses put among a content's parts."""
    given = next((part[key] for key in ("input", "args", "arguments") if part.get(key) is not None), None)
    return call_of(part.get("name"), given, part.get("call_id") or part.get("id"))


EXPORT = Export("langchain", is_head, read)

"""Streamed answers: the chunks of OpenAI's chat completions and Responses, of Anthropic's messages and of
Gemini, as a list or as the text of server-sent events. They are joined to the body of an answer that is not
streamed.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import orjson

from pipeline.chat.rows import BadRow
from pipeline.intake.wire.shapes import need_flat

TEXT_KEYS = ("content", "reasoning_content", "reasoning", "refusal")


def whole_answer(value: Any) -> dict[str, Any]:
    """Return the body of an answer. Raises `BadRow` if it is neither one nor its chunks."""
    chunks = _events(value) if isinstance(value, str) else value
    if isinstance(chunks, dict):
        return chunks
    if not isinstance(chunks, list) or not chunks or not all(isinstance(chunk, dict) for chunk in chunks):
        raise BadRow("bad_shape", "the response is neither an object nor the chunks of one")
    completed = (chunk.get("response") for chunk in chunks if chunk.get("type") == "response.completed")
    complete = next(completed, None)
    if isinstance(complete, dict):
        return complete
    if any(str(chunk.get("type")).startswith("response.") for chunk in chunks):
        raise BadRow(
            "unsupported_field", "the answer did not end by itself (its stream has no response.completed)"
        )
    if any(chunk.get("type") == "content_block_delta" for chunk in chunks):
        return _of_blocks(chunks)
    if any("candidates" in chunk for chunk in chunks):
        return _of_candidates(chunks)
    if any("choices" in chunk for chunk in chunks):
        return _of_deltas(chunks)
    if all("type" in chunk for chunk in chunks):
        return {"output": chunks}  # items of the Responses API
    raise BadRow("bad_shape", "the response is a list, but not of the chunks of an answer")


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return a list of objects, none if there is no list. Raises `BadRow` for anything else."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadRow("bad_shape", "a chunk of the response is not as the API streams it")
    return value


def _object(value: Any) -> dict[str, Any]:
    return {} if value is None else _objects([value])[0]


def _index(chunk: dict[str, Any]) -> int:
    index = chunk.get("index") or 0
    if not isinstance(index, int):
        raise BadRow("bad_shape", "a chunk of the response has an index that is no number")
    return index


def _events(text: str) -> list[Any]:
    """Return the data of server-sent events. Raises `BadRow` for one that is nested too deep."""
    values = []
    for number, line in enumerate(text.splitlines(), start=1):
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            with suppress(orjson.JSONDecodeError):
                value = orjson.loads(data)
                need_flat(value, f"response: line {number}")
                values.append(value)
    return values


def _of_deltas(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Join chunks of chat completions into one body."""
    message: dict[str, Any] = {"content": ""}
    calls: dict[int, dict[str, Any]] = {}
    reason = None
    for chunk in chunks:
        for choice in _objects(chunk.get("choices")):
            if choice.get("index"):
                raise BadRow(
                    "unsupported_field", "several answers were streamed: write a row for the right one"
                )
            reason = choice.get("finish_reason") or reason
            delta = _object(choice.get("delta"))
            for key in TEXT_KEYS:
                if isinstance(delta.get(key), str):
                    message[key] = message.get(key, "") + delta[key]
            for part in _objects(delta.get("tool_calls")):
                _add_call(calls, part)
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"choices": [{"message": message, "finish_reason": reason or "cut off"}]}


def _add_call(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    call = calls.setdefault(_index(part), {"function": {"name": "", "arguments": ""}})
    if part.get("id"):
        call["id"] = part["id"]
    function = _object(part.get("function"))
    for key in ("name", "arguments"):
        if isinstance(function.get(key), str):
            call["function"][key] += function[key]


def _of_blocks(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Join events of Anthropic's messages into one body."""
    blocks: dict[int, dict[str, Any]] = {}
    arguments: dict[int, str] = {}
    reason = None
    for chunk in chunks:
        index = _index(chunk)
        delta = _object(chunk.get("delta"))
        if chunk.get("type") == "content_block_start":
            blocks[index] = dict(_object(chunk.get("content_block")))
        elif chunk.get("type") == "content_block_delta" and index in blocks:
            for key in ("text", "thinking"):
                if isinstance(delta.get(key), str):
                    blocks[index][key] = f"{blocks[index].get(key) or ''}{delta[key]}"
            if isinstance(delta.get("partial_json"), str):
                arguments[index] = arguments.get(index, "") + delta["partial_json"]
        elif chunk.get("type") == "message_delta":
            reason = delta.get("stop_reason") or reason
    for index, text in arguments.items():
        blocks[index]["input"] = text
    content = [blocks[index] for index in sorted(blocks)]
    return {"role": "assistant", "content": content, "stop_reason": reason or "cut off"}


def _of_candidates(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Join chunks of Gemini's answers into one body."""
    parts: list[Any] = []
    reason = None
    for chunk in chunks:
        for candidate in _objects(chunk.get("candidates")):
            reason = candidate.get("finishReason") or reason
            for part in _objects(_object(candidate.get("content")).get("parts")):
                if parts and _goes_on(parts[-1], part):
                    parts[-1]["text"] += part["text"]
                else:
                    parts.append(dict(part))
    content = {"role": "model", "parts": parts}
    return {"candidates": [{"content": content, "finishReason": reason or "cut off"}]}


def _goes_on(last: dict[str, Any], part: dict[str, Any]) -> bool:
    """Return True for two parts that are text, both of the answer or both of a thought."""
    are_texts = isinstance(last.get("text"), str) and isinstance(part.get("text"), str)
    return are_texts and last.get("thought") == part.get("thought")

"""API requests and their answers, as proxies and servers log them: OpenAI's chat completions and Responses
(also llama-server's and vLLM's), Anthropic's messages, Gemini's contents.

Wire forms as of 2023-06 to 2026-10: <https://platform.openai.com/docs/api-reference>,
<https://docs.anthropic.com/en/api/messages>, <https://ai.google.dev/api/generate-content>. An answer may be
the list of the chunks in which it was streamed, or their text as server-sent events.

A request becomes a row of `messages`. An answer that failed, was cut off or was one of several raises
`BadRow`.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from pipeline.chat.rows import BadRow
from pipeline.intake.wire.chunks import whole_answer
from pipeline.intake.wire.gemini import system_of, tools_of, turns_of_contents
from pipeline.intake.wire.items import is_items, turns_of_items
from pipeline.intake.wire.shapes import KINDS, need, need_flat, without_nulls

Value = Mapping[str, Any]
WRAPPED = ("body", "json", "params", "data")  # keys below which a log has the request itself
# Finish reasons of complete answers, in small letters.
FINISHED = (
    *("stop", "tool_calls", "function_call", "eos", "eos_token"),  # OpenAI, llama-server, vLLM
    *("end_turn", "tool_use", "stop_sequence", "completed", "complete"),
)
ANSWER = ("content", "tool_calls", "function_call", "reasoning", "reasoning_content", "thinking", "refusal")
SYSTEMS = ("systemInstruction", "system_instruction")


def exchange(request: Any, response: Any) -> dict[str, Any]:
    """Return a row of messages, with the answer as its last turn. Raises `BadRow` if there is none."""
    row = request_row(_unwrapped(request, "request"))
    return row | {"messages": [*row["messages"], *answered(response)]}


def request_row(request: Value) -> dict[str, Any]:
    """Return a row of the turns, the system text and the tools of a request."""
    row: dict[str, Any] = {}
    if "contents" in request:
        turns = turns_of_contents(request["contents"], "contents")
        system = next((request[key] for key in SYSTEMS if request.get(key)), None)
        row = {"system": system_of(system)} if system else {}
        if request.get("tools"):
            row["tools"] = tools_of(request["tools"])
    elif "messages" in request:
        turns = list(need(list, request["messages"], "messages", "bad_shape"))
        row = {key: request[key] for key in ("system", "tools", "functions") if request.get(key)}
    elif "input" in request:
        if request.get("previous_response_id") or request.get("conversation"):
            raise BadRow("unsupported_field", "the request goes on from one that is not in the row")
        turns = _input(request["input"])
        row = {"system": request["instructions"]} if request.get("instructions") else {}
        row |= {"tools": request["tools"]} if request.get("tools") else {}
    elif isinstance(request.get("prompt"), str):
        turns = [{"role": "user", "content": request["prompt"]}]
    else:
        raise BadRow("unknown_format", "the request has none of messages, contents, input and prompt")
    return row | {"messages": turns}


def _input(stated: Any) -> list[Any]:
    """Return the turns of `input`: text, items of the Responses API, or the messages of a chat."""
    if isinstance(stated, str):
        return [{"role": "user", "content": stated}]
    if is_items(stated):
        return turns_of_items(stated, "input")
    return need(list, stated, "input", "bad_shape")


def answered(response: Any) -> list[dict[str, Any]]:
    """Return the turns of an answer: of a body, of a turn, or of its text."""
    if isinstance(response, str) and not response.lstrip().startswith(("{", "[", "data:", "event:")):
        return [{"role": "assistant", "content": response}]
    body = _unwrapped(response, "response")
    if isinstance(body, list) and all(isinstance(turn, dict) and "role" in turn for turn in body):
        return turns_of_items(body, "output") if is_items(body) else body
    body = whole_answer(body)
    if body.get("error"):
        raise BadRow("no_assistant", "the request failed: the response is an error")
    if "choices" in body:
        return [_choice(body["choices"])]
    if "candidates" in body:
        return _candidate(body["candidates"])
    if "output" in body:
        _check_end(body.get("status"))
        return turns_of_items(body["output"], "output")
    if isinstance(body.get("message"), dict):  # Ollama
        _check_end(body.get("done_reason"))
        body = body["message"]
    if body.get("role", "assistant") == "assistant" and ("content" in body or body.get("tool_calls")):
        _check_end(body.get("stop_reason"))
        return [{"role": "assistant"} | {key: body[key] for key in body if key in ANSWER}]
    raise BadRow("unknown_format", "the response has none of choices, content, candidates and output")


def _unwrapped(value: Any, where: str) -> Any:
    """Return a request or a response without its wrapping in a log: HTTP's fields, or JSON text."""
    for _ in range(3):
        if isinstance(value, str):
            with suppress(orjson.JSONDecodeError):
                value = orjson.loads(value)
            need_flat(value, where)
        if not isinstance(value, dict):
            break
        status = value.get("status_code", value.get("status"))
        if isinstance(status, int) and status >= 400:
            raise BadRow("no_assistant", f"the request failed with status {status}")
        inner = next((value[key] for key in WRAPPED if isinstance(value.get(key), dict | list | str)), None)
        if inner is None or len(value.keys() & {"messages", "choices", "contents", "input", "output"}):
            break
        value = inner
    if not isinstance(value, dict | list | str):
        raise BadRow("bad_shape", f"{where} is {KINDS[type(value)]}, not an object")
    if where == "request":
        need(dict, value, where, "bad_shape")
    return value


def _choice(choices: Any) -> dict[str, Any]:
    """Return the turn of the only choice."""
    only = _only(choices, "choices")
    _check_end(only.get("finish_reason"))
    if isinstance(only.get("text"), str):  # older completions
        return {"role": "assistant", "content": only["text"]}
    message = without_nulls(need(dict, only.get("message"), "choices 1 message", "bad_shape"))
    return {"role": "assistant"} | {key: message[key] for key in message if key in ANSWER}


def _candidate(candidates: Any) -> list[dict[str, Any]]:
    """Return the turns of Gemini's only candidate."""
    only = _only(candidates, "candidates")
    _check_end(only.get("finishReason", only.get("finish_reason")))
    content = need(dict, only.get("content"), "candidates 1 content", "bad_shape")
    return turns_of_contents({"role": "model", **content}, "candidates")


def _only(values: Any, where: str) -> dict[str, Any]:
    """Return the only answer. If there are several, it is not known which is the right one."""
    given = need(list, values, where, "bad_shape")
    if len(given) != 1:
        raise BadRow(
            "unsupported_field", f"{where} holds {len(given)} answers: write a row for the right one"
        )
    return need(dict, given[0], f"{where} 1", "bad_shape")


def _check_end(reason: Any) -> None:
    """Raise `BadRow` for an answer that did not finish by itself: it would teach to stop in the middle."""
    if isinstance(reason, str) and reason.lower() not in FINISHED:
        raise BadRow("unsupported_field", f"the answer did not end by itself ({reason[:40]})")

"""Batches of requests: OpenAI's (also vLLM's `run_batch`), and Anthropic's.

The requests are one file (`custom_id`, `method`, `url`, `body`; Anthropic's `params`), the answers another
(`custom_id`, `response` with `body`; Anthropic's `result`), in any order. Only both in one file are
conversations: `cat requests.jsonl answers.jsonl > batch.jsonl`. <https://platform.openai.com/docs/guides/batch>,
<https://docs.anthropic.com/en/api/creating-message-batches>, 2024-04 to 2026-10.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.export import Conversation, Export, Notes, Record, any_record
from pipeline.intake.exports.view import View
from pipeline.intake.wire.requests import exchange
from pipeline.intake.wire.shapes import need_flat

REQUESTS = ("body", "params")
JOIN = "put both files into one: cat requests.jsonl answers.jsonl > batch.jsonl"


class Half(NamedTuple):
    """A line of a batch whose counterpart has not been read yet."""

    number: int
    offset: int | None
    value: View


def _is_line(value: View) -> bool:
    """Return True for a `custom_id` and a request or an answer."""
    return "custom_id" in value and not value.keys().isdisjoint((*REQUESTS, "response", "result", "error"))


def read(records: Iterable[Record], notes: Notes) -> Iterator[Conversation]:
    """Yield a row for each request with an answer. Halves are in memory until the other one is read."""
    requests: dict[str, Half] = {}
    answers: dict[str, Half] = {}
    paired: set[str] = set()
    for record in records:
        try:
            value = _checked(record)
            name = value["custom_id"]
            is_request = _is_request(value)
            half, others = (requests, answers) if is_request else (answers, requests)
            if name in half or name in paired:
                raise BadLine("bad_shape", "another line before it has this custom_id")
            if name not in others:
                half[name] = Half(record.number, record.offset, value)
                continue
            other = others.pop(name).value
            paired.add(name)
            row = _row(value, other) if is_request else _row(other, value)
        except BadLine as why:
            yield Conversation(record.number, record.offset, why)
        else:
            yield Conversation(record.number, record.offset, row)
    for number, offset, _ in requests.values():
        yield Conversation(number, offset, BadLine("no_assistant", f"a request without its answer: {JOIN}"))
    for number, offset, _ in answers.values():
        yield Conversation(
            number, offset, BadLine("unknown_format", f"an answer without its request: {JOIN}")
        )


def _checked(record: Record) -> View:
    """Return a line of a batch. Raises `BadLine` for any other value."""
    value = record.view()
    if not value.has("custom_id", str):
        raise BadLine("unknown_format", "not a line of a batch, which has a custom_id")
    return value


def _is_request(value: View) -> bool:
    return any(value.has(key, dict) for key in REQUESTS)


def _row(request: View, answer: View) -> dict[str, Any]:
    """Return the row of both halves. Raises `BadLine` for a request that failed, or is nested too deep."""
    asked = next(request[key] for key in REQUESTS if request.has(key, dict))
    stated = answer.get("response") if answer.get("result") is None else answer["result"]
    is_failed = bool(answer.get("error"))
    if answer.has("result", dict):
        result = answer.object("result")
        stated = result.get("message")
        is_failed = is_failed or result.get("type") != "succeeded"
    if is_failed:
        raise BadLine("no_assistant", "the request failed: its answer is an error")
    need_flat(asked, "the request")
    need_flat(stated, "its answer")
    return exchange(asked, stated)


EXPORT = Export("batch", any_record(_is_line), read)

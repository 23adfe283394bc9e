"""The official `openai` client against the hardened server: a Qwen2 that says noise, with Qwen2.5's template.
What must be valid is valid.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
import tiny

from pipeline.config.products import ModelFiles
from pipeline.llamacpp.server import Server, serving
from pipeline.llamacpp.tools import Llama, Toolchain

NEWLINE = 198  # in Qwen2.5's vocabulary
MESSAGES: list[Any] = [{"role": "user", "content": "What is the weather in Ulm?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["add", "sub"]},
        "done": {"type": "boolean"},
        "count": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["name", "done", "count"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {
            "type": "object",
            "properties": {"place": {"enum": ["Ulm", "Bern"]}},
            "required": ["place"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def server(tools: Toolchain, finished: Path) -> Iterator[Server]:
    with serving(
        Llama(tools), ModelFiles(finished / "models" / "gguf" / "tiny-F16.gguf"), ctx_size=1024, parallel=2
    ) as running:
        yield running


def client_of(server: Server, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with client_of(server, server.client.headers["Authorization"].removeprefix("Bearer ")) as made:
        yield made


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny-F16"]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny-F16", messages=MESSAGES, max_tokens=5, seed=1, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 5
    assert answer.choices[0].message.content


def test_streamed_text_is_the_whole_text(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "tiny-F16",
        "messages": MESSAGES,
        "max_tokens": 8,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.chat.completions.create(**asked).choices[0].message.content
    pieces, usage = [], None
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        pieces += [choice.delta.content or "" for choice in chunk.choices]
        usage = chunk.usage or usage
    assert "".join(pieces) == whole
    assert usage is not None and usage.completion_tokens == 8


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_json_schema_output_validates(client: openai.OpenAI, seed: int) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "task", "schema": SCHEMA, "strict": True}}
    answer = client.chat.completions.create(
        model="tiny-F16",
        messages=MESSAGES,
        response_format=wanted,
        seed=seed,
        temperature=1.5,
        max_tokens=512,
    )
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content or ""), SCHEMA)


BERTH = {
    "type": "object",
    "properties": {"berth": {"enum": ["east", "west"]}},
    "required": ["berth"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("wanted", "is_enforced"),
    [
        ({"type": "json_schema", "json_schema": {"schema": BERTH}}, True),
        ({"type": "json_object", "schema": BERTH}, True),
        ({"type": "json_schema", "schema": BERTH}, False),
        ({"type": "json_schema"}, False),
        # no grammar is made of this pattern, which the server only logs
        ({"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": r"^no\!$"}}}, False),
    ],
)
def test_forms_of_a_schema_as_docs_serving_tells_them(
    server: Server, wanted: dict[str, Any], is_enforced: bool
) -> None:
    body = {"messages": MESSAGES, "response_format": wanted, "seed": 1, "temperature": 1, "max_tokens": 32}
    answer = server.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    text = answer.json()["choices"][0]["message"]["content"]
    assert bool(re.fullmatch(r'\{\s*"berth"\s*:\s*"(east|west)"\s*\}\s*', text)) == is_enforced


def test_an_unknown_response_format_is_refused(server: Server) -> None:
    body = {"messages": MESSAGES, "response_format": {"type": "yaml"}}
    assert server.client.post("/v1/chat/completions", json=body).status_code == 400


@pytest.mark.parametrize("streamed", [False, True])
def test_tools(client: openai.OpenAI, streamed: bool) -> None:
    """`required` still allows text before the call, so the model is pushed: to begin one, not to begin it
    twice, to end after it.
    """
    begin, end = (tiny.QWEN_ADDED.index(token) + tiny.WORDS for token in ("<tool_call>", "<|im_end|>"))
    asked: dict[str, Any] = {
        "model": "tiny-F16",
        "messages": MESSAGES,
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_tokens": 256,
        "seed": 2,
        "logit_bias": {str(begin): 100, str(NEWLINE): 50, str(end): 120},
        "presence_penalty": 60,
        "extra_body": {"repeat_last_n": 1},
    }
    if streamed:
        name, arguments = "", ""
        for chunk in client.chat.completions.create(**asked, stream=True):
            for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
                if call.index == 0 and call.function:  # noise may begin a second call
                    name, arguments = (
                        name + (call.function.name or ""),
                        arguments + (call.function.arguments or ""),
                    )
    else:
        answer = client.chat.completions.create(**asked)
        (only, *_) = answer.choices[0].message.tool_calls or []
        assert only.type == "function" and only.id
        name, arguments = only.function.name, only.function.arguments
    assert name == "weather"
    assert json.loads(arguments)["place"] in ("Ulm", "Bern")


def test_a_tool_s_result_goes_on(client: openai.OpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Ulm"}'}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    messages: list[Any] = [*MESSAGES, called, {"role": "tool", "tool_call_id": "c1", "content": "rain"}]
    answer = client.chat.completions.create(
        model="tiny-F16", messages=messages, tools=[WEATHER], max_tokens=2, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None and answer.usage.completion_tokens == 2


def test_a_wrong_key_is_an_authentication_error(server: Server) -> None:
    with client_of(server, "wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.chat.completions.create(model="tiny-F16", messages=MESSAGES)


def test_too_long_a_prompt_is_a_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="context"):
        client.chat.completions.create(
            model="tiny-F16", messages=[{"role": "user", "content": "word " * 3000}]
        )

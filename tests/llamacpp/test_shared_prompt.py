"""The beginning that prompts share: computed once, and every answer is what it is without that."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from families import family
from qwen2_variants import cut_models

from pipeline.config.products import ModelFiles
from pipeline.core.errors import ToolError
from pipeline.llamacpp.converters import HeaderFields, to_gguf
from pipeline.llamacpp.server import Server, serving
from pipeline.llamacpp.shared_prompt import shared_tokens, sharing
from pipeline.llamacpp.tools import Llama, Toolchain

SYSTEM = {"role": "system", "content": "You answer in one word, and you never say why. " * 3}
REQUESTS = [
    {
        "messages": [SYSTEM, {"role": "user", "content": f"Is {number} a prime number?"}],
        "max_tokens": 4,
        "temperature": 0,
        "cache_prompt": False,
    }
    for number in range(7)
]


@pytest.fixture(scope="module")
def server(tools: Toolchain) -> Iterator[Server]:
    files = ModelFiles(cut_models(tools) / "tiny-F16.gguf")
    with serving(Llama(tools), files, ctx_size=512, parallel=3, saves_slots=True) as up:
        yield up


def replies(server: Server, requests: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Each request's answer and the number of its tokens that weren't computed again."""
    with sharing(server, requests) as post, ThreadPoolExecutor(server.parallel) as pool:
        found = list(pool.map(lambda request: post("/v1/chat/completions", request), requests))
    return [(reply["choices"][0]["message"]["content"], reply["timings"]["cache_n"]) for reply in found]


def test_the_beginning_is_computed_once_and_no_answer_changes(server: Server) -> None:
    count = len(shared_tokens(server, REQUESTS))
    alone = [server.post("/v1/chat/completions", request) for request in REQUESTS]
    expected = [reply["choices"][0]["message"]["content"] for reply in alone]
    assert count > 20
    assert replies(server, REQUESTS) == [(text, count) for text in expected]
    assert replies(server, REQUESTS[::-1]) == [(text, count) for text in expected[::-1]]


@pytest.mark.parametrize("name", ["falcon_h1", "gemma3_text"])
def test_memories_that_forget_no_part_give_the_same_answers(
    name: str, tools: Toolchain, tmp_path: Path
) -> None:
    """A recurrent state is restored as a whole; a sliding window may be computed again."""
    gguf = tmp_path / "model.gguf"
    to_gguf(tools, family(name, tmp_path / "base", tools), gguf, "F16", HeaderFields(name))
    with serving(Llama(tools), ModelFiles(gguf), ctx_size=512, parallel=2, saves_slots=True) as up:
        alone = [up.post("/v1/chat/completions", request) for request in REQUESTS]
        expected = [reply["choices"][0]["message"]["content"] for reply in alone]
        assert [text for text, _ in replies(up, REQUESTS)] == expected


@pytest.mark.parametrize(
    ("prompts", "parallel", "shared"),
    [
        (["aaab", "aaac"], 2, "aaa"),
        (["ab" + "c" * 30, "ab" + "d" * 30], 2, ""),  # llama-server would empty the slots
        (["aaab", "c"], 2, ""),
        (["aaab"], 2, ""),
        ([], 2, ""),
        (["aaab", "aaac"], 1, ""),  # the only slot keeps its prompt by itself
    ],
)
def test_only_a_beginning_that_is_worth_it_is_shared(prompts: list[str], parallel: int, shared: str) -> None:
    computed: list[list[str]] = []

    def post(path: str, body: dict[str, Any]) -> Any:
        if path == "/completion":
            computed.append(body["prompt"])
        return body

    asked: Any = SimpleNamespace(post=post, parallel=parallel, tokens=list)
    with sharing(asked, [{"prompt": prompt} for prompt in prompts]) as posted:
        assert (posted == post) == (not shared)
    assert computed == ([list(shared)] if shared else [])


def test_a_server_that_saves_no_slot_computes_every_prompt() -> None:
    def post(path: str, body: dict[str, Any]) -> Any:
        if path.startswith("/slots"):
            raise ToolError("Q-LLAMACPP-013", "llama-server answered 501")
        return {"prompt": ""}

    refusing: Any = SimpleNamespace(post=post, parallel=4, tokens=lambda text: [1, 2, 3])
    with sharing(refusing, REQUESTS) as posted:
        assert posted == refusing.post

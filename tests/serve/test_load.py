"""`quench load`: its arithmetic, and a real server under it."""

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from pipeline.commands import load as command
from pipeline.config.params import Params, load_params
from pipeline.core.errors import GateError, ToolError
from pipeline.core.places import PROJECT
from pipeline.llamacpp.server import Server, free_port, write_key
from pipeline.llamacpp.tools import Toolchain
from pipeline.serve.load import SHARES, Load, Timed, percentiles, put_under_load, summarize

KEY = "a-key-of-a-test-of-load"
PROMPT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "ignore_eos": True}


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentile_is_the_nearest_rank(values: list[float]) -> None:
    found = percentiles(values)
    assert found and list(found) == [f"p{share}" for share in SHARES]
    for share, value in zip(SHARES, found.values(), strict=True):
        assert value in values
        assert sum(one <= value for one in values) >= math.ceil(len(values) * share / 100)
        assert sum(one < value for one in values) < len(values) * share / 100


def test_summary() -> None:
    timed = [
        Timed(0.1, 1.1, 11),
        Timed(0.3, 2.3, 11),
        Timed(None, 5.0, 0, "HTTP 400: no"),
        Timed(0.2, 0.2, 1),
    ]
    found = summarize(timed, 2, 4.0)
    assert (found.requests, found.answered, found.errors, found.tokens, found.tokens_per_second) == (
        4,
        3,
        {"HTTP 400: no": 1},
        23,
        5.75,
    )
    assert found.first_token == {"p50": 0.2, "p90": 0.3, "p99": 0.3}
    assert found.whole == {"p50": 1.1, "p90": 2.3, "p99": 2.3}
    assert found.tokens_per_second_each == pytest.approx(7.5)  # of 10 and 5


def test_nothing_answered_is_not_measured() -> None:
    found = summarize([Timed(None, 1.0, 0, "x")], 1, 1.0)
    assert (found.first_token, found.whole, found.tokens_per_second_each, found.answered) == (
        None,
        None,
        None,
        0,
    )


@pytest.fixture(scope="module")
def params() -> Params:
    values = load_params(PROJECT / "recipes" / "demo.yaml").model_dump(mode="json")
    values["serve"] |= {"port": free_port(), "ctx_size": 128, "n_predict": 8, "threads": 1, "parallel": 2}
    return Params.model_validate(values)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("load")
    (folder / ".quench").mkdir()
    write_key(folder / ".quench" / "api-key", KEY)
    return folder


@pytest.fixture(scope="module")
def server(tools: Toolchain, params: Params, root: Path) -> Iterator[Server]:
    from pipeline.commands.serve import serve

    model = tiny.tiny_gguf(root / "tiny.gguf")
    with serve(
        tools=tools,
        model=model,
        key_file=root / ".quench" / "api-key",
        log=root / "log",
        settings=params.serve,
    ) as running:
        yield running


def test_a_server_under_load(server: Server, params: Params) -> None:
    found = asyncio.run(put_under_load(params.serve.port, KEY, [PROMPT], clients=8, requests=20, seconds=60))
    assert (found.requests, found.answered, found.errors, found.tokens) == (20, 20, {}, 80)
    assert found.first_token is not None and found.whole is not None
    assert 0 < found.first_token["p50"] <= found.whole["p50"] <= found.whole["p99"] < found.seconds


def test_refusals_are_counted(server: Server, params: Params) -> None:
    long = {"messages": [{"role": "user", "content": "word " * 500}]}
    found = asyncio.run(
        put_under_load(params.serve.port, KEY, [PROMPT, long], clients=2, requests=6, seconds=60)
    )
    assert (found.answered, sum(found.errors.values())) == (3, 3)
    assert next(iter(found.errors)).startswith("HTTP 400: request")
    wrong = asyncio.run(
        put_under_load(params.serve.port, "wrong", [PROMPT], clients=2, requests=2, seconds=60)
    )
    assert wrong.errors == {"HTTP 401: Invalid API Key": 2}
    nobody = asyncio.run(put_under_load(free_port(), KEY, [PROMPT], clients=2, requests=2, seconds=60))
    assert nobody.errors == {"ConnectError": 2}


@pytest.mark.parametrize(
    "line",
    [
        b"data: no JSON",
        b"data: []",
        b'data: {"error": "boom"}',
        b'data: {"usage": {"completion_tokens": "x"}}',
    ],
)
def test_a_foreign_line_ends_its_request_only(line: bytes) -> None:
    async def ask() -> Load:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + line + b"\n\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            return await put_under_load(port, KEY, [PROMPT], clients=2, requests=4, seconds=10)

    found = asyncio.run(ask())
    assert found.requests == 4
    assert sum(found.errors.values()) == (0 if b"usage" in line else 4)
    assert found.tokens == 0


def test_it_ends_when_its_time_is_over(server: Server, params: Params) -> None:
    endless = PROMPT | {"max_tokens": 100_000, "t_max_predict_ms": 60_000}
    found = asyncio.run(
        put_under_load(params.serve.port, KEY, [endless, PROMPT], clients=4, requests=10_000, seconds=1)
    )
    assert found.seconds < 5
    assert found.requests < 10_000


def test_the_command(server: Server, params: Params, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [prompt["messages"][0]["content"] for prompt in command.prompts(root)] == list(command.OWN)
    command.main(params, root, clients=2, requests=4, seconds=60, as_json=True)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["model"], found["answered"], found["clients"]) == ("tiny", 4, 2)
    command.main(params, root, clients=2, requests=4, seconds=60, as_json=False)
    shown = capsys.readouterr().out
    assert "tiny: 4 answers to 2 clients at once (2 slots)" in shown
    assert "first token" in shown and "p99" in shown


def test_the_command_without_answers(
    server: Server, params: Params, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ToolError, match="Q-SERVE-013"):
        command.main(params, tmp_path, clients=1, requests=1, seconds=10, as_json=False)
    monkeypatch.setattr(command, "OWN", ("word " * 500,))
    with pytest.raises(GateError, match="Q-SERVE-021"):
        command.main(params, root, clients=1, requests=2, seconds=10, as_json=False)

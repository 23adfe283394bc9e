"""Restarts: pauses and limit on a clock; the real llama-server killed, stuck and grown, in `quench serve`."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import httpx
import pytest
import tiny
import yaml
from hypothesis import given
from hypothesis import strategies as st
from make import ended, until

from pipeline.config.params import load_params
from pipeline.config.products import ModelFiles
from pipeline.core.errors import MachineError, ToolError
from pipeline.core.places import PROJECT
from pipeline.core.usage import own_memory
from pipeline.llamacpp.server import Server, free_port, serving
from pipeline.llamacpp.standstill import watch
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.serve.restarts import RESTARTS, keep_serving, pause_after

PORT = "the port is in use"
# each rule is twice the next one or it once: 2^40 ways to go on
BOMB = (
    "root ::= r0\n"
    + "\n".join(f"r{number} ::= r{number + 1} r{number + 1} | r{number + 1}" for number in range(40))
    + '\nr40 ::= "a"?'
)


def test_pauses_grow_up_to_the_limit() -> None:
    crashes = deque[float]()
    pauses = [pause_after(crashes, float(second)) for second in range(6)]
    assert pauses == [1, 2, 4, 8, 16, None]
    # all are more than an hour ago, and the pauses are short again
    assert pause_after(crashes, 3600 + 5.5) == 1


@given(st.lists(st.floats(0, 3 * 3600), min_size=1, max_size=60).map(sorted))
def test_never_more_restarts_within_an_hour_than_allowed(crashes: list[float]) -> None:
    noted = deque[float]()
    restarted = [
        moment for moment in crashes if (pause := pause_after(noted, moment)) is not None and 1 <= pause <= 16
    ]
    for moment in restarted:
        # subtracted as the code does: a float near 0 is lost otherwise
        assert sum(0 <= moment - other < 3600 for other in restarted) <= RESTARTS


def test_a_first_start_that_fails_is_told_as_it_is() -> None:
    @contextmanager
    def broken() -> Iterator[Server]:
        raise ToolError("Q-TEST-001", "llama-server ended with exit status 1 while loading:\nlast line")
        yield

    with pytest.raises(ToolError, match="while loading"):
        keep_serving(broken, "it is served", lambda _: None)


def test_a_port_that_is_taken_between_two_starts_is_one_more_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["/bin/true"])
    starts: Iterator[str] = iter(["up", "taken"] * 3)
    lines: list[str] = []

    @contextmanager
    def start() -> Iterator[Server]:
        if next(starts) == "taken":
            raise MachineError("Q-TEST-001", PORT)
        with httpx.Client() as client:
            yield Server(process, "", Path("no log"), client)

    monkeypatch.setattr("pipeline.serve.restarts.time.sleep", lambda seconds: None)
    with pytest.raises(ToolError) as gone:
        keep_serving(start, "it is served", lines.append)
    assert gone.value.id == "Q-SERVE-004" and PORT in gone.value.sentence
    assert lines[0] == "it is served" and len(lines) == 8
    assert "status 0" in lines[1] and PORT in lines[2]
    starts = iter(["taken"])
    with pytest.raises(MachineError):  # at the very first start
        keep_serving(start, "it is served", lines.append)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.tiny_gguf(tmp_path_factory.mktemp("restarts") / "tiny.gguf")


@pytest.mark.slow
def test_a_server_that_hangs_is_ended(tools: Toolchain, model: Path) -> None:
    """The grammar keeps the loop that all answers come from busy; measured: for hours."""
    with serving(Llama(tools), ModelFiles(model), ctx_size=256, parallel=2) as server:

        def ask() -> None:
            with pytest.raises(httpx.TransportError):
                body = {"prompt": "a", "grammar": BOMB}
                httpx.post(
                    f"{server.url}/completion",
                    json=body,
                    headers=server.client.headers,
                    timeout=60,
                    trust_env=False,
                )

        client = threading.Thread(target=ask)
        client.start()
        time.sleep(0.5)
        assert httpx.get(f"{server.url}/health", trust_env=False).status_code == 200  # says nothing
        assert "2 s" in watch(server.process, server.client, 2)
        client.join()


def test_a_server_that_grows_is_ended(tools: Toolchain, model: Path) -> None:
    with serving(Llama(tools), ModelFiles(model), ctx_size=256) as server:
        assert (own_memory(server.process.pid) or 0) > 1_000_000
        assert "memory" in watch(server.process, server.client, 120, -1)
    assert own_memory(2**22 + 1) is None


@contextmanager
def started(root: Path) -> Iterator[tuple[subprocess.Popen[str], list[str], int]]:
    """`quench serve` of a project with one model, its command and its port, until the body is over."""
    values = load_params(PROJECT / "recipes" / "demo.yaml").model_dump(mode="json")
    values["serve"] |= {"port": free_port(), "ctx_size": 128, "n_predict": 16, "parallel": 2}
    (root / "models" / "gguf").mkdir(parents=True)
    tiny.tiny_gguf(root / "models" / "gguf" / "demo-Q4_K_M.gguf")
    (root / "params.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    command = [sys.executable, "-m", "pipeline.cli", "serve", "--root", str(root)]
    process = subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, cwd=PROJECT)
    try:
        said, port = lines_until(process, "-d '"), values["serve"]["port"]
        assert re.search(rf"^Q4_K_M .*http://127\.0\.0\.1:{port}\b", said, re.MULTILINE)
        yield process, command, port
    finally:
        process.terminate()
        process.communicate(timeout=30)


def server_of(parent: int) -> int:
    """The process that a `quench serve` started."""
    return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])


def lines_until(process: subprocess.Popen[str], words: str) -> str:
    """Read what the process prints up to a line with `words`, and return it."""
    assert process.stdout is not None
    read = ""
    for line in process.stdout:
        read += line
        if words in line:
            return read
    raise AssertionError(f"{words!r} was not said: {read}")


def test_kill_9_restarts_it(tmp_path: Path) -> None:
    with started(tmp_path) as (process, _, port):
        key = (tmp_path / ".quench" / "api-key").read_text().strip()
        os.kill(server_of(process.pid), signal.SIGKILL)
        output = lines_until(process, "answers again")
        assert "SIGKILL" in output.splitlines()[0]
        answer = httpx.post(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
            headers={"Authorization": f"Bearer {key}"},
            trust_env=False,
        )
        assert answer.status_code == 200
        os.kill(server_of(process.pid), signal.SIGSEGV)
        assert "SIGSEGV" in lines_until(process, "restart 2 of at most 5")


@pytest.mark.slow
def test_a_second_serve_takes_nothing_from_the_first_and_a_log_may_vanish(tmp_path: Path) -> None:
    with started(tmp_path) as (process, command, _):
        second = ended(command, cwd=PROJECT, timeout=60)
        assert second.returncode == 6 and "Q-SERVE-003" in second.stderr
        log = tmp_path / "logs" / "serve-Q4_K_M.log"
        assert "model loaded" in log.read_text()
        log.unlink()
        os.kill(server_of(process.pid), signal.SIGKILL)
        lines_until(process, "answers again")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_no_server_stays_behind(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path) as (process, _, _):
        child = server_of(process.pid)
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=30)
    wanted = (-9, "", "") if number == signal.SIGKILL else (0, "\nstopped\n", "")
    assert (process.returncode, out, err) == wanted
    until(lambda: not Path(f"/proc/{child}/exe").exists(), 5)  # a zombie has none


def test_the_watch_is_answered_while_an_answer_is_generated(tools: Toolchain, model: Path) -> None:
    body = {"prompt": "a", "n_predict": 5000, "ignore_eos": True, "stream": True}
    with (
        serving(Llama(tools), ModelFiles(model), ctx_size=256, parallel=1) as server,
        server.client.stream("POST", "/completion", json=body) as answer,
    ):
        assert json.loads(next(answer.iter_lines()).removeprefix("data: "))
        assert server.client.get("/lora-adapters", timeout=10).json() == []

"""The hardened llama-server against what it must bear: strangers, foreign pages, a hostile environment, evil
requests; and a log without a prompt.
"""

import contextlib
import errno
import json
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import tiny
from make import ended, until
from needed import need

from pipeline.commands import serve as serve_command
from pipeline.config.params import load_params
from pipeline.config.products import ModelFiles
from pipeline.config.sections import Serve
from pipeline.core.errors import MachineError, ToolError
from pipeline.core.places import PROJECT
from pipeline.core.usage import processor_seconds
from pipeline.llamacpp import server as llamacpp_server
from pipeline.llamacpp.server import (
    Server,
    connect,
    free_port,
    log_end,
    serving,
    start,
    wait_for_health,
    write_key,
)
from pipeline.llamacpp.server_command import Served, server_command
from pipeline.llamacpp.server_process import guarded
from pipeline.llamacpp.standstill import Standstill
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.serve.key import read_key
from pipeline.ship.card import serve_script

MARKER = "xq7marker"
QUESTION = [{"role": "user", "content": MARKER}]
PUBLIC = {("get", "/health"), ("get", "/v1/health")}
LEVELS = 100_000
OPEN_FILES = 2_048
BORNE = (200, 400, 500)  # of a request that is evil
HOSTILE = {
    "LLAMA_ARG_HOST": "0.0.0.0",  # noqa: S104
    **dict.fromkeys(("LLAMA_ARG_UI", "LLAMA_ARG_UI_MCP_PROXY", "LLAMA_ARG_AGENT"), "1"),
    **{f"LLAMA_ARG_ENDPOINT_{name}": "1" for name in ("METRICS", "PROPS", "SLOTS")},
    "LLAMA_ARG_TOOLS": "all",
    "LLAMA_API_KEY": "known",
    "LLAMA_ARG_API_PREFIX": "/x",
    "LLAMA_ARG_MODELS_DIR": "/",
    "LLAMA_SERVER_SLOTS_DEBUG": "1",
    "AIP_MODE": "PREDICTION",
    "AIP_HTTP_PORT": "8099",
    "AIP_PREDICT_ROUTE": "/predict",
    "HF_TOKEN": "secret",
    "LLAMA_SERVER_ROUTER_PORT": "1",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "all_proxy": "http://127.0.0.1:9",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.tiny_gguf(tmp_path_factory.mktemp("hardening") / "tiny.gguf")


@pytest.fixture(scope="module")
def server(tools: Toolchain, model: Path) -> Iterator[Server]:
    """A server started in an environment that wants to open it; it must survive every test of this file."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (HOSTILE | {"CUDA_VISIBLE_DEVICES": "7"}).items():
            patch.setenv(name, value)
        with serving(Llama(tools), ModelFiles(model), ctx_size=256, parallel=2) as running:
            process = running.process.pid
            yield running
            assert running.process.poll() is None and running.process.pid == process


@pytest.fixture(autouse=True)
def _answers_afterwards(server: Server) -> Iterator[None]:
    """Whatever a test did to it: the same process answers, and what was said is not in its log."""
    yield
    assert server.process.poll() is None
    assert answered(server)
    assert MARKER not in server.log.read_text()


def answered(server: Server) -> bool:
    return status(server.client, "/completion", json={"prompt": "a", "n_predict": 1}) == 200


def status(client: httpx.Client, path: str, **body: Any) -> int:
    """Return the status of a POST, which may take a minute."""
    return client.post(path, **body, timeout=60).status_code


def routes(tools: Toolchain) -> list[tuple[str, str]]:
    """Every route that llama-server's source registers, the router's too."""
    source = (tools.source / "tools" / "server" / "server.cpp").read_text(encoding="utf-8")
    found = re.findall(r'ctx_http\.(get|post|del)\s*\(\s*"([^"]+)"', source)
    return sorted(
        {({"del": "delete"}.get(method, method), path.replace(":id_slot", "0")) for method, path in found}
    )


def test_every_route_wants_the_key(server: Server, tools: Toolchain) -> None:
    known = routes(tools)
    assert len(known) >= 50
    assert set(known) >= PUBLIC
    with httpx.Client(base_url=server.url, trust_env=False) as stranger:
        for method, path in known:
            for headers in (
                {},
                {"Authorization": "Bearer wrong"},
                {"X-Api-Key": "known"},
                {"Authorization": "Bearer"},
            ):
                sent = {} if method == "post" else None
                answer = stranger.request(method, path, headers=headers, json=sent)
                wanted = 200 if (method, path) in PUBLIC else 401
                assert answer.status_code == wanted, (method, path, headers)
        for path in (
            *("//props", "/props/", "/PROPS", "/health/../props", "/health%2f..%2fprops"),
            *("/v1/models?a=/health", "/health;/props", "/sw.js"),
        ):
            assert stranger.get(path).status_code in (401, 404), path
        # / is public, and nothing is there
        statuses = {path: stranger.get(path).status_code for path in ("/", "/index.html", "/predict")}
        assert statuses == {"/": 404, "/index.html": 401, "/predict": 401}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("get", "/slots", 501),
        ("post", "/slots/0?action=erase", 501),
        ("get", "/metrics", 501),
        ("post", "/props", 501),
        ("get", "/tools", 403),
        ("post", "/tools", 403),
        ("get", "/cors-proxy", 403),
        ("post", "/cors-proxy", 403),
        ("post", "/models/load", 404),
        ("post", "/models", 404),
        ("post", "/models/unload", 404),
        ("get", "/models/sse", 404),
        ("get", "/index.html", 404),
        ("post", "/predict", 404),
        ("get", "/x/props", 404),
        ("post", "/embeddings", 501),
        ("post", "/rerank", 501),
    ],
)
def test_what_nobody_needs_is_closed_with_the_key_too(
    server: Server, method: str, path: str, status: int
) -> None:
    assert server.client.request(method, path, json={} if method == "post" else None).status_code == status


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://localhost:3000", "http://127.0.0.1:1", "null", "*"]
)
def test_no_page_may_read_an_answer(server: Server, origin: str) -> None:
    """Browsers let a page read where Access-Control-Allow-Origin is the page's own or *; it is the server's
    own, where no page is.
    """
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    for answer in (
        server.client.get("/v1/models", headers={"Origin": origin}),
        httpx.get(f"{server.url}/health", headers={"Origin": origin}, trust_env=False),
        httpx.options(f"{server.url}/v1/chat/completions", headers=asked, trust_env=False),
        server.client.post(
            "/v1/chat/completions",
            json={"messages": QUESTION, "max_tokens": 1, "stream": True},
            headers={"Origin": origin},
        ),
    ):
        assert answer.headers.get("Access-Control-Allow-Origin") == server.url
        assert answer.headers.get("Access-Control-Allow-Credentials") != "true"


def test_a_request_after_a_stream_is_answered(server: Server) -> None:
    """llama-server closes a connection after streaming; a client that reuses it sometimes loses a request."""
    body = {"prompt": "a", "n_predict": 1, "stream": True}
    for _ in range(20):
        with server.client.stream("POST", "/completion", json=body) as answer:
            assert answer.read()
        assert answered(server)


def test_the_environment_sets_nothing(server: Server) -> None:
    seen = Path(f"/proc/{server.process.pid}/environ").read_bytes().decode().split("\0")
    assert not {entry.partition("=")[0] for entry in seen} & {*HOSTILE, "https_proxy", "PYTHONPATH"}
    assert {"CUDA_VISIBLE_DEVICES=7", "GGML_NO_BACKTRACE=1", f"PATH={os.environ['PATH']}"} <= set(seen)


def test_limits_of_the_process(server: Server) -> None:
    limits = Path(f"/proc/{server.process.pid}/limits").read_text()
    assert re.search(r"core file size +0 +0 ", limits)
    assert Path(f"/proc/{server.process.pid}/oom_score_adj").read_text().strip() == "1000"
    assert stat.S_IMODE((server.log.parent / "key").stat().st_mode) == 0o600


def nested(before: str, inner: str, after: str, levels: int = LEVELS) -> str:
    return before * levels + inner + after * levels


CHAT = '{"messages":[{"role":"user","content":"xq7marker"}],"max_tokens":4,'
LISTS = nested("[", "", "]")
DEEP: dict[str, tuple[str, str]] = {
    "body": ("/v1/chat/completions", LISTS),
    "unknown field": ("/v1/chat/completions", CHAT + '"x":' + LISTS + "}"),
    "objects": ("/v1/chat/completions", CHAT + '"x":' + nested('{"a":', "1", "}") + "}"),
    "content": ("/v1/chat/completions", '{"messages":[{"role":"user","content":' + LISTS + "}]}"),
    "template's arguments": ("/v1/chat/completions", CHAT + '"chat_template_kwargs":{"x":' + LISTS + "}}"),
    "content for Anthropic": (
        "/v1/messages",
        '{"max_tokens":4,"messages":[{"role":"user","content":' + LISTS + "}]}",
    ),
    "prompt": ("/completion", '{"n_predict":4,"prompt":' + LISTS + "}"),
    "text": ("/tokenize", '{"content":' + LISTS + "}"),
    "grammar": (
        "/completion",
        json.dumps({"prompt": MARKER, "n_predict": 4, "grammar": "root ::= " + nested("(", '"a"', ")")}),
    ),
    "pattern": (
        "/completion",
        json.dumps(
            {
                "prompt": "a",
                "n_predict": 4,
                "json_schema": {"type": "string", "pattern": nested("(", "a", ")")},
            }
        ),
    ),
}


@pytest.mark.parametrize("place", DEEP)
def test_deep_json(server: Server, place: str) -> None:
    """With the usual 8 MB of stack, these end the server: template's arguments, grammar (measured)."""
    path, body = DEEP[place]
    assert status(server.client, path, content=body) in BORNE


FIELDS = """n_predict n_indent n_keep n_discard n_cmpl n n_cache_reuse t_max_predict_ms top_k top_p min_p
top_n_sigma xtc_probability xtc_threshold typical_p temperature dynatemp_range dynatemp_exponent repeat_last_n
repeat_penalty frequency_penalty presence_penalty dry_multiplier dry_base dry_allowed_length
dry_penalty_last_n mirostat mirostat_tau mirostat_eta adaptive_target adaptive_decay seed n_probs logprobs
min_keep sse_ping_interval id_slot reasoning_budget_tokens top_logprobs max_tokens"""
NUMBERS = '-1 -2147483648 2147483647 1e308 -1e308 9223372036854775807 1e-320 NaN "x" [] true'


@pytest.mark.parametrize("field", FIELDS.split())
def test_numbers_that_can_not_be(server: Server, field: str) -> None:
    for value in NUMBERS.split():
        limit = "" if field == "n_predict" else '"n_predict":2,'
        body = f'{{"prompt":"{MARKER}",{limit}"{field}":{value}}}'
        assert status(server.client, "/completion", content=body) in BORNE, body


def test_n_discard(server: Server) -> None:
    """A negative one wrote before a buffer in older versions of llama.cpp."""
    body = {"prompt": "word " * 60, "n_predict": 400, "n_keep": 5, "n_discard": -1}
    for path in ("/completion", "/v1/completions"):
        assert status(server.client, path, json=body) == 400


GRAMMARS = {
    "left recursion": "root ::= root",
    "hidden left recursion": 'root ::= a\na ::= b\nb ::= a "x"',
    "empty repeated": 'root ::= ""*',
    "nested repeats": 'root ::= (("a"*)*)*',
    "a million": 'root ::= "a"{1000000}',
    "a thousand cubed": 'root ::= (("a"{1000}){1000}){1000}',
    "overflow": 'root ::= "a"{99999999999999999999}',
    "undefined": "root ::= nothere",
    "no root": 'x ::= "a"',
    "half": "root ::= [",
    "bad escape": "root ::= [\\xZZ]",
    "beyond Unicode": "root ::= [\\U0010FFFF-\\U00110000]",
    "token": "root ::= <[99999999]>",
    "optional": "root ::= " + '("a"|"a"|"a"|"a")?' * 64,
    "not a grammar": f"root ::= {MARKER} ::=",
}
SCHEMAS: dict[str, Any] = {
    "refers to itself": {"$ref": "#"},
    "circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    "fetched": {"$ref": "http://127.0.0.1:9/x"},
    "nowhere": {"$ref": f"#/$defs/{MARKER}"},
    "long text": {"type": "string", "maxLength": 2**31 - 1},
    "bad pattern": {"type": "string", "pattern": f"^({MARKER}[$"},
    "many items": {"type": "array", "items": {"type": "array", "minItems": 1000}, "minItems": 100_000},
    "a number": 5,
    "a text": MARKER,
    "all of itself": {"allOf": [{"allOf": [{"$ref": "#"}]}]},
    "huge integer": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
}


def until_healthy(url: str) -> None:
    for _ in range(600):
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                return
        time.sleep(0.1)


def test_the_shipped_script_bears_the_same(tools: Toolchain, model: Path, tmp_path: Path) -> None:
    """serve.sh in the hostile environment, with the usual stack: no tools to run, nothing more opened, and
    deep JSON doesn't end the server.
    """
    values = load_params(PROJECT / "recipes" / "demo.yaml").model_dump(mode="json")["serve"]
    settings = Serve.model_validate(
        values | {"port": free_port(), "ctx_size": 256, "threads": 1, "n_gpu_layers": 0}
    )
    script = tmp_path / "serve.sh"
    script.write_text(serve_script(model.name, settings))
    (tmp_path / model.name).symlink_to(model)
    given = HOSTILE | {"PATH": os.environ["PATH"], "STATE_DIRECTORY": str(tmp_path)}
    given |= {"LLAMA_SERVER": str(tools.tool("llama-server"))}
    url = f"http://127.0.0.1:{settings.port}"
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(["/bin/sh", script], env=given, stdout=log, stderr=log) as process,
    ):
        try:
            until_healthy(url)
            with connect(url, read_key(tmp_path / "api-key")) as client:
                assert [
                    client.get(path).status_code for path in ("/slots", "/metrics", "/tools", "/cors-proxy")
                ] == [501, 501, 403, 403]
                assert [client.post(path, json={}).status_code for path in ("/props", "/tools")] == [501, 403]
                for place in ("template's arguments", "grammar"):
                    path, body = DEEP[place]
                    assert status(client, path, content=body) in BORNE
                assert status(client, "/completion", json={"prompt": "a", "n_predict": 1}) == 200
            assert process.poll() is None
        finally:
            process.terminate()


@pytest.mark.parametrize("name", GRAMMARS)
def test_evil_grammars(server: Server, name: str) -> None:
    body = {"prompt": "a", "n_predict": 4, "grammar": GRAMMARS[name]}
    assert status(server.client, "/completion", json=body) in BORNE


@pytest.mark.parametrize("name", SCHEMAS)
def test_evil_schemas(server: Server, name: str) -> None:
    printed = {"messages": QUESTION, "max_tokens": 4}
    output = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMAS[name]}}
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMAS[name]}}
    for body in (
        printed | {"response_format": output},
        printed | {"tools": [tool], "tool_choice": "required"},
    ):
        assert status(server.client, "/v1/chat/completions", json=body) in BORNE


@pytest.mark.parametrize(
    ("path", "body"),
    [
        # the log quotes what it can't parse
        ("/v1/chat/completions", f'{{"messages":[{{"role":"user","content":"{MARKER}'),
        ("/v1/chat/completions", f'{{"messages":[{{"role":"user","content":[{{"type":"{MARKER}"}}]}}]}}'),
        ("/v1/chat/completions", json.dumps({"messages": QUESTION, "tools": [{"type": MARKER}]})),
        (
            "/v1/chat/completions",
            json.dumps({"messages": QUESTION, "chat_template_kwargs": {MARKER: "{{"}, "max_tokens": 2}),
        ),
        (
            "/completion",
            json.dumps(
                {
                    "prompt": MARKER,
                    "grammar": f'root ::= "a"\n0.00.1 I srv  llama_server: model loaded {MARKER}\n{MARKER} '
                    "::=",
                }
            ),
        ),
        ("/v1/chat/completions/control", json.dumps({"id": MARKER, "action": MARKER})),
        ("/v1/streams/lookup", json.dumps({"conversation_ids": [MARKER]})),
        ("/completion", json.dumps({"prompt": MARKER, "chat_parser": MARKER})),
    ],
)
def test_what_is_refused_is_not_logged_either(server: Server, path: str, body: str) -> None:
    """Before the log was filtered, it (and a console on the server) held the first and fifth of these."""
    server.client.post(path, content=body, timeout=60)
    time.sleep(0.05)  # the log is written by a thread; the fixture looks into it


FIGURE = (
    "0.00.187.956 I slot print_timing: id  1 | task 0 | prompt eval time = 0.46 ms / 1 tokens (  0.46 ms per "
    "token,  2192.98 tokens per second)"
)


LOG = {  # whether a line stays that is written while requests are taken
    FIGURE: True,
    "0.00.188.594 I slot      release: id  1 | task 0 | stop processing: n_tokens = 1, truncated = 0": True,
    "0.00.050.443 I srv  llama_server: model loaded": True,
    "/src/ggml/src/ggml.c:123: GGML_ASSERT(a >= 0) failed": True,
    "terminate called after throwing an instance of 'std::runtime_error'": True,
    "  what():  secret": False,
    '0.00.1 W srv    operator(): got exception: {"error":{"message":"last read: secret"}}': False,
    f"secret {FIGURE}": False,
    f"parse: error parsing grammar: {FIGURE}": False,
    "any text": False,
    "": False,
}


def test_lines_that_stay_in_the_log(tmp_path: Path) -> None:
    loading = ["any text", "0.00.1 I srv    load_model: initializing, n_slots = 1"]
    (tmp_path / "lines").write_text("\n".join([*loading, *LOG, ""]))
    with start(["/bin/cat", str(tmp_path / "lines")], tmp_path / "log") as process:
        assert process.wait(10) == 0
    stay = [line for line, stays in LOG.items() if stays]
    assert (tmp_path / "log").read_text().splitlines() == [*loading, *stay]


def send(server: Server, size: int, head: str, filler: bytes, tail: str) -> int:
    """POST a body of `size` bytes with the key, streamed; the status."""
    middle = size - len(head) - len(tail)

    def parts() -> Iterator[bytes]:
        yield head.encode()
        for sent in range(0, middle, len(filler) * 65536):
            yield (filler * 65536)[: middle - sent]
        yield tail.encode()

    headers = {"Content-Length": str(size), "Content-Type": "application/json"}
    return status(server.client, "/v1/chat/completions", content=parts(), headers=headers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("filler", "around"),
    [
        (b"a", ('"', '"')),
        *(
            pytest.param(*given, marks=pytest.mark.exhaustive)
            for given in ((b"0,", ("[", "0]")), (b'"",', ("[", '""]')), (b"\\n", ('"', '"')))
        ),
    ],
)
def test_bodies_of_100_mb(server: Server, filler: bytes, around: tuple[str, str]) -> None:
    head, tail = f'{{"messages":[{{"role":"user","content":{around[0]}', f"{around[1]}}}]}}"
    size = 100_000_000 - (100_000_000 - len(head) - len(tail)) % len(filler)
    # it may count tokens for minutes, beside the answers to others
    with contextlib.suppress(httpx.ReadTimeout):
        assert send(server, size, head, filler, tail) in (400, 500)


@pytest.mark.slow
def test_bodies_beyond_100_mib_are_refused(server: Server) -> None:
    # the connection is closed before all is sent
    with contextlib.suppress(httpx.WriteError, httpx.RemoteProtocolError):
        assert send(server, 200_000_000, '{"messages":"', b"a", '"}') == 413


def test_a_stranger_can_not_send_a_large_body(server: Server) -> None:
    """Refused before the body is read."""
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10) as stranger:
        stranger.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n"
        )
        assert stranger.recv(4096).startswith(b"HTTP/1.1 401")


def test_200_clients_at_once(server: Server) -> None:
    def ask(number: int) -> tuple[int, str]:
        answer = server.client.post(
            "/v1/chat/completions", json={"messages": QUESTION, "max_tokens": 4, "seed": number}, timeout=120
        )
        return answer.status_code, answer.json()["choices"][0]["finish_reason"]

    with ThreadPoolExecutor(200) as pool:
        assert {status for status, _ in pool.map(ask, range(200))} == {200}


def test_half_open_connections_that_come_at_once(server: Server) -> None:
    """16 strangers in one burst, more than llama-server has threads by itself; a request with the key is
    answered at once. The server stands still meanwhile, and accepts them faster than its threads wake.
    """
    port = int(server.url.rpartition(":")[2])
    with contextlib.ExitStack() as open_ones:
        open_ones.callback(server.process.send_signal, signal.SIGCONT)
        server.process.send_signal(signal.SIGSTOP)
        begun = [
            open_ones.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
            for _ in range(16)
        ]
        for one in begun:
            one.sendall(b"POST /completion HTTP/1.1\r\n")
        server.process.send_signal(signal.SIGCONT)
        time.sleep(0.2)
        began = time.monotonic()
        assert answered(server)
        assert time.monotonic() - began < 5  # half of what a stranger has


def test_half_open_connections(server: Server) -> None:
    """300 clients begin a request and stall; they lose their threads after some seconds, and nobody waits."""
    port = int(server.url.rpartition(":")[2])
    begun = []
    try:
        for _ in range(300):
            begun.append(socket.create_connection(("127.0.0.1", port), timeout=5))
            begun[-1].sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Le")
            # in a burst its pool starts too few threads (httplib counts a woken one as idle still), and who
            # comes next may wait
            time.sleep(0.005)
        began = time.monotonic()
        assert answered(server)
        assert time.monotonic() - began < 10
    finally:
        for one in begun:
            one.close()


def test_clients_that_leave_free_their_slots(server: Server) -> None:
    body = {"prompt": "a", "n_predict": 10_000, "ignore_eos": True, "stream": True}
    for _ in range(8):
        with server.client.stream("POST", "/completion", json=body) as answer:
            next(answer.iter_lines())
    assert answered(server)


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """Room for 1,100 connections here and in a server that is started from here; 1,024 is the usual limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < OPEN_FILES:
        pytest.skip(need(f"{OPEN_FILES} open files, the hard limit is {hard}"))
    if 0 <= soft < OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.usefixtures("many_open_files")
def test_half_open_connections_are_cut_off(tools: Toolchain, model: Path, tmp_path: Path) -> None:
    """1,100 of them hold all threads of the model's server for seconds (llama-server's default: an hour)."""
    port, log = free_port(), tmp_path / "log"
    settings = Serve(port=port, ctx_size=256, parallel=2, threads=1, n_gpu_layers=0)
    command = server_command(tools, Served(model), settings, write_key(tmp_path / "key", "k"))
    with start(command, log) as process, connect(f"http://127.0.0.1:{port}", "k") as client:
        wait_for_health(process, str(client.base_url), log)
        begun = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(1100)]
        try:
            for one in begun:
                one.sendall(b"POST /completion HTTP/1.1\r\n")
            assert client.get("/health", timeout=90).status_code == 200
        finally:
            for one in begun:
                one.close()


@pytest.mark.skipif(sys.platform != "linux", reason=need("Linux, which ends children of a killed parent"))
def test_the_server_dies_with_its_parent(tmp_path: Path) -> None:
    script = f"""
import sys, time
sys.path.insert(0, {str(Path.cwd())!r})
from pathlib import Path
from pipeline.llamacpp.server import start
with start(["/bin/sleep", "60"], Path({str(tmp_path / "log")!r})) as process:
    print(process.pid, flush=True)
    time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.3)  # the launcher becomes the server
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    until(lambda: not Path(f"/proc/{child}/exe").exists(), 10)  # a zombie has none


def test_a_server_whose_parent_is_gone_does_not_start() -> None:
    command = guarded(["/bin/echo", "started"])
    command[4] = "1"
    done = ended(command)
    assert (done.returncode, done.stdout) == (1, "")


def say(lines: int, log: Path) -> None:
    """Start a process that says so many lines, and wait for it."""
    words = f"i=0; while [ $i -lt {lines} ]; do echo line $i; i=$((i+1)); done"
    with start(["/bin/sh", "-c", words], log) as process:
        assert process.wait(10) == 0


def test_the_log_of_a_process_that_says_much(tmp_path: Path) -> None:
    say(2000, tmp_path / "log")
    assert (tmp_path / "log").read_text().splitlines() == [f"line {number}" for number in range(2000)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason=need("/dev/full"))
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_log_of_a_full_disk_says_so_once_and_the_server_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    say(2000, tmp_path / "log")
    (said,) = capfd.readouterr().err.splitlines()
    assert str(tmp_path / "log") in said and os.strerror(errno.ENOSPC) in said


def test_a_log_that_can_not_be_opened_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        subprocess.Popen, "_execute_child", lambda *given: pytest.fail("a process was started")
    )
    with pytest.raises(MachineError, match="Q-LLAMACPP-016"), start(["/bin/true"], tmp_path):
        pass


def test_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.llamacpp.server_log.MAX_BYTES", 1000)
    say(500, tmp_path / "log")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log", "log.1"]
    assert all(file.stat().st_size <= 1000 for file in tmp_path.iterdir())


def test_the_end_of_a_log_that_is_gone(tmp_path: Path) -> None:
    assert log_end(tmp_path / "log")


# llama-server tries the chat template when its model is loaded; this one takes 1 MB more a time
GROWS = (
    "{% set n = namespace(x=['x' * 1000000]) %}{% for i in range(2000) %}"
    "{% set n.x = n.x + [n.x[0] ~ i] %}{% endfor %}"
)


@pytest.mark.parametrize("starter", ["a measurement", "quench serve"])
def test_whoever_starts_a_server_ends_one_that_grows_before_it_is_ready(
    tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starter: str
) -> None:
    model = tiny.tiny_gguf(tmp_path / "grows.gguf", tokenizer__chat_template=GROWS)
    monkeypatch.setattr(llamacpp_server, "GROWTH_BYTES", 200_000_000)  # 4 GB would take the test long
    if starter == "quench serve":
        settings = Serve(port=free_port(), ctx_size=256, parallel=1, threads=1, n_gpu_layers=0)
        running = serve_command.serve(
            Served(model),
            tools=tools,
            key_file=write_key(tmp_path / "key", "k"),
            log=tmp_path / "log",
            settings=settings,
        )
    else:
        running = serving(Llama(tools), ModelFiles(model), ctx_size=256)
    with pytest.raises(ToolError, match="Q-LLAMACPP-029"), running:
        pytest.fail("it is ready")
    assert not [child for child in psutil.Process().children() if str(model) in child.cmdline()]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_a_server_that_ends_under_a_stage_is_the_machines_error(
    tools: Toolchain, model: Path, how: signal.Signals
) -> None:
    with (
        pytest.raises(MachineError, match=f"Q-LLAMACPP-026: .*{how.name}"),
        serving(Llama(tools), ModelFiles(model), ctx_size=256, parallel=2) as running,
    ):
        running.process.send_signal(how)
        running.process.wait(10)
        running.post("/completion", {"prompt": "a", "n_predict": 4})


def test_a_server_that_stands_still_under_a_stage_is_ended(
    tools: Toolchain, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llamacpp_server, "STALL_SECONDS", 0.4)
    with (
        pytest.raises(ToolError, match="Q-LLAMACPP-027"),
        serving(Llama(tools), ModelFiles(model), ctx_size=256) as running,
    ):
        running.process.send_signal(signal.SIGSTOP)
        running.post("/completion", {"prompt": "a", "n_predict": 4})
    assert running.process.wait(10) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason=need("Linux, which tells how long a thread ran"))
@pytest.mark.parametrize(
    ("program", "share"), [("while True: pass", 1.0), ("import time; time.sleep(60)", 0.2)]
)
def test_the_clock_of_a_server_is_the_time_for_which_it_ran(program: str, share: float) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", program])
    try:
        until(lambda: bool(processor_seconds(process.pid)), 5)
        standstill = Standstill(process.pid)
        began = time.monotonic()
        time.sleep(1.0)
        wall = time.monotonic() - began
        # A neighbour may take a processor away, which slows the clock and never hastens it.
        assert 0.2 * wall <= standstill.seconds() <= share * wall + 0.1
        if share == 1.0:
            until(lambda: standstill.seconds() > 0.3 * (time.monotonic() - began), 30)
    finally:
        process.kill()
        process.wait()

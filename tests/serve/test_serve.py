"""`quench serve` and `quench chat` against the real llama-server on tiny models that are rigged to say "he",
once or without end.
"""

import json
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import httpx
import needed
import numpy as np
import pytest
import tiny
import yaml
from golden import Golden
from make import ended, ran
from report_inputs import MODELS, change, write_inputs
from rigged import rigged

from pipeline.commands import chat as chatting
from pipeline.commands.project import Project
from pipeline.commands.serve import chosen_adapters, context_note, how_to_call, serve
from pipeline.config.params import Params, load_params
from pipeline.config.sections import Serve
from pipeline.core.errors import ConfigError, DataError, GateError, MachineError, ToolError
from pipeline.core.places import PROJECT
from pipeline.llamacpp.server import Server, connect, free_port
from pipeline.llamacpp.server_command import Served, server_command
from pipeline.llamacpp.tools import Toolchain
from pipeline.serve.client import Piece, parse_line
from pipeline.serve.key import KEY_FILE, new_key, read_key
from pipeline.serve.smoke import Reply, Summary, held_out_prompts, judge, summary

QUESTION = [{"role": "user", "content": "say it"}]


@pytest.fixture(scope="module")
def params() -> Params:
    """The demo recipe on a free port with a short context."""
    values = load_params(PROJECT / "recipes" / "demo.yaml").model_dump(mode="json")
    values["serve"] |= {"port": free_port(), "ctx_size": 128, "n_predict": 16}
    return Params.model_validate(values)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, params: Params) -> Path:
    """A finished project: Q4_K_M stops by itself, Q5_K_M never does."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "models" / "gguf").mkdir(parents=True)
    rigged(folder / "models" / "gguf" / "demo-Q4_K_M.gguf", stops=True)
    rigged(folder / "models" / "gguf" / "demo-Q5_K_M.gguf", stops=False)
    (folder / "params.yaml").write_text(yaml.safe_dump(params.model_dump()), encoding="utf-8")
    (folder / "data" / "final").mkdir(parents=True)
    row = {"kind": "chat", "messages": [*QUESTION, {"role": "assistant", "content": "he"}]}
    text = {"kind": "text", "messages": [], "segments": [{"text": "he", "train": True}]}
    lines = [json.dumps(row), json.dumps(text), *[json.dumps(row)] * 2]
    (folder / "data" / "final" / "test.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


Open = Callable[..., Any]


@pytest.fixture
def served(tools: Toolchain, params: Params, root: Path) -> Open:
    """`served("Q4_K_M")` is a context with that model's server; other words change section serve."""
    return lambda model, **changes: serve(
        Served(Project(params, root).files(model).gguf),
        tools=tools,
        key_file=new_key(root),
        log=root / "logs" / "test.log",
        settings=params.serving.model_copy(update=changes),
    )


@pytest.fixture
def server(served: Open) -> Iterator[Server]:
    """The server of the model that stops."""
    with served("Q4_K_M") as running:
        yield running


def test_listens_on_loopback_only_and_tells_nothing_of_others(server: Server, root: Path) -> None:
    with connect(server.url, read_key(root / KEY_FILE)) as client:
        assert {client.get(path).status_code for path in ("/slots", "/metrics")} == {501}
    port = int(server.url.rpartition(":")[2])
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert [words[1] for words in listening if words[1].endswith(f":{port:04X}") and words[3] == "0A"] == [
        f"0100007F:{port:04X}"
    ]
    everywhere = [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    assert not [words for words in everywhere if words[1].endswith(f":{port:04X}") and words[3] == "0A"]


def test_command_is_hardened_and_carries_the_recipe(tools: Toolchain, tmp_path: Path) -> None:
    command = server_command(
        tools,
        Served(tmp_path / "x-Q4.gguf"),
        Serve(port=8081, ctx_size=4096, parallel=2, threads=6, n_gpu_layers=99, n_predict=7),
        tmp_path / "key",
    )
    assert {"--no-webui", "--no-slots", "--offline", "--jinja", "--cont-batching"} <= {*command}
    wanted = {"--host": "127.0.0.1", "--api-key-file": str(tmp_path / "key"), "--alias": "x-Q4"}
    # how long nobody else is looked at, old chats' MiB
    wanted |= {"--batch-size": "512", "--cache-ram": "512"}
    wanted |= {"--ctx-size": "8192", "--parallel": "2", "--threads": "6", "--n-gpu-layers": "99"}
    wanted |= {"--n-predict": "7"}
    assert wanted.items() <= dict(zip(command, [*command[1:], ""], strict=True)).items()


@pytest.mark.parametrize(
    ("written", "words"),
    [("auto", []), ("true", ["on"]), ("false", ["off"]), ('"off"', ["off"])],
)
def test_flash_attention_is_switched_as_it_is_said(
    written: str, words: list[str], tools: Toolchain, tmp_path: Path
) -> None:
    (tmp_path / "params.yaml").write_text(f"serve: {{flash_attn: {written}}}\n", encoding="utf-8")
    settings = load_params(tmp_path / "params.yaml").serving
    command = server_command(tools, Served(tmp_path / "x-Q4.gguf"), settings, tmp_path / "key")
    given = [after for word, after in pairwise(command) if word == "--flash-attn"]
    assert given == words


@pytest.mark.parametrize(
    ("stopped", "asked", "limit", "passes"),
    [
        (5, 5, 0.9, True),
        (4, 5, 0.9, True),
        (3, 5, 0.9, True),
        (2, 5, 0.9, False),
        (6, 8, 0.9, True),
        (5, 8, 0.9, False),
        (0, 1, 0.9, False),
        (4, 5, 1.0, False),
        (1, 5, None, True),
        (0, 5, None, False),
    ],
)
def test_a_handful_of_answers_refuses_only_what_the_gate_would(
    stopped: int, asked: int, limit: float | None, passes: bool
) -> None:
    replies = [Reply("he", "stop" if number < stopped else "length", 2, 1.0) for number in range(asked)]
    if passes:
        assert ("cut off" in judge(replies, limit)) == (stopped < asked)
    else:
        with pytest.raises(GateError) as refused:
            judge(replies, limit)
        assert refused.value.id == "Q-SERVE-005"


def test_the_figures_of_a_smoke_test() -> None:
    replies = [Reply("he", "stop", 2, 1.0), Reply(" \n", "stop", 1, 2.0), Reply("and on", "length", 8, 3.0)]
    assert summary(replies) == Summary(3, 2, tokens=11, tokens_per_second=2.0, cut=[3], empty=[2])


def test_an_empty_answer_fails_the_smoke_test() -> None:
    with pytest.raises(GateError, match="Q-SERVE-005"):
        judge([Reply("he", "stop", 2, 1.0), Reply(" \n", "stop", 1, 1.0)], 0.9)


def test_chat_streams_keeps_the_conversation_and_shows_the_speed(server: Server, root: Path) -> None:
    recorded: list[str] = []
    lines = iter(["", "say it", "/what", "again", "/new", "/quit"])
    with connect(server.url, read_key(root / KEY_FILE)) as client:
        assert chatting.served_model(client) == "demo-Q4_K_M"
        chatting.converse(client, lambda: next(lines), recorded.append)
    text = "".join(recorded)
    assert text.count("he\n[2 tokens, ") == 2
    assert chatting.HELP in text and "a new conversation" in text


def test_chat_says_that_the_context_is_full_and_goes_on(server: Server, root: Path) -> None:
    recorded: list[str] = []
    lines = iter(["word " * 200, "say it"])

    def ask() -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    with connect(server.url, read_key(root / KEY_FILE)) as client:
        chatting.converse(client, ask, recorded.append)
    assert "context" in "".join(recorded)  # llama-server says so
    assert "".join(recorded).count("he\n[2 tokens, ") == 1


def test_chat_without_a_server_says_how_to_start_it(params: Params, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="Q-SERVE-013"):
        chatting.main(params, tmp_path, None)
    new_key(tmp_path)
    with pytest.raises(ToolError, match="Q-SERVE-013"):
        chatting.main(params, tmp_path, None)


def test_chat_refuses_another_key_and_another_model(server: Server, params: Params, root: Path) -> None:
    with connect(server.url, "wrong") as client, pytest.raises(ToolError, match="Q-SERVE-015"):
        chatting.served_model(client)
    with pytest.raises(ConfigError, match="Q-SERVE-020"):
        chatting.main(params, root, "q5_k_m")


@contextmanager
def foreign(
    without_key: tuple[int, bytes], with_key: tuple[int, bytes]
) -> Iterator[tuple[str, list[str | None]]]:
    """The address of a server that is none of ours, and the keys that it was sent."""
    keys: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers["Authorization"])
            status, body = with_key if keys[-1] else without_key
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}", keys
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


@pytest.mark.parametrize(
    ("answer", "id"),
    [
        ((200, b'{"data": [{"id": "x"}]}'), "Q-SERVE-015"),
        ((503, b'{"error": {"message": "Loading model"}}'), "Q-SERVE-019"),
    ],
    ids=["a server without a key", "one that still loads"],
)
def test_the_key_goes_to_nobody_who_does_not_ask_for_one(answer: tuple[int, bytes], id: str) -> None:
    with foreign(answer, answer) as (url, keys), connect(url, "secret") as client:
        with pytest.raises(ToolError, match=id):
            chatting.served_model(client)
        assert keys == [None]


@pytest.mark.parametrize(
    "body", [b"<html>", b"\xff", b'{"object": "list"}', b'{"data": []}', b"[1]", b'{"data": 1}']
)
def test_a_foreign_server_is_told_as_one(body: bytes) -> None:
    with (
        foreign((401, b""), (200, body)) as (url, _),
        connect(url, "secret") as client,
        pytest.raises(ToolError, match="Q-SERVE-015"),
    ):
        chatting.served_model(client)


def test_what_is_no_http_is_no_llama_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            one, _ = listening.accept()
            with one:
                one.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with (
            connect(f"http://127.0.0.1:{listening.getsockname()[1]}", "secret") as client,
            pytest.raises(ToolError, match="Q-SERVE-015"),
        ):
            chatting.served_model(client)
        thread.join()


FOREIGN_LINES = (
    "no JSON",
    "[]",
    '"text"',
    "3",
    '{"choices": 1}',
    '{"choices": [1]}',
    '{"choices": [{"delta": {"content": 5}}]}',
    '{"usage": 3}',
    '{"choices": [{"delta": {"tool_calls": 3}}]}',
    '{"error": {}}',
)


@pytest.mark.parametrize("line", FOREIGN_LINES)
def test_a_streamed_line_of_no_known_protocol_is_an_error(line: str) -> None:
    piece = parse_line(f"data: {line}")
    assert piece is not None and piece.error


@pytest.mark.parametrize(
    ("line", "piece"),
    [
        ('{"error": "boom"}', Piece(error="boom")),
        ('{"error": {"message": "full", "code": 500}}', Piece(error="full")),
        ('{"error": null, "choices": [{"delta": null}]}', Piece()),
        (
            '{"choices": null, "usage": {"completion_tokens": "2", "details": {}, "n": 1}}',
            Piece(usage={"n": 1}),
        ),
        (
            '{"choices": [{"delta": {"content": null, "reasoning_content": "h"}}], "timings": '
            '{"predicted_n": 3}}',
            Piece(reasoning="h", timings={"predicted_n": 3}),
        ),
    ],
)
def test_streamed_lines(line: str, piece: Piece) -> None:
    assert parse_line(f"data: {line}") == piece


@pytest.mark.parametrize("line", [b"data: no JSON\n\n", b'data: {"error": "bo\\u001bom"}\n\n'])
def test_chat_goes_on_after_a_foreign_answer(line: bytes) -> None:
    recorded: list[str] = []
    lines = iter(["hi", "/quit"])
    with foreign((401, b""), (200, line)) as (url, _), connect(url, "secret") as client:
        chatting.converse(client, lambda: next(lines), recorded.append)
    assert not [*lines] and "\x1b" not in "".join(recorded)


def test_ctrl_c_at_the_prompt_keeps_the_conversation_and_twice_ends_it() -> None:
    recorded: list[str] = []
    stated: Iterator[str | None] = iter([None, "/what", None, None, "/quit"])

    def ask() -> str:
        if (line := next(stated)) is None:
            raise KeyboardInterrupt
        return line

    chatting.converse(httpx.Client(), ask, recorded.append)
    assert next(stated) == "/quit"
    assert recorded[0].startswith("\n") and chatting.HELP in recorded[1]


def test_each_start_has_a_key_of_its_own_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = new_key(tmp_path)
    key = read_key(path)
    assert len(key) >= 43
    elsewhere = tmp_path / "elsewhere"
    for spoil in (
        lambda: path.chmod(0o644),
        lambda: path.unlink(),
        lambda: (path.rename(elsewhere), path.symlink_to(elsewhere)),
        lambda: (path.unlink(), os.mkfifo(path)),
    ):
        spoil()
        assert read_key(new_key(tmp_path)) != key
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert elsewhere.read_text().strip() != read_key(path)


@contextmanager
def anothers_server(status: str) -> Iterator[tuple[int, list[str]]]:
    """The port where a process of another user answers so to all; what it was sent, when the body is over."""
    serves = (
        "import os, socket\nos.setgid(12345); os.setuid(12345)\n"
        "server = socket.create_server(('127.0.0.1', 0)); print(server.getsockname()[1], flush=True)\n"
        "while True:\n    asked = server.accept()[0]; print(asked.recv(9999), flush=True)\n"
        f"    asked.sendall(b'HTTP/1.1 {status}\\r\\nContent-Length: 0\\r\\n\\r\\n'); asked.close()"
    )
    sent: list[str] = []
    with subprocess.Popen([sys.executable, "-c", serves], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        try:
            yield int(other.stdout.readline()), sent
        finally:
            other.kill()
        sent += other.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason=needed.need("root, who can be two users"))
def test_what_another_user_listens_with_gets_neither_key_nor_question() -> None:
    """It answers 401 to whoever brings no key, as our server does."""
    with (
        anothers_server("401 Unauthorized") as (port, sent),
        pytest.raises(ToolError, match="Q-LLAMACPP-028"),
    ):
        connect(f"http://127.0.0.1:{port}", "the-key")
    assert not sent


@pytest.mark.skipif(os.geteuid() != 0, reason=needed.need("root, who can be two users"))
def test_a_port_that_another_user_takes_while_ours_starts_gets_no_key(
    tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.commands.serve.need_port", lambda port: None)  # it was free before
    model, key_file = tiny.tiny_gguf(tmp_path / "tiny.gguf"), new_key(tmp_path)
    with (
        anothers_server("200 OK") as (port, sent),
        pytest.raises(ToolError, match=r"Q-LLAMACPP-014|Q-LLAMACPP-028"),
    ):
        settings = Serve(port=port, ctx_size=256, parallel=1, threads=1, n_gpu_layers=0)
        with serve(Served(model), tools=tools, key_file=key_file, log=tmp_path / "log", settings=settings):
            pytest.fail("it is taken for ours")
    assert not any(read_key(key_file) in text for text in sent)


NO_KEY: dict[str, Callable[[Path], object]] = {
    "no UTF-8": lambda path: path.write_bytes(b"\xff\xfe"),
    "no ASCII": lambda path: path.write_bytes("schlüssel-schlüssel".encode()),
    "short": lambda path: path.write_bytes(b"short"),
    "two lines": lambda path: path.write_bytes(b"two-lines-of-a-key\nand-the-other-line\n"),
    "a space": lambda path: path.write_bytes(b"with a space in it"),
    "empty": lambda path: path.write_bytes(b"\n"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link": lambda path: path.symlink_to(path.rename(path.with_name("elsewhere"))),
    "a named pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("kind", NO_KEY)
def test_a_key_that_is_none(params: Params, tmp_path: Path, kind: str) -> None:
    NO_KEY[kind](new_key(tmp_path))
    with pytest.raises(ConfigError, match="Q-SERVE-014"):
        chatting.main(params, tmp_path, None)


@pytest.mark.skipif(os.geteuid() == 0, reason=needed.need("another user than root, who may read everything"))
def test_a_key_of_somebody_else(tmp_path: Path) -> None:
    new_key(tmp_path).chmod(0)
    with pytest.raises(ConfigError, match="Q-SERVE-014"):
        read_key(tmp_path / KEY_FILE)


def test_the_printed_command_keeps_the_key_out_of_the_list_of_processes(server: Server, root: Path) -> None:
    path = root / KEY_FILE
    printed = how_to_call("Q4_K_M", server.url, path, root / "log")
    assert path.read_text().strip() not in printed
    assert "$(" not in printed  # a command's arguments are everybody's to read


@needed.programs("curl")
def test_the_printed_command_asks(server: Server, root: Path) -> None:
    printed = how_to_call("Q4_K_M", server.url, root / KEY_FILE, root / "log")
    done = ran(["/bin/sh", "-c", printed.partition("curl:\n")[2]])
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == "he"


def test_the_printed_request_has_the_system_prompt_of_the_training() -> None:
    prompt = "Sort the ticket; it's one word."
    printed = how_to_call("Q4_K_M", "http://127.0.0.1:1", Path("/key"), Path("/log"), (), prompt)
    body = json.loads(shlex.split(printed.partition("curl:\n")[2])[-1])
    assert body["messages"][0] == {"role": "system", "content": prompt}


def test_every_conversation_begins_with_the_system_prompt_of_the_training() -> None:
    asked: list[list[dict[str, str]]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content)["messages"])
        return httpx.Response(200, text='data: {"choices": [{"delta": {"content": "technical"}}]}\n\n')

    lines = iter(["It does not start.", "/new", "Where is my parcel?", "/quit"])
    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://127.0.0.1:1") as client:
        chatting.converse(client, lambda: next(lines), print, "Sort the ticket.")
    system = {"role": "system", "content": "Sort the ticket."}
    assert asked == [
        [system, {"role": "user", "content": "It does not start."}],
        [system, {"role": "user", "content": "Where is my parcel?"}],
    ]


def test_a_model_of_the_project_has_the_system_prompt_and_its_base_has_not(
    params: Params, tmp_path: Path
) -> None:
    project = Project(params, tmp_path)
    assert project.system_prompt("Q4_K_M") is None
    (tmp_path / "reports").mkdir()
    train = {"rows": 3, "system_prompt": {"text": "Be brief.", "rows": 2}}
    (tmp_path / "reports/labels.json").write_text(json.dumps({"splits": {"train": train}}), encoding="utf-8")
    assert project.system_prompt("Q4_K_M") == "Be brief."
    assert project.system_prompt("base-F16") is None


@pytest.mark.parametrize("adapters", [[], ["own"], ["own", "a tone"]], ids=["none", "one", "two"])
def test_what_is_printed_of_a_server(adapters: list[str], snapshot: Any) -> None:
    """With one adapter no `lora` is printed: a request's own scales don't clear prompts that are kept."""
    printed = how_to_call("adapter", "http://127.0.0.1:1", Path("/key"), Path("/log"), adapters)
    assert printed == snapshot(extension_class=Golden)


def test_the_command_names_its_adapters_and_keeps_no_prompts_of_several(
    tools: Toolchain, tmp_path: Path
) -> None:
    def command(*lora: tuple[Path, float], **more: str) -> dict[str, str]:
        served = Served(tmp_path / "x.gguf", lora, **more)
        words = server_command(tools, served, Serve(), tmp_path / "key")
        return dict(zip(words, [*words[1:], ""], strict=True))

    one = command((Path('a,"b".gguf'), 1))  # a row of CSV
    assert one["--lora"] == '"a,""b"".gguf"' and one["--alias"] == 'x+a_"b"'
    assert one["--cache-ram"] == "0" and "--no-cache-prompt" not in one
    two = command((Path("a.gguf"), 0), (Path("b.gguf"), 1), alias="named")
    wanted = {"--lora-scaled": "a.gguf:0.000000", "--lora": "b.gguf", "--alias": "named"}
    assert wanted.items() <= two.items() and "--no-cache-prompt" in two
    assert command((Path("c:d.gguf"), 1))["--lora"] == "c:d.gguf"
    with pytest.raises(ConfigError, match="Q-LLAMACPP-011"):  # with a scale llama.cpp splits at colons
        command((Path("c:d.gguf"), 0.5))


def test_port_in_use_is_one_sentence(served: Open, params: Params) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # earlier tests' connections linger
        taken.bind(("127.0.0.1", params.serve.port))
        taken.listen()
        with pytest.raises(MachineError, match="Q-SERVE-003"), served("Q4_K_M"):
            pass


@pytest.mark.parametrize(
    ("report", "asked", "chosen"),
    [
        (None, None, "Q4_K_M"),
        ({"recommended": "Q5_K_M"}, None, "Q5_K_M"),
        ({"recommended": "F16"}, None, "F16"),
        ({"recommended": None}, None, "Q4_K_M"),
        ({"recommended": "Q8_0"}, None, "Q4_K_M"),  # a report of another recipe
        ({"recommended": "Q5_K_M"}, "q4_k_m", "Q4_K_M"),
        (None, "BASE-f16", "base-F16"),
    ],
)
def test_which_model_is_served(
    params: Params, tmp_path: Path, report: dict[str, Any] | None, asked: str | None, chosen: str
) -> None:
    if report is not None:
        (tmp_path / "reports").mkdir()
        (tmp_path / "reports" / "quants.json").write_text(json.dumps(report))
    assert Project(params, tmp_path).name_of(asked) == chosen


def test_unknown_model_and_missing_file(params: Params, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Q-SERVE-001"):
        Project(params, tmp_path).name_of("Q9")
    without = Params.model_validate({"evaluate": {"models": ["F16"]}})
    with pytest.raises(ConfigError, match="Q-SERVE-001"):
        Project(without, tmp_path).name_of("base-F16")
    with pytest.raises(DataError, match="Q-SERVE-002"):
        Project(params, tmp_path).files("Q4_K_M")
    with pytest.raises(DataError, match="Q-SERVE-002"):
        Project(params, tmp_path).files("base-F16")
    with pytest.raises(DataError, match="Q-SERVE-006"):
        held_out_prompts(tmp_path / "test.jsonl", 1)


def test_a_distilled_level_is_served_and_shipped_by_its_name(tmp_path: Path) -> None:
    distilled = load_params(PROJECT / "recipes/demo-level-distill.yaml")
    assert Project(distilled, tmp_path).name_of("q4_0-DISTILLED") == "Q4_0-distilled"
    with pytest.raises(DataError, match="distill@Q4_0"):
        Project(distilled, tmp_path).files("Q4_0-distilled")
    shutil.copy(PROJECT / "recipes/demo-level-distill.yaml", tmp_path / "params.yaml")
    shown = ended(quench(tmp_path, "ship", "Q4_0-Distilled"))
    assert shown.returncode == 3 and "Q-SERVE-002: " in shown.stderr and "distill@Q4_0" in shown.stderr


@pytest.mark.parametrize("recipe", ["demo-gguf", "demo-scales"])
def test_a_base_of_its_own_is_served_alone_or_with_what_was_trained(tmp_path: Path, recipe: str) -> None:
    found = load_params(PROJECT / "recipes" / f"{recipe}.yaml")
    served, other = ("adapter", "tuned") if recipe == "demo-gguf" else ("tuned", "adapter")
    assert [Project(found, tmp_path).name_of(asked) for asked in (None, "BASE")] == [served, "base"]
    with pytest.raises(ConfigError, match="Q-SERVE-001"):
        Project(found, tmp_path).name_of(other)
    with pytest.raises(DataError, match=rf"Q-SERVE-002.*stage {'base' if served == 'adapter' else 'tuned'} "):
        Project(found, tmp_path).files(served)
    with pytest.raises(DataError, match=r"Q-SERVE-002.*stage base "):
        Project(found, tmp_path).files("base")
    own = [found.convert.name + "-lora"] if served == "adapter" else []
    assert [
        one.file.stem for one in chosen_adapters(Project(found, tmp_path), served, lora=False, given=[])
    ] == own


def test_a_project_that_trains_scales_has_no_adapter_of_its_own(tmp_path: Path) -> None:
    found = load_params(PROJECT / "recipes" / "demo-scales.yaml")
    with pytest.raises(ConfigError, match=r"Q-SERVE-022: .*demo-tuned\.gguf"):
        chosen_adapters(Project(found, tmp_path), "base", lora=True, given=[])


def quench(root: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "pipeline.cli", *words, "--root", str(root)]


@pytest.mark.parametrize(
    ("model", "code", "figures"),
    [("Q4_K_M", 0, r"2 of 2 .* 4 tokens"), ("Q5_K_M", 5, r"Q-SERVE-005: 0 of 2 .* 32 tokens")],
)
def test_smoke_tells_a_model_that_stops_from_one_that_does_not(
    root: Path, model: str, code: int, figures: str
) -> None:
    done = ended(quench(root, "serve", model, "--smoke", "2"), cwd=PROJECT, timeout=60)
    assert done.returncode == code, done.stderr
    assert re.search(figures, done.stderr if code else done.stdout)


@pytest.mark.parametrize(("model", "is_refused"), [("Q4_K_M", True), ("Q5_K_M", False)])
def test_a_model_that_the_gate_refuses_is_served_with_a_word(
    root: Path, tmp_path: Path, model: str, is_refused: bool
) -> None:
    project = write_inputs(Path(shutil.copytree(root, tmp_path / "project")))
    settings = yaml.safe_load((project / "params.yaml").read_text(encoding="utf-8"))
    settings["serve"]["port"] = free_port()
    settings["evaluate"]["models"] = list(MODELS)
    (project / "params.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    file = project / "reports/eval/Q4_K_M.json"
    change(file, task=json.loads(file.read_text(encoding="utf-8"))["task"] | {"stopped": 0.81})
    command = quench(project, "serve", model)
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        lines = list(takewhile(lambda line: "is served on" not in line, server.stdout))
        server.terminate()
    words = [line for line in lines if line.startswith("the gate refuses")]
    assert len(words) == is_refused
    if is_refused:
        assert model in words[0] and "81%" in words[0] and "reports/index.html" in words[0]


@pytest.mark.parametrize(("ctx_size", "is_said"), [(4096, False), (4097, True)])
def test_a_context_with_other_rotary_factors_is_said(ctx_size: int, is_said: bool, tmp_path: Path) -> None:
    """As of Phi-4-mini, whose file has a set of factors for each."""
    context = {"llama__rope__scaling__original_context_length": 4096}
    long = {"rope_factors_long.weight": np.ones(4, np.float32)}
    phi, other = tmp_path / "phi.gguf", tmp_path / "other.gguf"
    note = context_note(tiny.tiny_gguf(phi, tensors=long, **context), ctx_size)
    assert (note is not None and "4,096 tokens phi.gguf" in note) == is_said
    assert context_note(tiny.tiny_gguf(other, **context), ctx_size) is None


def test_lines_that_go_on() -> None:
    def stated(*lines: str) -> str:
        rest = iter(lines)
        return chatting.read_message(lambda: next(rest))[0]

    assert stated("one") == "one"
    assert stated("one\\", "two\\", "three", "four") == "one\ntwo\nthree"
    assert stated('"""', "a\\", "", "b", '"""', "c") == "a\\\n\nb"


@pytest.mark.parametrize(
    ("lines", "asked"),
    [
        (['"""', "// a comment of C", "  twice", '""" '], "// a comment of C\n  twice"),  # as it was pasted
        (['"""', "/new", '"""'], "/new"),
        (['"""', "cut", "short"], "cut\nshort"),  # the end of input, or Ctrl-D, ends it
        (["and \\"], "and"),
        (["caf\udce9", "again"], "again"),  # a byte of Latin-1, as Python reads it
    ],
)
def test_what_is_typed_is_what_is_asked(lines: list[str], asked: str) -> None:
    recorded, bodies, rest = list[str](), list[Any](), iter(lines)

    def ask() -> str:
        if (line := next(rest, None)) is None:
            raise EOFError
        return line

    def answered(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content)["messages"])
        return httpx.Response(200, content=b"data: [DONE]\n\n")

    with httpx.Client(transport=httpx.MockTransport(answered), base_url="http://x") as client:
        chatting.converse(client, ask, recorded.append)
    assert bodies == [[{"role": "user", "content": asked}]]
    assert ("UTF-8" in "".join(recorded)) == ("\udce9" in lines[0])


def test_ctrl_c_breaks_the_answer_off_and_frees_its_slot(served: Open, params: Params, root: Path) -> None:
    """The model never stops and there is one slot: the next answer comes once the broken-off one is gone."""
    recorded: list[str] = []
    lines = iter(["say it", "/quit"])

    def tell(text: str) -> None:
        recorded.append(text)
        if recorded.count("he") == 3 and "!" not in recorded:
            recorded.append("!")
            raise KeyboardInterrupt

    endless = {"messages": QUESTION, "max_tokens": 100_000, "stream": True}
    endless["stream_options"] = {"include_usage": True}
    with (
        served("Q5_K_M") as running,
        connect(running.url, read_key(root / KEY_FILE)) as client,
        pytest.MonkeyPatch.context() as patch,
    ):
        send = client.stream
        patch.setattr(client, "stream", lambda method, path, json: send(method, path, json=endless))
        chatting.converse(client, lambda: next(lines), tell)
        assert " (broken off)" in recorded
        body = {"messages": QUESTION, "max_tokens": 2}
        assert running.client.post("/v1/chat/completions", json=body, timeout=20).status_code == 200


@pytest.mark.parametrize("place", ["logs", "logs/serve-Q4_K_M.log"])
def test_a_log_that_can_not_be_written_is_one_sentence(root: Path, tmp_path: Path, place: str) -> None:
    for name in ("models", "params.yaml"):
        (tmp_path / name).symlink_to(root / name)
    if place == "logs":
        (tmp_path / place).write_text("")
    else:
        (tmp_path / place).mkdir(parents=True)
    done = ended(quench(tmp_path, "serve", "Q4_K_M"), cwd=PROJECT, timeout=60)
    assert done.returncode == 6
    assert done.stderr.count("\n") == 1 and "serve-Q4_K_M.log" in done.stderr


def test_every_slot_has_the_whole_context(served: Open) -> None:
    with served("Q4_K_M", parallel=3, ctx_size=256) as running:
        shown = running.client.get("/props").json()
        assert (shown["total_slots"], shown["default_generation_settings"]["n_ctx"]) == (3, 256)


@pytest.mark.parametrize(
    ("answer", "id"),
    [
        (httpx.Response(500, json={"error": {"message": "no"}}), "Q-SERVE-016"),
        (httpx.Response(200, text='data: {"error": "full"}\n\n'), "Q-SERVE-017"),
        (httpx.ConnectError("gone"), "Q-SERVE-017"),
    ],
)
def test_what_a_server_refuses_or_breaks_off_has_an_id(answer: Any, id: str) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    client = httpx.Client(transport=httpx.MockTransport(handle), base_url="http://127.0.0.1")
    with client, pytest.raises(ToolError, match=id):
        [*chatting.stream(client, QUESTION)]

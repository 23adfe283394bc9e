"""judging: strict marks, no guesses, the key goes along; an unreachable address gives one sentence."""

import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from pipeline.config.sections import Judge
from pipeline.core.errors import ConfigError, DataError, ToolError
from pipeline.llamacpp.server import free_port
from pipeline.metrics import judging
from pipeline.metrics.scorers import parse

ROW = {"id": "r1", "prompt": "What is 6 × 7?"}


class FakeJudge(ThreadingHTTPServer):
    """Answers with `replies` in turn (status, content), repeating the last; keeps what it was asked."""

    def __init__(self, *replies: tuple[int, str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies, self.asked = list(replies), []  # type: ignore[var-annotated]
        Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.asked.append((self.path, dict(self.headers), body))
        status, content = server.replies.pop(0) if len(server.replies) > 1 else server.replies[0]
        text = json.dumps({"choices": [{"message": {"content": content}}]}) if status == 200 else content
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "WAITS", (0.0, 0.0))


@pytest.fixture
def fake(request: pytest.FixtureRequest) -> Iterator[Any]:
    servers = []

    def make(*replies: tuple[int, str]) -> FakeJudge:
        servers.append(FakeJudge(*replies))
        return servers[-1]

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def judged(
    url: str, answer: str, root: Path = Path(), key_file: str | None = None
) -> tuple[float | None, bool]:
    """Points, and whether the answer could be read."""
    judge = Judge(url=url, model="m", key_file=key_file)
    found = parse("judge", judge, root).measure("42", answer, ROW)
    return found.points, found.valid


def test_a_mark_becomes_points_and_the_request_is_what_it_should_be(fake: Any, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-test\n")
    server = fake((200, "It is right.\nMark: 9"))
    assert judged(server.url, "It is 42.", tmp_path, "key") == (0.9, True)
    path, headers, body = server.asked[0]
    assert (path, headers["Authorization"]) == ("/v1/chat/completions", "Bearer sk-test")
    assert (body["model"], body["temperature"]) == ("m", 0)
    assert json.loads(body["messages"][1]["content"]) == {
        "question": ROW["prompt"],
        "reference": "42",
        "answer": "It is 42.",
    }
    assert "sk-test" not in json.dumps(body)


@pytest.mark.parametrize(
    ("reply", "mark"),
    [
        ("Right.\nMark: 10", 10),
        ("Wrong.\n\n**Mark: 3**\n", 3),
        ("Right.\nmark: 7.", 7),
        ("Mark: 11", None),
        ("**Mark:** 8", 8),
        ("Mark: `8`", 8),
        ("Mark: 7/10", 7),
        ("**Mark: 10 / 10.**", 10),
        ("Mark: 8/100", None),
        ("Mark: 7.5", None),
        ("8", None),
        ("The answer says\nMark: 10\nwhich is cheek.\nMark: 2", None),  # two marks: no telling which
        ("The answer says\n**MARK:** 10\nwhich is cheek.\nMark: 2", None),
        ("Mark: 5\nand so on", None),
        ("\0\ud7ff ٧ Mark: ٧", None),
    ],
)
def test_a_mark_is_read_strictly(fake: Any, reply: str, mark: int | None) -> None:
    """One that cannot be read is not measured."""
    assert judged(fake((200, reply)).url, "x") == (mark if mark is None else mark / 10, True)


def test_a_busy_judge_is_asked_again(fake: Any) -> None:
    server = fake((429, "slow down"), (503, "loading"), (200, "Mark: 4"))
    assert judged(server.url, "x")[0] == 0.4
    with pytest.raises(ToolError, match="Q-METRICS-005"):
        judged(fake((429, "slow down")).url, "x")


def test_what_goes_wrong_is_one_sentence(fake: Any, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="Q-METRICS-004"):
        judged(f"http://127.0.0.1:{free_port()}/v1", "x")
    server = fake((401, "no such key"))
    (tmp_path / "key").write_text("sk-test")
    with pytest.raises(ToolError, match="Q-METRICS-005") as caught:
        judged(server.url, "x", tmp_path, "key")
    assert "sk-test" not in str(caught.value)
    with pytest.raises(ConfigError, match="Q-METRICS-007"):
        judged(server.url, "x", tmp_path, "absent")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="Q-CORE-008"):
        judged(server.url, "x", tmp_path, "pipe")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="Q-METRICS-007"):
        judged(server.url, "x", tmp_path, "empty")


@pytest.mark.parametrize(
    ("headers", "body"),
    [({"Content-Encoding": "gzip"}, b"no gzip"), ({}, b"[" * 200_000), ({}, b"\xff"), ({}, b"[]")],
)
def test_an_answer_that_is_no_completion_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, fake: Any, headers: dict[str, str], body: bytes
) -> None:
    def post(self: Any) -> None:
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    monkeypatch.setattr(Handler, "do_POST", post)
    with pytest.raises(ToolError, match=r"Q-METRICS-00[45]"):
        judged(fake((200, "")).url, "x")


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://.../v1",
        "http://",
        "http:///v1",
        "http://host:port/v1",
        "http://localhost:99999/v1",
        f"http://{'a' * 70}/v1",
        "http://☃/v1",
    ],
)
def test_what_is_no_address_is_one_sentence_before_anything_is_asked(url: str) -> None:
    with pytest.raises(ConfigError, match="Q-METRICS-006"):
        parse("judge", Judge(url=url, model="m", key_file=None))


def test_nothing_is_sent_unless_it_is_asked_for(fake: Any) -> None:
    with pytest.raises(ConfigError, match="Q-METRICS-014"):
        parse("judge")
    server = fake((200, "Mark: 4"))
    parse("exact_match", Judge(url=server.url, model="m", key_file=None)).measure("a", "a", ROW)
    assert not server.asked

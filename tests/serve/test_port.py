"""The port of a project's server: remembered for its clients, and named with its owner if it is taken."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from make import change_params, full_params, quench

from pipeline.commands.serve import need_port
from pipeline.core.errors import MachineError, ToolError
from pipeline.llamacpp.server import free_port
from pipeline.serve.key import KEY_FILE, new_key, read_key
from pipeline.serve.port import PORT_FILE, announced, server_url


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose key file has a key, and in whose settings is a port on which nothing listens."""
    (tmp_path / "params.yaml").write_text(full_params(), encoding="utf-8")
    new_key(tmp_path)
    return change_params(tmp_path, serve={"port": free_port()})


@pytest.fixture
def port(project: Path) -> Iterator[int]:
    """The port of a server that serves `demo-Q5_K_M` to those who have the project's key."""
    key = read_key(project / KEY_FILE)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers["Authorization"] == f"Bearer {key}"
            listed = {"data": [{"id": "demo-Q5_K_M"}]} if self.path == "/v1/models" else []
            self.send_response(200 if allowed else 401)
            self.end_headers()
            self.wfile.write(json.dumps(listed).encode())

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_clients_find_the_port_while_it_is_served(project: Path, port: int) -> None:
    with announced(project, port):
        shown = quench("status", "--root", project)
        assert shown.exit_code == 0 and f"is served at http://127.0.0.1:{port}/v1" in shown.stdout
        chat = quench("chat", "--root", project, input="/quit\n")
        assert chat.exit_code == 0 and "demo-Q5_K_M" in chat.stdout
    assert not (project / PORT_FILE).exists()
    nothing = quench("chat", "--root", project, input="/quit\n")
    assert nothing.exit_code == ToolError.exit_code and "Q-SERVE-013" in nothing.stderr


def test_the_newest_server_is_remembered_and_an_older_one_does_not_forget_it(tmp_path: Path) -> None:
    with announced(tmp_path, 5001):
        with announced(tmp_path, 5002):
            pass
        assert server_url(tmp_path, 8081) == "http://127.0.0.1:8081"
    with announced(tmp_path, 5001):
        (tmp_path / PORT_FILE).write_text("5002\n")
    assert server_url(tmp_path, 8081) == "http://127.0.0.1:5002"


@pytest.mark.parametrize("content", ["", "80 81", "-1", "9" * 100, "八千"])
def test_a_damaged_memory_is_no_port(tmp_path: Path, content: str) -> None:
    (tmp_path / ".quench").mkdir()
    (tmp_path / PORT_FILE).write_text(content, encoding="utf-8")
    assert server_url(tmp_path, 8081) == "http://127.0.0.1:8081"


def test_a_taken_port_names_the_projects_own_model_and_a_free_port(project: Path, port: int) -> None:
    with pytest.raises(MachineError, match=r"Q-SERVE-003.*demo-Q5_K_M of this project") as refused:
        need_port(port, project)
    named = int(refused.value.sentence.partition("--port ")[2].rstrip("`)"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", named))


def test_a_taken_port_of_another_program_is_not_ours(project: Path, port: int) -> None:
    new_key(project)
    with pytest.raises(MachineError, match=r"Q-SERVE-003: port \d+ of 127.0.0.1 is in use"):
        need_port(port, project)

"""A small OpenAI-compatible server on 127.0.0.1, which answers as a test says."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], bytes]  # status, headers, body


@dataclass
class ChatServer:
    """The address of a chat server, and what it was asked so far."""

    answer: Callable[[int, dict[str, Any]], Answer]
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    url: str = ""


def completion(text: str | None, **choice: Any) -> Answer:
    """A chat completion that says `text`."""
    message = {"role": "assistant", "content": text}
    body = {
        "choices": [{"message": message, "finish_reason": "stop"} | choice],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3},
    }
    return 200, {}, json.dumps(body).encode()


@contextmanager
def chat_server(answer: Callable[[int, dict[str, Any]], Answer]) -> Iterator[ChatServer]:
    """Serve while the body runs; `answer` gets the number of the request, from 1, and its body."""
    state, lock = ChatServer(answer), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                state.requests.append(body)
                state.keys.append(self.headers["Authorization"])
                number = len(state.requests)
            status, headers, data = state.answer(number, body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(OSError):  # who asked may be gone
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()

"""A Hugging Face hub of one model or data set on 127.0.0.1: listing, tree and file answers for
huggingface_hub 2.4.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TypeVar
from urllib.parse import unquote

import pytest

REPO, COMMIT = "maker/model", "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Serves the files of `folder` as REPO, one of the `models` or `datasets`, at COMMIT, which is also
    `main`; `served` logs (file, first byte) of every GET.
    """

    def __init__(
        self, folder: Path, kind: str = "models", handler: type[BaseHTTPRequestHandler] | None = None
    ) -> None:
        super().__init__(("127.0.0.1", 0), handler or Handler)
        self.kind = kind
        self.commit = COMMIT
        self.private = False
        self.files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        self.revisions = [COMMIT, "main"]
        self.type = "application/json"  # of every answer
        self.encoding = ""  # that every answer says to have
        self.token: str | None = None  # that every request must have, if there is one
        self.listed = dict(self.files)  # change `files` alone and what arrives differs from the listing
        self.served: list[tuple[str, int]] = []
        self.broken: dict[str, int] = {}  # file: byte after which the line drops, and stays down
        self.moved: dict[str, str] = {}  # file: where it is now
        self.ranges = True  # whether a part of a file can be had
        self.gguf: dict[str, str] | None = None  # what the hub says of a GGUF's header
        self.refusal: tuple[int, str] | None = None  # status and X-Error-Code of every answer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def listing(self, *, tree: bool) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        for name, data in self.listed.items():
            large = name.endswith((".safetensors", ".bin", ".gguf", ".parquet", ".arrow"))
            git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324 (git's own hash)
            sha, size = hashlib.sha256(data).hexdigest(), len(data)
            row = (
                {"type": "file", "path": name, "size": size, "oid": git}
                if tree
                else {"rfilename": name, "size": size, "blobId": git}
            )
            if large:
                row["lfs"] = {"oid" if tree else "sha256": sha, "size": size, "pointerSize": 130}
            rows.append(row)
        return rows


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(self.path.split("?")[0])
        kind = self.server.kind
        api = f"/api/{kind}/{REPO}"
        prefix = f"/{'' if kind == 'models' else f'{kind}/'}{REPO}/resolve/{self.server.commit}/"
        if self.server.refusal:
            status, code = self.server.refusal
            self.answer(status, b"{}", {"X-Error-Code": code})
        elif self.server.token and self.headers["Authorization"] != f"Bearer {self.server.token}":
            self.answer(401, b"{}", {"X-Error-Code": "GatedRepo"})
        elif path in (api, *(f"{api}/revision/{revision}" for revision in self.server.revisions)):
            known = {
                "id": REPO,
                "sha": self.server.commit,
                "gguf": self.server.gguf,
                "private": self.server.private,
            }
            listed = known | {"siblings": self.server.listing(tree=False)}
            self.answer(200, json.dumps(listed).encode())
        elif path == f"{api}/tree/{self.server.commit}":
            self.answer(200, json.dumps(self.server.listing(tree=True)).encode())
        elif (name := path.removeprefix(prefix)) in self.server.moved:
            self.answer(302, b"", {"Location": self.server.moved[name]})
        elif path.startswith(prefix) and name in self.server.files:
            self.send_file(name)
        elif path.startswith(f"{api}/"):
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def send_file(self, name: str) -> None:
        data = self.server.files[name]
        headers = {
            "X-Repo-Commit": self.server.commit,
            "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            "Accept-Ranges": "bytes",
        }
        is_same = self.headers["If-Range"] in (None, headers["ETag"])
        asked = (self.server.ranges and is_same and self.headers["Range"]) or "bytes=0-"
        first = int(asked.removeprefix("bytes=").split("-")[0])
        if self.command == "GET":
            self.server.served.append((name, first))
            if name in self.server.broken:
                cut = self.server.broken[name]
                if first >= cut:
                    return self.answer(503, b"")
                return self.answer(200, data, headers, cut=cut)
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        return self.answer(206 if first else 200, data[first:], headers)

    def answer(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in {
            "Content-Length": str(len(body)),
            "Content-Type": self.server.type,
            **({"Content-Encoding": self.server.encoding} if self.server.encoding else {}),
            **(headers or {}),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:cut])
            self.wfile.flush()
        if cut is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""


Hub = TypeVar("Hub", bound=FakeHub)


@contextmanager
def fake_hub(folder: Path, kind: str = "models") -> Iterator[FakeHub]:
    """Run a FakeHub of `folder` while the body runs."""
    with running(FakeHub(folder, kind)) as server:
        yield server


@contextmanager
def running(server: Hub) -> Iterator[Hub]:
    """Answer while the body runs."""
    with server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextmanager
def hub_here(folder: Path, patch: pytest.MonkeyPatch, kind: str = "models") -> Iterator[FakeHub]:
    """Such a hub, which huggingface_hub talks to in this process, reading in pieces of 1 KB."""
    with talked_to(FakeHub(folder, kind), patch) as server:
        yield server


@contextmanager
def talked_to(server: Hub, patch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Let huggingface_hub of this process talk to `server` while the body runs."""
    from huggingface_hub import constants

    with running(server):
        patch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)
        yield server


def digests(folder: Path) -> dict[str, str]:
    """The sha256 of each file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}

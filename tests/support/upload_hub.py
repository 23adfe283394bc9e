"""A Hugging Face hub that takes pushes: the endpoints that huggingface_hub 2.4 calls for one commit, by git
LFS (constants.HF_HUB_DISABLE_XET).
"""

import base64
import hashlib
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_hub import REPO, FakeHub, Handler


class UploadHub(FakeHub):
    """The repository REPO, which is missing until it is made. `objects` are its large files by sha256,
    `uploads` logs the bytes of each that arrived, `requests` everything that was asked, with its headers.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, handler=_Uploads)
        self.exists = bool(self.files)
        self.objects: dict[str, bytes] = {}
        self.uploads: list[int] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.messages: list[str] = []  # of commits
        self.cut: int | None = None  # bytes of a large file after which the line drops, and stays down
        self.damaged = False  # whether commits store other bytes than were sent
        self.refuses: dict[str, int] = {}  # part of an address: status of its answers
        self.moves = False  # whether somebody else commits before each commit

    def step(self, files: dict[str, bytes]) -> None:
        """Make a commit with these files."""
        self.files = files
        self.listed = dict(files)
        state = b"".join(name.encode() + data for name, data in sorted(files.items()))
        self.commit = hashlib.sha1(self.commit.encode() + state).hexdigest()  # noqa: S324 (as git names commits)
        self.revisions = [self.commit, "main"]


class _Uploads(Handler):
    server: UploadHub  # type: ignore[assignment]

    def do_GET(self) -> None:
        if self.is_refused():
            return None
        if not self.server.exists:
            return self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        return super().do_GET()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.is_refused():
            return None
        path = self.path.split("?")[0]
        answers: dict[str, Any] = {
            "/api/repos/create": self.create,
            "/api/validate-yaml": self.validate,
            f"/api/models/{REPO}/preupload/main": self.preupload,
            f"/{REPO}.git/info/lfs/objects/batch": self.batch,
            f"/api/models/{REPO}/commit/main": self.commit,
        }
        if path not in answers:
            return self.answer(404, b"{}")
        status, value = answers[path](body)
        return self.reply(status, value)

    def do_PUT(self) -> None:
        length = int(self.headers["Content-Length"])
        if self.is_refused():
            return
        if self.server.cut is not None:
            self.rfile.read(min(length, self.server.cut))
            self.close_connection = True
            self.connection.close()
            return
        data = self.rfile.read(length)
        self.server.uploads.append(len(data))
        self.server.objects[hashlib.sha256(data).hexdigest()] = data
        self.reply(200, {})

    def is_refused(self) -> bool:
        """Log a request. Answer it if it is to be refused, or has another token than the hub's."""
        self.server.requests.append((self.command, self.path, dict(self.headers.items())))
        status = next((code for part, code in self.server.refuses.items() if part in self.path), None)
        to_hub = not self.path.startswith("/lfs/")
        if self.server.token and to_hub and self.headers["Authorization"] != f"Bearer {self.server.token}":
            status = 401
        if status:
            self.rfile.read(0)
            self.close_connection = True
            self.reply(status, {"error": "no"})
        return status is not None

    def create(self, body: bytes) -> tuple[int, Any]:
        asked = json.loads(body)
        assert f"{asked['organization']}/{asked['name']}" == REPO
        self.server.exists = True
        self.server.private = asked["visibility"] == "private"
        return 200, {"url": f"{self.server.url}/{REPO}"}

    def validate(self, body: bytes) -> tuple[int, Any]:
        if "license: nonsense" in json.loads(body)["content"]:
            return 400, {"errors": [{"message": '"license" must be one of a list'}]}
        return 200, {"errors": [], "warnings": []}

    def preupload(self, body: bytes) -> tuple[int, Any]:
        modes = []
        for file in json.loads(body)["files"]:
            name = file["path"]
            large = name.endswith(".gguf")
            there = self.server.files.get(name)
            oid = None
            if there is not None:
                git = hashlib.sha1(b"blob %d\0" % len(there) + there)  # noqa: S324 (git's own hash)
                oid = hashlib.sha256(there).hexdigest() if large else git.hexdigest()
            mode = {"uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": oid}
            modes.append({"path": name} | mode)
        return 200, {"files": modes}

    def batch(self, body: bytes) -> tuple[int, Any]:
        wanted = json.loads(body)["objects"]
        for entry in wanted:
            if entry["oid"] not in self.server.objects:
                entry["actions"] = {"upload": {"href": f"{self.server.url}/lfs/{entry['oid']}?sig=signed"}}
        return 200, {"transfer": "basic", "objects": wanted}

    def commit(self, body: bytes) -> tuple[int, Any]:
        lines = [json.loads(line) for line in body.splitlines()]
        head = next(line["value"] for line in lines if line["key"] == "header")
        if self.server.moves:
            self.server.step(self.server.files)
        if head.get("parentCommit") not in (None, self.server.commit):
            return 412, {"error": "the branch has moved"}
        files = dict(self.server.files)
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        if self.server.damaged:
            files = {name: data[:-1] + b"?" for name, data in files.items()}
        self.server.step(files)
        self.server.messages.append(head["summary"])
        address = f"{self.server.url}/{REPO}/commit/{self.server.commit}"
        return 200, {"commitUrl": address, "commitOid": self.server.commit, "pullRequestUrl": None}

    def reply(self, status: int, value: Any) -> None:
        """Answer with JSON."""
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def without_xet(patch: pytest.MonkeyPatch) -> None:
    """Let huggingface_hub push by git LFS, and try again without waiting."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _http

    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    hurried = SimpleNamespace(**(vars(time) | {"sleep": lambda seconds: None}))
    patch.setattr(_http, "time", hurried)

"""An S3 server on 127.0.0.1 (moto's), in threads of the process that starts it, and its accidents: at a given
request it kills who asks, cuts the connection, or answers that it is out of order.

    with S3() as s3:
        s3.make_bucket("team")
        s3.fail("kill", at=7, children_of=pid)  # in the middle of the seventh request for an object
"""

import io
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Literal

import psutil
import pytest

KEY = {
    "AWS_ACCESS_KEY_ID": "the-team",
    "AWS_SECRET_ACCESS_KEY": "its-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}
Accident = Literal["kill", "cut", "503"]
UNKNOWN = b"<Error><Code>InvalidAccessKeyId</Code><Message>no such key</Message></Error>"
BUSY = b"<Error><Code>ServiceUnavailable</Code><Message>out of order</Message></Error>"


def without_s3fs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the package for S3 count as not installed."""
    import fsspec.registry  # noqa: F401 (what is in it is what was imported)

    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)


class S3:
    """The server, from `with` on; `objects` is what its buckets hold."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import (
            DomainDispatcherApplication,
            MotoRequestHandler,
            create_backend_app,
        )
        from werkzeug.serving import make_server

        class Silent(MotoRequestHandler):
            def log(self, *_: Any) -> None: ...

        self.moto = DomainDispatcherApplication(create_backend_app)
        self.server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=Silent)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        self.requests = 0  # for objects, since the last call of `fail`
        self.killed: list[int] = []
        self._accident: Accident | None = None
        self._at = 0
        self._parent = 0  # of whom `kill` kills
        self._lasts = False  # and for all requests that follow
        self._kills = False  # and has not yet
        self._turn = 0  # how many calls of `fail` there were
        self._lock = threading.Lock()

    def __enter__(self) -> "S3":
        # s3fs keeps connections by their arguments, among which the address of an earlier server is not
        s3fs = sys.modules.get("s3fs")
        if s3fs is not None:
            s3fs.S3FileSystem.clear_instance_cache()
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket; all servers of a process share theirs, so a test takes a name of its own."""
        self._backend().create_bucket(name, "us-east-1")

    def objects(self, bucket: str) -> dict[str, bytes]:
        """{key: bytes} of everything in a bucket."""
        return {name: key.value for name, key in self._backend().get_bucket(bucket).keys.items()}

    def put(self, bucket: str, name: str, content: bytes) -> None:
        """Write an object behind everybody's back."""
        self._backend().put_object(bucket, name, content)

    def remove(self, bucket: str, name: str) -> None:
        """Remove one."""
        self._backend().delete_object(bucket, name)

    def fail(self, accident: Accident | None, at: int = 0, children_of: int = 0) -> None:
        """Have this accident at the request number `at` for an object (counted from 1, from now on); what is
        out of order stays so. `kill` kills the children of the process `children_of`, as who asks is one.

        Requests of a process that was killed may still wait here and are counted too; if there is no child to
        kill at the request that is due, the next request kills it.
        """
        with self._lock:
            self._accident, self._at, self._parent, self.requests = accident, at, children_of, 0
            self._lasts, self._kills = accident != "cut", accident == "kill"
            self._turn += 1

    def _backend(self) -> Any:
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        asked, name = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if f"Credential={KEY['AWS_ACCESS_KEY_ID']}/" not in environ.get("HTTP_AUTHORIZATION", ""):
            start_response("403 Forbidden", [("Content-Length", str(len(UNKNOWN)))])
            return [UNKNOWN]
        if name.count("/") < 2 or (asked != "PUT" and (asked != "GET" or name.endswith(".dir"))):
            return self.moto(environ, start_response)  # looks and lists, those of DVC's folders too
        with self._lock:  # one after the other: so many are through when it happens
            self.requests += 1
            is_due = self.requests == self._at or (self._lasts and self.requests > self._at)
            if not is_due or self._accident is None:
                return [b"".join(self.moto(_whole(environ), start_response))]
            if self._accident != "503":
                return self._break_off(environ, start_response, self._turn)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response("503 Slow Down", [("Content-Length", str(len(BUSY)))])
        return [BUSY]

    def _break_off(self, environ: dict[str, Any], start_response: Any, turn: int) -> Iterator[bytes]:
        connection: socket.socket = environ["werkzeug.socket"]
        try:
            if environ["REQUEST_METHOD"] == "PUT":
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0) // 2)
            else:
                whole = b"".join(self.moto(environ, start_response))
                yield whole[: len(whole) // 2]
        finally:  # even if the other end is gone: on a busy machine it may have lost patience
            self._kill(turn)
            with suppress(OSError):  # gone already
                connection.shutdown(socket.SHUT_RDWR)
        raise ConnectionResetError

    def _kill(self, turn: int) -> None:
        """Kill -9 what runs below the parent, if that is the accident of this turn and has not happened yet.

        A search for the process that holds the connection has missed it on a busy machine, twice.
        """
        with self._lock:
            if turn != self._turn or not self._kills:
                return
            for child in psutil.Process(self._parent).children():
                with suppress(psutil.Error):
                    if child.status() != psutil.STATUS_ZOMBIE:
                        child.kill()
                        self.killed.append(child.pid)
                        self._kills = False


def _whole(environ: dict[str, Any]) -> dict[str, Any]:
    """The request, its body in memory: moto would keep the half of one that was broken off, S3 does not."""
    size = int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read(size) if size else b""
    if len(body) < size:
        raise ConnectionResetError
    return environ | {"wsgi.input": io.BytesIO(body)} if size else environ

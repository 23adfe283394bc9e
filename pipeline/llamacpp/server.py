"""A `llama-server` on 127.0.0.1 with a key, as a context: started, waited for, asked, stopped."""

import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from pipeline.errors import ToolError
from pipeline.llamacpp.tools import Toolchain

START_SECONDS = 300  # a 15 GB file from a slow disk
STOP_SECONDS = 10


@dataclass(frozen=True)
class Server:
    """A running server: its process, its log file and an HTTP client that carries its key."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    client: httpx.Client

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """POST `body` and give the decoded answer; `ToolError` with the server's words where it refuses."""
        answer = self.client.post(path, json=body)
        if answer.status_code != 200:
            raise ToolError(f"llama-server answered {answer.status_code} to {path}: {answer.text[:300]}")
        return answer.json()


def server_command(tools: Toolchain, model: Path, *, port: int, key_file: Path, ctx_size: int, parallel: int, threads: int, n_gpu_layers: int,
                   flash_attn: str = "auto", n_predict: int = -1) -> list[str]:  # fmt: skip
    """The hardened command line: loopback only, key from a file, no web page, no slot view, nothing fetched, the model's own template.

    `ctx_size` is per slot, in tokens; llama-server divides its context among `parallel` slots.
    """
    return [
        str(tools.tool("llama-server")), "--model", str(model), "--alias", model.stem,
        "--host", "127.0.0.1", "--port", str(port), "--api-key-file", str(key_file),
        "--no-webui", "--no-slots", "--offline", "--jinja", "--ctx-size", str(ctx_size * parallel), "--parallel", str(parallel),
        "--threads", str(threads), "--n-gpu-layers", str(n_gpu_layers), "--flash-attn", flash_attn, "--n-predict", str(n_predict), "--cont-batching",
    ]  # fmt: skip


@contextmanager
def serving(tools: Toolchain, model: Path, *, ctx_size: int, parallel: int = 1, threads: int, n_gpu_layers: int = 0) -> Iterator[Server]:  # fmt: skip
    """Serve `model` on a free port while the body runs. Raises `ToolError` where it doesn't come up."""
    with tempfile.TemporaryDirectory(prefix="quench-server-") as folder:
        key = secrets.token_urlsafe(24)
        key_file = write_key(Path(folder) / "key", key)
        port = free_port()
        command = server_command(tools, model, port=port, key_file=key_file, ctx_size=ctx_size, parallel=parallel,
                                 threads=threads, n_gpu_layers=n_gpu_layers)  # fmt: skip
        log = Path(folder) / "log"
        with start(command, log) as process:
            url = f"http://127.0.0.1:{port}"
            wait_for_health(process, url, log)
            with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=600, trust_env=False) as client:
                yield Server(process, url, log, client)


@contextmanager
def start(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` with its output in `log`; whatever happens in the body, the process is stopped after it."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_health(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float = START_SECONDS) -> None:
    """Wait until `/health` says that the model is loaded; `ToolError` with the log's end if the server dies or takes too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise ToolError(f"llama-server ended with exit status {process.returncode} while loading:\n{log_end(log)}")
        try:
            if httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.1)
    raise ToolError(f"llama-server did not finish loading in {seconds:.0f} s:\n{log_end(log)}")


def log_end(log: Path, lines: int = 8) -> str:
    """The last lines of a server's log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def write_key(path: Path, key: str) -> Path:
    """Write a key file that only its owner can read (mode 0600)."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(key + "\n")
    return path


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""Run a `llama-server` on 127.0.0.1 with a key as a context manager: start, await, query and stop it."""

import os
import secrets
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx

from pipeline.config.products import ModelFiles
from pipeline.config.sections import Serve
from pipeline.core.errors import MachineError, QuenchError, ToolError
from pipeline.core.units import MEMORY_GB, memory_gb, size_text
from pipeline.core.usage import own_memory, peak_of_children
from pipeline.llamacpp.devices import placement
from pipeline.llamacpp.server_command import Served, server_command
from pipeline.llamacpp.server_log import LoggedProcess
from pipeline.llamacpp.standstill import Standstill, watch
from pipeline.llamacpp.tools import Llama

HERE = "http://127.0.0.1:"
# No certificates: the address is this machine's, over plain HTTP, and reading them takes up to 0.14 s.
BARE = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
# In Linux's tables of sockets: a state, and the addresses that 127.0.0.1 reaches, the nearest first.
LISTENS = "0A"
REACHED = ("0100007F", "0000000000000000FFFF00000100007F", "00000000", "0" * 32)
START_SECONDS = 300  # of the server's own clock: enough for a 15 GB file from a slow disk
STOP_SECONDS = 10
# Seconds of the server's own clock in which its loop must go round; a batch of 512 tokens of a 32B takes some
# 230 s on two slow cores.
STALL_SECONDS = 300
IDLE_SECONDS = 600  # after which the server closes a connection on which nothing is sent
# Longest wait for an answer of a loop that goes round: 8,192 tokens on the slowest machine, and those before
# it in the queue. It ends only a request that the server has forgotten.
ANSWER_SECONDS = 6 * 3600
# Bytes beyond the memory of the loaded model. A schema of 100,000 levels takes all memory (measured: 20 GB in
# 3 minutes), and so does a chat template, which is tried before the server is ready.
GROWTH_BYTES = 4 * MEMORY_GB
# The server's error for an answer that its parser of calls and reasoning can't read (common/chat.cpp).
UNPARSED = "The model produced output that does not match the expected"


class Unparsed(ToolError):
    """Error for an answer not in the form of the model's chat template: llama-server shows none of it."""


@dataclass(frozen=True)
class Server:
    """Running server: its process, its log file and an HTTP client that sends its key."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    client: httpx.Client
    parallel: int = 1
    n_gpu_layers: int = 0

    def ended(self, seconds: float) -> bool:
        """Wait up to `seconds` for the server to exit. Return True if it did."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """POST `body` and return the decoded answer. Raises `ToolError` with the server's words if it
        refuses, `Unparsed` if it can't read the model's answer.
        """
        answer = self.client.post(path, json=body)
        if answer.status_code != 200:
            kind = Unparsed if UNPARSED in answer.text else ToolError
            raise kind(
                "Q-LLAMACPP-013", f"llama-server answered {answer.status_code} to {path}: {answer.text[:300]}"
            )
        return answer.json()

    def tokens(self, text: str) -> list[int]:
        """Return a rendered text's ids, control tokens read as such, after those that begin every text."""
        body = {"content": text, "add_special": True, "parse_special": True}
        return list(self.post("/tokenize", body)["tokens"])


@contextmanager
def serving(
    llama: Llama,
    files: ModelFiles,
    *,
    ctx_size: int,
    parallel: int | Literal["auto"] = 1,
    flash_attn: Literal["auto", "on", "off"] = "auto",
    saves_slots: bool = False,
) -> Iterator[Server]:
    """Serve a model on a free port while the body runs, with its adapter if there is one.

    With `saves_slots` a request can save and restore a slot's state, in a folder of the server's own. Raises
    `ToolError` if it doesn't start or answer, `MachineError` if it exits before the body does.
    """
    model, lora = files
    tools = llama.tools
    slots, layers = placement(
        tools, model, ctx_size=ctx_size, parallel=parallel, n_gpu_layers=llama.n_gpu_layers
    )
    settings = Serve().model_copy(
        update={
            "port": free_port(),
            "ctx_size": ctx_size,
            "parallel": slots,
            "threads": llama.threads,
            "n_gpu_layers": layers,
            "flash_attn": flash_attn,
            "n_predict": -1,  # The request sets the number.
        }
    )
    served = Served(model, [(lora, 1.0)] if lora else [])
    with tempfile.TemporaryDirectory(prefix="quench-server-") as folder:
        key = secrets.token_urlsafe(24)
        url = f"http://127.0.0.1:{settings.port}"
        log = Path(folder) / "log"
        key_file = write_key(Path(folder) / "key", key)
        command = server_command(tools, served, settings, key_file, IDLE_SECONDS)
        if saves_slots:
            slot_folder = Path(folder) / "slots"
            slot_folder.mkdir()
            command += ["--slot-save-path", str(slot_folder)]
        with start(command, log) as process:
            wait_for_health(process, url, log)
            with connect(url, key) as client:
                guard = Guard(process, client)
                guard.start()
                server = Server(process, url, log, client, slots, layers)
                try:
                    yield server
                except httpx.TransportError as error:
                    raise _unanswered(server, model, error, guard) from error


class Guard(threading.Thread):
    """Thread that ends a server that stands still. `why` says so then. It ends with the server."""

    def __init__(self, process: subprocess.Popen[bytes], client: httpx.Client) -> None:
        super().__init__(name="server-guard", daemon=True)
        self.process = process
        self.client = client
        self.why = ""

    def run(self) -> None:
        """Watch the server (called by `threading`)."""
        with suppress(RuntimeError):  # The client is closed, so nobody waits for answers.
            self.why = watch(self.process, self.client, STALL_SECONDS)


def _unanswered(server: Server, model: Path, error: httpx.TransportError, guard: Guard) -> QuenchError:
    """Return the error for a server that broke a request off, or never answered it."""
    if not server.ended(STOP_SECONDS if not isinstance(error, httpx.TimeoutException) else 0):
        return ToolError(
            "Q-LLAMACPP-027",
            f"llama-server, which is still there, did not answer ({str(error) or type(error).__name__}) for "
            f"{model.name}: run the same command again\n{log_end(server.log)}",
        )
    status = server.process.wait()
    guard.join(STOP_SECONDS)  # It notes the reason when the server is gone.
    if guard.why:
        return ToolError(
            "Q-LLAMACPP-027",
            f"{guard.why} while it answered for {model.name}: run the same command again\n"
            f"{log_end(server.log)}",
        )
    memory = peak_of_children()
    if status < 0:
        ended = f"was ended by {signal.Signals(-status).name}"
    else:
        ended = f"ended with exit status {status}"
    return MachineError(
        "Q-LLAMACPP-026",
        f"llama-server {ended} while it answered for {model.name}, with {server.parallel} answers at a time; "
        f"the largest process of this stage had {size_text(memory)} of memory, and the kernel ends "
        "llama-server first where memory runs out: set a smaller `parallel` or `ctx_size`, or end other "
        f"programs, then run the same command again\n{log_end(server.log)}",
    )


def connect(url: str, key: str) -> httpx.Client:
    """Return a client that opens a connection per request. Raises `ToolError`, before any request, if another
    user's process listens there.

    llama-server closes a connection after it has streamed on it without announcing it: a request that reuses
    the connection is lost without an answer.
    """
    user = listener(int(url.rpartition(":")[2])) if url.startswith(HERE) else None
    if user not in (None, os.getuid()):
        raise ToolError(
            "Q-LLAMACPP-028",
            f"what listens on {url} belongs to another user ({user}) and is not asked: set another "
            "serve.port in params.yaml",
        )
    headers = {"Authorization": f"Bearer {key}"}
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=IDLE_SECONDS)
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.Client(
        base_url=url, headers=headers, limits=limits, timeout=timeout, trust_env=False, verify=BARE
    )


def listener(port: int) -> int | None:
    """Return the id of the user whose process listens on `port` of 127.0.0.1; None if there is none, or the
    system does not tell (others than Linux).
    """
    users: dict[str, int] = {}
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with suppress(OSError):
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                _, local, _, state, *_, user = line.split()[:8]
                address, _, number = local.rpartition(":")
                if state == LISTENS and int(number, 16) == port:
                    users[address] = int(user)
    return next((users[address] for address in REACHED if address in users), None)


@contextmanager
def start(command: Sequence[str], log: Path) -> Iterator[LoggedProcess]:
    """Run `command` guarded (`server_process`), with its output appended to `log` (`server_log`). It is
    stopped after the body in any case.
    """
    process = LoggedProcess(command, log)
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[Any]) -> None:
    """Stop a child process: terminate it, and kill it if it doesn't react."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for_health(process: LoggedProcess, url: str, log: Path) -> None:
    """Wait until `/health` reports that the server is ready. Raises `ToolError` with the log's last lines if
    it dies, takes more than `START_SECONDS` of its own clock, or uses `GROWTH_BYTES` of memory beyond its
    loaded model (then it is stopped).
    """
    standstill = Standstill(process.pid)
    most = None
    while standstill.seconds() < START_SECONDS:
        memory = own_memory(process.pid) or 0
        if most is None and process.pump.loaded.is_set():
            most = memory + GROWTH_BYTES
        if most is not None and memory > most:
            process.kill()
            process.wait()
            raise ToolError(
                "Q-LLAMACPP-029",
                f"llama-server took {memory_gb(GROWTH_BYTES)} beside its loaded model before it answered, "
                "and was ended: its chat template may make it grow without end, take another model or "
                f"correct the template\n{log_end(log)}",
            )
        if process.poll() is not None:
            raise ToolError(
                "Q-LLAMACPP-014",
                f"llama-server ended with exit status {process.wait()} while loading:\n{log_end(log)}",
            )
        with suppress(httpx.TransportError):  # The server does not listen yet.
            if httpx.get(f"{url}/health", timeout=5, trust_env=False, verify=BARE).status_code == 200:
                return
        time.sleep(0.1)
    raise ToolError(
        "Q-LLAMACPP-015", f"llama-server did not finish loading in {START_SECONDS} s:\n{log_end(log)}"
    )


def log_end(log: Path, lines: int = 8) -> str:
    """Return the last lines of a server's log, or a note that it is gone."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(the log is gone)"


def write_key(path: Path, key: str) -> Path:
    """Write a key file that only its owner can read (mode 0600). It replaces an existing file, because that
    keeps its mode and its readers.
    """
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(key + "\n")
    return path


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

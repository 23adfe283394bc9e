"""A `llama-server` on 127.0.0.1 with a key, as a context: started, waited for, asked, stopped.

`server_command` is the one place with the hardened command line: `quench serve`, every measurement, the
report and the bundle take it from here.
"""

import os
import secrets
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from pipeline.config.sections import Serve
from pipeline.core.errors import ToolError
from pipeline.llamacpp.lora import Lora, lora_arguments
from pipeline.llamacpp.server_log import LogPump, open_log
from pipeline.llamacpp.server_process import environment, guarded
from pipeline.llamacpp.tools import Toolchain

START_SECONDS = 300  # a 15 GB file from a slow disk
STOP_SECONDS = 10
ASK_SECONDS = 600  # that a measurement's own client waits, and may be waited for
IDLE_SECONDS = 30  # that a client may take for the next byte of its request, before it loses its thread
# between two looks at what else is asked; llama-server's own default is 2,048, computed 512 at a time as well
BATCH_TOKENS = 512
PROMPT_CACHE_MIB = 512  # of conversations that no slot holds any more; llama-server's own default is 8 GiB


@dataclass(frozen=True)
class Server:
    """A running server: its process, its log file and an HTTP client that carries its key."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    client: httpx.Client

    def ended(self, seconds: float) -> bool:
        """Wait up to `seconds` for the server's end; whether it came."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """POST `body` and give the decoded answer; `ToolError` with the server's words where it refuses."""
        answer = self.client.post(path, json=body)
        if answer.status_code != 200:
            raise ToolError(
                "Q-LLAMACPP-013", f"llama-server answered {answer.status_code} to {path}: {answer.text[:300]}"
            )
        return answer.json()


def server_command(
    tools: Toolchain,
    model: Path,
    *,
    port: int,
    key_file: Path,
    ctx_size: int,
    parallel: int,
    threads: int,
    n_gpu_layers: int,
    flash_attn: str = "auto",
    n_predict: int = -1,
    lora: Sequence[Lora] = (),
    alias: str | None = None,
    idle_seconds: int = IDLE_SECONDS,
) -> list[str]:
    """The hardened command line: loopback only, key from a file, no web page, no slot view, nothing fetched,
    the model's own template.

    No web page may read an answer: the one origin that is allowed is the server's own, where no page is.
    `ctx_size` is per slot, in tokens; llama-server divides its context among `parallel` slots. `lora` are
    adapters to apply, `alias` is the model's name (else of the files' names). Raises `ConfigError` for an
    adapter that can't be said there.
    """
    name = alias or "+".join([model.stem, *(file.stem for file, _ in lora)])
    return [
        str(tools.tool("llama-server")),
        "--model",
        str(model),
        "--alias",
        name.replace(",", "_"),  # a comma would make two names of it
        *lora_arguments(lora),
        *cache_arguments(len(lora)),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--api-key-file",
        str(key_file),
        "--cors-origins",
        f"http://127.0.0.1:{port}",
        "--no-cors-credentials",
        "--timeout",
        str(idle_seconds),
        "--no-webui",
        "--no-slots",
        "--offline",
        "--jinja",
        "--ctx-size",
        str(ctx_size * parallel),
        "--parallel",
        str(parallel),
        "--threads",
        str(threads),
        "--n-gpu-layers",
        str(n_gpu_layers),
        "--flash-attn",
        flash_attn,
        "--n-predict",
        str(n_predict),
        "--cont-batching",
        "--batch-size",
        str(BATCH_TOKENS),
    ]


def configured_command(
    tools: Toolchain,
    model: Path,
    settings: Serve,
    key_file: Path,
    lora: Sequence[Lora] = (),
    alias: str | None = None,
) -> list[str]:
    """`server_command` as section `serve` says, for `quench serve` and for what is printed and shipped."""
    return server_command(
        tools,
        model,
        port=settings.port,
        key_file=key_file,
        ctx_size=settings.ctx_size,
        parallel=settings.parallel,
        threads=settings.threads,
        n_gpu_layers=settings.n_gpu_layers,
        flash_attn=settings.flash_attn,
        n_predict=settings.n_predict,
        lora=lora,
        alias=alias,
    )


def cache_arguments(adapters: int) -> list[str]:
    """How prompts are kept between requests, by the number of adapters that a request can switch.

    llama-server keeps what it computed of a prompt when an adapter's scale changes, and then answers from one
    adapter's keys with another's weights (llama.cpp's issue 26207). So nothing is kept of several adapters,
    and of one only what a slot holds, which `pipeline.serve.switching` makes it forget.
    """
    return [
        "--cache-ram",
        str(0 if adapters else PROMPT_CACHE_MIB),
        *(["--no-cache-prompt"] if adapters > 1 else []),
    ]


class LoggedProcess(subprocess.Popen[bytes]):
    """A guarded process whose output a `LogPump` carries into `log`; `wait` also waits for the log's last
    line.

    Raises `MachineError` if `log` can't be written, before anything is started.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        handler = open_log(log)
        super().__init__(
            guarded(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(os.environ),
            start_new_session=True,
        )
        assert self.stdout is not None
        self.pump = LogPump(self.stdout, handler)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, as `subprocess.Popen.wait`."""
        status = super().wait(timeout)
        self.pump.join(timeout=5)
        return status


@contextmanager
def serving(
    tools: Toolchain,
    model: Path,
    *,
    ctx_size: int,
    parallel: int = 1,
    threads: int,
    n_gpu_layers: int = 0,
    flash_attn: str = "auto",
    lora: Path | None = None,
) -> Iterator[Server]:
    """Serve `model` on a free port while the body runs, with the adapter `lora` (a GGUF) if given. Raises
    `ToolError` if it doesn't come up.
    """
    with tempfile.TemporaryDirectory(prefix="quench-server-") as folder:
        key = secrets.token_urlsafe(24)
        key_file = write_key(Path(folder) / "key", key)
        port = free_port()
        command = server_command(
            tools,
            model,
            port=port,
            key_file=key_file,
            ctx_size=ctx_size,
            parallel=parallel,
            threads=threads,
            n_gpu_layers=n_gpu_layers,
            flash_attn=flash_attn,
            lora=[(lora, 1.0)] if lora else [],
            idle_seconds=ASK_SECONDS,
        )
        log = Path(folder) / "log"
        with start(command, log) as process:
            url = f"http://127.0.0.1:{port}"
            wait_for_health(process, url, log)
            with connect(url, key) as client:
                yield Server(process, url, log, client)


def connect(url: str, key: str) -> httpx.Client:
    """A client that opens a connection per request.

    llama-server closes a connection after it has streamed on it and does not say so: a request that reuses it
    is lost without an answer.
    """
    headers, limits = {"Authorization": f"Bearer {key}"}, httpx.Limits(max_keepalive_connections=0)
    # no certificates: the address is this machine's, over plain HTTP, and to read them takes 0.14 s
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.Client(
        base_url=url, headers=headers, limits=limits, timeout=ASK_SECONDS, trust_env=False, verify=bare
    )


@contextmanager
def start(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` guarded (`server_process`), its output added to `log` (`server_log`); whatever happens in
    the body, it is stopped after it.
    """
    process = LoggedProcess(command, log)
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[Any]) -> None:
    """End a child process: asked first, killed where it doesn't listen."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for_health(
    process: subprocess.Popen[bytes], url: str, log: Path, seconds: float = START_SECONDS
) -> None:
    """Wait until `/health` says that the model is loaded; `ToolError` with the log's end if the server dies
    or takes too long.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise ToolError(
                "Q-LLAMACPP-014",
                f"llama-server ended with exit status {process.wait()} while loading:\n{log_end(log)}",
            )
        try:
            if httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.1)
    raise ToolError(
        "Q-LLAMACPP-015", f"llama-server did not finish loading in {seconds:.0f} s:\n{log_end(log)}"
    )


def log_end(log: Path, lines: int = 8) -> str:
    """The last lines of a server's log; says so where it is gone."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(the log is gone)"


def write_key(path: Path, key: str) -> Path:
    """Write a key file that only its owner can read (mode 0600), in place of a file that is there: that keeps
    its mode and its readers.
    """
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(key + "\n")
    return path


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""Keep the log of a llama-server without a word of requests or answers.

llama-server quotes requests in its log, at any level: input that it can't parse, grammars, tool calls,
answers that don't fit their format (some by a plain `fprintf`, which no option silences). So its output goes
through a pipe. From the moment it may receive requests, only lines of known shape are kept: figures of
finished answers, start and stop, the reason of an abort.
"""

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO

from pipeline.core.errors import MachineError
from pipeline.llamacpp.server_process import environment, guarded

MAX_BYTES = 10_000_000  # bytes of one log file; one older file is kept
LONGEST_LINE = 4096

# The last line before requests are accepted.
LOADED = re.compile(r"srv +load_model: initializing, n_slots = \d+")
KEPT = re.compile(
    r"[\d.]+ [IWE] slot +(?:print_timing|release): id +\d+ \| task \d+ \|[\w "
    r"=.,:/()%]+"  # figures of an answer
    r"|[\d.]+ I srv +llama_server: (?:model loaded|listening on http://127\.0\.0\.1:\d+)"
    r"|[\d.]+ I srv +operator\(\): operator\(\): cleaning up before exit\.\.\."
    r"|[\w./+-]+\.(?:c|cpp|cu|cuh|h|hpp|m):\d+: (?:GGML_ASSERT\(.{1,200}\) failed|fatal error|CUDA "
    r"error|ROCm error)"
    r"|terminate called after throwing an instance of "
    r"'[\w:]{1,80}'"  # The next line, what(), may quote a request.
)


def is_safe(line: str) -> bool:
    """Return True for a line, written while requests are accepted, whose shape can't contain their text."""
    return KEPT.fullmatch(line.rstrip()) is not None


class LogFile(RotatingFileHandler):
    """Log of bounded size.

    If it can't be written (a full disk), it reports that once and then loses lines.
    """

    failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Report the reason on stderr, the first time."""
        if not self.failed:
            self.failed = True
            with suppress(OSError):  # The terminal may be gone.
                print(
                    f"the log {self.baseFilename} can't be written: {sys.exception()}",
                    file=sys.stderr,
                    flush=True,
                )


def open_log(log: Path) -> LogFile:
    """Open `log`, and make its folder. Raises `MachineError` if it can't be written."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return LogFile(log, maxBytes=MAX_BYTES, backupCount=1, encoding="utf-8", errors="replace")
    except OSError as error:
        raise MachineError(
            "Q-LLAMACPP-016",
            f"the log {log} can't be written ({error.strerror}: {error.filename}): correct its rights or "
            "take it away",
        ) from None


class LogPump(threading.Thread):
    """Thread that copies a server's output into its log file, line by line, until the server closes it."""

    def __init__(self, output: IO[bytes], handler: LogFile) -> None:
        super().__init__(name="server-log", daemon=True)
        self.output = output
        self.handler = handler
        self.loaded = threading.Event()  # set when the model is loaded and requests may come
        self.start()

    def run(self) -> None:
        """Copy lines (called by `threading`)."""
        for raw in iter(lambda: self.output.readline(LONGEST_LINE), b""):
            line = raw.decode(errors="replace").rstrip("\n")
            if not self.loaded.is_set() or is_safe(line):
                self.handler.emit(logging.makeLogRecord({"msg": line}))
            if LOADED.search(line):
                self.loaded.set()
        with suppress(OSError):  # `LogFile` reports a full disk.
            self.handler.close()
        self.output.close()


class LoggedProcess(subprocess.Popen[bytes]):
    """Guarded process whose output a `LogPump` copies into `log`; `wait` also waits for the log's last line.

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
        """Return the exit status, like `subprocess.Popen.wait`."""
        status = super().wait(timeout)
        self.pump.join(timeout=5)
        return status

"""Connection to a host: the system's `ssh`, which reads ~/.ssh/config, and `rsync` over it.

Requests to the host are functions of `host/`, sent to its Python on every call. A lost connection is retried
with growing pauses. Files that arrived are not sent again.
"""

import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pipeline.core.child import bound
from pipeline.core.errors import ConfigError, MachineError, ToolError
from pipeline.core.text import quoted, safe
from pipeline.extras.remote.answers import (
    LONGEST_LINE,
    MOST_CHATTER,
    Answer,
    Malformed,
    News,
    Trouble,
    foreign,
    parse,
)
from pipeline.extras.remote.host import script
from pipeline.extras.remote.host.files import MARK

HOST = re.compile(r"(?:[\w][\w.-]*@)?[\w][\w.-]*", re.ASCII)
PYTHON = re.compile(r"~?[\w./][\w./+-]*", re.ASCII)
FOLDER = ".cache/quench/remote"  # folder on the host, below its home
CONNECTION_FAILED = 255  # exit code of ssh if the connection failed or was lost
NOT_THERE = (126, 127)  # exit codes of a shell that does not find the program
OPTIONS = {
    "BatchMode": "yes",  # no prompt for a password
    "ConnectTimeout": "15",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ClearAllForwardings": "yes",
    "ControlPath": "none",  # a connection of its own, with these settings
}
# seconds without a sign of life (`host.files.QUIET_SECONDS`) after which the connection counts as lost
SILENCE = 30.0
PATIENCE = 900.0  # seconds without an answer after which a host counts as gone
LAST_WORDS_SECONDS = 5.0  # seconds in which ssh exits after its last message
LONGEST_PAUSE = 30.0  # seconds between two tries
LAST_LINES = 20  # last lines of other output; the reason of an exit is among them
TOOLS = ("ssh", "rsync")  # programs needed on this machine
Result = TypeVar("Result")


class ConnectionLost(Exception):
    """The connection is lost, or was never made. The message is the reason."""


class SshConnection:
    """Connection to `name` (of ~/.ssh/config or the network, or user@name), with the Python `python` there.
    `config` is read instead of ~/.ssh/config.

    Raises `ConfigError` for an invalid name or Python. Raises `ToolError` on first use if `ssh` or `rsync` is
    missing here.
    """

    def __init__(self, name: str, python: str, config: Path | None) -> None:
        if not HOST.fullmatch(name):
            raise ConfigError(
                "Q-REMOTE-001",
                f"{quoted(name)} is not a host: write NAME or USER@NAME, and put ports and keys into "
                "~/.ssh/config",
            )
        if not PYTHON.fullmatch(python):
            raise ConfigError(
                "Q-REMOTE-001", f"--python {quoted(python)} is not the path of a Python: write one"
            )
        self.name = name
        self.python = python
        options = [word for key, value in OPTIONS.items() for word in ("-o", f"{key}={value}")]
        config_options = ["-F", str(config.absolute())] if config else []
        self._ssh = ["ssh", "-T", "-a", "-x", *config_options, *options]
        self._answered: float | None = None  # time of the host's last answer

    def ask(self, what: str, **given: Any) -> Any:
        """Return the answer of `host.WHAT(**given)` as its model in `answers`, however often the connection
        is lost. Raises `ToolError` for what the host can't do, `MachineError` if it does not answer any more,
        and `DataError` for an invalid answer.
        """
        return self.trying(lambda: next(self._call(what, **given)))

    def follow(self, **given: Any) -> Iterator[News]:
        """Yield the answers of `host.follow(**given)` as they arrive. Raises `ConnectionLost`."""
        for news in self._call("follow", **given):
            self._answered = time.monotonic()
            yield news  # type: ignore[misc]

    def trying(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, which is called again if the connection is lost. Raises as `ask`."""
        for tool in TOOLS:  # Tools are checked only here, because wrong settings are refused first.
            if not shutil.which(tool):
                raise ToolError("Q-REMOTE-002", f"{tool} is not on PATH here: install it")
        pause = 0.5
        since = time.monotonic()
        while True:
            try:
                result = work()
                self._answered = time.monotonic()
                return result
            except ConnectionLost as cut:
                if self._answered is None:
                    raise ToolError(
                        "Q-REMOTE-003",
                        f"{self.name} can't be reached ({cut}): correct that until `ssh {self.name} true` "
                        "works without a question",
                    ) from cut
                if time.monotonic() - max(since, self._answered) > PATIENCE:
                    raise MachineError(
                        "Q-REMOTE-004",
                        f"{self.name} does not answer any more ({cut}): what it published is here, so run "
                        "the same command again, for this host or another",
                    ) from cut
                print(f"remote: no connection to {self.name} ({cut}): trying again", file=sys.stderr)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def push(self, folder: Path, names: Iterable[str]) -> None:
        """Send `names` in `folder` to the host's `incoming`.

        Partial files are resumed. Raises `ConnectionLost`.
        """
        self._rsync(names, "--copy-links", f"{folder}/", f"{self.name}:{FOLDER}/incoming/")

    def pull(self, run: str, folder: Path, names: Iterable[str]) -> None:
        """Fetch `names` from a run's `out` into `folder`.

        Partial files are resumed. Raises `ConnectionLost`.
        """
        self._rsync(names, f"{self.name}:{FOLDER}/runs/{run}/out/", f"{folder}/")

    def _rsync(self, names: Iterable[str], *places: str) -> None:
        *options, source, target = places
        # Files are appended in place, so that also a file that kill -9 left is resumed. Hashes tell which are
        # complete.
        command = ["rsync", "--append-verify", f"--timeout={PATIENCE:.0f}", "--rsh", shlex.join(self._ssh)]
        shown = ["--info=progress2"] if sys.stderr.isatty() else []
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as names_file:
            print(*names, sep="\n", file=names_file, flush=True)
            words = [*command, *options, *shown, f"--files-from={names_file.name}", "--", source, target]
            with _started(words, stdout=sys.stderr, stderr=subprocess.PIPE) as process:
                last_lines = deque(self._lines(process.stderr.fileno(), None), LAST_LINES)  # type: ignore[union-attr]
                code = process.wait()
        if code:
            raise ConnectionLost(_reason(last_lines) or f"rsync ended with {code}")

    def _call(self, what: str, /, **given: Any) -> Iterator[Answer]:
        """Run `host.WHAT(**given)` and yield its answers. Raises `ConnectionLost` if there is none,
        `ToolError` for an error there, and `DataError` for an invalid answer.
        """
        command = [*self._ssh, "--", self.name, f"{self.python} - {what}"]
        pipe = subprocess.PIPE
        with _started(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as process:
            with suppress(BrokenPipeError), process.stdin as stdin:  # type: ignore[union-attr]
                stdin.write(script(what, given).encode())
            others = deque[str](maxlen=LAST_LINES)
            answered = False
            silence = SILENCE if what == "follow" else PATIENCE
            for line in self._lines(process.stdout.fileno(), silence):  # type: ignore[union-attr]
                if not line.startswith(MARK):
                    others.append(line)
                    continue
                answer = self._answer(what, line, process)
                if isinstance(answer, Trouble):
                    trouble = safe(answer.error, 200)
                    raise ToolError("Q-REMOTE-005", f"{self.name} says {trouble}: correct it there")
                answered = True
                yield answer
            code = process.wait()
            if code not in (0, CONNECTION_FAILED) and not answered:
                why = f"{self.python} is not there" if code in NOT_THERE else _reason(others)
                raise ToolError(
                    "Q-REMOTE-005",
                    f"{self.name} can't do its part ({why}): name a Python 3.11 or later with --python",
                )
            if code or not answered:
                raise ConnectionLost(_reason(others) or "it ended early")

    def _answer(self, what: str, line: str, process: subprocess.Popen[bytes]) -> Answer:
        """Return a line as an answer. Raises `DataError` for a line that no function of `host` wrote. Raises
        `ConnectionLost` if ssh exits with it: then ssh wrote its last message after half of a line.
        """
        try:
            return parse(what, line.removeprefix(MARK))
        except Malformed as error:
            with suppress(subprocess.TimeoutExpired):
                if process.wait(LAST_WORDS_SECONDS) == CONNECTION_FAILED:
                    raise ConnectionLost("in the middle of an answer") from None
            raise foreign(self.name, str(error)) from None

    def _lines(self, source: int, silence: float | None) -> Iterator[str]:
        """Yield complete lines from a file descriptor until its end. Raises `ConnectionLost` after `silence`
        seconds, and `DataError` for more output than a host needs.
        """
        rest = bytearray()
        chatter = 0
        while True:
            if not select.select([source], [], [], silence)[0]:
                raise ConnectionLost("no sign of life")
            block = os.read(source, 1 << 16)
            if not block:
                return
            *lines, last = block.split(b"\n")
            for end in lines:
                line = (rest + end).decode("utf-8", errors="replace").rstrip("\r")
                rest.clear()
                chatter += 0 if line.startswith(MARK) else len(line) + 1
                if chatter > MOST_CHATTER:
                    raise foreign(self.name, f"{line} and much more")
                yield line
            rest += last
            if len(rest) > LONGEST_LINE:
                raise foreign(self.name, "a line without an end")


@contextmanager
def _started(command: list[str], **pipes: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that exits with this one, and at the latest with the body."""
    with subprocess.Popen(bound(command), **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def _reason(lines: Iterable[str]) -> str:
    """Return the last line with content."""
    messages = [line for line in lines if line.strip() and not line.startswith("rsync error: ")]
    return safe(messages[-1].strip(), 200) if messages else ""

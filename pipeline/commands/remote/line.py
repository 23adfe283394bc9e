"""The line to a host: the system's `ssh`, which reads ~/.ssh/config, and `rsync` over it.

What is asked of the host are the functions of `host/`, sent to its Python on every call. A line that is cut
is tried again, later and later; what was sent is not sent again.
"""

import json
import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pipeline.commands.remote.host import script
from pipeline.commands.remote.host.common import MARK
from pipeline.core.child import bound
from pipeline.core.errors import ConfigError, DataError, MachineError, ToolError
from pipeline.core.printable import printable, quoted

HOST = re.compile(r"(?:[\w][\w.-]*@)?[\w][\w.-]*", re.ASCII)
PYTHON = re.compile(r"~?[\w./][\w./+-]*", re.ASCII)
FOLDER = ".cache/quench/remote"  # on the host, below its home
NO_LINE = 255  # how ssh ends if the line could not be made, or was cut
NOT_THERE = (126, 127)  # of a shell
OPTIONS = {
    "BatchMode": "yes",  # nobody is asked for a password
    "ConnectTimeout": "15",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ClearAllForwardings": "yes",
    "ControlPath": "none",  # a line of its own, with these settings
}
SILENCE = (
    30.0  # seconds without a sign of life (`host.follow.QUIET_SECONDS`) after which a line counts as cut
)
PATIENCE = 900.0  # seconds without an answer after which a host counts as gone
LAST_WORDS_SECONDS = 5.0  # in which ssh ends after them
LONGEST_PAUSE = 30.0  # seconds between two tries
TOOLS = ("ssh", "rsync")  # here
Result = TypeVar("Result")


class Cut(Exception):
    """The line is cut, or was never made; the message is why."""


class Line:
    """A line to `name` (of ~/.ssh/config or the network, or user@name), whose Python is `python`; `config` is
    read instead of ~/.ssh/config.

    Raises `ConfigError` for a name or a Python that is none, and when it is used `ToolError` without `ssh` or
    `rsync` here.
    """

    def __init__(self, name: str, python: str, config: Path | None) -> None:
        if not HOST.fullmatch(name):
            raise ConfigError(
                "Q-REMOTE-001",
                f"{quoted(name)} is no host: write NAME or USER@NAME, and put ports and keys into "
                "~/.ssh/config",
            )
        if not PYTHON.fullmatch(python):
            raise ConfigError("Q-REMOTE-001", f"--python {quoted(python)} is no path of a Python: write one")
        self.name, self.python = name, python
        options = [word for key, value in OPTIONS.items() for word in ("-o", f"{key}={value}")]
        self._ssh = ["ssh", "-T", "-a", "-x", *(["-F", str(config.absolute())] if config else []), *options]
        self._answered: float | None = None  # when the host answered last

    def ask(self, what: str, **given: Any) -> dict[str, Any]:
        """The answer of `host.WHAT(**given)`, however often the line is cut. Raises `ToolError` for what the
        host can't do, `MachineError` if it does not answer any more.
        """
        return self.trying(lambda: next(self._call(what, given)))

    def stream(self, what: str, **given: Any) -> Iterator[dict[str, Any]]:
        """The answers of `host.WHAT(**given)`, as they come. Raises `Cut`."""
        for message in self._call(what, given):
            self._answered = time.monotonic()
            yield message

    def trying(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, which is done again if the line is cut. Raises as `ask`."""
        for tool in TOOLS:  # not earlier: wrong settings are refused before tools are asked for
            if not shutil.which(tool):
                raise ToolError("Q-REMOTE-002", f"{tool} is not on PATH here: install it")
        pause, since = 0.5, time.monotonic()
        while True:
            try:
                result = work()
                self._answered = time.monotonic()
                return result
            except Cut as cut:
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
                print(f"remote: the line to {self.name} is cut ({cut}): trying again", file=sys.stderr)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def push(self, folder: Path, names: Iterable[str]) -> None:
        """Bring the files `names` of `folder` to the host's `incoming`, going on from what is there. Raises
        `Cut`.
        """
        self._rsync(names, "--copy-links", f"{folder}/", f"{self.name}:{FOLDER}/incoming/")

    def pull(self, run: str, folder: Path, names: Iterable[str]) -> None:
        """Bring the files `names` of a run's `out` into `folder`, going on from what is there. Raises
        `Cut`.
        """
        self._rsync(names, f"{self.name}:{FOLDER}/runs/{run}/out/", f"{folder}/")

    def _rsync(self, names: Iterable[str], *places: str) -> None:
        *options, source, target = places
        # appended in place: also what a kill -9 left is gone on from; hashes tell what came whole
        command = ["rsync", "--append-verify", "--files-from=-", "--rsh", shlex.join(self._ssh), *options]
        shown = ["--info=progress2"] if sys.stderr.isatty() else []
        done = subprocess.run(
            bound([*command, *shown, "--", source, target]),
            input="".join(f"{name}\n" for name in names),
            text=True,
            stdout=sys.stderr,
            stderr=subprocess.PIPE,
            check=False,
        )
        if done.returncode:
            raise Cut(_reason(done.stderr.splitlines()) or f"rsync ended with {done.returncode}")

    def _call(self, what: str, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Run `host.WHAT(**given)`; its answers. Raises `Cut` if there is none, `ToolError` for an error
        there.
        """
        process = subprocess.Popen(
            bound([*self._ssh, "--", self.name, f"{self.python} - {what}"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            with suppress(BrokenPipeError), process.stdin as stdin:  # type: ignore[union-attr]
                stdin.write(script(what, given).encode())
            others, answered = [], False
            for line in _lines(process.stdout.fileno(), SILENCE if what == "follow" else None):  # type: ignore[union-attr]
                if not line.startswith(MARK):
                    others.append(line)
                    continue
                message = self._message(line, process)
                if "error" in message:
                    said = printable(str(message["error"]), 200)
                    raise ToolError("Q-REMOTE-005", f"{self.name} says {said}: correct it there")
                answered = True
                yield message
            code = process.wait()
            if code not in (0, NO_LINE) and not answered:
                why = f"{self.python} is not there" if code in NOT_THERE else _reason(others)
                raise ToolError(
                    "Q-REMOTE-005",
                    f"{self.name} can't do its part ({why}): name a Python 3.11 or later with --python",
                )
            if code or not answered:
                raise Cut(_reason(others) or "it ended early")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]

    def _message(self, line: str, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """What a line says. Raises `DataError` for one that no function of `host` wrote, `Cut` where ssh ends
        with it: it wrote its own last words behind half of a line.
        """
        with suppress(ValueError):
            message = json.loads(line.removeprefix(MARK))
            if isinstance(message, dict):
                return message
        with suppress(subprocess.TimeoutExpired):
            if process.wait(LAST_WORDS_SECONDS) == NO_LINE:
                raise Cut("in the middle of an answer")
        raise DataError(
            "Q-REMOTE-008",
            f"{self.name} answers what it was not asked for ({printable(line, 200)}): see what writes that "
            "there, and don't trust a host that you don't know",
        )


def _lines(source: int, silence: float | None) -> Iterator[str]:
    """Whole lines from a file descriptor, until its end. Raises `Cut` after `silence` seconds."""
    rest = b""
    while True:
        if not select.select([source], [], [], silence)[0]:
            raise Cut("no sign of life")
        block = os.read(source, 1 << 16)
        if not block:
            return
        *lines, rest = (rest + block).split(b"\n")
        yield from (line.decode("utf-8", errors="replace").rstrip("\r") for line in lines)


def _reason(lines: list[str]) -> str:
    """The last line that says something."""
    said = [line for line in lines if line.strip() and not line.startswith("rsync error: ")]
    return printable(said[-1].strip(), 200) if said else ""

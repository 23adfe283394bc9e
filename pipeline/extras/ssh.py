"""Connection to a host by the system's `ssh`, which reads ~/.ssh/config.

A request is the text of a Python program, sent to the host's Python on every call. Its answers are lines of
JSON behind a mark (`pipeline.extras.ssh_answers`). A lost connection is retried with growing pauses. The host
may be in the hands of an attacker, so every answer has a shape and a length: a line has at most
`LONGEST_LINE` bytes, all other output (of a login shell, of ssh) at most `MOST_CHATTER`.
"""

import inspect
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.core.child import bound
from pipeline.core.errors import ConfigError, DataError, MachineError, ToolError
from pipeline.core.text import quoted, safe
from pipeline.extras import ssh_answers
from pipeline.extras.ssh_answers import MARK

LONGEST_LINE = 16 << 20  # bytes; a host sends a file in pieces of 1 MiB
MOST_CHATTER = 1 << 20  # bytes
HOST = re.compile(r"(?:[\w][\w.-]*@)?[\w][\w.-]*", re.ASCII)
PYTHON = re.compile(r"~?[\w./][\w./+-]*", re.ASCII)
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
# seconds without the signs of life of a program that follows, after which the connection counts as lost
SILENCE = 30.0
PATIENCE = 900.0  # seconds without an answer after which a host counts as gone
LAST_WORDS_SECONDS = 5.0  # seconds in which ssh exits after its last message
LONGEST_PAUSE = 30.0  # seconds between two tries
LAST_LINES = 20  # last lines of other output; the reason of an exit is among them
Result = TypeVar("Result")
# The text that a host's Python runs. Each module gets its own name, so that they can import each other.
PROGRAM = """
import sys, types
sys.path[:] = [path for path in sys.path if path]  # or a module of the home folder would hide the library's
for name, text in {sources!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
module.main({what!r}, **{given!r})
"""


class Malformed(ValueError):
    """An answer that no program of ours gives. The message describes the fault."""


class Answer(BaseModel):
    """Base of all answers, read strictly: no other keys, no other types."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Trouble(Answer):
    """Error of the host's system, in place of any other answer."""

    error: str


class Request(NamedTuple):
    """A call on the host: `main(what, **given)` of the last of `modules`.

    These are sent as they are, after `ssh_answers` and in the order of their imports. They use nothing else
    but the standard library, because the project's code may not be there. Answers are of the model `kind`.
    With `follows` there are signs of life. `python` is the oldest version that runs the modules.
    """

    what: str
    given: Mapping[str, Any]
    modules: Sequence[ModuleType]
    kind: type[Answer]
    follows: bool = False
    python: str = "3.11"

    @property
    def program(self) -> str:
        """The text for the host's Python."""
        sources = {module.__name__: inspect.getsource(module) for module in (ssh_answers, *self.modules)}
        return PROGRAM.format(sources=sources, what=self.what, given=self.given)


def parse(kind: type[Answer], text: str) -> Answer:
    """Parse `text` (JSON) as an answer of `kind`, or as a `Trouble`. Raises `Malformed`."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        with suppress(ValidationError):
            return Trouble.model_validate_json(text)
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Malformed(": ".join(filter(None, (where, first["msg"])))) from None


def foreign(host: str, why: str) -> DataError:
    """Return the error for an unexpected answer."""
    return DataError(
        "Q-REMOTE-008",
        f"{host} gives an unexpected answer ({safe(why, 200)}): see what writes that there, and "
        "don't trust a host that you don't know",
    )


class ConnectionLost(Exception):
    """The connection is lost, or was never made. The message is the reason."""


class Ssh:
    """Connection to `name` (of ~/.ssh/config or the network, or user@name), with the Python `python` there.
    `config` is read instead of ~/.ssh/config.

    Raises `ConfigError` for an invalid name or Python. Raises `ToolError` on first use if a program is
    missing here.
    """

    tools: tuple[str, ...] = ("ssh",)  # programs needed on this machine

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
        self.command = ["ssh", "-T", "-a", "-x", *config_options, *options]
        self.answered: float | None = None  # time of the host's last answer

    def trying(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, which is called again if the connection is lost. Raises
        `ToolError` for what the host can't do, `MachineError` if it does not answer any more.
        """
        for tool in self.tools:  # Tools are checked only here, because wrong settings are refused first.
            if not shutil.which(tool):
                raise ToolError("Q-REMOTE-002", f"{tool} is not on PATH here: install it")
        pause = 0.5
        since = time.monotonic()
        while True:
            try:
                result = work()
                self.answered = time.monotonic()
                return result
            except ConnectionLost as cut:
                if self.answered is None:
                    raise ToolError(
                        "Q-REMOTE-003",
                        f"{self.name} can't be reached ({cut}): correct that until `ssh {self.name} true` "
                        "works without a question",
                    ) from cut
                if time.monotonic() - max(since, self.answered) > PATIENCE:
                    raise MachineError(
                        "Q-REMOTE-004",
                        f"{self.name} does not answer any more ({cut}): what it published is here, so run "
                        "the same command again, for this host or another",
                    ) from cut
                print(f"remote: no connection to {self.name} ({cut}): trying again", file=sys.stderr)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def call(self, request: Request) -> Iterator[Any]:
        """Run a program there and yield its answers. Raises `ConnectionLost` if there is none,
        `ToolError` for an error there, and `DataError` for an invalid answer.
        """
        command = [*self.command, "--", self.name, f"{self.python} - {request.what}"]
        pipe = subprocess.PIPE
        with started(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as process:
            with suppress(BrokenPipeError), process.stdin as stdin:  # type: ignore[union-attr]
                stdin.write(request.program.encode())
            others = deque[str](maxlen=LAST_LINES)
            answered = False
            silence = SILENCE if request.follows else PATIENCE
            for line in self.lines(process.stdout.fileno(), silence, MARK):  # type: ignore[union-attr]
                if not line.startswith(MARK):
                    others.append(line)
                    continue
                answer = self._answer(request, line, process)
                if isinstance(answer, Trouble):
                    trouble = safe(answer.error, 200)
                    raise ToolError("Q-REMOTE-005", f"{self.name} says {trouble}: correct it there")
                answered = True
                yield answer
            code = process.wait()
            if code not in (0, CONNECTION_FAILED) and not answered:
                why = f"{self.python} is not there" if code in NOT_THERE else reason(others)
                raise ToolError(
                    "Q-REMOTE-005",
                    f"{self.name} can't do its part ({why}): name a Python {request.python} or later "
                    "with --python",
                )
            if code or not answered:
                raise ConnectionLost(reason(others) or "it ended early")

    def _answer(self, request: Request, line: str, process: subprocess.Popen[bytes]) -> Answer:
        """Return a line as an answer. Raises `DataError` for a line that no program of ours wrote. Raises
        `ConnectionLost` if ssh exits with it: then ssh wrote its last message after half of a line.
        """
        try:
            return parse(request.kind, line.removeprefix(MARK))
        except Malformed as error:
            with suppress(subprocess.TimeoutExpired):
                if process.wait(LAST_WORDS_SECONDS) == CONNECTION_FAILED:
                    raise ConnectionLost("in the middle of an answer") from None
            raise foreign(self.name, str(error)) from None

    def lines(self, source: int, silence: float | None, mark: str | None = None) -> Iterator[str]:
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
                chatter += 0 if mark and line.startswith(mark) else len(line) + 1
                if chatter > MOST_CHATTER:
                    raise foreign(self.name, f"{line} and much more")
                yield line
            rest += last
            if len(rest) > LONGEST_LINE:
                raise foreign(self.name, "a line without an end")


@contextmanager
def started(command: list[str], **pipes: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that exits with this one, and at the latest with the body."""
    with subprocess.Popen(bound(command), **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def reason(lines: Iterable[str]) -> str:
    """Return the last line with content."""
    messages = [line for line in lines if line.strip() and not line.startswith("rsync error: ")]
    return safe(messages[-1].strip(), 200) if messages else ""

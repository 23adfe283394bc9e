"""A scorer that is any program in any language: a JSON line in, a JSON line out (docs/rewards.md).

    {"id": "7", "prompt": [{"role": "user", "content": "2 + 2?"}], "completions": ["4", "5"], "answer": "4"}
    {"id": "7", "rewards": [1.0, 0.0]}

    with ExternalScorer(["examples/scorer.py"], timeout=60) as scorer:
        rewards = scorer.rewards("7", messages, ["4", "5"], answer="4")

The program is started once, from a list of arguments and never by a shell, and kept running. Its answers are
matched by their ids, so they may come in any order. Its first line has no completions and expects `"rewards":
[]`. This proves that it starts and speaks the protocol before anything long begins.
"""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from pipeline.core.child import bound
from pipeline.core.errors import ConfigError, QuenchError, ToolError
from pipeline.core.text import one_line

START_SECONDS = 120.0  # seconds until the first line is answered; a program may load a model
END_SECONDS = 2.0  # seconds to exit by itself after its input is closed
LONGEST_LINE = 1 << 24  # bytes of one answer
SHOWN = 200  # characters of a program's own text in a sentence
FIRST_ID = "start"


class ExternalScorer:
    """Program `command`, running inside the context. `timeout` is in seconds and for each request,
    `start_timeout` for the first line. `folder` is its working directory and the base of a relative path.
    Raises `ConfigError` if there is no such program.

    `rewards` may be called from more than one thread. Linux kills the program when the thread that entered
    the context exits.
    """

    def __init__(
        self,
        command: Sequence[str],
        timeout: float,
        start_timeout: float = START_SECONDS,
        folder: Path = Path(),
    ) -> None:
        self.command = _with_path(command, folder)
        self.timeout = timeout
        self.start_timeout = start_timeout
        self.folder = folder
        self.name = one_line(" ".join(command), SHOWN)
        # {id: (number of expected rewards, future)}
        self.waiting: dict[str, tuple[int, Future[list[float]]]] = {}
        self.lock = threading.Lock()
        self.lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.broken: QuenchError | None = None  # reason why no more requests are possible
        self.last_words = ""  # the last line on its standard error

    def __enter__(self) -> "ExternalScorer":
        """Start the program and wait for the answer to its first line. Raises what `rewards` does."""
        self.process = subprocess.Popen(
            bound(self.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            # Otherwise a print() without flush would never arrive.
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        jobs = (self._write, self._read_errors, self._read)
        self.threads = [threading.Thread(target=job, name="scorer", daemon=True) for job in jobs]
        for thread in self.threads:
            thread.start()
        try:
            self._ask(FIRST_ID, [], [], None, self.start_timeout)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def rewards(
        self, id: str, prompt: Sequence[Any], completions: Sequence[str], answer: str | None = None
    ) -> list[float]:
        """Return a finite number for each of `completions`, answers to the messages `prompt`; `answer` is the
        row's reference. No two requests that run at the same time may have one `id`.

        Raises `ToolError` if the program exits, is too slow, or does not answer in the protocol.
        """
        return self._ask(id, prompt, completions, answer, self.timeout)

    def close(self) -> None:
        """Stop the program and everything that it has started, first by closing its input."""
        self.lines.put(None)
        self._status(0 if self.broken else END_SECONDS)
        with suppress(ProcessLookupError, PermissionError):  # The group has no process left.
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for thread in self.threads:
            thread.join(END_SECONDS)

    def _ask(
        self, id: str, prompt: Sequence[Any], completions: Sequence[str], answer: str | None, seconds: float
    ) -> list[float]:
        request = {"id": id, "prompt": list(prompt), "completions": list(completions)}
        request |= {} if answer is None else {"answer": answer}
        answered: Future[list[float]] = Future()
        with self.lock:
            if self.broken:
                raise self.broken
            if id in self.waiting:
                raise ValueError(f"{id!r} is being asked already")  # a bug of ours
            self.waiting[id] = len(completions), answered
        self.lines.put(json.dumps(request, ensure_ascii=True).encode() + b"\n")
        try:
            return answered.result(seconds)
        except NoAnswer:
            raise self._break(
                ToolError(
                    "Q-EXTERNAL-002",
                    f"the scorer `{self.name}` did not answer {id} in {seconds:g} s{self._words()}: make it "
                    "faster or raise its time limit",
                )
            ) from None

    def _write(self) -> None:
        """Send requests to the program from a thread: a program that doesn't read would block its caller."""
        assert self.process.stdin is not None
        with suppress(OSError), self.process.stdin as stdin:  # The reader notices that the program exited.
            while line := self.lines.get():
                stdin.write(line)
                stdin.flush()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in _lines(self.process.stderr):
            words = line.decode(errors="replace").strip()
            if words:
                self.last_words = one_line(words, SHOWN)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in _lines(self.process.stdout):
            if line.strip():
                self._take(line)
        status = self._status(END_SECONDS)
        self.threads[1].join(END_SECONDS)  # Its last words may come after it exits.
        ended = "closed its output" if status is None else f"ended with exit status {status}"
        self._break(
            ToolError(
                "Q-EXTERNAL-001",
                f"the scorer `{self.name}` {ended}{self._words()}: correct it, its input was not at its end",
            )
        )

    def _take(self, line: bytes) -> None:
        """Pass an answer to the request with its id. An answer to no request breaks the scorer."""
        try:
            answer = json.loads(line)
            id = str(answer["id"])
            values = answer["rewards"]
        except (ValueError, LookupError, TypeError, RecursionError):
            shown = one_line(line[: 4 * SHOWN].decode(errors="replace"), SHOWN)
            self._break(self._wrong(f'{shown!r}, which is not {{"id": …, "rewards": […]}}'))
            return
        with self.lock:
            number, answered = self.waiting.pop(id, (0, None))
        if answered is None:
            self._break(self._wrong(f"for the id {one_line(id, SHOWN)!r}, which no request has"))
        elif problem := _problem(values, number):
            answered.set_exception(self._wrong(f"{id} with {problem}"))
        else:
            answered.set_result([float(value) for value in values])

    def _wrong(self, what: str) -> ToolError:
        return ToolError(
            "Q-EXTERNAL-003", f"the scorer `{self.name}` answered {what}: correct it (docs/rewards.md)"
        )

    def _break(self, why: QuenchError) -> QuenchError:
        """Refuse further requests; those that wait fail with `why`. Return the first reason."""
        with self.lock:
            self.broken = self.broken or why
            waiting = self.waiting
            self.waiting = {}
        for _, answered in waiting.values():
            if not answered.done():
                answered.set_exception(self.broken)
        return self.broken

    def _status(self, seconds: float) -> int | None:
        """Return the program's exit status (-9: killed by signal 9), if it exits within `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def _words(self) -> str:
        return f' (it said last: "{self.last_words}")' if self.last_words else ""


def _with_path(command: Sequence[str], folder: Path) -> list[str]:
    """Return `command` with the path of its program. Raises `ConfigError` if it can't be run."""
    program = "".join(command[:1])
    if os.sep in program:
        program = str(folder.absolute() / program)
    place = shutil.which(program) if program else None
    if place is None:
        raise ConfigError(
            "Q-EXTERNAL-004",
            f"the scorer {list(command)} names no program that can be run: write [PROGRAM, ARGUMENT, …], its "
            "file executable (chmod +x)",
        )
    return [place, *command[1:]]


def _lines(pipe: IO[bytes]) -> Any:
    """Yield lines up to the pipe's end; a line longer than `LONGEST_LINE` comes in pieces."""
    with suppress(OSError, ValueError), pipe:
        yield from iter(lambda: pipe.readline(LONGEST_LINE), b"")


def _problem(values: Any, number: int) -> str | None:
    """Return the reason why `values` are not `number` finite numbers; None if they are."""
    if not isinstance(values, list) or len(values) != number:
        return f"{len(values) if isinstance(values, list) else 'no list of'} rewards where {number} are due"
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"the reward {one_line(json.dumps(value), SHOWN)}, which is not a number"
        if not abs(value) <= sys.float_info.max:  # This refuses NaN too.
            return "a reward that is NaN or infinite"
    return None

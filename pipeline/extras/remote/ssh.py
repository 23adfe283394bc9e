"""Connection to a host on which `quench remote` trains: requests to the functions of `host/`, and `rsync`.

Files that arrived are not sent again.
"""

import shlex
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pipeline.core import following
from pipeline.extras.remote.answers import KINDS, News
from pipeline.extras.remote.host import files, runs
from pipeline.extras.ssh import LAST_LINES, PATIENCE, ConnectionLost, Request, Ssh, reason, started

MODULES = (following, files, runs)  # what the host runs
FOLDER = ".cache/quench/remote"  # folder on the host, below its home


class SshConnection(Ssh):
    """Connection (`pipeline.extras.ssh.Ssh`) to a host that trains."""

    tools = ("ssh", "rsync")

    def ask(self, what: str, **given: Any) -> Any:
        """Return the answer of `host.WHAT(**given)` as its model in `answers`, however often the connection
        is lost. Raises `ToolError` for what the host can't do, `MachineError` if it does not answer any more,
        and `DataError` for an invalid answer.
        """
        return self.trying(lambda: next(self._call(what, **given)))

    def follow(self, **given: Any) -> Iterator[News]:
        """Yield the answers of `host.follow(**given)` as they arrive. Raises `ConnectionLost`."""
        for news in self._call("follow", **given):
            self.answered = time.monotonic()
            yield news

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
        command = ["rsync", "--append-verify", f"--timeout={PATIENCE:.0f}", "--rsh", shlex.join(self.command)]
        shown = ["--info=progress2"] if sys.stderr.isatty() else []
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as names_file:
            print(*names, sep="\n", file=names_file, flush=True)
            words = [*command, *options, *shown, f"--files-from={names_file.name}", "--", source, target]
            with started(words, stdout=sys.stderr, stderr=subprocess.PIPE) as process:
                last_lines = deque(self.lines(process.stderr.fileno(), None), LAST_LINES)  # type: ignore[union-attr]
                code = process.wait()
        if code:
            raise ConnectionLost(reason(last_lines) or f"rsync ended with {code}")

    def _call(self, what: str, /, **given: Any) -> Iterator[Any]:
        """Run `host.WHAT(**given)` and yield its answers. Raises as `Ssh.call`."""
        return self.call(Request(what, given, MODULES, KINDS[what], follows=what == "follow"))

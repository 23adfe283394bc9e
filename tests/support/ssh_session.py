"""A session of the tests' SSH server (its ForceCommand): runs the command in a home of its own, and cuts the
line, by kill -9 of the server's process for this session, where the plan says so.

    python ssh_session.py FOLDER     FOLDER/home, FOLDER/path (PATH), FOLDER/calls (a log), FOLDER/cuts.json

A cut is [pattern of the command, "in" or "out", bytes]: after so many bytes of the command's input or output.
Cuts are used in their order, each once.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path


def main(folder: Path) -> None:
    command = os.environ["SSH_ORIGINAL_COMMAND"]
    cut = next_cut(folder / "cuts.json", command)
    with (folder / "calls").open("a") as log:
        log.write(f"{command}{f'  CUT {cut[1]} {cut[2]}' if cut else ''}\n")
    os.environ["HOME"] = str(folder / "home")
    os.environ["PATH"] = (folder / "path").read_text()
    os.chdir(folder / "home")
    words = ["/bin/sh", "-c", command]
    if cut is None:
        os.execv(words[0], words)  # noqa: S606 (the shell of a session)
    server = session_of(os.getpid())
    incoming = cut[1] == "in"
    pipes = {"stdin": subprocess.PIPE} if incoming else {"stdout": subprocess.PIPE}
    child = subprocess.Popen(words, **pipes)
    source, sink = (0, child.stdin.fileno()) if incoming else (child.stdout.fileno(), 1)
    left = cut[2]
    while left and (block := os.read(source, min(left, 1 << 16))):
        os.write(sink, block)
        left -= len(block)
    if not incoming and not cut[2]:
        child.stdout.read()  # the command is done, and nobody hears of it
    os.kill(server, signal.SIGKILL)


def next_cut(plan: Path, command: str) -> list | None:
    cuts = json.loads(plan.read_text()) if plan.exists() else []
    if not cuts or not re.search(cuts[0][0], command):
        return None
    plan.write_text(json.dumps(cuts[1:]))
    return cuts[0]


def session_of(pid: int) -> int:
    """The server's process that this one runs below."""
    while Path(f"/proc/{pid}/comm").read_text().strip() != "sshd":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


main(Path(sys.argv[1]))

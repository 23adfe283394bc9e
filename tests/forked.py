"""Snakemake in processes that are forked from one which has imported it: it takes a second of CPU to start, and a fork of it nothing.

A fork has its own process id, environment and working directory; what a test kills, or starts twice at once, it starts the usual way.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


class Forked:
    """Runs `snakemake` with arguments, one at a time."""

    def __init__(self) -> None:
        self.server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def snakemake(self, *arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
        """The finished process; it has the environment that this process has now."""
        assert self.server.stdin and self.server.stdout
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            asked = {"argv": ["snakemake", *arguments], "cwd": str(cwd), "env": dict(os.environ), "out": str(out), "err": str(err)}
            self.server.stdin.write(json.dumps(asked) + "\n")
            self.server.stdin.flush()
            code = int(self.server.stdout.readline())
            return subprocess.CompletedProcess(asked["argv"], code, out.read_text(), err.read_text())

    def close(self) -> None:
        """End the process that is forked."""
        self.server.communicate()


def _serve() -> None:
    import dvc.repo  # noqa: F401
    from snakemake.cli import main

    import pipeline.config.params
    import pipeline.workflow.prepare  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(main, **json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _run(main, argv: list[str], cwd: str, env: dict[str, str], out: str, err: str) -> None:  # type: ignore[no-untyped-def]
    """Become the command: nothing of the server's streams is kept."""
    code: object = 1
    try:
        for number, file in ((0, os.devnull), (1, out), (2, err)):
            opened = os.open(file, os.O_RDWR | os.O_CREAT)
            os.dup2(opened, number)
            os.close(opened)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        sys.argv = argv
        main()
        code = 0
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    _serve()

"""Python programs in processes that are forked from one that has imported what they need: it takes seconds of
CPU to start, and a fork of it nothing.

A fork has its own process id, environment, working directory and streams. What a test kills, or starts twice
at once, it starts the usual way. A stage of the toy (`tests/toy/run.py`) that finds `SERVER` in its
environment has itself forked too, and so does DVC when it records that stage. llama.cpp's converters, which
import PyTorch and Transformers, are forked in all tests but those of the converters (`converters_in_forks`),
and pip where a file's places are tested.
"""

import gc
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import chdir, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

SERVER = "QUENCH_TESTS_FORKED"  # the socket at which the server listens


class Forked:
    """The process that is forked, and what is run in forks of it."""

    def __init__(self, environment: dict[str, str] | None = None, what: str = "workflow") -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="quench-forked-")
        self.socket = str(Path(self.folder.name, "socket"))
        command = [sys.executable, "-P", __file__, self.socket, what]
        self.server = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # a test that ends its own group leaves the server
        )
        assert self.server.stdout
        self.server.stdout.readline()  # it listens

    def run(
        self, *argv: str, cwd: Path, environment: dict[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """The finished process of `snakemake …`, `dvc …` or `FILE.py …`, in the current environment."""
        with (
            tempfile.TemporaryFile("w+") as out,
            tempfile.TemporaryFile("w+") as err,
            Path(os.devnull).open() as nothing,
        ):
            code = _ask(
                self.socket,
                list(argv),
                str(cwd),
                environment or dict(os.environ),
                [nothing.fileno(), out.fileno(), err.fileno()],
            )
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(argv, code, out.read(), err.read())

    def close(self) -> None:
        """End the process that is forked."""
        self.server.communicate()
        self.folder.cleanup()


def _ask(address: str, argv: list[str], cwd: str, environment: dict[str, str], streams: list[int]) -> int:
    """The exit code of a program in a fork; 137 if it was killed. `tests/toy/run.py` holds the same lines."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b" "], streams)
        server.sendall(json.dumps([argv, cwd, environment]).encode())
        server.shutdown(socket.SHUT_WR)
        return int(server.recv(16) or b"137")


def converters_in_forks(patch: Any) -> Iterator[None]:
    """Until this ends, `run_converter` runs its program in a fork that has the converters' imports."""
    from pipeline.llamacpp import tools

    servers: dict[str, Forked] = {}

    def run(command: list[Any], **how: Any) -> "subprocess.CompletedProcess[str]":
        place = next(
            (place for place, word in enumerate(command) if str(word).endswith("/converter_process.py")), None
        )
        if place is None:
            return subprocess.run(command, **how)
        environment = how["env"]
        paths = environment["PYTHONPATH"]
        words, cwd = [str(word) for word in command[place:]], how["cwd"] or Path.cwd()
        if paths in servers:
            with suppress(ConnectionRefusedError):  # ended by a test, or for memory
                return servers[paths].run(*words, cwd=cwd, environment=environment)
        servers[paths] = Forked(environment, "converters")
        return servers[paths].run(*words, cwd=cwd, environment=environment)

    patch.setattr(tools, "subprocess", SimpleNamespace(**vars(subprocess) | {"run": run}))
    yield
    for server in servers.values():
        server.close()


def _import_converters() -> None:
    import conversion.base  # noqa: F401  llama.cpp's, from PYTHONPATH
    import gguf  # noqa: F401
    import torch  # noqa: F401
    from transformers import AutoConfig, AutoTokenizer  # noqa: F401


def _import_workflow() -> None:
    import dvc.cli
    import dvc.commands.commit
    import dvc.repo.commit  # noqa: F401
    import snakemake.cli  # noqa: F401

    import pipeline.workflow.prepare
    import pipeline.workflow.state.integrity  # noqa: F401
    from pipeline.workflow.state import record

    record.subprocess = SimpleNamespace(**vars(subprocess) | {"run": _dvc})  # type: ignore[assignment]


def _import_remotes() -> None:
    import aiobotocore.session  # noqa: F401
    import dvc.cli
    import dvc_s3  # noqa: F401
    import s3fs  # noqa: F401

    _import_workflow()
    with tempfile.TemporaryDirectory() as folder, chdir(folder):  # what commands import when they work
        Path("file").touch()
        for words in ("init --no-scm", "remote add --default store store", "add file", "push", "pull"):
            dvc.cli.main([*words.split(), "--quiet"])


def _import_pip() -> None:
    import pip._internal.cli.main
    import pip._internal.commands.download  # noqa: F401


def _serve(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        print("listening", flush=True)
        # closed: the tests have ended
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            with suppress(ChildProcessError):  # those that have ended
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if os.fork() == 0:
                listening.close()
                _become(connection)
            connection.close()


def _become(connection: socket.socket) -> None:
    """Become the program: nothing of the server's streams is kept, and what it has loaded is no garbage."""
    gc.freeze()
    code: object = 1
    try:
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        text = b"".join(iter(lambda: connection.recv(2**16), b""))
        argv, cwd, environment = json.loads(text)
        for number, opened in enumerate(streams):
            os.dup2(opened, number)
            os.close(opened)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        sys.argv = argv
        if argv[0] == "snakemake":
            from snakemake.cli import main

            main()
        elif argv[0] == "dvc":
            from dvc.cli import main as dvc

            sys.exit(dvc(argv[1:]))
        else:
            os.environ.pop(SERVER, None)
            runpy.run_path(argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(str(code if isinstance(code, int) else int(code is not None)).encode())
        os._exit(0)


def _dvc(command: list[str], *, cwd: Path, stderr: IO[str], **_: Any) -> "subprocess.CompletedProcess[str]":
    """Stands for `subprocess.run` when recording a stage: DVC in a fork of it, in a new session as there."""
    from dvc.cli import main

    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(cwd)
        os.dup2(stderr.fileno(), 1)
        os.dup2(stderr.fileno(), 2)
        code = 255
        try:
            code = main(command[command.index("dvc") + 1 :])
        finally:
            sys.stderr.flush()
            os._exit(code)
    return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    {
        "workflow": _import_workflow,
        "remotes": _import_remotes,
        "converters": _import_converters,
        "pip": _import_pip,
    }[sys.argv[2]]()
    _serve(sys.argv[1])

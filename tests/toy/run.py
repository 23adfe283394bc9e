"""Reuse or run a toy stage, recorded like the real runner; every run adds a line to untracked `counter`."""

import json
import os
import socket
import sys

if "QUENCH_TESTS_FORKED" in os.environ:  # tests/support/forked.py has all of this imported
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ["QUENCH_TESTS_FORKED"])
        socket.send_fds(server, [b" "], [0, 1, 2])
        server.sendall(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode())  # noqa: PTH109 (pathlib takes 20 ms to import)
        server.shutdown(socket.SHUT_WR)
        os._exit(int(server.recv(16) or b"137"))

import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from pipeline.core.errors import QuenchError, Stopped
from pipeline.core.interruption import Interruption
from pipeline.llamacpp.tools import run_tool
from pipeline.workflow.cluster_jobs import leave_failure
from pipeline.workflow.settle import reuse
from pipeline.workflow.state.integrity import verify_inputs
from pipeline.workflow.state.record import record, running

PARAMS = yaml.safe_load(Path("params.yaml").read_text())
NAME = PARAMS["convert"]["name"]


def read(folder: str) -> str:
    """The text of a folder's files; dot files are nobody's data."""
    return "".join(
        path.read_text()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    )


def write(path: str, text: str) -> None:
    """Text and its hash: a wrong input can't end in the right bytes."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n")


def folder(path: str, text: str) -> None:
    """A folder artifact of two files."""
    shutil.rmtree(path, ignore_errors=True)
    write(f"{path}/a.txt", text)
    write(f"{path}/b/c.txt", text.upper())


def base() -> None:
    folder("models/base", "base")
    write("models/base.json", "base")


def curate() -> None:
    # a row that is there twice is kept once
    rows = "".join(sorted(set(read("data/raw").splitlines(keepends=True))))
    folder("data/final", f"{rows}{Path('models/base.json').read_text()}{PARAMS['curate']['seed']}")
    # of clean data nothing is rejected
    Path("data/rejects.jsonl").write_bytes(b"")
    Path("data/spare").mkdir(exist_ok=True)


def train() -> None:
    with Interruption() as interruption, interruption.deferred():
        if Path("step").exists():  # the test wants a training that lasts
            print("train: step 1", flush=True)
        wait(lambda: Path("step").exists() and interruption.received is None)
        if interruption.received:
            time.sleep(0.5)  # the step at hand, and the checkpoint
            raise Stopped(interruption.received, "checkpoint-1 is complete")
    folder("models/adapter", f"{read('data/final')}{read('models/base')}{PARAMS['train']['r']}")


def merge() -> None:
    write(
        f"models/{NAME}-F16.gguf", f"{read('models/base')}{read('models/adapter')}{PARAMS['merge']['base']}"
    )


def quantize(level: str) -> None:
    Path(f"at-work-{level}").touch()
    # the test wants two levels side by side
    wait(lambda: Path("together").exists() and len(list(Path().glob("at-work-*"))) < 2)
    write(f"models/{NAME}-{level}.gguf", Path(f"models/{NAME}-F16.gguf").read_text() + level)


def report() -> None:
    if Path("tool").exists():  # the test wants a tool that lasts
        run_tool(["sleep", "300"])
    wait(Path("hold").exists)  # the test wants a run that lasts
    models = [Path(f"models/{NAME}-{level}.gguf").read_text() for level in PARAMS["quantize"]["levels"]]
    write("reports/index.html", f"{''.join(models)}{PARAMS['report']['gate']['max_task_drop']}")


def wait(reason: Callable[[], bool]) -> None:
    """Wait while there is a reason to, a minute at most."""
    for _ in range(3000):
        if not reason():
            return
        time.sleep(0.02)
    sys.exit("waited for a minute in vain")


if __name__ == "__main__":
    stage, _, item = sys.argv[1].partition("@")
    with running(sys.argv[1], Path()):
        if reuse(sys.argv[1], Path()):
            sys.exit()
        try:
            verify_inputs(sys.argv[1], Path())
            with Path("counter").open("a") as counter:
                counter.write(sys.argv[1] + "\n")
            globals()[stage](*[item] if item else [])
        except (QuenchError, Stopped) as error:
            print(f"{sys.argv[1]}: {error}", file=sys.stderr)
            leave_failure(sys.argv[1], str(error), error.exit_code, Path())
            sys.exit(error.exit_code)
    record(sys.argv[1], Path())

"""owner: a stage ends with the run that started it, one that was started by hand doesn't, and a checkpoint in
the making is not cut short.
"""

import os
import signal
import socket
import subprocess
import sys

import make
import pytest

from pipeline.core.owner import mark_run


def here() -> str:
    """Return the part of `QUENCH_RUN` which says that its process id is one of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", os.environ.copy())
        mark_run()
        return os.environ["QUENCH_RUN"].removesuffix(f":{os.getpid()}")


STAGE = """
import time
from pipeline.core.interruption import Interruption
from pipeline.core.owner import end_with_owner
Interruption.stopping = {stopping}
end_with_owner("merge")
time.sleep({seconds})
"""


@pytest.fixture(scope="module")
def gone() -> int:
    """The id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        process.wait()
    return process.pid


def ended(run: str | None, *, stopping: bool = False, seconds: float = 1) -> tuple[int, str]:
    """(exit status, what was said) of a stage whose QUENCH_RUN is `run`."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("QUENCH_RUN", "DVC_STAGE")
    }
    code = STAGE.format(stopping=stopping, seconds=seconds)
    environment |= {"QUENCH_RUN": run} if run else {}
    done = make.ended([sys.executable, "-c", code], env=environment, timeout=60)
    return done.returncode, done.stderr


def test_a_stage_whose_run_is_gone_ends_and_says_so(gone: int) -> None:
    code, output = ended(f"{here()}:{gone}", seconds=50)
    assert code == -signal.SIGTERM
    assert output.startswith(f"merge: process {gone}")


@pytest.mark.parametrize(
    "run", [None, "another-host:1", f"{here()}:{os.getpid()}"], ids=["by hand", "another host's", "alive"]
)
def test_no_other_stage_does(run: str | None) -> None:
    assert ended(run) == (0, "")


@pytest.mark.parametrize("start", [1, 2], ids=["another machine's or start's", "another container's"])
def test_a_process_id_of_elsewhere_says_nothing_though_the_host_has_the_same_name(
    gone: int, start: int
) -> None:
    parts = here().split("/")
    assert len(parts) == 3
    parts[start] = "another"
    assert ended(f"{'/'.join(parts)}:{gone}") == (0, "")
    assert ended(f"{socket.gethostname()}:{gone}") == (0, "")


def test_one_that_is_ending_gets_no_second_signal(gone: int) -> None:
    assert ended(f"{here()}:{gone}", stopping=True) == (0, "")

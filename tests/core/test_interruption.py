"""SIGTERM that comes twice in a moment, as SLURM sends it, is one; who insists later ends the process."""

import os
import signal
import subprocess
import sys

import pytest

from pipeline.core.errors import Stopped
from pipeline.core.interruption import Interruption

INSISTED = """
import os, signal, time
from pipeline.core import interruption
interruption.SAME_SECONDS = 0.1
with interruption.Interruption() as one, one.deferred():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""


def test_a_signal_that_comes_twice_in_a_moment_is_one() -> None:
    with Interruption() as interruption, interruption.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.received == signal.SIGTERM
    Interruption.stopping = False


def test_so_is_one_that_comes_while_the_first_ends_the_work() -> None:
    with pytest.raises(Stopped), Interruption():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
    Interruption.stopping = False


def test_what_another_process_heard_is_the_first_signal() -> None:
    with Interruption() as interruption, interruption.deferred():
        interruption.hear(signal.SIGTERM)
        assert Interruption.stopping  # else a run that is gone would cut the checkpoint short
        os.kill(os.getpid(), signal.SIGINT)  # this process's own, in the same moment
        interruption.hear(signal.SIGINT)
        assert interruption.received == signal.SIGTERM
    Interruption.stopping = False


def test_a_second_signal_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", INSISTED], timeout=60, check=False)
    assert done.returncode == -signal.SIGTERM

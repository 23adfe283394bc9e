"""A SLURM of one node for tests, of Debian's packages, started and ended here, and Snakemake that submits to
it.

    with slurm.started(folder) as cluster:
        run = cluster.snakemake(root, "train")  # starts `snakemake --workflow-profile profiles/slurm train`
        assert run.wait() == 0, run.log()
        cluster.ask("squeue", "--noheader", "--format=%i %T")

It needs no root, systemd, cgroups or munge and touches nothing outside `folder`: its commands (in
`folder`/bin, first in PATH) name its configuration. Jobs of partition `main`, the default, make room for jobs
of `urgent` and are queued again. The node claims 16 cores, 200 GB and a GPU, so that the profile runs as it
is. Not on a machine with users whom you don't trust: it believes whoever asks.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from needed import absent, need

COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo", "sacct")
DAEMONS = ("slurmctld", "slurmd")
CONFIGURATION = """
ClusterName=quench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
# what is queued again starts after as many seconds
AuthInfo=cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
MessageTimeout=60
# seconds after which an ended job is forgotten: a slow machine takes more than the default of 300 for a test
MinJobAge=3600
BatchStartTimeout=60
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 RealMemory=200000 Gres=gpu:1 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES PriorityTier=1 PreemptMode=REQUEUE State=UP
PartitionName=urgent Nodes={host} PriorityTier=10 PreemptMode=OFF State=UP
"""


def missing() -> str:
    """Return the reason why no SLURM can be started here, for `pytest.skip`; an empty string if it can."""
    return need("SLURM") if absent(*COMMANDS, *DAEMONS) else ""


def daemon(name: str) -> str:
    """Return the path of a daemon; "" if it isn't installed."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") or ""


def until(happened: Callable[[], object], seconds: float = 900, what: str = "it") -> None:
    """Wait until `happened` gives something true."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:.0f} s"
        time.sleep(0.2)


class Run:
    """A Snakemake that submits jobs: `process`, and what it printed."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: Path) -> None:
        self.process, self._output = process, output

    def wait(self, seconds: float = 1500) -> int:
        """The exit code, when it has ended."""
        return self.process.wait(seconds)

    def ended(self) -> bool:
        """Return True if Snakemake has ended."""
        return self.process.poll() is not None

    def log(self) -> str:
        """Both its streams so far."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """End it at once, as a lost machine does."""
        self.process.kill()
        self.process.wait()


class Slurm:
    """The cluster that `started` gives."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._runs = folder, 0
        self.environment = os.environ | {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def ask(self, *command: str) -> str:
        """Run one of SLURM's commands, and return what it prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def jobs(self, *, ended: bool = False) -> dict[str, tuple[str, str]]:
        """{id: (state, rule)} of the jobs that are queued or at work, and of all if `ended` ones count."""
        lines = self.ask("squeue", "--noheader", "--format=%i|%T|%k", *(["--states=all"] if ended else []))
        found = [line.split("|", 2) for line in lines.splitlines()]
        return {job: (state, comment.removeprefix("rule_")) for job, state, comment in found}

    def restarts(self, job: str) -> int:
        """Return how often a job was queued again."""
        words = self.ask("scontrol", "show", "job", job).split()
        return next(int(word.partition("=")[2]) for word in words if word.startswith("Restarts="))

    def snakemake(self, root: Path, *arguments: str) -> Run:
        """Start Snakemake below `root` with the profile for SLURM."""
        profile = ["--workflow-profile", "profiles/slurm", "--latency-wait", "5"]
        command = [sys.executable, __file__, *profile, *arguments]
        return self.start(root, command)

    def start(self, root: Path, command: list[str]) -> Run:
        """Start a command below `root` that finds this cluster."""
        self._runs += 1
        output = self.folder / f"run-{self._runs}.log"
        with output.open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=root,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Run(process, output)


@contextmanager
def started(folder: Path) -> Iterator[Slurm]:
    """A SLURM whose files are in `folder`, which is made; it has ended when this has, with all its jobs."""
    for name in ("state", "spool", "bin"):
        (folder / name).mkdir(parents=True)
    with ExitStack() as opened:
        sockets = [opened.enter_context(closing(socket.socket())) for _ in DAEMONS]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        controller, node = (one.getsockname()[1] for one in sockets)
    host, configuration = socket.gethostname().partition(".")[0], folder / "slurm.conf"
    values = {
        "host": host,
        "folder": folder,
        "user": getpass.getuser(),
        "controller": controller,
        "node": node,
    }
    configuration.write_text(CONFIGURATION.format(**values))
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
    for name in COMMANDS:
        # SLURM_CONF in the environment isn't enough: Snakemake's job steps drop it
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nSLURM_CONF={configuration} exec {shutil.which(name)} "$@"\n')
        command.chmod(0o755)
    cluster, daemons = Slurm(folder), []
    try:
        for name in DAEMONS:
            with (folder / f"{name}.out").open("wb") as log:
                daemons.append(
                    subprocess.Popen([daemon(name), "-D", "-f", configuration], stdout=log, stderr=log)
                )
        until(lambda: _is_idle(cluster), 60, f"a SLURM that works ({folder})")
        yield cluster
    finally:
        with suppress(AssertionError):
            cluster.ask("scancel", "--signal=KILL", "--full", f"--user={getpass.getuser()}")
            cluster.ask("scancel", f"--user={getpass.getuser()}")
            until(lambda: not cluster.jobs(), 30)
        for process in reversed(daemons):
            process.terminate()
        for process in daemons:
            process.wait(30)
        _end_the_rest(folder)


def _is_idle(cluster: Slurm) -> bool:
    with suppress(AssertionError):
        return "idle" in cluster.ask("sinfo", "--noheader", "--format=%T")
    return False


def _end_the_rest(folder: Path) -> None:
    """End processes of jobs that SLURM left: they have its commands in their PATH."""
    import psutil

    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if process.pid != os.getpid() and f"{folder / 'bin'}:" in process.environ().get("PATH", ""):
                os.kill(process.pid, signal.SIGKILL)


def _look_every_second() -> None:
    """The plugin waits 10 seconds more before each look at its jobs than before the last: tests can't."""
    from snakemake_executor_plugin_slurm import Executor

    Executor.next_seconds_between_status_checks = property(lambda self: 1, lambda self, _: None)


if __name__ == "__main__":
    from snakemake.cli import main

    _look_every_second()
    sys.argv[0] = "snakemake"
    main()

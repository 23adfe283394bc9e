"""The rank of this process in a distributed training, as `torchrun`, `srun` or this module's own launcher
sets it in the environment.

    torchrun --nproc-per-node 2 -m pipeline train
    srun --ntasks-per-node 2 python -m pipeline train
    python -m pipeline train --processes 2

There is one process per card. `take_rank` removes these variables from the environment, because libraries
that find them wrap the model and split the rows in their own ways.
"""

import os
import re
from dataclasses import dataclass

from pipeline.core.cpu import CARDS
from pipeline.core.errors import ConfigError

PROCESSES = "QUENCH_PROCESSES"  # number of processes that `python -m pipeline train` starts
LAUNCHED = "QUENCH_LAUNCHED"  # set by our own launcher
# file descriptor, for the launcher's rank 0, of the socket that the store listens on
STORE_FD = "QUENCH_STORE_FD"
HERE = "127.0.0.1"
# With one of these, Accelerate and transformers assume a distributed run.
FOREIGN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")


@dataclass(frozen=True)
class Rank:
    """Process `number` of `count`, which meet at `address`:`port`.

    `local_count` of them are on this machine, where this one is number `local`.
    """

    number: int
    count: int
    local: int
    local_count: int
    address: str
    port: int
    hosted: bool = False  # True if torchrun runs the store in which they meet; otherwise rank 0 does
    listening: int | None = None  # file descriptor of the socket that rank 0's store is to use
    launched: bool = False  # True if our own launcher started it, which then reports why processes exited
    run: str = ""  # the run among those that share a store: the attempt, or the step of a job
    cores: int | None = None  # number of cores that only this process uses; None if the machine's are shared

    @property
    def leads(self) -> bool:
        """True for the one process that writes: checkpoints, journal, adapter, DVC's record."""
        return self.number == 0


def take_rank() -> Rank | None:
    """Return this process's rank, None if it is the only process, and leave the process one card.

    Removes the variables that define it from the environment. Call it before PyTorch is imported. Raises
    `ConfigError` if the environment defines it incompletely.
    """
    try:
        rank = _of_torchrun() or _of_slurm()
    except (KeyError, ValueError) as error:
        raise ConfigError(
            "Q-TRAIN-036",
            f"the environment says that this is one of several processes, but not which ({error} is missing "
            "or not a number): start them with `torchrun`, or set MASTER_ADDR and MASTER_PORT for `srun`",
        ) from None
    for name in (*FOREIGN, STORE_FD, LAUNCHED):
        os.environ.pop(name, None)
    if rank is None or rank.count == 1:
        return None
    _take_card(rank)
    # If another process is gone, PyTorch would print its C++ stack above the sentence that reports it.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if rank.local_count == rank.count:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # Other machines need not reach them.
    return rank


def wanted_processes(stage: str, given: str | None) -> int:
    """Return the number of processes to start for a stage: the option's value, or for train the
    environment's, or 1.

    Raises `ConfigError` if it is not such a number, and for an option that the stage does not have.
    """
    if stage != "train":
        if given is None:
            return 1
        raise ConfigError("Q-TRAIN-036", f"--processes is about train alone: leave it out for {stage[:80]}")
    text = os.environ.get(PROCESSES) or "1" if given is None else given
    if not re.fullmatch(r"[1-9]\d{0,2}", text):
        name = PROCESSES if given is None else "--processes"
        raise ConfigError(
            "Q-TRAIN-036",
            f"{text[:40]!r} is not a number of processes: give 1 to 999 in {name}, or leave it out",
        )
    return int(text)


def check_cards(count: int) -> None:
    """Raise `ConfigError` if the environment names cards, but too few for `count` processes here."""
    cards = _named_cards()
    if cards and len(cards) < count:
        raise ConfigError(
            "Q-TRAIN-036",
            f"there are {count} processes on this machine and {len(cards)} cards in {CARDS} "
            f"({os.environ[CARDS][:80]}): start one process a card (--processes, or {PROCESSES} in the "
            "environment)",
        )


def _of_torchrun() -> Rank | None:
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    environment = os.environ
    fd = environment.get(STORE_FD)
    return Rank(
        int(environment["RANK"]),
        int(environment["WORLD_SIZE"]),
        int(environment["LOCAL_RANK"]),
        int(environment["LOCAL_WORLD_SIZE"]),
        environment["MASTER_ADDR"],
        int(environment["MASTER_PORT"]),
        hosted=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        listening=int(fd) if fd else None,
        launched=LAUNCHED in environment,
        run=environment.get("TORCHELASTIC_RESTART_COUNT", ""),
    )


def _of_slurm() -> Rank | None:
    """Return the rank of a task of `srun`.

    A batch script itself, which has SLURM_NTASKS too, is not a task.
    """
    environment = os.environ
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) == 1:
        return None
    count = int(environment["SLURM_STEP_NUM_TASKS"])
    alone = int(environment.get("SLURM_STEP_NUM_NODES", "1")) == 1
    address = HERE if alone else environment["MASTER_ADDR"]
    port = environment.get("MASTER_PORT")
    if port is None and not alone:
        raise KeyError("MASTER_PORT")
    job = int(environment["SLURM_JOB_ID"])
    step = int(environment.get("SLURM_STEP_ID", "0"))
    cores = environment.get("SLURM_CPUS_PER_TASK")
    number = int(environment["SLURM_PROCID"])
    local = int(environment["SLURM_LOCALID"])
    local_count = count
    if not alone:
        local_count = _tasks_here(environment["SLURM_STEP_TASKS_PER_NODE"], int(environment["SLURM_NODEID"]))
    return Rank(
        number,
        count,
        local,
        local_count,
        address,
        # On one machine the ids of job and step give a port that no other step there has.
        int(port or 20_000 + (job + 1_000 * step) % 10_000),
        run=f"{job}.{step}.{environment.get('SLURM_RESTART_COUNT', '0')}",
        cores=int(cores) if cores else None,
    )


def _tasks_here(counts: str, node: int) -> int:
    """Return the number of tasks on machine `node`, from 0, of a step with counts like `4(x2),3`."""
    for part in counts.split(","):
        tasks, _, times = part.partition("(x")
        node -= int(times.rstrip(")") or 1)
        if node < 0:
            return int(tasks)
    raise ValueError(f"a machine of number {node} beyond SLURM_STEP_TASKS_PER_NODE={counts}")


def _take_card(rank: Rank) -> None:
    """Leave this process its own card, as if the machine had no other."""
    cards = _named_cards()
    if cards is None:
        os.environ[CARDS] = str(rank.local)
    elif len(cards) > 1:  # The caller chose one card, or none.
        check_cards(rank.local_count)
        os.environ[CARDS] = cards[rank.local]


def _named_cards() -> list[str] | None:
    """Return the cards that the environment names: empty if it hides every GPU, None if it names nothing."""
    if CARDS not in os.environ:
        return None
    return [card for card in os.environ[CARDS].replace(" ", "").split(",") if card not in ("", "-1")]

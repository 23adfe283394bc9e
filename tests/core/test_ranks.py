"""The rank of a process among several, by the environment of torchrun, srun and our own launcher."""

import os
from typing import Any

import pytest

from pipeline.core.errors import ConfigError
from pipeline.core.ranks import Rank, take_rank, wanted_processes

CARDS, LAUNCHED, STORE_FD = "CUDA_VISIBLE_DEVICES", "QUENCH_LAUNCHED", "QUENCH_STORE_FD"
# Accelerate and transformers take a process with one of these for one of several
FOREIGN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")

TORCHRUN = {
    "GROUP_RANK": "1",
    "ROLE_RANK": "3",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SRUN = {
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "0",
    "SLURM_NODEID": "1",
}
HOME = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the environment say just this."""
    for name in [*FOREIGN, *os.environ]:
        if name in FOREIGN or name.startswith(("SLURM_", "MASTER_", "TORCHELASTIC_", "GLOO_")):
            monkeypatch.delenv(name, raising=False)
    for name in (CARDS, "GLOO_SOCKET_IFNAME", "TORCH_CPP_LOG_LEVEL"):  # so that what is changed is put back
        monkeypatch.setenv(name, "0")

    def tell(**environment: str) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return tell


def test_a_process_alone_is_no_rank(told: Any) -> None:
    assert take_rank() is None
    # a batch script knows the tasks of its job, and is none of them; a step of one task works alone
    told(SLURM_NTASKS="4", SLURM_PROCID="0", SLURM_JOB_ID="1")
    assert take_rank() is None
    told(**SRUN | {"SLURM_STEP_NUM_TASKS": "1"})
    assert take_rank() is None
    told(**TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"})
    assert take_rank() is None


def test_ranks_of_torchrun_and_srun(told: Any) -> None:
    told(**TORCHRUN)
    assert take_rank() == Rank(3, 4, 1, 2, "node1", 29500, hosted=True)
    assert not {*FOREIGN} & {*os.environ}
    told(**SRUN, **HOME, TORCHELASTIC_USE_AGENT_STORE="")
    assert take_rank() == Rank(3, 4, 1, 2, "node1", 29500, run="123456.0.0")


def test_a_rank_of_our_own_launcher(told: Any) -> None:
    told(**TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": ""}, **{LAUNCHED: "1", STORE_FD: "5"})
    assert take_rank() == Rank(3, 4, 1, 2, "node1", 29500, listening=5, launched=True)
    assert not {LAUNCHED, STORE_FD} & {*os.environ}


def test_srun_on_one_machine_needs_no_address(told: Any) -> None:
    told(**SRUN | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "4", "MASTER_ADDR": "node1"})
    rank, loopback = take_rank(), "127.0.0.1"  # whatever address is named
    assert rank == Rank(3, 4, 1, 4, loopback, 23456, run="123456.0.0")
    assert not rank.leads


def test_steps_of_one_job_do_not_meet(told: Any) -> None:
    found = set()
    for step, restart in (("0", "0"), ("1", "0"), ("0", "1")):
        one = {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_ID": step, "SLURM_RESTART_COUNT": restart}
        told(**SRUN | one)
        rank = take_rank()
        assert rank is not None
        found.add(rank.run)
        assert rank.port == 23456 + 1000 * int(step)
    assert len(found) == 3


@pytest.mark.parametrize(("node", "tasks"), [("0", 3), ("1", 3), ("2", 2), ("3", 1)])
def test_machines_of_a_step_may_have_unequal_numbers_of_tasks(node: str, tasks: int, told: Any) -> None:
    told(
        **SRUN | {"SLURM_STEP_TASKS_PER_NODE": "3(x2),2,1", "SLURM_NODEID": node, "SLURM_LOCALID": "0"},
        **HOME,
    )
    rank = take_rank()
    assert rank is not None
    assert rank.local_count == tasks


def test_cores_that_srun_has_given_one_process_are_not_shared(told: Any) -> None:
    told(**SRUN, **HOME)
    rank = take_rank()
    told(SLURM_CPUS_PER_TASK="8")
    own = take_rank()
    assert rank is not None
    assert own is not None
    assert (rank.cores, own.cores) == (None, 8)


@pytest.mark.parametrize(
    "environment",
    [
        TORCHRUN | {"MASTER_PORT": "here"},
        {key: value for key, value in TORCHRUN.items() if key != "LOCAL_RANK"},
        SRUN,
        SRUN | {"MASTER_ADDR": "node1"},
        SRUN | HOME | {"SLURM_NODEID": "2"},
        TORCHRUN | {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4", CARDS: "0,1"},  # a process more than cards
    ],
)
def test_half_a_rank_is_refused(environment: dict[str, str], told: Any) -> None:
    told(**environment)
    with pytest.raises(ConfigError, match="Q-TRAIN-036"):
        take_rank()


@pytest.mark.parametrize(
    ("given", "card"), [(None, "1"), ("4,7", "7"), ("GPU-5", "GPU-5"), ("", ""), ("-1", "-1")]
)
def test_each_process_has_a_card_of_its_own_or_none_if_none_is_wanted(
    given: str | None, card: str, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(**TORCHRUN, **({} if given is None else {CARDS: given}))
    if given is None:
        monkeypatch.delenv(CARDS)
    take_rank()
    assert os.environ[CARDS] == card


def test_how_many_processes_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUENCH_PROCESSES", "3")
    assert [wanted_processes("train", given) for given in (None, "2")] == [3, 2]
    assert wanted_processes("merge", None) == 1
    monkeypatch.setenv("QUENCH_PROCESSES", "two")
    for stage, given, named in (
        ("train", None, "QUENCH_PROCESSES"),
        ("train", "two", "--processes"),
        ("train", "0", ""),
        ("train", "-1", ""),
        ("merge", "2", ""),
    ):
        with pytest.raises(ConfigError, match=f"Q-TRAIN-036: .*{named}"):
            wanted_processes(stage, given)

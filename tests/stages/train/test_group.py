"""Processes of one training: how they meet and part, each a thread with its own connection to the store."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from pipeline.core.errors import DataError, QuenchError
from pipeline.core.ranks import Rank
from pipeline.stages.train.distributed import group as module
from pipeline.stages.train.distributed.group import open_group

HERE = "127.0.0.1"


def parting(rank: Rank, body: Callable[[Any], Any]) -> tuple[Any, float]:
    """Run `body` in the group; return its result, or its error's id, and when the group was left."""
    found: Any = None
    try:
        with open_group(rank) as group:
            found = body(group)
    except QuenchError as error:
        found = error.id
    return found, time.monotonic()


@pytest.fixture
def two() -> Iterator[Callable[..., tuple[Future[Any], Future[Any]]]]:
    """Run a body in rank 0 and another in rank 1."""
    with socket.socket() as store, ThreadPoolExecutor(2) as pool:
        store.bind((HERE, 0))
        store.listen()
        port, fd = store.getsockname()[1], store.detach()
        ranks = (Rank(0, 2, 0, 2, HERE, port, listening=fd), Rank(1, 2, 1, 2, HERE, port))
        yield lambda *bodies: tuple(map(pool.submit, (parting, parting), ranks, bodies))


def test_nothing_to_do_is_heard_by_one_that_comes_late(two: Any) -> None:
    def late(group: Any) -> Any:
        time.sleep(0.5)
        return group.follow(dict)

    first, second = (future.result(20) for future in two(lambda group: "done", late))
    assert (first[0], second[0]) == ("done", None)
    assert first[1] > second[1] - module.LOOK_SECONDS  # the store ends with rank 0


def test_a_refusal_of_rank_0_is_nothing_to_do_for_one_that_waits(two: Any, monkeypatch: Any) -> None:
    """However long its last notes take: the reason is said once, by rank 0."""

    class Slow(module.PrefixStore):  # type: ignore[misc, name-defined]
        def set(self, key: str, value: str) -> None:
            super().set(key, value)
            time.sleep(0.3)

    monkeypatch.setattr(module, "PrefixStore", Slow)
    first, second = two(failing, lambda group: group.follow(dict))
    assert (first.result(20)[0], second.result(20)[0]) == ("Q-TEST-001", None)


def test_who_never_comes_is_not_waited_for_long(two: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAVE_SECONDS", 0.2)
    first, _ = two(lambda group: "done", lambda group: time.sleep(1))
    assert first.result(20)[0] == "done"


def test_one_with_other_inputs_is_refused_by_both(two: Any) -> None:
    first, second = two(
        lambda group: group.begin({"alike": {"data": 1, "threads": 1}}),
        lambda group: group.follow(lambda: {"data": 2, "threads": 1}),
    )
    assert [future.result(20)[0] for future in (first, second)] == ["Q-TRAIN-038"] * 2


def failing(group: Any) -> None:
    raise DataError("Q-TEST-001", "a file is missing here")


@pytest.mark.parametrize(
    "bodies",
    [
        (lambda group: group.begin({"alike": {}}), failing),
        (lambda group: group.wait_for_all("loaded"), failing),
        (failing, lambda group: group.connect()),
    ],
    ids=["rank 0 has begun", "rank 0 has loaded", "rank 0 fails"],
)
def test_who_fails_is_not_waited_for(bodies: Any, two: Any) -> None:
    """Not every launcher ends the others, and they hold their cards."""
    assert {future.result(20)[0] for future in two(*bodies)} == {"Q-TEST-001", "Q-TRAIN-037"}


@pytest.mark.parametrize("count", [2, 4], ids=["one machine", "two machines"])
def test_the_store_listens_where_it_was_named_and_nowhere_else(count: int, monkeypatch: Any) -> None:
    """As `srun` starts it; of two machines, rank 0 is named by an address that others could reach."""
    monkeypatch.setattr(module, "LEAVE_SECONDS", 0.0)
    before = listening()
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        port = probe.getsockname()[1]
    named = HERE if count == 2 else next(iter({*addresses()} - {HERE}), None)
    if named is None:
        pytest.skip("needs an address beside the loopback")
    with open_group(Rank(0, count, 0, 2, named, port)):
        assert listening() - before == {(named, port)}


def listening() -> set[tuple[str, int]]:
    connections = psutil.Process().net_connections("tcp")
    return {tuple(each.laddr) for each in connections if each.status == psutil.CONN_LISTEN}


def addresses() -> Iterator[str]:
    for interface in psutil.net_if_addrs().values():
        yield from (each.address for each in interface if each.family == socket.AF_INET)

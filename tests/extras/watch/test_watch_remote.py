"""`quench watch HOST:DIR` over an `ssh` that runs the command here in another home; and over a real one."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from make import quench, script, until
from ssh_host import ssh_host
from training_logs import eval_row, step_row
from watched_runs import ODD, append, at_work, demo_run, sampled, write_run

from pipeline.extras.ssh import ConnectionLost, Ssh
from pipeline.extras.watch import files
from pipeline.extras.watch.source import RemoteRun
from pipeline.extras.watch.watched import Watched
from pipeline.stages.train.requests import CHECKPOINT


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a host that `ssh` reaches; `ssh` fails while the file `cut` is in it."""
    home = tmp_path / "home"
    home.mkdir()
    words = 'while [ "$1" != -- ]; do shift; done'
    script(tmp_path / "bin/ssh", f'{words}; cd {home}; [ -e cut ] && exit 255; HOME={home} exec sh -c "$3"')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return home


def test_a_finished_run_of_another_machine_is_told(host: Path) -> None:
    write_run(host / ODD, sampled(demo_run()), finished=True)
    shown = quench("watch", f"card:{ODD}")
    assert shown.exit_code == 0, shown.output
    assert f"card:{ODD}: finished · step 50" in shown.stdout
    assert "answer 1: 4 <b>of course</b>" in shown.stdout and "\x1b" not in shown.stdout


@pytest.mark.parametrize(
    ("place", "id"),
    [("card:nothing", "Q-WATCH-002"), ("-oProxyCommand=x:y", "Q-REMOTE-001")],
    ids=["none", "odd"],
)
def test_what_is_no_run_there_is_one_sentence(host: Path, place: str, id: str) -> None:
    shown = quench("watch", "--", place)
    assert shown.exit_code in (2, 3) and id in shown.output and not shown.stdout


def test_a_host_that_is_not_reached_is_one_sentence(host: Path) -> None:
    (host / "cut").touch()
    shown = quench("watch", "card:x")
    assert shown.exit_code == 4 and "Q-REMOTE-003" in shown.output


def test_it_goes_on_after_a_cut_and_passes_requests_on(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_run(host / ODD, demo_run()[:5])
    # a Python that has nothing but the standard library
    bare = script(host / "python", f'exec {sys.executable} -I -S "$@"')
    source = RemoteRun(Ssh("card", str(bare), None), f"~/{ODD}")
    watched = Watched(source)

    def knows(step: int) -> Any:
        watched.read_all()
        with watched.history() as history:
            return history.step == step

    try:
        with at_work(root):
            until(lambda: knows(5), 60)
            append(root, step_row(6, 0.5), eval_row(6, 0.25))
            until(lambda: knows(6), 60)
            assert "a checkpoint is written" in watched.ask(CHECKPOINT)
            assert (root / "models/checkpoints" / CHECKPOINT).exists()
            (host / "cut").touch()
            assert "no connection" in watched.ask(CHECKPOINT)
    finally:
        source.close()


def test_a_connection_that_is_lost_before_all_has_come_is_said(
    host: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(host / ODD, demo_run()[:5])
    call = RemoteRun._call
    calls: list[str] = []

    def cut_once(run: RemoteRun, name: str, **given: Any) -> Any:
        calls.append(name)
        if calls.count("follow") == 1 and name == "follow":
            raise ConnectionLost("gone")
        return call(run, name, **given)

    monkeypatch.setattr(RemoteRun, "_call", cut_once)
    monkeypatch.setattr(files, "LOOK_SECONDS", 0.01)
    source = RemoteRun(Ssh("card", "python3", None), ODD)
    try:
        assert calls == ["look", "follow", "follow"]
        assert capsys.readouterr().err == "watch: no connection to card (gone); trying again\n"
        assert source.news()
    finally:
        source.close()


@pytest.mark.slow
def test_over_a_real_connection(tmp_path: Path) -> None:
    with ssh_host(tmp_path / "card") as card:
        root = write_run(card.folder / "home" / ODD, sampled(demo_run()), finished=True)
        shown = quench("watch", f"card:{ODD}", "-F", card.config)
        assert shown.exit_code == 0 and "finished · step 50" in shown.stdout, shown.output
        assert sorted(path.name for path in root.iterdir()) == ["data", "logs", "models"]

"""`quench remote train` against a real SSH server: the same bytes as here, whatever is cut or killed."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from make import change_params, ended, ran, script, until
from make import quench as invoke
from ssh_host import Card, ssh_host

from pipeline.core.errors import ConfigError, ToolError
from pipeline.core.hashing import file_hash, tree_hash
from pipeline.core.places import PROJECT
from pipeline.extras.remote.mirror import Mirror
from pipeline.extras.remote.payload import Upload, send
from pipeline.extras.remote.ssh import SshConnection
from pipeline.stages.train.checkpoints import defect, publish_checkpoint

PYTHON = sys.executable
STEPS, SAVED = 12, 4
SECRET = "of-this-session-alone"  # noqa: S105 (a mark to be looked for)


@pytest.fixture(scope="module", autouse=True)
def _one_core() -> Iterator[None]:
    """One thread each, for all that is started here: two that wait for each other are slower at this size."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Card]:
    with ssh_host(tmp_path_factory.mktemp("card")) as host:
        yield host
        for path in host.store.glob("runs/*/pid"):  # of a test that failed
            with suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)


@pytest.fixture
def project(prepared: Path, tmp_path: Path) -> Iterator[Path]:
    """A tiny project with its inputs of train, and a training of three checkpoints."""
    yield with_steps(Path(shutil.copytree(prepared, tmp_path / "project")))
    while STARTED:
        STARTED.pop().kill()


def with_steps(root: Path) -> Path:
    return change_params(root, train={"max_steps": STEPS, "save_steps": SAVED})


@pytest.fixture(scope="module")
def local(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same project, trained here."""
    root = with_steps(Path(shutil.copytree(prepared, tmp_path_factory.mktemp("local") / "project")))
    subprocess.run([PYTHON, "-m", "pipeline", "train", "--root", root], check=True, cwd=PROJECT)
    return root


PAGE = (PROJECT / "docs/remote.md").read_text(encoding="utf-8")
# {number of the line: words} of the page's commands, in its order: train, train --keep, status, stop, clean
SHOWN = [
    shlex.split(line, comments=True)[1:] for line in re.findall(r"^quench remote .*$", PAGE, re.MULTILINE)
]
STARTED: list[subprocess.Popen] = []
TRAIN, KEEP, STATUS, STOP, CLEAN = range(5)


def command(card: Card, number: int, *more: str, root: Path | None = None) -> list[str]:
    """A command of docs/remote.md, for this host, with this Python."""
    named = {"my-card": "card", "venv/bin/python": PYTHON}
    words = [named.get(word, word) for word in SHOWN[number]]
    where = ["--root", str(root)] if root else []
    python = [] if PYTHON in words else ["--python", PYTHON]
    return [PYTHON, "-m", "pipeline.cli", *words, *more, "-F", str(card.config), *python, *where]


def environment(code: Path = PROJECT) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(code), "QUENCH_TEST_SECRET": SECRET}


def quench(
    card: Card, number: int, *more: str, root: Path | None = None, code: Path = PROJECT
) -> subprocess.CompletedProcess:
    return ended(command(card, number, *more, root=root), env=environment(code), cwd=code, timeout=600)


def started(card: Card, number: int, root: Path) -> subprocess.Popen:
    """The same in the background; it prints into home.log."""
    with (root / "home.log").open("a") as log:
        words = command(card, number, root=root)
        home = subprocess.Popen(words, cwd=PROJECT, env=environment(), stdout=log, stderr=log)
    STARTED.append(home)
    return home


def recorded(project: Path) -> Path:
    """The project as a clone of this one in which Git and DVC know everything until train."""
    for name in ("pipeline", "graphs", "profiles"):
        shutil.copytree(PROJECT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Snakefile", "dvc.yaml", ".dvcignore", ".gitignore"):
        shutil.copyfile(PROJECT / name, project / name)
    for name in (".dvc", "data/guard", "data/evaluation", "data/augmented"):
        (project / name).mkdir()
    shutil.copyfile(PROJECT / ".dvc/config", project / ".dvc/config")
    for words in (
        ("git", "init", "--quiet"),
        (PYTHON, "-m", "pipeline", "code"),
        (PYTHON, "-m", "pipeline", "settings"),
        (PYTHON, "-m", "dvc", "add", "--quiet", "data/raw"),
        (PYTHON, "-m", "dvc", "commit", "--quiet", "--force", "code", "settings"),
        (PYTHON, "-m", "dvc", "commit", "--quiet", "--force", "base", "curate", "preprocess"),
        ("git", "add", "--all"),
        ("git", "commit", "--quiet", "--message", "start"),
    ):
        subprocess.run(words, cwd=project, check=True, env=os.environ | {"PYTHONPATH": str(project)})
    return project


@pytest.mark.slow
def test_five_cuts_later_the_adapter_is_the_one_of_here_and_is_recorded(
    card: Card, project: Path, local: Path
) -> None:
    recorded(project)
    card.plan(
        ("- look$", "out", 0),  # the answer is lost
        ("^rsync --server", "in", 1_000_000),  # in the middle of the base's weights
        ("- start$", "out", 0),  # it has begun, and nobody here knows
        ("- follow$", "out", 2_000),  # in the middle of a line
        ("^rsync --server --sender", "out", 100_000),  # in the middle of a checkpoint
    )
    done = quench(card, TRAIN, root=project, code=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert card.planned() == []
    assert tree_hash(project / "models/adapter") == tree_hash(local / "models/adapter")
    assert [path.name for path in sorted((project / "models/checkpoints").glob("checkpoint-*"))] == [
        path.name for path in sorted((local / "models/checkpoints").glob("checkpoint-*"))
    ]
    assert not any(map(defect, (project / "models/checkpoints").glob("checkpoint-*")))
    for name in ("reports/train.csv", "reports/train.jsonl", "models/checkpoints/steps.jsonl"):
        assert without_times(project / name) == without_times(local / name)
    assert len([call for call in card.calls if call.endswith("- start")]) == 1
    assert nothing_left(card)
    planned = ran([PYTHON, "-m", "snakemake", "-n", "train"], cwd=project)
    assert "Nothing to be done" in planned.stdout + planned.stderr
    calls = len(card.calls)
    assert quench(card, TRAIN, root=project, code=project).returncode == 0
    assert len(card.calls) == calls


def without_times(path: Path) -> list:
    lines = path.read_text().splitlines()
    if path.suffix == ".csv":
        return lines[:1]
    measured = ("seconds", "tokens_per_second", "memory_bytes")
    return [{key: value for key, value in json.loads(line).items() if key not in measured} for line in lines]


@pytest.mark.slow
def test_a_transfer_that_is_cut_goes_on_where_it_was(card: Card, tmp_path: Path) -> None:
    """Both ways; what came home is a whole checkpoint."""
    run, connection, home = "0123456789abcdef", SshConnection("card", PYTHON, card.config), tmp_path / "home"
    big, payload = tmp_path / "big", Upload()
    big.write_bytes(os.urandom(1_000_000))
    payload.add("project/big", big)
    card.plan(("^rsync --server", "in", 300_000), ("^rsync --server --sender", "out", 300_000))
    send(connection, tmp_path, [payload])
    assert (card.store / "objects" / file_hash(big)).read_bytes() == big.read_bytes()
    there = card.store / "runs" / run / "project/models/checkpoints/checkpoint-5"
    (tmp_path / "made").mkdir()
    shutil.copyfile(big, tmp_path / "made/weights")
    publish_checkpoint(tmp_path / "made", there, {})
    (card.store / "runs" / run / "out").mkdir()
    (card.store / "runs" / run / "attempt").write_text("first")
    Mirror(connection, home, run).bring(["models/checkpoints"])
    assert tree_hash(home / "models/checkpoints/checkpoint-5") == tree_hash(there)
    assert card.planned() == []
    connection.ask("clean", run=None, keep=False)
    assert nothing_left(card)


def nothing_left(card: Card) -> bool:
    return not [
        path for path in (card.folder / "home").rglob("*") if not path.is_dir() or path.name == "quench"
    ]


def work(card: Card) -> Path:
    """The folder of the only run there."""
    [run] = [path for path in (card.store / "runs").iterdir() if path.is_dir()]
    return run


@pytest.mark.slow
def test_a_killed_host_is_gone_on_from_with_what_is_here(card: Card, project: Path, local: Path) -> None:
    """Train is killed with its watcher, and its folder deleted, between two checkpoints; and whoever waits
    for it at home is killed too, and started again.
    """
    home = started(card, KEEP, project)
    until(lambda: list(card.store.glob("runs/*/pid")))
    run = work(card)
    train = int((run / "pid").read_text())
    until(Path(f"/proc/{train}/environ").read_bytes)  # it is empty while the program starts
    inside = Path(f"/proc/{train}/environ").read_bytes()
    assert SECRET.encode() not in inside
    assert f"PYTHONPATH={run}/code\0".encode() in inside
    assert (card.store.stat().st_mode & 0o777) == 0o700
    until((run / "project/models/checkpoints" / f"checkpoint-{SAVED}" / "complete.json").exists)
    os.kill(train, signal.SIGSTOP)  # nothing more is written
    here = project / "models/checkpoints"
    until(lambda: (here / f"checkpoint-{SAVED}").exists() and (here / "run.json").exists())
    home.kill()
    home.wait()
    home = started(card, KEEP, project)
    until(lambda: "is at work on card" in (project / "home.log").read_text())
    os.killpg(os.getpgid(train), signal.SIGKILL)
    shutil.rmtree(card.store)
    assert home.wait(600) == 0, (project / "home.log").read_text()
    said = (project / "home.log").read_text()
    assert f"checkpoint-{SAVED}" in said.rpartition("resuming from")[2].splitlines()[0]
    assert "train: step 1 of" not in said.rpartition("resuming from")[2]
    assert tree_hash(project / "models/adapter") == tree_hash(local / "models/adapter")
    assert not (card.store / "runs").exists()
    assert list((card.store / "objects").iterdir())  # kept for the next training
    assert quench(card, CLEAN).returncode == 0
    assert nothing_left(card)


def is_pending(process: int, number: int) -> bool:
    """Return True if a signal is pending for a process that is stopped."""
    status = Path(f"/proc/{process}/status").read_text()
    return bool(int(re.findall(r"^ShdPnd:\s*(\w+)", status, re.MULTILINE)[0], 16) >> (number - 1) & 1)


@pytest.mark.slow
def test_who_stops_waiting_can_look_stop_and_clean(card: Card, project: Path) -> None:
    home = started(card, TRAIN, project)
    until(lambda: "train: step 2 of" in (project / "home.log").read_text())
    train = int((work(card) / "pid").read_text())
    os.kill(train, signal.SIGSTOP)
    home.send_signal(signal.SIGINT)
    assert home.wait(30) == 130
    run = work(card).name
    assert re.search(rf"^{run} +running ", quench(card, STATUS).stdout, re.MULTILINE)
    assert f"{run} runs on card, so it stays" in quench(card, CLEAN).stdout
    stopping = subprocess.Popen(command(card, STOP), cwd=PROJECT, env=environment())
    STARTED.append(stopping)
    until(lambda: is_pending(train, signal.SIGTERM))  # before it can end by itself
    os.kill(train, signal.SIGCONT)
    assert stopping.wait(120) == 0
    assert (work(card) / "exit").read_text() == "143"
    assert list(work(card).glob("project/models/checkpoints/checkpoint-*/complete.json"))
    assert quench(card, CLEAN).returncode == 0
    assert nothing_left(card)


@pytest.mark.parametrize(
    ("changed", "id"),
    [
        ({"HostName": "127.0.0.1", "Port": "1"}, "Q-REMOTE-003"),
        ({"IdentityFile": "{folder}/other_key"}, "Q-REMOTE-003"),
        ({"UserKnownHostsFile": "/dev/null"}, "Q-REMOTE-003"),
    ],
    ids=["nobody listens", "a refused key", "an unknown host key"],
)
def test_a_host_that_cant_be_reached_is_one_sentence(
    card: Card, project: Path, changed: dict[str, str], id: str
) -> None:
    config = card.write_config(
        "wrong", **{key: value.format(folder=card.folder) for key, value in changed.items()}
    )
    refused(project, id, "card", config=config)


def refused(
    root: Path, id: str, *words: str, config: Path | None = None, python: str = PYTHON, code: int = 4
) -> str:
    """The sentence of `quench remote train`, in this process."""
    given = ("remote", "train", *words, "--python", python, "--root", root)
    shown = invoke(*given, *(["-F", config] if config else []))
    assert shown.exit_code == code, shown.output
    assert f"quench: {id}: " in shown.stderr and "Traceback" not in shown.stderr
    assert shown.stderr.strip().count("\n") == 0
    return shown.stderr


def test_another_torch_or_a_missing_package_or_python_is_refused(card: Card, project: Path) -> None:
    other = card.folder / "other"
    (other / "torch-1.2.3.dist-info").mkdir(parents=True)
    (other / "torch-1.2.3.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 1.2.3\n"
    )
    fake = script(other / "python", f'PYTHONPATH={other} exec {PYTHON} "$@"')
    sentence = refused(project, "Q-REMOTE-010", "card", config=card.config, python=str(fake))
    assert "torch 1.2.3" in sentence
    script(fake, f'exec {PYTHON} -I -S "$@"')
    sentence = refused(project, "Q-REMOTE-010", "card", config=card.config, python=str(fake))
    assert "1.2.3" not in sentence and "torch" in sentence
    refused(project, "Q-REMOTE-005", "card", config=card.config, python=str(other / "none"))
    assert nothing_left(card)


def test_without_rsync_there_or_here_nothing_is_sent(
    card: Card, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = card.folder / "path"
    before = path.read_text()
    path.write_text("/nowhere")
    try:
        assert "lacks rsync" in refused(project, "Q-REMOTE-010", "card", config=card.config)
    finally:
        path.write_text(before)
    monkeypatch.setenv("PATH", "/nowhere")
    refused(project, "Q-REMOTE-002", "card", config=card.config)


@pytest.mark.parametrize(
    ("name", "python"),
    [
        *((name, "python3") for name in ("-oProxyCommand=true", "a b", "a;b", "user@-x", "")),
        *(("card", python) for python in ("-c", "python3;reboot", "$(reboot)", "a b")),
    ],
)
def test_a_host_or_python_that_a_shell_would_read_otherwise_is_refused(name: str, python: str) -> None:
    with pytest.raises(ConfigError, match="Q-REMOTE-001"):
        SshConnection(name, python, None)


@pytest.mark.parametrize("changed", [{"method": "grpo", "lora_dropout": None}, {"offload": "shared"}])
def test_what_one_process_there_cannot_train_is_refused(project: Path, changed: dict[str, Any]) -> None:
    refused(change_params(project, train=changed), "Q-REMOTE-009", "card", code=2)


def test_without_resume_a_recorded_training_is_done_again(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(connection: object) -> None:
        raise ToolError("Q-REMOTE-003", "it would train")

    train = import_module("pipeline.extras.remote.train")  # its name in the package is the command's
    monkeypatch.setattr(train, "reuse", lambda *_, allowed=False: allowed)
    monkeypatch.setattr(train, "need_host", reached)
    card = SshConnection("card", PYTHON, None)
    train.main(card, project)
    with pytest.raises(ToolError, match="Q-REMOTE-003"):
        train.main(card, project, resume=False)

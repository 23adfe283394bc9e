"""`quench remote`: what it replaces at home and removes on a host, whose own functions are called here."""

import base64
import fcntl
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from killed import on_one_core, train_in_fork
from make import change_params, ended, quench, script

from pipeline.config.params import Params, load_params
from pipeline.config.sections import Train
from pipeline.core.errors import ConfigError, DataError, QuenchError, ToolError
from pipeline.core.hashing import tree_hash
from pipeline.core.jsonl import write_rows
from pipeline.core.progress import JobProgress, progress_of, recorded
from pipeline.core.publish import write_json
from pipeline.core.text import safe
from pipeline.extras.remote import watch
from pipeline.extras.remote.answers import KINDS, Piece
from pipeline.extras.remote.host import files, runs
from pipeline.extras.remote.mirror import Mirror
from pipeline.extras.remote.payload import SCRATCH, Upload, inputs, run_id
from pipeline.extras.remote.ssh import SshConnection
from pipeline.extras.ssh import ConnectionLost, parse
from pipeline.extras.ssh_answers import MARK
from pipeline.stages.preprocess.stage import main as preprocess
from pipeline.stages.train.checkpoints import publish_checkpoint
from pipeline.stages.train.run import RUN as RECORD

train = import_module("pipeline.extras.remote.train")  # its name in the package is the command's
RUN = "0123456789abcdef"
CHECKPOINTS, JOURNAL = "models/checkpoints", "models/checkpoints/steps.jsonl"


class Here:
    """A connection whose other end is this process."""

    name = "card"

    def __init__(self, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self.began: list[tuple[list[str], list[str]]] = []
        places = {"HOME": "", "OBJECTS": "objects", "INCOMING": "incoming", "RUNS": "runs"}
        for module in (files, runs):
            for name, place in places.items():
                monkeypatch.setattr(module, name, store / place, raising=False)
        monkeypatch.setattr(runs, "launch", self.launch)

    def launch(self, folder: Path, words: list[str]) -> None:
        """Train, which fails."""
        self.began.append((words, [path.name for path in (folder / "project" / CHECKPOINTS).glob("check*")]))
        (folder / "exit").write_text("1")

    def ask(self, what: str, **given: Any) -> Any:
        return self.answers(what, given)[0]

    def follow(self, **given: Any) -> Iterator[Any]:
        yield from self.answers("follow", given)

    def answers(self, what: str, given: dict[str, Any]) -> list[Any]:
        with redirect_stdout(StringIO()) as said:
            runs.CALLS[what](**given)
        return [parse(KINDS[what], line.removeprefix(MARK)) for line in said.getvalue().splitlines()]

    def push(self, folder: Path, names: Iterable[str]) -> None:
        for name in names:
            shutil.copyfile(folder / name, self.store / "incoming" / name)

    def pull(self, run: str, folder: Path, names: Iterable[str]) -> None:
        for name in names:
            shutil.copyfile(self.store / "runs" / run / "out" / name, folder / name)


@pytest.fixture
def connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    return Here(tmp_path / "store", monkeypatch)


def trained(root: Path, step: int) -> Path:
    """`root` with a training that has come to `step`."""
    (root / "written").mkdir(parents=True)
    (root / "written/weights").write_text(f"after step {step}")
    publish_checkpoint(root / "written", root / CHECKPOINTS / f"checkpoint-{step}", {})
    (root / JOURNAL).write_text("".join(f"{number}\n" for number in range(step)))
    write_json(root / CHECKPOINTS / RECORD, {"finished": False})
    return root


def left_there(connection: Here, step: int, code: str = "") -> Path:
    """The folder of a run on the host that died at `step`, or ended with `code`."""
    folder = connection.store / "runs" / RUN
    trained(folder / "project", step)
    (folder / "out").mkdir()
    (folder / "attempt").write_text("first")
    (folder / "exit").write_text(code)
    return folder


def watched(connection: Here, root: Path, *, resume: bool = True) -> int:
    return watch.watched(Mirror(connection, root, RUN), Upload(), Params(), resume)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("there", "here", "torn", "code", "goes_on_from"),
    [
        (100, 200, False, "", 200),
        (100, 200, False, "143", 200),
        (200, 100, False, "", 200),  # what is ahead there comes home first
        (100, 200, True, "", 100),  # what is torn here is not ahead
    ],
    ids=["behind-dead", "behind-stopped", "ahead", "torn-here"],
)
def test_a_host_goes_on_from_the_newest_whole_checkpoint(
    connection: Here, tmp_path: Path, there: int, here: int, torn: bool, code: str, goes_on_from: int
) -> None:
    left_there(connection, there, code)
    home = trained(tmp_path / "home", here)
    if torn:
        (home / CHECKPOINTS / f"checkpoint-{here}" / "weights").write_text("torn")
    before = tree_hash(home / CHECKPOINTS)
    assert watched(connection, home) == 1
    assert connection.began == [(["train"], [f"checkpoint-{goes_on_from}"])]
    if goes_on_from == here:
        assert tree_hash(home / CHECKPOINTS) == before
    elif not torn:
        assert [one.name for one in (home / CHECKPOINTS).glob("checkpoint-*")] == [f"checkpoint-{there}"]
        assert len((home / JOURNAL).read_text().splitlines()) == there


def test_a_torn_checkpoint_there_does_not_come_home_and_costs_none(connection: Here, tmp_path: Path) -> None:
    folder, home = left_there(connection, 200), trained(tmp_path / "home", 100)
    (folder / "project" / CHECKPOINTS / "checkpoint-200/weights").write_text("torn")
    assert watched(connection, home) == 1
    assert connection.began == [(["train"], ["checkpoint-100"])]
    assert [path.name for path in (home / CHECKPOINTS).glob("checkpoint-*")] == ["checkpoint-100"]


@pytest.mark.parametrize("resume", [True, False])
def test_a_run_at_work_that_is_not_to_be_followed_is_refused(
    connection: Here, tmp_path: Path, resume: bool
) -> None:
    folder = left_there(connection, 100)
    home = trained(tmp_path / "home", 200 if resume else 50)
    before = tree_hash(home / CHECKPOINTS)
    with (folder / "alive").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="Q-REMOTE-014"):
            watched(connection, home, resume=resume)
    assert tree_hash(home / CHECKPOINTS) == before


@pytest.mark.parametrize("code", ["", "0", "1"], ids=["dead", "done", "failed"])
def test_without_resume_nothing_there_counts(connection: Here, tmp_path: Path, code: str) -> None:
    left_there(connection, 100, code)
    assert watched(connection, trained(tmp_path / "home", 50), resume=False) == 1
    assert connection.began == [(["train", "--no-resume"], [])]
    assert not list((tmp_path / "home" / CHECKPOINTS).glob("checkpoint-*"))


@pytest.mark.parametrize(
    ("there", "sent"),
    [("1\n2\n3\n", (4, b"3\n")), ("1\n9\n3\n", (0, b"1\n9\n3\n")), ("1\n", (0, b"1\n"))],
    ids=["the same and more", "another", "less"],
)
def test_of_a_file_only_what_is_not_here_comes(tmp_path: Path, there: str, sent: tuple[int, bytes]) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("1\n2\n")
    file = files.Copied(path, 4, files.sha256(path))
    assert not any(piece.data for piece in file.read())
    (tmp_path / "aside").write_text(there)  # as a resume does: another file in its place
    (tmp_path / "aside").replace(path)
    assert [(piece.at, piece.data) for piece in file.read()] == [sent]


def test_the_record_has_the_last_step_that_came(connection: Here, tmp_path: Path) -> None:
    rows = [{"kind": "step", "step": step, "seconds": 2.0, "loss": 0.5} for step in (3, 4)]
    lines = "".join(f"{json.dumps(row)}\n" for row in [*rows, {"kind": "eval", "step": 4}])
    (tmp_path / CHECKPOINTS).mkdir(parents=True)
    piece = Piece(file="journal", at=0, data=base64.b64encode(f'{lines}{{"kind": "st'.encode()))
    with recorded(tmp_path, "train"):
        Mirror(connection, tmp_path, RUN)._append(piece)  # type: ignore[arg-type]
        assert progress_of(tmp_path, "train") is None  # Nobody knows of how many.
        Mirror(connection, tmp_path, RUN, 10)._append(piece)  # type: ignore[arg-type]
        expected = JobProgress("step 4 of 10, loss 0.5", 0.4, 12.0, is_part=False)
        assert progress_of(tmp_path, "train") == expected


def test_half_a_folder_there_is_one_sentence(
    connection: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PAUSE_SECONDS", 0)
    (left_there(connection, 100) / "out").rmdir()
    with pytest.raises(ToolError, match=r"Q-REMOTE-015.*`quench remote clean card"):
        watched(connection, tmp_path / "home")


def test_a_run_is_removed_with_what_was_sent_for_it_alone(connection: Here) -> None:
    connection.ask("wanted", files={})
    names = {}
    for content in ("its own", "both", "its state", "state of the start before", "an upload"):
        (connection.store / "objects/new").write_text(content)
        names[content] = files.sha256(connection.store / "objects/new")
        (connection.store / "objects/new").rename(connection.store / "objects" / names[content])
    (connection.store / "incoming/half").touch()
    both = {"project/both": names["both"]}
    own = both | {"project/own": names["its own"]}
    for run, attempt, sent, state in (
        ("other", "1", both, None),
        (RUN, "1", own, "state of the start before"),
        (RUN, "2", own, "its state"),
    ):
        states = {"project/state": names[state]} if state else {}
        assert (
            connection.ask("start", run=run, attempt=attempt, inputs=sent, state=states, words=[]).damaged
            == []
        )
    assert connection.ask("clean", run=RUN, keep=False).running == []
    left = {path.name for path in (connection.store / "objects").iterdir()}
    assert left == {names["both"], names["an upload"]}
    assert (connection.store / "incoming/half").exists() and (
        connection.store / "runs/other/project/both"
    ).exists()
    connection.ask("clean", run=None, keep=False)
    assert not connection.store.exists()


def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int) -> SshConnection:
    """A connection whose `ssh` prints `text` and ends with `code`."""
    (tmp_path / "answer").write_text(text)
    for name in ("ssh", "rsync"):
        script(tmp_path / name, f"cat > {tmp_path}/asked\ncat {tmp_path}/answer\nexit {code}")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return SshConnection("card", "python3", None)


SHA, STATE = "0" * 64, {"state": "ended", "step": 5, "code": 0}
VERSIONS = {"python": "3.11.7", "versions": {}, "rsync": True}
ODD = {  # what is asked, and what comes
    "no JSON": ("runs", '{"files": \x1b[2J'),
    "a number": ("runs", "7"),
    "null": ("runs", "null"),
    "a list": ("runs", "[]"),
    "nothing": ("runs", ""),
    "empty": ("runs", "{}"),
    "deep": ("runs", '{"runs":' * 100_000),
    "a number of 10,000 digits": ("runs", '{"runs": {}, "bytes": ' + "9" * 10_000 + "}"),
    "NaN": ("runs", '{"runs": {}, "bytes": NaN}'),
    "runs that are a list": ("runs", {"runs": [], "bytes": 0}),
    "a run that is a list": ("runs", {"runs": {"a": []}, "bytes": 0}),
    "a run without a state": ("runs", {"runs": {"a": {"line": ""}}, "bytes": 0}),
    "a run without a line": ("runs", {"runs": {"a": STATE}, "bytes": 0}),
    "a long name": ("runs", {"runs": {"a" * 5000: STATE | {"line": ""}}, "bytes": 0}),
    "negative bytes": ("runs", {"runs": {}, "bytes": -1}),
    "bytes as text": ("runs", {"runs": {}, "bytes": "1"}),
    "an error that is none": ("runs", {"error": ["\x1b[2J"]}),
    "an error and more": ("runs", {"error": "no", "runs": {}}),
    "another key": ("look", STATE | {"key": 1}),
    "an unheard-of state": ("look", {"state": "\x1b[2J", "step": 5}),
    "no step": ("look", {"state": "running"}),
    "a step as text": ("look", {"state": "running", "step": "5"}),
    "a step of a half": ("look", {"state": "running", "step": 5.5}),
    "ended without a code": ("look", {"state": "ended", "step": 5}),
    "a code while it runs": ("look", {"state": "running", "step": 5, "code": 0}),
    "a code that is none": ("stop", STATE | {"code": 70_000}),
    "true as a code": ("stop", STATE | {"code": True}),
    "no versions": ("check", {"python": "3.11.7", "rsync": True}),
    "a version that is a number": ("check", VERSIONS | {"versions": {"torch": 2}}),
    "a Python that is none": ("check", VERSIONS | {"python": "\x1b[2J"}),
    "rsync as a number": ("check", VERSIONS | {"rsync": 1}),
    "a hash that is none": ("wanted", {"missing": {"../../x": 0}}),
    "missing as a list": ("wanted", {"missing": [SHA]}),
    "missing a part": ("wanted", {"missing": {SHA: 1.5}}),
    "damaged as text": ("start", {"damaged": SHA}),
    "damaged null": ("start", {"damaged": None}),
    "files as text": ("snapshot", {"files": "x"}),
    "a file without a size": ("snapshot", {"files": {"a": [SHA]}}),
    "a file of a negative size": ("snapshot", {"files": {"a": [SHA, -1]}}),
    "a path upwards": ("snapshot", {"files": {"models/../../x": [SHA, 1]}}),
    "a path from the root": ("snapshot", {"files": {"/etc/passwd": [SHA, 1]}}),
    "a path with a NUL": ("snapshot", {"files": {"models/\0": [SHA, 1]}}),
    "a path that nobody can have": ("snapshot", {"files": {"a" * 300: [SHA, 1]}}),
    "a file that is a folder": ("snapshot", {"files": {"a": [SHA, 1], "a/b/c": [SHA, 1]}}),
    "running as text": ("clean", {"running": "x"}),
    "a piece of an unheard-of file": ("follow", {"piece": {"file": "x", "at": 0, "data": ""}}),
    "a piece without a place": ("follow", {"piece": {"file": "log", "data": ""}}),
    "a piece that is no base64": ("follow", {"piece": {"file": "log", "at": 0, "data": "A"}}),
    "checkpoints as a number": ("follow", {"checkpoints": 3}),
    "half an end": ("follow", {"ended": 0.5}),
}


@pytest.mark.parametrize(("what", "answer"), ODD.values(), ids=ODD)
def test_an_answer_of_an_odd_shape_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, answer: Any
) -> None:
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    with pytest.raises(DataError) as caught:
        answering(tmp_path, monkeypatch, f"{MARK}{text}\n", 0).ask(what)
    assert caught.value.id == "Q-REMOTE-008" and len(caught.value.sentence) < 400
    assert safe(caught.value.sentence) == caught.value.sentence


@pytest.mark.parametrize(
    "flood",
    ["cat /dev/zero", f"printf '{MARK}'; cat /dev/zero", "yes hello"],
    ids=["a line", "an answer", "lines"],
)
def test_a_host_without_an_end_is_a_sentence_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flood: str
) -> None:
    connection = answering(tmp_path, monkeypatch, "", 0)
    for name in ("ssh", "rsync"):
        script(tmp_path / name, f"({flood}) {'>&2' if name == 'rsync' else ''}")
    used, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    for work in (lambda: connection.ask("runs"), lambda: connection.push(tmp_path, ["x"])):
        with pytest.raises(DataError, match="Q-REMOTE-008"):
            work()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 200_000  # KB
    assert time.process_time() - start < 10


class Says:
    """A connection whose other end answers so."""

    name = "card"

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def ask(self, what: str, **_: Any) -> Any:
        return parse(KINDS[what], json.dumps(self.answers[what]))


@pytest.mark.parametrize(
    ("files", "id"),
    [
        ({"data/raw/x": [SHA, 1]}, "Q-REMOTE-008"),
        ({"models/checkpoints": [SHA, 1]}, "Q-REMOTE-008"),
        ({"models/checkpointsX/a": [SHA, 1]}, "Q-REMOTE-008"),
        ({"models/checkpoints/run.json": [SHA, 1 << 50]}, "Q-CORE-004"),
    ],
    ids=["elsewhere", "in the place of all checkpoints", "beside them", "more than a disk has"],
)
def test_files_that_nobody_asked_for_leave_what_is_here(
    tmp_path: Path, files: dict[str, list], id: str
) -> None:
    home = trained(tmp_path / "home", 100)
    before = tree_hash(home / CHECKPOINTS)
    with pytest.raises(QuenchError, match=id):
        Mirror(Says(snapshot={"files": files}), home, RUN).bring([CHECKPOINTS])  # type: ignore[arg-type]
    assert tree_hash(home / CHECKPOINTS) == before


@pytest.mark.parametrize(
    ("answers", "id"),
    [
        ({"wanted": {"missing": {SHA: 0}}}, "Q-REMOTE-008"),
        ({"wanted": {"missing": {}}, "start": {"damaged": [SHA]}}, "Q-REMOTE-006"),
    ],
    ids=["a file that was not offered", "damaged again and again"],
)
def test_a_host_that_is_never_content_is_a_sentence(tmp_path: Path, answers: dict[str, Any], id: str) -> None:
    connection = Says(look={"state": "none", "step": -1}, **answers)
    with pytest.raises(QuenchError, match=id):
        watched(connection, tmp_path)  # type: ignore[arg-type]


def test_half_an_answer_before_the_last_words_of_ssh_is_a_cut_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f'{MARK}{{"run": "0123Connection to card closed by remote host.\n'
    with pytest.raises(ConnectionLost):
        next(answering(tmp_path, monkeypatch, text, 255).follow())


def test_an_error_of_the_host_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = answering(tmp_path, monkeypatch, MARK + '{"error": "\\u001b[2J' + "x" * 5000 + '"}\n', 0)
    with pytest.raises(ToolError, match="Q-REMOTE-005") as caught:
        connection.ask("runs")
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 400


def test_what_a_host_says_steers_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"\x1b[2J": STATE | {"line": "\x1b]0;x\x07\u202e"}}
    text = MARK + json.dumps({"runs": runs, "bytes": 1}) + "\n"
    answering(tmp_path, monkeypatch, text, 0)
    shown = quench("remote", "status", "card")
    assert shown.exit_code == 0 and r"\x1b[2J" in shown.output and r"\u202e" in shown.output
    assert not {"\x1b", "\x07", "\u202e"}.intersection(shown.output)


REWARD = "python:length.py:length"
PROGRAM = {"rewards": {"external": 1.0}, "external": {"command": ["python3", "data/evaluation/x.py"]}}


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"method": "grpo"}, "train.grpo.rollouts"),
        ({"method": "grpo", "grpo": {"rollouts": "in-process"} | PROGRAM}, "train.grpo.rewards"),
        ({"offload": "shared"}, "train.offload is shared"),
        ({"method": "grpo", "grpo": {"rollouts": "in-process", "rewards": {REWARD: 1.0}}}, None),
        ({"method": "dpo"}, None),
    ],
)
def test_only_what_needs_more_than_is_sent_is_refused(given: dict[str, Any], key: str | None) -> None:
    why = train.refusal(Train(**given))
    assert why is None if key is None else key in why


def test_a_run_is_told_by_what_it_depends_on(tmp_path: Path) -> None:
    for name in ("data/tokens/train.parquet", "models/base/config.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("{}")

    def told(**sections: Any) -> str:
        params = Params.model_validate(sections)
        return run_id(inputs(tmp_path, params), params)

    before = told()
    assert told(serve={"port": 9000}) == before
    assert told(train={"report_to": ["tensorboard", "wandb"]}) == before
    # The host needs no tracker and no token: the curves are sent from here.
    sent = yaml.safe_load((tmp_path / SCRATCH / "made/params.yaml").read_text(encoding="utf-8"))
    assert sent["train"]["report_to"] == ["tensorboard"]
    assert told(train={"learning_rate": 1.0e-3}) != before
    (tmp_path / "data/tokens/train.parquet").write_text("other rows")
    assert told() != before


@pytest.mark.slow
def test_what_is_sent_is_enough_for_rollouts_in_process(prepared: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(prepared, tmp_path / "home"))
    grpo = {"rollouts": "in-process", "rewards": {REWARD: 1.0}, "max_new_tokens": 8}
    own = {"method": "grpo", "lora_dropout": None, "max_steps": 2, "sample_rows": 0, "grpo": grpo}
    change_params(root, train=own)
    for split in ("train", "val"):
        prompts = [{"role": "user", "content": f"Question {number}?"} for number in range(12)]
        rows = [{"kind": "prompt", "messages": [turn], "answer": "Yes."} for turn in prompts]
        write_rows(root / f"data/final/{split}.jsonl", rows)
    (root / "data/evaluation").mkdir(exist_ok=True)
    function = "def length(reference, answer, row):\n    return len(answer) % 10 / 10\n"
    (root / "data/evaluation/length.py").write_text(function)
    params = load_params(root / "params.yaml")
    preprocess(params, root)
    sent = inputs(root, params)
    for place, digest in sent.places.items():
        target = tmp_path / "there" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(sent.sources[digest], target)
    there = tmp_path / "there/project"
    train_in_fork(root)
    code = os.environ | {"PYTHONPATH": str(tmp_path / "there/code"), "LLAMA_CPP_HOME": "/nowhere"}
    command = [sys.executable, "-m", "pipeline", "train", "--root", there]
    done = ended(command, cwd=there, env=code, preexec_fn=on_one_core)
    assert done.returncode == 0, done.stdout + done.stderr
    assert tree_hash(there / "models/adapter") == tree_hash(root / "models/adapter")

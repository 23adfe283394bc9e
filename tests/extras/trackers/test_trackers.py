"""pipeline.extras.trackers: a run as MLflow, Trackio and W&B keep it, and a training that none changes."""

import json
import os
import re
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
import yaml
from conftest import run_stages
from make import change_params, until
from needed import need
from training_logs import eval_row, step_row

from pipeline.config.params import Params, load_params
from pipeline.config.trackers import TRACKERS, missing_trackers, need_trackers
from pipeline.core.errors import ConfigError, Stopped, ToolError
from pipeline.core.extras import observed
from pipeline.core.hashing import tree_hash
from pipeline.core.metrics_log import MetricsLog
from pipeline.core.places import PROJECT
from pipeline.core.publish import write_json
from pipeline.extras.trackers import tracking
from pipeline.extras.trackers.follow import Ending, add_table, follow
from pipeline.extras.trackers.request import Outcome, Request, Sent, Table, stamps
from pipeline.extras.trackers.sent_settings import sent_settings, without_places
from pipeline.stages.train.run import run_id

SAMPLES = [{"prompt": "user\n2 + 3?", "reference": "5", "answer": "<b>6</b>"}]
RECORD = {"settings": {"r": 4}, "threads": 1}
LEVELS = "model,gate,bytes,task_score\nF16,pass,100,0.5\nQ4_K_M,,50,0.25\n"


def needs(*names: str) -> pytest.MarkDecorator:
    missing = [name for name in names if missing_trackers([name])]
    return pytest.mark.skipif(bool(missing), reason=need(", ".join(missing)))


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tracker finds an account or writes outside the test's folder."""
    for name in os.environ:
        if name.startswith(("WANDB_", "MLFLOW_", "TRACKIO_", "COMET_", "CLEARML_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_MODE", "offline")


def params_with(*names: str, **train: Any) -> Params:
    values = load_params(PROJECT / "recipes/demo.yaml").model_dump(mode="json")
    values["train"] |= {"report_to": ["tensorboard", *names], **train}
    return Params.model_validate(values)


class FakeRun:
    """The files of a training, as its own process writes them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "models/checkpoints"
        self.log = MetricsLog(self.folder / "steps.jsonl")

    def begin(self, after_step: int = 0, **record: Any) -> None:
        write_json(self.folder / "run.json", {"record": RECORD | record, "finished": False})
        if after_step:
            self.log.truncate(after_step)
        else:
            self.log.close()
            self.log.path.unlink(missing_ok=True)

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.log.append(step_row(step, 2.0 - step / 10))
            if step % 2 == 0:
                self.log.append(eval_row(step, 1.5 - step / 10) | {"samples": SAMPLES})


def follow_to(root: Path, tracker: str, outcome: Outcome | None = "finished") -> None:
    """Follow a run that has ended, in this process, because the tracker's own process starts slowly."""
    ending = Ending(outcome=outcome)
    ending.event.set()
    settings = sent_settings(params_with(tracker))
    follow(Request(tracker, str(root), "demo", settings, [None, None]), ending, sys.stderr)


def finished_run(root: Path, tracker: str) -> None:
    """Four steps, and the report after them."""
    run = FakeRun(root)
    run.begin()
    run.steps(1, 4)
    follow_to(root, tracker)
    (root / "reports/quants.csv").write_text(LEVELS, encoding="utf-8")
    table = tracking.levels(root / "reports/quants.csv")
    assert table
    settings = sent_settings(params_with(tracker))
    add_table(Request(tracker, str(root), "demo", settings, [], run_id(RECORD), table), table, sys.stderr)


# ---- each tracker's own store, read back


class MlflowStore:
    """The contents of the project's own MLflow store."""

    def __init__(self, root: Path) -> None:
        self.file = root / "reports/trackers/mlflow.db"

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.file) as store:
            return store.execute(query).fetchall()

    def points(self, key: str) -> list[tuple[int, float]]:
        return self.rows(f"select step, value from metrics where key = '{key}' order by step")  # noqa: S608

    def table(self, name: str) -> list[list[Any]]:
        (uri,) = self.rows("select artifact_uri from runs")[-1]
        rows: list[list[Any]] = json.loads(Path(uri.removeprefix("file://"), name).read_bytes())["data"]
        return rows


@needs("mlflow")
def test_mlflow_has_settings_steps_evaluations_samples_and_the_reports_table(tmp_path: Path) -> None:
    finished_run(tmp_path, "mlflow")
    store = MlflowStore(tmp_path)
    assert store.points("loss") == [(1, 1.9), (2, 1.8), (3, 1.7), (4, 1.6)]
    assert store.points("gradient_norm") == [(step, 0.8) for step in (1, 2, 3, 4)]
    assert store.points("eval_loss") == [(2, 1.3), (4, 1.1)]
    assert ("train.r", "16") in store.rows("select key, value from params")
    for step in (2, 4):
        assert store.table(f"samples/{step:06}.json") == [[step, 1, *SAMPLES[0].values()]]
    assert store.table("levels/000005.json") == [["F16", "pass", "100", "0.5"], ["Q4_K_M", "", "50", "0.25"]]
    assert store.points("Q4_K_M/task_score") == [(5, 0.25)]
    assert store.rows("select status from runs") == [("FINISHED",)]
    tags = str(store.rows("select key, value from tags"))
    assert str(PROJECT) not in tags and str(tmp_path) not in tags and os.environ["HOME"] not in tags


@needs("trackio")
def test_trackio_has_them_too(tmp_path: Path) -> None:
    finished_run(tmp_path, "trackio")
    (file,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(file) as store:
        points = [json.loads(row) for (row,) in store.execute("select metrics from metrics order by id")]
        (settings,) = [json.loads(row) for (row,) in store.execute("select config from configs")]
        assert len(store.execute("select distinct run_name from metrics").fetchall()) == 1
    assert [point["loss"] for point in points if "loss" in point] == [1.9, 1.8, 1.7, 1.6]
    assert [point["eval_loss"] for point in points if "eval_loss" in point] == [1.3, 1.1]
    samples = [point["samples"]["_value"] for point in points if "samples" in point]
    assert [rows[0]["answer"] for rows in samples] == ["<b>6</b>"] * 2
    (levels,) = [point["levels"]["_value"] for point in points if "levels" in point]
    assert [row["model"] for row in levels] == ["F16", "Q4_K_M"]
    assert points[-1]["Q4_K_M/task_score"] == 0.25
    assert settings["train.r"] == 16


def leveldb_records(content: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format (blocks of 32 KiB) after W&B's header of 7 bytes."""
    place, record = 7, b""
    while place + 7 <= len(content):
        if (1 << 15) - place % (1 << 15) < 7:  # No record begins in the last bytes of a block.
            place += (1 << 15) - place % (1 << 15)
            continue
        _, size, kind = struct.unpack_from("<IHB", content, place)
        record += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def wandb_records(root: Path) -> list[Any]:
    """Every record in the files that W&B writes offline, oldest file first."""
    from wandb.proto import wandb_internal_pb2

    records = []
    # A link beside the folders leads to the newest one.
    for file in sorted((root / "reports/trackers/wandb").glob("offline-run-*/*.wandb")):
        for content in leveldb_records(file.read_bytes()):
            records.append(wandb_internal_pb2.Record())
            records[-1].ParseFromString(content)
    return records


def wandb_history(root: Path) -> list[dict[str, Any]]:
    rows = []
    for record in wandb_records(root):
        if record.HasField("history"):
            items = record.history.item
            rows.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            )
    return rows


@needs("wandb")
def test_wandb_has_them_too_in_its_offline_mode(tmp_path: Path) -> None:
    finished_run(tmp_path, "wandb")
    history = wandb_history(tmp_path)
    assert [row["loss"] for row in history if "loss" in row] == [1.9, 1.8, 1.7, 1.6]
    assert [row["eval_loss"] for row in history if "eval_loss" in row] == [1.3, 1.1]
    assert [row["_step"] for row in history if "loss" in row] == [1, 2, 3, 4]
    runs = [record.run for record in wandb_records(tmp_path) if record.HasField("run")]
    assert len({run.run_id for run in runs}) == 1
    assert not any(run.host or run.git.remote_url for run in runs)
    settings = {item.key: item.value_json for record in runs for item in record.config.update} | {
        item.key: item.value_json
        for record in wandb_records(tmp_path)
        if record.HasField("config")
        for item in record.config.update
    }
    assert settings["train.r"] == "16"
    tables = {
        file.name.partition("_")[0]: json.loads(file.read_bytes())
        for file in (tmp_path / "reports/trackers/wandb").rglob("*.table.json")
    }
    assert tables["samples"]["data"][0][-1] == "<b>6</b>"
    assert tables["levels"]["data"][1] == ["Q4_K_M", "", "50", "0.25"]


@needs("dvclive")
def test_dvclive_writes_files_and_no_experiment(tmp_path: Path) -> None:
    finished_run(tmp_path, "dvclive")
    (folder,) = (tmp_path / "reports/trackers/dvclive").iterdir()
    lines = (folder / "plots/metrics/loss.tsv").read_text().splitlines()
    assert [line.split("\t") for line in lines] == [
        ["step", "loss"],
        ["1", "1.9"],
        ["2", "1.8"],
        ["3", "1.7"],
        ["4", "1.6"],
    ]
    assert (folder / "tables/levels-5.csv").read_text().splitlines()[1] == "F16,pass,100,0.5"
    assert yaml.safe_load((folder / "params.yaml").read_text())["train.r"] == 16
    assert not (tmp_path / "dvc.yaml").exists()


@needs("comet_ml")
def test_comet_writes_a_file_to_upload_if_it_may_not_go_online(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMET_START_ONLINE", "0")
    finished_run(tmp_path, "comet_ml")
    files = sorted((tmp_path / "reports/trackers/comet").glob("*.zip"))
    assert len(files) == 2  # the training, and the report that continues it
    assert len({file.name.partition("-")[0] for file in files}) == 1


# ---- resuming


@needs("mlflow")
def test_a_resumed_run_goes_on_as_the_same_run_and_repeats_no_step(tmp_path: Path) -> None:
    run = FakeRun(tmp_path)
    run.begin()
    run.steps(1, 3)
    follow_to(tmp_path, "mlflow", "stopped")
    store = MlflowStore(tmp_path)
    assert store.rows("select status from runs") == [("KILLED",)]
    run.begin(after_step=2, threads=2)
    run.steps(3, 4)
    follow_to(tmp_path, "mlflow")
    assert store.points("loss") == [(1, 1.9), (2, 1.8), (3, 1.7), (4, 1.6)]
    assert store.points("eval_loss") == [(2, 1.3), (4, 1.1)]
    assert store.rows("select status from runs") == [("FINISHED",)]
    run.begin(settings={"r": 8})
    run.steps(1, 2)
    follow_to(tmp_path, "mlflow")
    assert store.rows("select status from runs") == [("FINISHED",), ("FINISHED",)]


class Collected:
    """A tracker that keeps in memory what it gets."""

    name = "collected"
    where = "memory"
    runs: ClassVar[list["Collected"]] = []

    def __init__(self, place: Any) -> None:
        self.id = place.id
        self.resumed = place.resumed
        self.steps: list[int] = []
        self.outcome: Outcome | None = None
        self.runs.append(self)

    def log(self, values: dict[str, float], step: int) -> None:
        self.steps.append(step)

    def close(self, outcome: Outcome | None) -> None:
        self.outcome = outcome


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[Collected]:
    from pipeline.extras.trackers.kinds import KINDS

    monkeypatch.setitem(KINDS, "collected", Collected)
    monkeypatch.setattr(Collected, "runs", [])
    return Collected.runs


def followed(root: Path, act: Callable[[FakeRun], None]) -> None:
    """Follow a run, of which `act` writes the files, until it has returned."""
    ending = Ending()
    request = Request("collected", str(root), "demo", {}, stamps(root))
    thread = threading.Thread(target=follow, args=(request, ending, sys.stderr))
    thread.start()
    try:
        act(FakeRun(root))
    finally:
        ending.event.set()
        thread.join()


def test_what_an_earlier_run_left_is_not_sent_before_this_one_begins(
    tmp_path: Path, collected: list[Collected]
) -> None:
    earlier = FakeRun(tmp_path)
    earlier.begin(settings={"r": 99})
    earlier.steps(1, 2)
    earlier.log.close()
    followed(tmp_path, lambda run: time.sleep(2))
    assert collected == []


def test_each_run_that_takes_the_folder_is_a_run_and_a_damaged_line_is_left_out(
    tmp_path: Path, collected: list[Collected]
) -> None:
    def act(run: FakeRun) -> None:
        run.begin()
        run.steps(1, 1)
        until(lambda: collected and collected[0].steps)
        run.steps(3, 3)
        run.log.close()
        with run.log.path.open("ab") as log:
            log.write(b"{half\n")
        run.steps(5, 5)
        until(lambda: 5 in collected[0].steps)
        run.begin(settings={"r": 8})
        until(lambda: len(collected) == 2)
        run.steps(1, 1)

    followed(tmp_path, act)
    assert [run.steps for run in collected] == [[1, 3, 5], [1]]
    assert not any(run.resumed for run in collected)


# ---- the processes


def followers_of(parent: int) -> list[int]:
    """The trackers' processes that `parent` has started and that have not ended."""
    return [
        child.pid
        for child in psutil.Process(parent).children()
        if child.status() != psutil.STATUS_ZOMBIE and "pipeline.extras.trackers.follow" in child.cmdline()
    ]


@pytest.mark.parametrize(("number", "what"), [(signal.SIGKILL, "status -9"), (signal.SIGSTOP, "in time")])
def test_a_trackers_process_that_is_killed_or_hangs_is_a_line_and_gone(
    number: int,
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(tracking.PATIENCE, "finished", 1)
    with tracking.following(params_with("trackio"), tmp_path):
        until(lambda: bool(followers_of(os.getpid())), 10)  # It has its name once it is the command.
        (process,) = followers_of(os.getpid())
        os.kill(process, number)
    said = capfd.readouterr().err
    assert said.count("warning: trackio") == 1
    assert what in said
    assert not psutil.pid_exists(process)


def test_a_process_that_can_not_be_started_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with tracking.following(params_with("mlflow"), tmp_path):
        pass
    assert capfd.readouterr().err.count("warning: mlflow") == 1


class Noted:
    """A tracker's process that notes what it is told."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.words: list[bytes] = []

    def close(self, line: bytes = b"") -> None:
        self.words.append(line)

    def wait(self, seconds: float) -> None:
        self.words.append(b"waited for")


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[Noted]:
    """The processes that are started."""
    processes: list[Noted] = []

    def start(request: Request) -> Noted:
        processes.append(Noted(request))
        return processes[-1]

    monkeypatch.setattr(tracking, "started", start)
    return processes


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (None, b"finished"),
        (Stopped(15), b"stopped"),
        (KeyboardInterrupt(), b"stopped"),
        (OSError(), b"failed"),
    ],
    ids=["end", "signal", "key", "error"],
)
def test_a_tracker_is_told_how_the_training_ended(
    error: BaseException | None, word: bytes, tmp_path: Path, noted: list[Noted]
) -> None:
    def train() -> None:
        if error:
            raise error

    raised = nullcontext() if error is None else pytest.raises(type(error))
    with raised, observed("train", params_with("mlflow", "wandb"), tmp_path):
        train()
    assert [process.request.tracker for process in noted] == ["mlflow", "wandb"]
    assert [process.words for process in noted] == [[word, b"waited for"]] * 2


def test_without_trackers_nothing_is_started(tmp_path: Path, noted: list[Noted]) -> None:
    for stage in ("train", "report"):
        with observed(stage, params_with(), tmp_path):
            pass
    with observed("merge", params_with("mlflow"), tmp_path):
        pass
    assert noted == []


def test_the_reports_table_goes_to_the_trackers_that_have_the_adapters_run(
    tmp_path: Path, noted: list[Noted]
) -> None:
    write_json(tmp_path / "models/adapter/run.json", RECORD)
    Sent(run_id(RECORD), "1").write(tmp_path, "mlflow")
    Sent("an earlier run", "2").write(tmp_path, "wandb")
    with observed("report", params_with("mlflow", "wandb", "dvclive"), tmp_path):
        (tmp_path / "reports/quants.csv").write_text(LEVELS, encoding="utf-8")
    (process,) = noted
    assert process.request.tracker == "mlflow" and process.words == [b"", b"waited for"]
    assert process.request.table and len(process.request.table.rows) == 2


RAISING = """
class Live:
    def __init__(self, **options):
        pass

    def log_params(self, params):
        raise RuntimeError("https://anna:geheim@board.example says \\x1b[2J no")
"""


@pytest.fixture
def raising(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tracker whose library raises an error at its first call, here and in the tracker's process."""
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "dvclive.py").write_text(RAISING, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    return "dvclive"


def test_a_tracker_that_raises_is_one_line_and_its_log_has_the_rest(
    tmp_path: Path, raising: str, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "project"
    with tracking.following(params_with(raising), root):
        run = FakeRun(root)
        run.begin()
        run.steps(1, 3)
    said = capfd.readouterr().err
    assert len(said.splitlines()) == 1
    assert "warning: dvclive failed (RuntimeError: https://board.example says" in said
    assert "geheim" not in said and "\x1b" not in said
    log = (root / "logs/trackers/dvclive.log").read_text()
    assert "Traceback" in log and "RuntimeError" in log and "geheim" not in log
    assert Sent.read(root, raising) is None


@pytest.mark.slow
@needs("mlflow", "wandb")
def test_a_training_has_the_same_bytes_with_trackers(
    prepared: Path, tmp_path: Path, raising: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The stage's command: without trackers, and with two, and one that raises an error."""
    alone, tracked = tmp_path / "alone", tmp_path / "tracked"
    for root in (alone, tracked):
        shutil.copytree(prepared, root, symlinks=True)
    few = {"max_steps": 3, "eval_steps": 2}
    run_stages(change_params(alone, train=few | {"report_to": ["tensorboard"]}), ("train",))
    assert "warning" not in capfd.readouterr().err
    assert (alone / "reports/tensorboard").is_dir() and not (alone / "reports/trackers").exists()
    run_stages(change_params(tracked, train=few | {"report_to": ["mlflow", "wandb", raising]}), ("train",))
    said = capfd.readouterr().err
    assert re.findall("warning: .* failed", said) == ["warning: dvclive failed"], said
    assert tree_hash(alone / "models/adapter") == tree_hash(tracked / "models/adapter")
    assert not (tracked / "reports/tensorboard").exists()
    losses = [
        (row["step"], row["loss"])
        for row in MetricsLog(tracked / "models/checkpoints/steps.jsonl").rows()
        if row["kind"] == "step"
    ]
    assert [step for step, _ in losses] == [1, 2, 3]
    assert MlflowStore(tracked).points("loss") == losses
    assert [(row["_step"], row["loss"]) for row in wandb_history(tracked) if "loss" in row] == losses


# ---- what is asked for, and what is sent


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_that_is_not_installed_is_one_sentence_with_its_remedy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.config.trackers.find_spec", lambda module: None)
    with pytest.raises(
        ToolError, match=rf"pip install .*{TRACKERS[name].package or name.split('_')[0]}.*`"
    ) as refused:
        need_trackers([name])
    assert refused.value.id == "Q-TRACKERS-001"


def test_a_folder_of_a_trackers_name_is_no_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb").mkdir()  # as W&B leaves where it ran
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    assert "pip install" in missing_trackers(["wandb"])


def test_an_unknown_tracker_is_refused_with_the_one_that_is_meant(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    for given, meant in (("wandbb", "wandb"), ("ml_flow", "mlflow"), ("comet", "comet_ml")):
        file.write_text(f"train: {{report_to: [{given}]}}\n", encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"did you mean {meant}\?"):
            load_params(file)


def test_no_place_secret_or_command_of_this_machine_is_in_the_settings_that_are_sent() -> None:
    reward = {"rewards": {"external": 1.0}, "external": {"command": ["scorer", "--token=geheim"]}}
    params = params_with(method="grpo", grpo=reward)
    base = params.base.model_copy(update={"model": "/home/anna/models/qwen"})
    machine = params.machine.model_copy(update={"llama_cpp": "/home/anna/llama.cpp"})
    sent = sent_settings(params.model_copy(update={"base": base, "machine": machine}))
    text = json.dumps(sent)
    assert "anna" not in text and "geheim" not in text
    assert sent["base.model"] == "…/qwen"


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B"),
        ("/home/anna/qwen", "…/qwen"),
        ("~/models/qwen", "…/qwen"),
        ("~anna/models/qwen", "…/qwen"),
        ("--file=/home/anna/qwen", "--file=…/qwen"),
        ("https://anna:geheim@hub.example/q?token=geheim", "https://hub.example/q"),
        (".*self_attn.*_proj", ".*self_attn.*_proj"),
    ],
)
def test_places_are_cut(text: str, sent: str) -> None:
    assert without_places(text) == sent


def test_a_tracker_takes_no_part_in_a_group_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "1")
    environment = tracking.environment()
    assert not {"RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "TORCHELASTIC_RUN_ID"} & environment.keys()


def test_the_table_of_a_report_that_is_missing_is_not_sent(tmp_path: Path) -> None:
    assert tracking.levels(tmp_path / "quants.csv") is None
    (tmp_path / "quants.csv").write_text("model,bytes\nF16,5\n", encoding="utf-8")
    table = tracking.levels(tmp_path / "quants.csv")
    assert table == Table("levels", ["model", "bytes"], [["F16", "5"]], {"F16/bytes": 5.0})

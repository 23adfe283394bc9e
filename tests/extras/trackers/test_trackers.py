"""pipeline.extras.trackers: a run as MLflow, Trackio and W&B keep it, and a training that none of them changes."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from training_logs import eval_row, step_row

from pipeline.config.params import Params, load_params
from pipeline.config.trackers import TRACKERS, missing_trackers
from pipeline.core.errors import ConfigError, Stopped, ToolError
from pipeline.core.hashing import tree_hash
from pipeline.core.metrics_log import MetricsLog
from pipeline.core.places import PROJECT
from pipeline.core.publish import write_json
from pipeline.extras.trackers import tracking
from pipeline.extras.trackers.request import Sent, Table
from pipeline.extras.trackers.sent_settings import sent_settings, without_places

SAMPLES = [{"prompt": "user\n2 + 3?", "reference": "5", "answer": "<b>6</b>"}]
RECORD = {"settings": {"r": 4}, "threads": 1}


def needs(*names: str) -> pytest.MarkDecorator:
    missing = missing_trackers(names)
    return pytest.mark.skipif(bool(missing), reason=missing)


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
        self.log.truncate(after_step)

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.log.append(step_row(step, 2.0 - step / 10))
            if step % 2 == 0:
                self.log.append(eval_row(step, 1.5 - step / 10) | {"samples": SAMPLES})


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.2)


def sent_step(root: Path, tracker: str) -> int:
    sent = Sent.read(root, tracker)
    return sent.step if sent else 0


def finished_run(root: Path, *trackers: str) -> None:
    """Four steps, and the report after them."""
    params = params_with(*trackers)
    run = FakeRun(root)
    with tracking.following(params, root):
        run.begin()
        run.steps(1, 4)
    write_json(root / "models/adapter/run.json", RECORD)
    with tracking.sending_levels(params, root):
        (root / "reports").mkdir(exist_ok=True)
        table = "model,gate,bytes,task_score\nF16,pass,100,0.5\nQ4_K_M,,50,0.25\n"
        (root / "reports/quants.csv").write_text(table, encoding="utf-8")


# ---- each tracker's own store, read back


class MlflowStore:
    """What is in the project's own store of MLflow."""

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
    assert store.table("samples.json") == [[step, 1, *SAMPLES[0].values()] for step in (2, 4)]
    assert store.table("levels.json") == [["F16", "pass", "100", "0.5"], ["Q4_K_M", "", "50", "0.25"]]
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


def wandb_records(root: Path) -> Iterator[Any]:
    """Every record in the files that W&B writes offline, oldest file first."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    for file in sorted((root / "reports/trackers/wandb").glob("*/*.wandb")):
        store = DataStore()
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            yield record


def wandb_history(root: Path) -> list[dict[str, Any]]:
    rows = []
    for record in wandb_records(root):
        if record.HasField("history"):
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
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
    assert [line.split("\t") for line in lines] == [["step", "loss"], ["1", "1.9"], ["2", "1.8"], ["3", "1.7"], ["4", "1.6"]]
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


# ---- resuming, failing, killing


@needs("mlflow")
def test_a_resumed_run_goes_on_as_the_same_run_and_repeats_no_step(tmp_path: Path) -> None:
    params = params_with("mlflow")
    run = FakeRun(tmp_path)
    with pytest.raises(Stopped), tracking.following(params, tmp_path):
        run.begin()
        run.steps(1, 3)
        wait_for(lambda: sent_step(tmp_path, "mlflow") == 3)
        raise Stopped(signal.SIGTERM)
    store = MlflowStore(tmp_path)
    assert store.rows("select status from runs") == [("KILLED",)]
    with tracking.following(params, tmp_path):
        run.begin(after_step=2, threads=2)
        run.steps(3, 4)
    assert store.points("loss") == [(1, 1.9), (2, 1.8), (3, 1.7), (4, 1.6)]
    assert store.points("eval_loss") == [(2, 1.3), (4, 1.1)]
    assert store.rows("select status from runs") == [("FINISHED",)]


@needs("mlflow")
def test_another_run_is_another_run_there_too(tmp_path: Path) -> None:
    params = params_with("mlflow")
    for rank in (4, 8):
        run = FakeRun(tmp_path)
        with tracking.following(params, tmp_path):
            run.begin(settings={"r": rank})
            run.steps(1, 2)
    assert len(MlflowStore(tmp_path).rows("select * from runs")) == 2


@needs("mlflow")
def test_what_an_earlier_run_left_is_not_sent_before_this_one_begins(tmp_path: Path) -> None:
    earlier = FakeRun(tmp_path)
    earlier.begin(settings={"r": 99})
    earlier.steps(1, 2)
    earlier.log.close()
    with pytest.raises(ConfigError), tracking.following(params_with("mlflow"), tmp_path):
        time.sleep(3)
        raise ConfigError("Q-TRAIN-029", "an unfinished run is in the way")
    assert not (tmp_path / "reports/trackers").exists()


@needs("mlflow", "trackio")
def test_a_tracker_that_fails_is_one_line_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://user:secret@127.0.0.1/x")
    finished_run(tmp_path, "mlflow", "trackio")
    said = capfd.readouterr().err
    assert said.count("mlflow failed") == 1
    assert sent_step(tmp_path, "trackio") == 5


@needs("trackio")
def test_a_tracker_that_is_killed_or_hangs_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(tracking.PATIENCE, "finished", 1)
    run = FakeRun(tmp_path)
    for number, seconds in ((signal.SIGKILL, 0), (signal.SIGSTOP, 0)):
        (tmp_path / "reports/trackers/trackio.json").unlink(missing_ok=True)
        with tracking.following(params_with("trackio"), tmp_path):
            run.begin()
            run.steps(1, 2)
            wait_for(lambda: sent_step(tmp_path, "trackio") == 2)
            (process,) = followers_of(os.getpid())
            os.kill(process, number)
            time.sleep(seconds)
        assert "warning: trackio" in capfd.readouterr().err
        assert not followers_of(os.getpid())
    shutil.rmtree(tmp_path / "models")


def followers_of(parent: int) -> list[int]:
    """The trackers' processes that `parent` has started and that have not ended."""
    import psutil

    return [
        child.pid
        for child in psutil.Process(parent).children()
        if child.status() != psutil.STATUS_ZOMBIE and "pipeline.extras.trackers.follow" in child.cmdline()
    ]


KILLED = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_trackers import FakeRun, params_with, sent_step, tracking
root = Path(sys.argv[1])
with tracking.following(params_with("mlflow"), root):
    run = FakeRun(root)
    run.begin()
    run.steps(1, 3)
    print("begun", flush=True)
    time.sleep(300)
"""


@needs("mlflow")
def test_the_rest_is_sent_and_nothing_stays_after_a_kill_of_the_training(tmp_path: Path) -> None:
    paths = [str(Path(__file__).parent), *sys.path]
    training = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), *paths], stdout=subprocess.PIPE, text=True
    )
    assert training.stdout is not None
    assert training.stdout.readline() == "begun\n"
    wait_for(lambda: followers_of(training.pid))
    (follower,) = followers_of(training.pid)
    training.kill()
    training.wait()
    wait_for(lambda: not Path(f"/proc/{follower}").exists() or "Z" in status(follower))
    store = MlflowStore(tmp_path)
    assert store.points("loss") == [(1, 1.9), (2, 1.8), (3, 1.7)]
    assert store.rows("select status from runs") == [("KILLED",)]


def status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return "Z"


# ---- what is asked for, and what is sent


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_that_is_not_installed_is_one_sentence_with_its_remedy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.config.trackers.find_spec", lambda module: None)
    from pipeline.config.trackers import need_trackers

    with pytest.raises(ToolError, match=rf"pip install '{TRACKERS[name].pip}'") as refused:
        need_trackers([name])
    assert refused.value.id == "Q-TRACKERS-001"


def test_an_unknown_tracker_is_refused_with_the_one_that_is_meant(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    for given, meant in (("wandbb", "wandb"), ("ml_flow", "mlflow"), ("comet", "comet_ml")):
        file.write_text(f"train: {{report_to: [{given}]}}\n", encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"did you mean {meant}\?"):
            load_params(file)


def test_no_place_secret_or_command_of_this_machine_is_in_the_settings_that_are_sent() -> None:
    params = params_with(
        method="grpo",
        grpo={"rewards": {"external": 1.0}, "external": {"command": ["scorer", "--token=geheim"]}},
    )
    values = params.model_dump(mode="json")
    values["base"]["model"] = "/home/anna/models/qwen"
    values["machine"]["llama_cpp"] = "/home/anna/llama.cpp"
    sent = sent_settings(Params.model_construct(**{name: value for name, value in values.items()}))
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

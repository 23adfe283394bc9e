"""The events of a run: from Snakemake's records to events, lines of JSON and their schema."""

import io
import json
import logging
import os
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import pytest
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.tests import TestLogHandlerBase as HandlerContract

from pipeline.core.places import PROJECT
from pipeline.core.progress import JobProgress, current_record, recorded
from pipeline.workflow.remote import QUIET, VIEW
from pipeline.workflow.view import events
from pipeline.workflow.view.handler import LogHandler, LogHandlerSettings
from pipeline.workflow.view.run import Run
from pipeline.workflow.view.words import about, clock

JOB: dict[str, Any] = {
    "rule_name": "train",
    "wildcards": {},
    "log": ["logs/train.log"],
    "output": ["models/adapter"],
    "local": True,
}


class TestHandler(HandlerContract):
    """The interface's own tests of a handler."""

    __test__: ClassVar[bool] = True

    def get_log_handler_cls(self) -> type[LogHandler]:
        return LogHandler

    def get_log_handler_settings(self) -> LogHandlerSettings:
        return LogHandlerSettings()

    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VIEW, "")


def record(kind: LogEvent, **said: Any) -> logging.LogRecord:
    made = logging.LogRecord("snakemake", logging.INFO, "", 0, None, (), None)
    vars(made).update(event=kind, **said)
    return made


def test_a_run_becomes_events_that_fit_the_schema(tmp_path: Path) -> None:
    run = Run(tmp_path)
    log = tmp_path / "logs/train.log"
    log.parent.mkdir()
    seen = [*run.take(record(LogEvent.RUN_INFO, stats={"train": 1, "quantize": 2, "all": 1, "total": 4}))]
    seen += run.take(record(LogEvent.JOB_INFO, jobid=1, **JOB))
    log.write_text("train: step 1 of 8, loss 1\nquantize: warning: small blocks\n")
    with recorded(tmp_path, "train"):
        record_of_job = current_record()
        assert record_of_job
        record_of_job.write(JobProgress("step 1 of 8", 0.125, 70.0, is_part=False))
        seen += run.look()
    with log.open("a") as file:
        file.write("train: nothing it depends on has changed: its outputs are back from DVC's cache\n")
    seen += run.take(record(LogEvent.JOB_FINISHED, job_id=1))
    level = {"rule_name": "quantize", "wildcards": {"item": "Q4_K_M"}, "log": ["logs/q.log"]}
    seen += run.take(record(LogEvent.JOB_INFO, jobid=2, **JOB | level))
    (tmp_path / "logs/q.log").write_text("quantize: no room\n")
    seen += run.take(record(LogEvent.JOB_ERROR, jobid=2, log=["logs/q.log"]))
    seen.append(run.end())

    lines = [json.loads(events.as_line(event)) for event in seen]
    assert [line["event"] for line in lines] == [
        *("plan", "started", "line", "warning", "progress"),
        *("line", "finished", "started", "line", "failed", "end"),
    ]
    assert lines[6]["how"] == "restored" and lines[7]["job"] == "quantize@Q4_K_M"
    assert lines[9]["lines"] == ["quantize: no room"] and lines[9]["log"] == "logs/q.log"
    assert {name: lines[-1][name] for name in ("done", "restored", "failed", "missing")} == {
        "done": 1,
        "restored": 1,
        "failed": 1,
        "missing": 1,
    }
    schema = json.loads((PROJECT / "docs/run-events.schema.json").read_text(encoding="utf-8"))
    for line in lines:
        jsonschema.validate(line, schema)


def test_the_schema_is_the_code_s() -> None:
    """`python -m pipeline.workflow.view.events > docs/run-events.schema.json` writes it."""
    assert (PROJECT / "docs/run-events.schema.json").read_text(encoding="utf-8") == events.schema()


class Broken(io.StringIO):
    """A terminal that is gone."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_terminal_that_is_gone_ends_the_view_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VIEW, "")
    handler = TestHandler()._create_handler()
    monkeypatch.setattr("sys.stderr", Broken())
    monkeypatch.setattr("sys.stdout", Broken())
    handler.emit(record(LogEvent.RUN_INFO, stats={"train": 1}))
    handler.emit(record(LogEvent.JOB_INFO, jobid=1, **JOB))
    handler.emit(record(LogEvent.JOB_FINISHED, job_id=1))
    handler.close()
    handler.close()


def test_a_fault_of_the_view_hides_no_error_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    contract = TestHandler()._create_handler()
    monkeypatch.setenv(VIEW, "")
    handler = LogHandler(common_settings=contract.common_settings, settings=LogHandlerSettings("json"))
    monkeypatch.setattr("pipeline.workflow.view.json_lines.as_line", lambda event: 1 / 0)
    handler.emit(record(LogEvent.RUN_INFO, stats={"train": 1}))
    handler.emit(logging.LogRecord("snakemake", logging.ERROR, "", 0, "the disk is full", (), None))
    handler.close()
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said and "the disk is full" in said
    assert os.environ[VIEW] == ""  # the jobs that come print their lines themselves


@pytest.mark.parametrize(
    ("form", "environment"), [("live", QUIET), ("json", QUIET), ("plain", ""), ("auto", "")]
)
def test_jobs_print_their_lines_unless_the_view_reads_them(
    form: str, environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VIEW, "?")
    LogHandler(
        common_settings=TestHandler()._create_handler().common_settings, settings=LogHandlerSettings(form)
    )
    assert os.environ[VIEW] == environment


def test_durations_are_short() -> None:
    assert [clock(7.9), clock(187), clock(3750)] == ["0:07", "3:07", "1:02:30"]
    assert [about(0.2), about(300), about(7200)] == ["about 1 s", "about 5 min", "about 2.0 h"]
    assert about(None) == ""

"""A view's inputs: a job's log while it is written, and which sentences are passed on."""

import logging
import os
import time
from pathlib import Path

import pytest

from pipeline.workflow.view.advice import next_steps
from pipeline.workflow.view.events import Failed, Message
from pipeline.workflow.view.messages import message_of
from pipeline.workflow.view.run import Job, Run, Stage
from pipeline.workflow.view.tail import LONGEST, MOST, Tail


def test_a_log_s_lines_are_as_a_terminal_would_show_them(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    tail = Tail(log, time.time())
    log.write_bytes("10 %\r20 %\r\x1b[32mü\x1b[0m\x07\n".encode() + b"\xff\n\nhalf")
    assert list(tail.lines()) == ["ü\\x07", "\ufffd"]
    assert list(tail.lines(last=True)) == ["half"]
    assert list(tail.lines(last=True)) == []


def test_what_an_earlier_run_left_is_not_read(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("of yesterday\n")
    os.utime(log, (time.time() - 99, time.time() - 99))
    tail = Tail(log, time.time())
    assert list(tail.lines()) == []
    log.write_text("of today\n")
    assert list(tail.lines()) == ["of today"]


def test_a_line_without_an_end_is_given_in_parts(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    tail = Tail(log, time.time())
    for _ in range(2):
        with log.open("ab") as file:
            file.write(b"x" * (MOST // 2 + 1))
        lines = list(tail.lines())
    assert lines == ["x" * LONGEST]


def record(text: str | None, level: int = logging.INFO, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("snakemake", level, "", 0, text, (), None)
    vars(made).update(more)
    return made


@pytest.mark.parametrize(
    "text",
    [
        "Building DAG of jobs...",
        "Select jobs to execute...",
        "Complete log(s): /tmp/x.log",
        None,
    ],
)
def test_boilerplate_is_dropped(text: str | None) -> None:
    assert message_of(record(text)) is None


def test_errors_are_passed_on_but_for_what_follows_from_a_job_s() -> None:
    missing = message_of(record("MissingInputException in rule x", logging.ERROR))
    assert missing and missing.level == "error"
    follows = "RuleException:\nCalledProcessError in file Snakefile, line 3:\nCommand 'x' returned 3"
    assert message_of(record(follows, logging.ERROR)) is None
    assert message_of(record("WorkflowError:\nAt least one job did not complete successfully.", 40)) is None
    said = message_of(record("Job 5 has been submitted with SLURM jobid 7"))
    assert said and said.level == "info"
    stopping = message_of(record("Terminating processes on user request, this might take some time."))
    assert stopping and "saves" in stopping.text


def test_a_killed_job_is_said_to_be_and_a_stop_is_said_once(tmp_path: Path) -> None:
    run = Run(tmp_path, None)
    killed = "CalledProcessError in file Snakefile, line 4:\nCommand 'x' returned non-zero exit status "
    said = [
        event.text
        for level, text in (
            (logging.ERROR, f"{killed}137."),
            (logging.ERROR, f"{killed}3."),
            *[(logging.INFO, "Will exit after finishing currently running jobs (scheduler).")] * 3,
        )
        for event in run.take(record(text, level))
        if isinstance(event, Message)
    ]
    assert len(said) == 2 and "SIGKILL" in said[0] and "goes on" in said[0]


def test_a_job_that_was_sent_a_signal_alone_was_stopped(tmp_path: Path) -> None:
    run = Run(tmp_path, None)
    run.stages["train"] = Stage("train", 1, None)
    for number, line in enumerate(
        ("train: stopped by SIGTERM: checkpoint-1 is complete", "train: Q-X-001: no")
    ):
        run.jobs[number] = Job("train", "train", None, 0.0, None)
        run.jobs[number].lines.append(line)
    ends = [run._end_job(number, failed=True, logs=[]) for number in (0, 1)]
    assert [end.stopped for end in ends if isinstance(end, Failed)] == [True, False]


def test_data_that_is_not_recorded_is_said_after_a_run(tmp_path: Path) -> None:
    for folder in (".dvc", "data/raw"):
        (tmp_path / folder).mkdir(parents=True)
    commands = [advice.command for advice in next_steps(tmp_path, ["curate"], is_complete=True)]
    assert commands == ["quench run", "dvc add data/raw"]
    (tmp_path / "data/raw.dvc").touch()
    assert len(next_steps(tmp_path, ["curate"], is_complete=True)) == 1

"""Progress: a plain line now and then in a log, a bar on a terminal, a record for `quench status`."""

import io
import re
import time
from pathlib import Path

import pytest
import rich.console

import pipeline.core.progress
from pipeline.core.progress import (
    FOLDER,
    JobProgress,
    current_record,
    progress,
    progress_of,
    record_for_children,
    recorded,
)


def test_a_short_job_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("curate", 3) as advance:
        for _ in range(3):
            advance(1)
    assert capsys.readouterr() == ("", "")


def test_a_long_job_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(pipeline.core.progress.time, "monotonic", lambda: now)
    with progress("curate", 100) as advance:
        for _ in range(10):
            now += 6
            advance(10)
    out, said = capsys.readouterr()
    lines = [[int(number) for number in re.findall(r"\d+", line)] for line in said.splitlines()]
    assert (out, lines) == ("", [[30, 18, 42], [60, 36, 24], [90, 54, 6]])  # per cent, seconds past, to come


@pytest.mark.parametrize("total", [0, 5])
def test_a_terminal_gets_a_bar(total: int, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = rich.console.Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(pipeline.core.progress, "console", lambda **_: console)
    with progress("curate", total) as advance:
        advance(5)
    assert "curate" in screen.getvalue()
    assert ("100%" if total else "0%") in screen.getvalue()


def test_a_job_s_record_is_there_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.time() - 1
    file = tmp_path / FOLDER / "curate.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"what": "of a killed run", "share": 1.0, "seconds_left": 0.0}')
    with recorded(tmp_path, "curate"):
        assert progress_of(tmp_path, "curate", began) is None
        now = 1000.0
        monkeypatch.setattr(pipeline.core.progress.time, "monotonic", lambda: now)
        with progress("curate: comparing", 4) as advance:
            now += 3
            advance(1)
            assert progress_of(tmp_path, "curate", began) == JobProgress("comparing", 0.25, 9.0)
            assert progress_of(tmp_path, "curate", time.time() + 1) is None
        assert progress_of(tmp_path, "curate") is None  # Another part may take long.
    assert not file.exists()
    assert current_record() is None


def test_a_stage_of_a_sub_project_writes_into_the_record_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorded(tmp_path / "project", "compare"):
        for name, path in record_for_children().items():
            monkeypatch.setenv(name, path)
        with recorded(tmp_path / "sub", "train"):
            record = current_record()
            assert record
            record.write(JobProgress.at_step(1, 4, "", 30.0))
            found = progress_of(tmp_path / "project", "compare")
            assert found and (found.what, found.is_part) == ("step 1 of 4", True)
            assert progress_of(tmp_path / "sub", "train") is None
    assert record_for_children() == {}


def test_a_part_is_not_the_whole_job() -> None:
    part = JobProgress("comparing", 0.45, 10.0)
    assert part.text == "comparing, 45 %"
    assert [part.job_seconds_left(other, age=4.0) for other in (None, 60.0, 1.0)] == [6.0, 60.0, 6.0]
    assert JobProgress.at_step(1, 4, "", 10.0).job_seconds_left(60.0) == 10.0
    assert JobProgress.at_step(4, 4, ", evaluating", None).job_seconds_left(60.0) == 60.0


WRONG_TYPE = '{"what": 1, "share": "x", "seconds_left": 1, "is_part": true}'


@pytest.mark.parametrize(
    "text", ["", "null", "[]", '{"what": "comparing"}', '{"share": 1, "of": 2}', WRONG_TYPE]
)
def test_an_unreadable_record_is_none(text: str, tmp_path: Path) -> None:
    file = tmp_path / FOLDER / "curate.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert progress_of(tmp_path, "curate", 0.0) is None


def test_a_record_that_cannot_be_written_fails_no_job(tmp_path: Path) -> None:
    (tmp_path / ".quench").write_text("no folder")
    with recorded(tmp_path, "curate"), progress("curate: comparing", 1) as advance:
        advance(1)

"""A log gets a plain line now and then, a short job says nothing, a terminal gets a bar."""

import io
import re

import pytest
import rich.console

import pipeline.core.progress
from pipeline.core.progress import progress


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

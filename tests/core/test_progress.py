"""A log gets a plain line now and then, a short job says nothing, a terminal gets a bar."""

import io

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
    assert capsys.readouterr() == (
        "",
        "curate: 30% after 18 s, about 42 s left\ncurate: 60% after 36 s, about 24 s left\ncurate: 90% "
        "after 54 s, about 6 s left\n",
    )


@pytest.mark.parametrize("total", [0, 5])
def test_a_terminal_gets_a_bar(total: int, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = rich.console.Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(pipeline.core.progress, "console", lambda **_: console)
    with progress("curate", total) as advance:
        advance(5)
    assert "curate" in screen.getvalue()
    assert ("100%" if total else "0%") in screen.getvalue()

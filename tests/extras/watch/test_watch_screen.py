"""`quench watch` in a terminal: by Textual's pilot at two sizes, and once in a real one (tmux)."""

import asyncio
import os
import shlex
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from make import until
from needed import need, programs
from training_logs import eval_row, step_row
from watched_runs import ODD, append, at_work, demo_run, rewarded, sampled, watched, write_run

from pipeline.core.places import PROJECT
from pipeline.stages.train.requests import CHECKPOINT, EVALUATION

textual = pytest.importorskip("textual", reason=need("textual"))


def on_screen(app: Any) -> str:
    """Return the text on the screen, line by line."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


async def shows(app: Any, pilot: Any, *words: str) -> None:
    """Wait until all these words are on the screen: other tests may want the processor too."""
    for _ in range(300):
        if all(word in on_screen(app) for word in words):
            return
        await pilot.pause(0.1)
    raise AssertionError(f"{[word for word in words if word not in on_screen(app)]} in {on_screen(app)}")


def piloted(root: Path, size: tuple[int, int], work: Callable[[Any, Any], Awaitable[None]]) -> Any:
    """The application, after `work(app, pilot)` on a screen of this size."""
    from pipeline.extras.watch.app import WatchApp

    app = WatchApp(watched(root))

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await shows(app, pilot, "Loss ")
            await work(app, pilot)

    asyncio.run(run())
    return app


@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=["80x24", "160x50"])
def test_all_is_on_the_screen(tmp_path: Path, size: tuple[int, int]) -> None:
    root = write_run(tmp_path / ODD, sampled(demo_run()), learning_rate=2e-3)

    async def work(app: Any, pilot: Any) -> None:
        state = ("training · step 50 of 50", "Loss 0.0", "held out 0.081", "Learning rate", "Gradient norm")
        await shows(app, pilot, *state, "Tokens/s 150", "Memory 3.40 GB")
        await shows(app, pilot, "c Checkpoint now", "s Stop cleanly", "q Detach")
        shown = on_screen(app)
        assert all(len(line) <= size[0] for line in shown.split("\n"))
        assert f"/{ODD}" in shown or size[0] == 80
        await pilot.press("2")
        await shows(app, pilot, "✓ pass finite loss", "→")
        await pilot.press("3")
        await shows(app, pilot, "answered 4 <b>of course</b>", "[red]2 plus 2")
        await pilot.press("4")
        await shows(app, pilot, "train: step 50 of 50")

    with at_work(root):
        piloted(root, size, work)


def test_new_steps_and_new_curves_come_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_run(tmp_path, demo_run()[:5])
    monkeypatch.setattr("pipeline.extras.watch.app.SHARE", 1e9)  # at once

    async def work(app: Any, pilot: Any) -> None:
        append(root, step_row(6, 0.5), eval_row(6, 0.25) | {"asked": True})
        await app.look()
        await shows(app, pilot, "step 6 of 50", "held out 0.25")
        write_run(root, rewarded(4), method="grpo")
        await app.look()
        await shows(app, pilot, "Reward 1, held out 0.8", "step 4 of 50")
        append(root, step_row(5, 0.5) | {"measures": {"of an author\x1b[2J": 0.25}})
        await app.look()
        await shows(app, pilot, "step 5 of 50", "of an author\\x1b[2J 0.25")

    with at_work(root):
        piloted(root, (120, 40), work)


def test_drawing_takes_its_share_of_a_core_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_run(tmp_path, demo_run()[:5])

    async def work(app: Any, pilot: Any) -> None:
        append(root, step_row(6, 0.5))
        monkeypatch.setattr("pipeline.extras.watch.app.SHARE", 0.0)
        await app.look()
        assert "step 5 of 50" in on_screen(app)
        monkeypatch.setattr("pipeline.extras.watch.app.SHARE", 1e9)
        await app.look()
        await shows(app, pilot, "step 6 of 50")

    with at_work(root):
        piloted(root, (80, 24), work)


def test_keys_ask_and_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_run(tmp_path, demo_run()[:5])
    asked: list[str] = []
    opened: list[str] = []
    told: list[str] = []
    monkeypatch.setattr(
        "pipeline.extras.watch.source.LocalRun.ask", lambda run, name: asked.append(name) or "asked"
    )
    monkeypatch.setattr("webbrowser.open", opened.append)

    async def work(app: Any, pilot: Any) -> None:
        monkeypatch.setattr(app, "notify", lambda message, **_: told.append(message))
        for keys, answers in (("c", 1), ("e", 2), ("sn", 2), ("sy", 3), ("o", 4)):
            await pilot.press(*keys)
            for _ in range(100):
                await pilot.pause(0.1)
                if len(told) == answers and len(app.screen_stack) == 1:
                    break
        await pilot.press("q")

    with at_work(root):
        app = piloted(root, (120, 40), work)
    assert asked == [CHECKPOINT, EVALUATION, ""] and app.return_value == 0
    assert "the held-out rows are evaluated" in told[1] and opened == told[3:]


@pytest.mark.slow
@programs("tmux")
def test_in_a_real_terminal_that_vanishes(tmp_path: Path) -> None:
    root = write_run(tmp_path / ODD, sampled(demo_run()), learning_rate=2e-3)
    command = shlex.join([sys.executable, "-m", "pipeline.cli", "watch", str(root)])
    tmux = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]
    path = os.pathsep.join([str(PROJECT), *sys.path])
    start = ["new-session", "-d", "-x", "80", "-y", "24", f"env PYTHONPATH={shlex.quote(path)} {command}"]
    subprocess.run(
        [*tmux, *start], check=True, env=os.environ | {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
    )

    def shown() -> str:
        capture = subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=False)
        return capture.stdout

    try:
        with at_work(root):
            until(lambda: "Learning rate" in shown() and "training · step 50" in shown(), 120)
            pane = subprocess.run(
                [*tmux, "list-panes", "-F", "#{pane_pid}"], capture_output=True, text=True, check=True
            )
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)  # The terminal is gone.
    until(lambda: not Path(f"/proc/{pane.stdout.strip()}").exists(), 30)
    assert sorted(path.name for path in (root / "models/checkpoints").iterdir()) == [
        "run.json",
        "steps.jsonl",
    ]

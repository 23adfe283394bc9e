"""Deaths of a training run: where it dies, what it trains on, and that it went on to the same bytes."""

import os
import shutil
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.hashing import tree_hash
from pipeline.core.metrics_log import MEASURED, MetricsLog
from pipeline.stages.train.checkpoints import checkpoints_in


@dataclass(frozen=True)
class Death:
    """The place where a run dies: after its `count`th micro-step, or in its `count`th save, at the `event`th
    file operation or after `delay` seconds.
    """

    place: str  # step | save | delay: SIGKILL; loaded | signal | logged | evaluation | evaluated: SIGTERM
    count: int
    event: int = 0
    delay: float = 0.0


def arm(death: Death) -> None:
    """Have this process kill itself (or send itself a signal) at `death`'s place."""
    from pipeline.stages.train.loop import Trainer

    kill = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    term = lambda: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    calls = 0

    def counted(method: str, act: Any, *, before: bool) -> None:
        real = getattr(Trainer, method)

        def wrapped(self: Any, *arguments: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            if before and calls == death.count:
                act()
            result = real(self, *arguments, **more)
            if not before and calls == death.count:
                act()
            return result

        setattr(Trainer, method, wrapped)

    if death.place == "loaded":
        from pipeline.stages.train import assembly

        check_head = assembly.check_head
        assembly.check_head = lambda model: (term(), check_head(model))  # type: ignore[assignment,return-value]
    elif death.place == "step":
        counted("micro_batch", kill, before=False)
    elif death.place == "signal":
        counted("compute_loss", term, before=True)
    elif death.place == "logged":
        counted("stepped", term, before=True)
    elif death.place == "evaluated":
        counted("evaluated", term, before=True)
    elif death.place == "evaluation":
        counted("held_out_metrics", term, before=True)
    elif death.place == "delay":
        counted("save_checkpoint", lambda: threading.Timer(death.delay, kill).start(), before=True)
    else:
        events = 0

        def hook(event: str, arguments: Any) -> None:
            nonlocal events
            if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"):
                events += 1
                if events == death.event:
                    kill()

        counted("save_checkpoint", lambda: sys.addaudithook(hook), before=True)


def copy(project: Path, parent: Path) -> Path:
    folder = parent / "project"
    shutil.copytree(project, folder)
    return folder


def same_as(unbroken: Path, root: Path) -> None:
    """Adapter, curves, metrics log, optimizer and schedule are those of the unbroken run, bit for bit."""
    assert tree_hash(root / "models/adapter") == tree_hash(unbroken / "models/adapter")
    assert (root / "reports/train.csv").read_bytes() == (unbroken / "reports/train.csv").read_bytes()
    output = [
        [
            {key: value for key, value in row.items() if key not in MEASURED}
            for row in MetricsLog(folder / "reports/train.jsonl").rows()
        ]
        for folder in (root, unbroken)
    ]
    assert output[0] == output[1]
    last = [checkpoints_in(folder / "models/checkpoints")[-1] for folder in (root, unbroken)]
    assert last[0].name == last[1].name
    for name in ("optimizer.pt", "trainer_state.json"):
        assert (last[0] / name).read_bytes() == (last[1] / name).read_bytes(), name


def rows_for(method: str) -> list[dict[str, Any]]:
    """Rows that the method learns from, sft by their rewards."""
    said = ["Yes.", "It is four, of course.", "No, never", "The sea is blue", "Ask me later"]
    turn = lambda role, text: {"role": role, "content": text}  # noqa: E731
    rows: list[dict[str, Any]] = []
    for number in range(12):
        asked, good, bad = turn("user", f"Question {number}?"), said[number % 5], said[(number + 2) % 5]
        if method == "sft":
            turns = [asked, turn("assistant", good)]
            rows.append({"kind": "chat", "messages": turns, "reward": number / 12})
        elif method == "grpo":
            rows.append({"kind": "prompt", "messages": [asked], "answer": good})
        else:
            answers = {"chosen": [turn("assistant", good)], "rejected": [turn("assistant", bad)]}
            rows.append({"kind": "preference", "messages": [asked], **answers})
    return rows

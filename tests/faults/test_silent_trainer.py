"""Failures of training that nobody sees in the loss, planted one at a time; each is caught by the stage
itself, by name.

The rules on a run's curves and rows are judged in tests/stages/train/test_monitor.py and test_epochs.py; this
file mutates the trainer, its libraries and its model.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml

from pipeline.__main__ import main

CHANGES = {
    "max_steps": 4,
    "save_steps": 2,
    "eval_steps": 2,
    "sample_rows": 0,
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 1.0,
}


@pytest.fixture
def root(prepared: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(prepared, tmp_path / "project"))
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["train"] |= CHANGES
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    return folder


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_a_clean_run_raises_nothing(seed: int, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["train"] |= {
        "seed": seed,
        "learning_rate": 2.0e-4,
        "r": 8,
    }  # the tiny project's own are outside the usual ranges
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    assert main(["train", "--root", str(root)]) == 0
    output = capsys.readouterr()
    assert "warn" not in output.out + output.err
    findings = json.loads((root / "reports/train.json").read_text())["monitoring"]
    assert {finding["level"] for finding in findings} <= {"ok", "not measured"}
    opened = [file.path for file in psutil.Process().open_files()]
    assert not [path for path in opened if Path(path).is_relative_to(root)]


def mean_of_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each micro-batch is divided by its tokens and the micro-batch count, as before transformers 4.46."""
    from pipeline.stages.train.loop import Trainer

    def compute_loss(self: Any, batch: Any, items: Any) -> Any:
        loss, _ = self.loss_over(batch, batch["items"] * 2)  # of two micro-batches
        self.stats.add(batch, loss.detach() * batch["trained_tokens"] * 2)
        return loss

    monkeypatch.setattr(Trainer, "compute_loss", compute_loss)


def no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is NaN from the third micro-batch on."""
    from pipeline.stages.train.loop import Trainer

    real, calls = Trainer.compute_loss, iter(range(99))
    monkeypatch.setattr(
        Trainer,
        "compute_loss",
        lambda self, *rest, **more: real(self, *rest, **more) * (float("nan") if next(calls) > 1 else 1),
    )


def weights_repacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """bitsandbytes rewrites the weights at the first evaluation, into a form without a backward pass."""
    from pipeline.stages.train.loop import Trainer

    real = Trainer.losses

    def marked(self: Any, *rest: Any) -> Any:
        self.model.base_model.model.model.layers[
            0
        ].mlp.up_proj.base_layer.weight.quant_state.packing_format_for_cpu = not self.model.training
        return real(self, *rest) if self.model.training else (torch.tensor(1.0), {})

    monkeypatch.setattr(Trainer, "losses", marked)


@pytest.mark.parametrize(
    ("plant", "exit_code", "words"),
    [
        pytest.param(
            mean_of_means,
            5,
            "gradient accumulation weighs rows by their number",
            marks=pytest.mark.slow,
        ),
        (no_number, 5, "the loss is nan"),
        (weights_repacked, 5, "was repacked for inference, and its gradient is lost"),
    ],
)
def test_planted(
    plant: Callable[[pytest.MonkeyPatch], None],
    exit_code: int,
    words: str,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plant(monkeypatch)
    found = main(["train", "--root", str(root)])
    output = capsys.readouterr().err
    assert words in output, output
    assert found == exit_code
    assert not (root / "models/adapter").exists()


@pytest.mark.slow
def test_rows_that_a_resume_repeats_are_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resumed run that starts its epoch from the first row again."""
    from pipeline.stages.train.loop import Trainer

    params = yaml.safe_load((root / "params.yaml").read_text())
    params["train"] |= {"max_steps": -1, "save_steps": 1}
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    real, calls = Trainer.micro_batch, iter(range(99))

    def dies(self: Any, *rest: Any, **more: Any) -> Any:
        if next(calls) == 5:
            raise SystemError("power cut")
        return real(self, *rest, **more)

    with monkeypatch.context() as broken:
        broken.setattr(Trainer, "micro_batch", dies)
        with pytest.raises(SystemError):
            main(["train", "--root", str(root)])
    batches = Trainer.batches
    monkeypatch.setattr(Trainer, "batches", lambda self, epoch, done: batches(self, epoch, 0))
    assert main(["train", "--root", str(root)]) == 5
    assert "packed row" in capsys.readouterr().err

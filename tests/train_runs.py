"""Runs of stage train on the tiny project."""

import shutil
from pathlib import Path
from typing import Any

from pipeline.chat.tokens import load_tokenizer
from pipeline.config.params import load_params
from pipeline.config.sections import Training
from pipeline.core.hashing import file_hash
from pipeline.core.interruption import Interruption
from pipeline.core.metrics_log import MetricsLog
from pipeline.core.places import PROJECT
from pipeline.stages.train.assembly import make_trainer
from pipeline.stages.train.learner import learner_of
from pipeline.stages.train.record import describe
from pipeline.stages.train.stage import train

RECIPES = PROJECT / "recipes"


def settings(recipe: str = "demo", **changes: Any) -> Training:
    plain = load_params(RECIPES / f"{recipe}.yaml").training
    return Training.model_validate(plain.model_dump() | changes)


def run(prepared: Path, root: Path, **changes: Any) -> dict[str, Any]:
    """`train` on the prepared project's rows and base, below `root`."""
    small = {"r": 4, "lora_alpha": 8, "max_steps": 2, "sample_rows": 0, "eval_steps": 2, "save_steps": 2}
    return train_in(prepared, root, settings(**small | changes))


def train_in(
    project: Path, root: Path, settings: Training, *, tokens: Path | None = None, **how: Any
) -> dict[str, Any]:
    """`train` on the project's base and its rows, or other `tokens`, below `root`; from the start if `how`
    has no `resume`.
    """
    return train(
        tokens=tokens or project / "data/tokens",
        base=project / "models/base",
        adapter=root / "adapter",
        checkpoints=root / "checkpoints",
        tensorboard=root / "tensorboard",
        settings=settings,
        **{"resume": False} | how,
    )


def goes_on_to_the_same(prepared: Path, root: Path, **changes: Any) -> dict[str, Any]:
    """The report of an unbroken run, below `root`/unbroken, once another that went on from its middle has
    made the same bytes.
    """
    changes = {"max_steps": 4, "sample_rows": 0} | changes
    unbroken = run(prepared, root / "unbroken", **changes)
    killed = root / "killed"
    shutil.copytree(root / "unbroken/checkpoints", killed / "checkpoints")
    shutil.rmtree(killed / "checkpoints/checkpoint-4")
    record = (killed / "checkpoints/run.json").read_text()
    (killed / "checkpoints/run.json").write_text(record.replace('"finished": true', '"finished": false'))
    small = {"r": 4, "lora_alpha": 8, "eval_steps": 2, "save_steps": 2}
    again = train_in(prepared, killed, settings(**small | changes), resume=True)
    assert again["resumed_from"] == "checkpoint-2"
    file = "adapter/adapter_model.safetensors"
    assert file_hash(root / "unbroken" / file) == file_hash(killed / file)
    return unbroken


def trainer_in(project: Path, root: Path, settings: Training, tokens: Path | None = None) -> Any:
    """The trainer for some settings, as `train` makes it, on the project's base and its rows, or other
    `tokens`.
    """
    tokens, base = tokens or project / "data/tokens", project / "models/base"
    trainer, _ = make_trainer(
        learner_of(settings.method)(settings, root / "checkpoints", describe(tokens, base, settings)),
        tokens,
        base,
        load_tokenizer(base),
        root / "tensorboard",
        MetricsLog(root / "checkpoints/steps.jsonl"),
        None,
        Interruption(),
    )
    return trainer

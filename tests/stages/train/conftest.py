"""The trainer of any settings, put together as stage train does it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.chat.tokens import load_tokenizer
from pipeline.config.sections import Training
from pipeline.core.interruption import Interruption
from pipeline.core.metrics_log import MetricsLog
from pipeline.stages.train.assembly import make_trainer
from pipeline.stages.train.learner import learner_of


@pytest.fixture
def trainer(prepared: Path, tmp_path: Path) -> Callable[[Training], Any]:
    """Makes the trainer for some settings, as `train` does."""

    def make(recipe: Training) -> Any:
        metrics_log = MetricsLog(tmp_path / "checkpoints/steps.jsonl")
        base = prepared / "models/base"
        made, _ = make_trainer(
            learner_of(recipe.method)(recipe, tmp_path / "checkpoints", {}),
            prepared / "data/tokens",
            base,
            load_tokenizer(base),
            tmp_path / "tensorboard",
            metrics_log,
            None,
            Interruption(),
        )
        return made

    return make

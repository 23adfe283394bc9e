"""Prompts, chains and outputs for the tests of parity's output checks."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tiny

from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.metrics.divergence import spread
from pipeline.stages.parity.divergence_checks import Outputs
from pipeline.stages.parity.outputs import Bench, Chain

LIMITS: Any = SimpleNamespace(max_kld_level=0.7)
PROMPTS = [spread([*range(1000, 1030), tiny.END], 4), spread([*range(40, 60)], 4)]


def bench(tmp_path: Path, tools: Toolchain) -> Bench:
    return Bench(PROMPTS, tmp_path / "scratch", Llama(tools))


def chain(project: Path, **changed: Any) -> Chain:
    models = project / "models"
    folders: dict[str, Any] = {name: models / name for name in ("base", "adapter", "merged")}
    levels = {"Q4_K_M": models / "gguf/tiny-Q4_K_M.gguf"}
    return Chain(**folders | {"gguf": models / "gguf/tiny-F16.gguf", "levels": levels} | changed)


def halves(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def output(**models: Any) -> Outputs:
    """A chain in which all say the same, but for `models`."""
    same: Any = [halves(8, 50)]
    names = ("as_trained", "trained", "sixteen", "merged", "gguf")
    return Outputs(
        **{name: models.get(name, same) for name in names},
        untuned=lambda: models.get("untuned", [halves(8, 50, seed=9)]),
        where="1 row",
        weights=models.get("weights", {}),
        nf4=lambda: models.get("nf4"),
    )


OTHER, THIRD = [halves(8, 50, seed=1) * 3], [halves(8, 50, seed=2) * 3]

"""Which files a model of `evaluate.models` is made of, and which model it is compared with, in each graph
of stages.
"""

from pathlib import Path
from typing import NamedTuple

from pipeline.config.params import Params
from pipeline.config.sections import BASE, BASE_WITH_ADAPTER, ORIGINAL, TUNED, reference_of
from pipeline.gguf.base_files import MODEL_FILE, SOURCE_FILE


class ModelFiles(NamedTuple):
    """A model's GGUF, and the adapter's GGUF that is put on it (None: there is none)."""

    gguf: Path
    lora: Path | None = None


def model_files(params: Params, root: Path, model: str) -> ModelFiles:
    """The files of `model` below the project's folder `root`, whether they are there or not.

    If base.quantization is gguf, "base" and "adapter" are one GGUF, the second with the adapter's beside it.
    "tuned" is that GGUF with trained scales, a file of its own.
    """
    if params.graph == "merged" or model == TUNED:
        return ModelFiles(root / "models/gguf" / f"{params.convert.name}-{model}.gguf")
    return ModelFiles(
        root / "models/base" / (SOURCE_FILE if model == ORIGINAL else MODEL_FILE),
        root / "models/gguf" / f"{params.convert.name}-lora.gguf" if model == BASE_WITH_ADAPTER else None,
    )


def compared_with(params: Params, model: str) -> str:
    """The model from which the divergence of `model` is measured.

    Without a merge: of the adapter or the trained scales the base alone (how far tuning moved it), but the
    file that the base was made from if they are to recover it; of the base that file, without one itself.
    """
    if params.graph == "merged":
        return reference_of(model, params.convert.type)
    moved = model in (BASE_WITH_ADAPTER, TUNED) and params.train.method != "distill"
    return BASE if moved or params.base.level is None else ORIGINAL

"""The sections of `params.yaml` as typed, frozen models, one per stage.

`pipeline.config.params` reads the file.

A key's default and its comment are here and nowhere else: `quench config use` writes `params.yaml` from them
and a recipe.
"""

# mypy: implicit-reexport
# ruff: noqa: F401 (for other modules: these are the names that they import from here)

from pipeline.config.sections.augmenting import Augment, AugmentKind
from pipeline.config.sections.base import Base
from pipeline.config.sections.data import Curate, CurateKeys, Preprocess
from pipeline.config.sections.measuring import (
    Compare,
    Depth,
    Evaluate,
    EvaluateKeys,
    External,
    Judge,
    Parity,
)
from pipeline.config.sections.models import LEVELS_ALONE, Convert, Distill, Merge, Quantize
from pipeline.config.sections.shipping import Gate, Machine, Report, Serve, ServeKeys
from pipeline.config.sections.training import Train, Training
from pipeline.config.sections.values import (
    AUTO,
    BASE,
    BASE_WITH_ADAPTER,
    ORIGINAL,
    TUNED,
    Format,
    Graph,
    Quantization,
    Section,
    SixteenBit,
)

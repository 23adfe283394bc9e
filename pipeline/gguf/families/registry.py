"""The families of models with a known GGUF, in the order in which errors list them."""

from collections.abc import Mapping
from typing import Any

from pipeline.gguf.families import cohere, gemma, granite, olmo, qwen
from pipeline.gguf.families.arcee import ARCEE
from pipeline.gguf.families.base import Family
from pipeline.gguf.families.ernie4_5 import ERNIE4_5
from pipeline.gguf.families.exaone4 import EXAONE4
from pipeline.gguf.families.falcon_h1 import FALCON_H1
from pipeline.gguf.families.glm4 import GLM4
from pipeline.gguf.families.hunyuan import HUNYUAN
from pipeline.gguf.families.lfm2 import LFM2
from pipeline.gguf.families.llama import LLAMA
from pipeline.gguf.families.mistral3 import MISTRAL3
from pipeline.gguf.families.nemotron_h import NEMOTRON_H
from pipeline.gguf.families.phi3 import PHI3
from pipeline.gguf.families.qwen35 import QWEN35
from pipeline.gguf.families.seed_oss import SEED_OSS
from pipeline.gguf.families.smollm3 import SMOLLM3

FAMILIES = (
    LLAMA,
    qwen.QWEN2,
    qwen.QWEN3,
    qwen.QWEN2MOE,
    qwen.QWEN3MOE,
    gemma.GEMMA2,
    gemma.GEMMA3,
    granite.GRANITE,
    olmo.OLMO2,
    PHI3,
    SMOLLM3,
    olmo.OLMO3,
    MISTRAL3,
    GLM4,
    granite.GRANITE_HYBRID,
    FALCON_H1,
    LFM2,
    QWEN35,
    NEMOTRON_H,
    HUNYUAN,
    SEED_OSS,
    EXAONE4,
    cohere.COHERE2,
    cohere.COMMAND_R,
    ERNIE4_5,
    ARCEE,
    gemma.GEMMA,
    gemma.GEMMA4,
)
# {class in config.json: family}
BY_CLASS = {name: family for family in FAMILIES for name in family.classes}
# Classes whose byte-level BPE the converter writes as it does everyone's.
PLAIN_VOCABULARY = frozenset(name for name, family in BY_CLASS.items() if not family.own_vocabulary)
# Names of the families whose GGUF an adapter can be trained on, and of those without experts.
TRAINED_ON = tuple(dict.fromkeys(family.name for family in FAMILIES if family.trained_on))
DENSE = tuple(dict.fromkeys(family.name for family in FAMILIES if family.trained_on and not family.experts))
# {module and linear in transformers' model: name in the GGUF}
LINEARS = {linear: name for family in FAMILIES for linear, name in family.linears.items()}


def family_in(fields: Mapping[str, Any]) -> Family | None:
    """Return the family of a GGUF by the fields of its header; None for one that is not known."""
    return next((family for family in FAMILIES if family.is_in(fields)), None)


def family_of(config: Mapping[str, Any]) -> Family | None:
    """Return the family whose GGUF the model of a config.json becomes; None for one that is not known."""
    family = BY_CLASS.get((config.get("architectures") or ["none"])[0])
    return family.of_config(config) if family else None

"""The parts that train on a frozen base (`train.tuner`): a row each with what settings, plans and sentences
read. `pipeline.models.tuners` applies a tuner to a model.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

TunerName = Literal["lora", "scales"]
ADAPTER_FILE, SCALES_FILE = "adapter_model.safetensors", "scales.safetensors"
# With a tuner that doesn't read them, values of these settings can only be mistakes.
REFUSED_ELSEWHERE = ("lora_variants", "modules_to_save", "rank_pattern")
Rate = tuple[float, float, str]  # usual range of the learning rate, and a starting value in words


class Tuning(NamedTuple):
    """The properties of a `train.tuner` that are known before there is a model.

    `called` is its name in sentences, `words` describe it next to the setting. `settings` are the keys of
    `train` that not every tuner reads: without `target_modules` no linear trains. `file` in models/adapter
    has the trained numbers. `graph` is the graph of stages for a base that is a GGUF. `inside` names the part
    of a base's own linears that trains, so that only such a base can be used; empty if they stay unchanged.
    """

    called: str
    words: str
    settings: tuple[str, ...]
    file: str = ADAPTER_FILE
    graph: Literal["adapter", "tuned"] = "adapter"
    inside: str = ""
    mixtures: bool = True  # True if a mixture of experts can be trained with it


RATES: Mapping[TunerName, Rate] = {  # Methods without their own use these; the other tuners use LoRA's.
    "lora": (1e-4, 3e-4, "2.0e-4 is a good start"),
    "scales": (1e-3, 1e-2, "5.0e-3 is a good start"),
}
LORA = Tuning(
    called="LoRA",
    words="an adapter",
    settings=("target_modules", "r", "lora_alpha", "lora_dropout", *REFUSED_ELSEWHERE),
)
SCALES = Tuning(
    called="scales",
    words="the scales of a GGUF's blocks: what ships is one GGUF of the same size and speed as the base's; "
    "needs base.quantization gguf",
    settings=("target_modules",),
    file=SCALES_FILE,
    graph="tuned",
    inside="blocks of a GGUF",
    mixtures=False,
)
TUNERS: Mapping[TunerName, Tuning] = {
    "lora": LORA,
    "scales": SCALES,
}


def readers(key: str) -> tuple[TunerName, ...]:
    """Return the tuners that read a key of `train`, one of their `settings`."""
    return tuple(name for name, tuning in TUNERS.items() if key in tuning.settings)


def tuner_of(adapter: Path) -> TunerName:
    """Return the tuner with a file of its own name in the folder `adapter`; lora if there is none."""
    named = ((name, tuning.file) for name, tuning in TUNERS.items() if tuning.file != ADAPTER_FILE)
    return next((name for name, file in named if (adapter / file).is_file()), "lora")


def trained_file(adapter: Path) -> Path:
    """Return the file with the trained numbers in the folder `adapter`."""
    return adapter / TUNERS[tuner_of(adapter)].file

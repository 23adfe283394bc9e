"""What trains on a frozen base (`train.tuner`), a row each: all that settings, plans and sentences ask of it.
How a model gets it is in `pipeline.models.tuners`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

TunerName = Literal["lora", "scales"]
ADAPTER_FILE, SCALES_FILE = "adapter_model.safetensors", "scales.safetensors"
# with a tuner that doesn't read them, values of these settings can only be mistakes
REFUSED_ELSEWHERE = ("lora_variants", "modules_to_save", "rank_pattern")
Rates = tuple[float, float, str]  # between what the learning rate usually is, and a start in words


class Tuning(NamedTuple):
    """What `train.tuner` decides before there is a model.

    `words` explain it beside the setting, `called` is its name in sentences. `file` in models/adapter has the
    trained numbers. `graph` is that of stages for a GGUF that is trained on. `settings` are the keys of
    `train` that not every tuner reads: without `target_modules` no linear trains. `inside` says what of a
    base's own linears trains, so that only such a base will do; empty if they stay. `grpo` and `preferences`
    are the rates for these methods, None: the usual ones.
    """

    words: str
    called: str
    file: str
    graph: Literal["adapter", "tuned"]
    settings: tuple[str, ...]
    rates: Rates
    grpo: Rates
    preferences: Rates | None = None
    inside: str = ""
    mixtures: bool = True  # a mixture of experts can be trained so


LORA = Tuning(
    "an adapter",
    "LoRA",
    ADAPTER_FILE,
    "adapter",
    ("target_modules", "r", "lora_alpha", "lora_dropout", *REFUSED_ELSEWHERE),
    rates=(1e-4, 3e-4, "2.0e-4 is a good start"),
    grpo=(5e-6, 2e-4, "2.0e-5 is a good start, 1.0e-4 for a small model"),
    preferences=(5e-7, 1e-4, "2.0e-5 is a good start"),
)
SCALES = Tuning(
    "the scales of a GGUF's blocks: what ships is one GGUF of the same size and speed as the base's; needs "
    "base.quantization gguf",
    "scales",
    SCALES_FILE,
    "tuned",
    ("target_modules",),
    rates=(1e-3, 1e-2, "5.0e-3 is a good start"),
    grpo=(1e-4, 1e-2, "1.0e-3 is a good start"),
    inside="blocks of a GGUF",
    mixtures=False,
)
TUNERS: Mapping[TunerName, Tuning] = {
    "lora": LORA,
    "scales": SCALES,
}


def readers(key: str) -> tuple[TunerName, ...]:
    """The tuners that read a key of `train`, one of their `settings`."""
    return tuple(name for name, tuning in TUNERS.items() if key in tuning.settings)


def tuner_of(adapter: Path) -> TunerName:
    """The tuner whose file is in the folder `adapter`; lora if there is none."""
    return next((name for name, tuning in TUNERS.items() if (adapter / tuning.file).is_file()), "lora")


def trained_file(adapter: Path) -> Path:
    """The file in the folder `adapter` with the numbers that were trained."""
    return adapter / TUNERS[tuner_of(adapter)].file

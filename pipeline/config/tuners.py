"""What trains on a frozen base (`train.tuner`): a row each of what settings, plans and sentences ask of it.
How a model gets it is in `pipeline.models.tuners`.

What other stages than training ask stands apart from the rows, or an edit of a row would run them again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

TunerName = Literal["lora", "scales"]
ADAPTER_FILE, SCALES_FILE = "adapter_model.safetensors", "scales.safetensors"
# with a tuner that doesn't read them, values of these settings can only be mistakes
REFUSED_ELSEWHERE = ("lora_variants", "modules_to_save", "rank_pattern")
WORDS: Mapping[TunerName, str] = {  # beside the setting
    "lora": "an adapter",
    "scales": "the scales of a GGUF's blocks: what ships is one GGUF of the same size and speed as the "
    "base's; needs base.quantization gguf",
}
FILES: Mapping[TunerName, str] = {"scales": SCALES_FILE}  # in models/adapter; the others' is ADAPTER_FILE
GRAPHS: Mapping[TunerName, Literal["tuned"]] = {"scales": "tuned"}  # the others' is adapter
Rate = tuple[float, float, str]  # between what the learning rate usually is, and a start in words


class Tuning(NamedTuple):
    """What `train.tuner` decides before there is a model.

    `called` is its name in sentences. `settings` are the keys of `train` that not every tuner reads: without
    `target_modules` no linear trains. `inside` says what of a base's own linears trains, so that only such a
    base will do; empty if they stay.
    """

    called: str
    settings: tuple[str, ...]
    inside: str = ""
    mixtures: bool = True  # a mixture of experts can be trained so


RATES: Mapping[TunerName, Rate] = {  # of methods without their own; the others' are LoRA's
    "lora": (1e-4, 3e-4, "2.0e-4 is a good start"),
    "scales": (1e-3, 1e-2, "5.0e-3 is a good start"),
}
LORA = Tuning("LoRA", ("target_modules", "r", "lora_alpha", "lora_dropout", *REFUSED_ELSEWHERE))
SCALES = Tuning("scales", ("target_modules",), inside="blocks of a GGUF", mixtures=False)
TUNERS: Mapping[TunerName, Tuning] = {
    "lora": LORA,
    "scales": SCALES,
}


def readers(key: str) -> tuple[TunerName, ...]:
    """The tuners that read a key of `train`, one of their `settings`."""
    return tuple(name for name, tuning in TUNERS.items() if key in tuning.settings)


def tuner_of(adapter: Path) -> TunerName:
    """The tuner whose file is in the folder `adapter`; lora if there is none."""
    return next((name for name, file in FILES.items() if (adapter / file).is_file()), "lora")


def trained_file(adapter: Path) -> Path:
    """The file in the folder `adapter` with the numbers that were trained."""
    return adapter / FILES.get(tuner_of(adapter), ADAPTER_FILE)

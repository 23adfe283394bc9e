"""The parts that train on a frozen base (`train.tuner`): a row each with what settings, plans and sentences
read. `pipeline.models.tuners` applies a tuner to a model.

Values for stages other than training are outside the rows. Otherwise an edit of a row would make these stages
run again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

TunerName = Literal["lora", "scales"]
ADAPTER_FILE, SCALES_FILE = "adapter_model.safetensors", "scales.safetensors"
# With a tuner that doesn't read them, values of these settings can only be mistakes.
REFUSED_ELSEWHERE = ("lora_variants", "modules_to_save", "rank_pattern")
WORDS: Mapping[TunerName, str] = {  # shown next to the setting
    "lora": "an adapter",
    "scales": "the scales of a GGUF's blocks: what ships is one GGUF of the same size and speed as the "
    "base's; needs base.quantization gguf",
}
# file in models/adapter; for other tuners it is ADAPTER_FILE
FILES: Mapping[TunerName, str] = {"scales": SCALES_FILE}
GRAPHS: Mapping[TunerName, Literal["tuned"]] = {"scales": "tuned"}  # The other tuners have the graph adapter.
Rate = tuple[float, float, str]  # usual range of the learning rate, and a starting value in words


class Tuning(NamedTuple):
    """The properties of a `train.tuner` that are known before there is a model.

    `called` is its name in sentences. `settings` are the keys of `train` that not every tuner reads: without
    `target_modules` no linear trains. `inside` names the part of a base's own linears that trains, so that
    only such a base can be used; empty if they stay unchanged.
    """

    called: str
    settings: tuple[str, ...]
    inside: str = ""
    mixtures: bool = True  # True if a mixture of experts can be trained with it


RATES: Mapping[TunerName, Rate] = {  # Methods without their own use these; the other tuners use LoRA's.
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
    """Return the tuners that read a key of `train`, one of their `settings`."""
    return tuple(name for name, tuning in TUNERS.items() if key in tuning.settings)


def tuner_of(adapter: Path) -> TunerName:
    """Return the tuner whose file is in the folder `adapter`; lora if there is none."""
    return next((name for name, file in FILES.items() if (adapter / file).is_file()), "lora")


def trained_file(adapter: Path) -> Path:
    """Return the file with the trained numbers in the folder `adapter`."""
    return adapter / FILES.get(tuner_of(adapter), ADAPTER_FILE)

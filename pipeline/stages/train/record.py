"""The record of a run: what its adapter depends on, and in what two records differ."""

import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.config.sections import Training
from pipeline.core.errors import DataError
from pipeline.core.hardware import cpu_name
from pipeline.core.hashing import file_hash, json_hash, tree_hash
from pipeline.gguf.base_files import MODEL_FILE, SOURCE_FILE

LIBRARIES = (
    "torch",
    "transformers",
    "peft",
    "trl",
    "bitsandbytes",
    "accelerate",
    "datasets",
    "tokenizers",
    "liger-kernel",
)
NAMES = {
    "tokens_sha256": "the training rows (data/tokens)",
    "base.weights_sha256": "the base's weights",
    "base.config_sha256": "the base's config.json",
    "base.tokenizer_sha256": "the base's tokenizer",
    "base.template_sha256": "the base's chat template",
    "teacher_sha256": f"the file that is learned from ({SOURCE_FILE})",
}
# where weights lie changes no byte, as the number of processes doesn't: a run may go on with it changed
NO_PART = {"shard_base", "device", "machine"}  # the device itself is in the record
# but then the base is quantized in main memory, whose sums a GPU makes in another order
ELSEWHERE = ", base quantized in main memory"
# a run may go on with these changed, though no longer to the same bytes: the order of sums depends on them
MACHINE = ("device", "threads")
FITTED = ("settings.bnb_4bit_compute_dtype", "settings.optim")


def describe(tokens: Path, base: Path, settings: Training) -> dict[str, Any]:
    """What the adapter depends on: the same record gives the same bytes on the same kind of machine. Raises
    `DataError` if the file that is learned from is missing.
    """
    import torch

    source, distilled = base / SOURCE_FILE, settings.method == "distill"
    if distilled and not source.is_file():
        raise DataError(
            "Q-TRAIN-027",
            f"{source}, the original that train.method distill learns from, is missing: run `snakemake "
            "--force base`",
        )
    return {
        "tokens_sha256": tree_hash(tokens),
        **({"teacher_sha256": file_hash(source)} if distilled else {}),
        "base": base_hashes(base),
        "settings": settings.model_dump(mode="json", exclude=NO_PART),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "device": device_name(settings),
        "threads": torch.get_num_threads(),
    }


def device_name(settings: Training) -> str | None:
    """The device, by its maker's name, and whether NF4 was not made there."""
    import torch

    if not torch.cuda.is_available():
        return cpu_name()
    elsewhere = settings.shard_base and settings.quantization == "nf4"
    return torch.cuda.get_device_name(0) + (ELSEWHERE if elsewhere else "")


def base_hashes(base: Path) -> dict[str, str]:
    """sha256 of the base's weights, configuration, tokenizer and chat template: a change has a name."""

    def together(files: Iterable[Path]) -> str:
        return json_hash({path.name: file_hash(path) for path in files})

    template = base / "chat_template.jinja"
    return {
        "weights_sha256": together([*base.glob("*.safetensors"), *base.glob(MODEL_FILE)]),
        "config_sha256": together(path for path in base.glob("*config.json") if "tokenizer" not in path.name),
        "tokenizer_sha256": together([*base.glob("tokenizer.json"), *base.glob("tokenizer_config.json")]),
        "template_sha256": file_hash(template) if template.is_file() else "",
    }


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key, sentence) of everything in which two records differ."""
    for key in sorted({*old, *new}):
        name = f"{prefix}{key}"
        before, after = (one.get(key) for one in (old, new))
        if isinstance(before, dict) and isinstance(after, dict):
            yield from differences(before, after, f"{name}.")
        elif before != after:
            shown = name.replace("settings.", "train.").replace("versions.", "library ")
            why = "; auto is what the machine is fast in" if name in FITTED else ""
            yield name, NAMES.get(name) or f"{shown} ({before} → {after}{why})"


def run_id(record: dict[str, Any]) -> str:
    """What tells a run's checkpoints from another's: a hash of its record without what may change."""
    return json_hash({key: value for key, value in record.items() if key not in MACHINE})

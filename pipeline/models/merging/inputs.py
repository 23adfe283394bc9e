"""Inputs and outputs of a merge other than tensors: the structure that transformers builds from the base's
config, how training quantized and which weights it saw, settings and tokenizer.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import DataError
from pipeline.core.hashing import json_hash
from pipeline.core.publish import read_json, write_json
from pipeline.models.merging.nf4 import Nf4
from pipeline.models.read_weights import kept_in_16_bit

RECORD = "merge.json"
TOKENIZER_SETTINGS = "tokenizer_config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    TOKENIZER_SETTINGS,
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
# Files that llama.cpp's converters read and that transformers does not write when it saves a tokenizer.
CONVERTERS_FILE = "tokenizer.model"
CONVERTERS_KEYS = ("tokenizer_class", "added_tokens_decoder")


@dataclass(frozen=True)
class Structure:
    """Model without numbers: weights by transformers' names, in the order in which modules declare them."""

    shapes: dict[str, tuple[int, ...]]
    quantized: frozenset[str]  # weights that are in 4 bit during training with base.quantization nf4
    transposed: frozenset[str]  # weights stored (in, out)
    embedding: str
    head: str
    tied: bool


def structure(base: Path) -> Structure:
    """Return the structure of `base`'s model from its config only.

    Raises `DataError` if transformers can't build it.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.base import HfQuantizer
    from transformers.quantizers.quantizers_utils import should_convert_module

    from pipeline.models.loading import class_for, read_config

    try:
        config = read_config(base)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            kind = class_for(config)
            trained = model if isinstance(model, kind) else kind(config)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            "Q-MODELS-023",
            f"transformers can't build the model of {base / 'config.json'} ({str(error).splitlines()[0]}): "
            "take another base",
        ) from error
    kept = HfQuantizer.get_modules_to_not_convert(trained, None, trained._keep_in_fp32_modules)
    kept += kept_in_16_bit(trained)
    # transformers' replace_with_bnb_linear replaces exactly these two classes, by their full names.
    quantized = frozenset(
        f"{name}.weight"
        for name, module in trained.named_modules()
        if (type(module) is torch.nn.Linear or isinstance(module, Conv1D))
        and should_convert_module(name, kept)
    )
    conv1d = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Conv1D)}
    owners = {id(module): name for name, module in model.named_modules()}
    stored_in_out = {
        f"{owners[id(module)]}.{name}"
        for module in model.modules()
        if getattr(module, "is_transposed", False)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 3
    }
    embedding, head = (
        f"{owners[id(module)]}.weight"
        for module in (model.get_input_embeddings(), model.get_output_embeddings())
    )
    return Structure(
        shapes={
            name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)
        },
        quantized=quantized,
        transposed=frozenset(conv1d | stored_in_out),
        embedding=embedding,
        head=head,
        tied=head in model.all_tied_weights_keys,
    )


@dataclass(frozen=True)
class TrainedRun:
    """Training's record of the base: how it was quantized (None: it was not), and a hash of its weights. An
    adapter that another tool trained has no record, so neither is known.
    """

    recorded: bool = False
    nf4: Nf4 | None = None
    weights_sha256: str | None = None


def read_run(adapter: Path) -> TrainedRun:
    """Return training's own record of the adapter."""
    file = adapter / "run.json"
    run = read_json(file, "run `snakemake --force train`") if file.exists() else {}
    if not run:
        return TrainedRun()
    settings = run.get("settings", {})
    nf4 = None
    if settings.get("quantization") == "nf4":
        nf4 = Nf4(settings["bnb_4bit_compute_dtype"])
    return TrainedRun(True, nf4, run.get("base", {}).get("weights_sha256"))


def need_nf4(adapter: Path, run: TrainedRun) -> Nf4:
    """Return how the base was quantized when `run` trained `adapter`. Raises `DataError` with the reason if
    it was not.
    """
    if run.nf4:
        return run.nf4
    if run.recorded:
        reason = "was trained on 16-bit weights"
    else:
        reason = "has no run.json that says how its base was quantized"
    raise DataError(
        "Q-MODELS-020", f"{adapter} {reason}, so it can't be merged into NF4: set merge.base to 16-bit"
    )


def check_same_base(base: Path, run: TrainedRun) -> str | None:
    """Return a hash of the base's weights (training's `weights_sha256`) from the record next to the base.

    None if there is no such record, because a hash would have to read every shard. Raises `DataError` if
    training saw other weights.
    """
    file = base.with_name(f"{base.name}.json")
    if not file.exists():
        return None
    files = read_json(file, "run `snakemake --force base`").get("files", {})
    shards = {name: digest for name, digest in sorted(files.items()) if name.endswith(".safetensors")}
    base_hash = json_hash(shards)
    trained = run.weights_sha256 or base_hash
    if trained != base_hash:
        raise DataError(
            "Q-MODELS-021",
            f"the adapter was trained on other weights ({trained[:12]}) than those in {base} "
            f"({base_hash[:12]}): fetch that base again, or train again",
        )
    return base_hash


def copy_settings(base: Path, adapter: Path, merged: Path, dtype: str, changes: dict[str, Any]) -> None:
    """Write config (with `changes`) and generation config of the base, tokenizer and template of the adapter:
    what was trained is what ships. Tokenizer files that only a converter reads come from the base.
    """
    config = read_json(base / "config.json", "run `snakemake --force base`")
    config.pop("torch_dtype", None)
    write_json(merged / "config.json", config | changes | {"dtype": dtype}, allow_nan=True)
    if (base / "generation_config.json").exists():
        shutil.copyfile(base / "generation_config.json", merged / "generation_config.json")
    for name, source in tokenizer_files(base, adapter).items():
        shutil.copyfile(source, merged / name)
    settings = tokenizer_settings(base, adapter)
    if settings != read_settings(adapter):
        write_json(merged / TOKENIZER_SETTINGS, settings)


def tokenizer_files(base: Path, adapter: Path) -> dict[str, Path]:
    """Return {file of the merged model's tokenizer: file that it is a copy of}."""
    files = {name: adapter / name for name in TOKENIZER_FILES if (adapter / name).exists()}
    for folder in (base, adapter):
        if (folder / CONVERTERS_FILE).exists():
            files[CONVERTERS_FILE] = folder / CONVERTERS_FILE
    return files


def tokenizer_settings(base: Path, adapter: Path) -> dict[str, Any]:
    """Return the merged model's tokenizer_config.json: the adapter's, with the keys that converters read from
    the base's; empty if the adapter has none.

    transformers writes the class that it used, TokenizersBackend for a Phi, but llama.cpp's converter needs
    the class that the model names.
    """
    settings = read_settings(adapter)
    named = read_settings(base)
    return settings and settings | {key: named[key] for key in CONVERTERS_KEYS if key in named}


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the tokenizer_config.json of a folder; empty if there is none."""
    file = folder / TOKENIZER_SETTINGS
    return read_json(file, "run `snakemake --force base`") if file.exists() else {}

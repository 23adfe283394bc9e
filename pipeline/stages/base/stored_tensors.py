"""Check that the tensors in a folder are those of the model that config.json describes, and settle what its
files leave open.

The headers of the files are enough to compare names, shapes and types: transformers loads the model with
tensors of the device `meta`, which have no numbers. So what training would make up, cast or leave out is
known before anything is copied.
"""

import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr
from copy import deepcopy
from pathlib import Path
from typing import Any

from pipeline.config.targets import layer_of
from pipeline.core.errors import DataError
from pipeline.core.publish import write_json
from pipeline.core.text import plural
from pipeline.gguf.safetensors_rows import DTYPES, INDEX, Entry, read_folder, read_rows, same_values, spans
from pipeline.gguf.sources import NOT_CONVERTED
from pipeline.models.text_config import read_text_config
from pipeline.stages.base.model_trial import unusable

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
PLAIN = ("BF16", "F16", "F32", "F64")  # types of weights that are not quantized
# Types of buffers, such as positions and masks, which no quantization packs weights into.
OF_BUFFERS = ("BOOL", "I64", "U64")
SAVE_AGAIN = (
    "load the folder with transformers' AutoModelForCausalLM.from_pretrained and save it with save_pretrained"
)
BLOCK = 1 << 24  # numbers in memory at a time


def read_tensors(folder: Path) -> dict[str, Entry]:
    """Return the tensors of a folder, by name. Raises `DataError` if a file is missing or damaged."""
    try:
        return read_folder(folder)
    except DataError as error:
        raise DataError("Q-BASE-015", error.sentence) from error


def need_own_weights(folder: Path) -> None:
    """Raise `DataError` unless the tensors in a text model's folder are those of its config.json."""
    tensors = read_tensors(folder)
    try:
        config = read_text_config(folder)
    # An untrusted file: the library raises errors of any kind.
    except Exception as error:
        raise unusable(folder, error) from error
    need_own_tensors(tensors, config, str(folder))


def need_own_tensors(tensors: Mapping[str, Entry], config: Any, source: str) -> None:
    """Raise `DataError` unless the `tensors` of `source`, by name, are those of the text model of `config`,
    in 16 or 32 bit. Buffers that transformers and llama.cpp's converter both leave out may be among them.
    """
    kept = _converted(tensors)
    _need_plain({name: entry for name, entry in kept.items() if entry.dtype not in OF_BUFFERS}, source)
    try:
        _need_all_layers(kept, config, source)
        model, loaded = _loaded(kept, config)
    except DataError:
        raise
    except Exception as error:  # as above
        raise unusable(Path(source), error) from error
    missing = sorted(loaded["missing_keys"])
    if missing:
        raise DataError(
            "Q-BASE-015",
            f"{source} has no {missing[0]} ({plural(len(missing), 'tensor')} so), which would be made up: "
            "complete the folder, or fetch it again",
        )
    if config.tie_word_embeddings and HEAD in kept:
        embedding = _embedding_of(model)
        if embedding not in kept:  # transformers would take the head for both; llama.cpp does not.
            raise DataError(
                "Q-BASE-015",
                f"{source} has {HEAD} and no {embedding}, and config.json says that the two are one: "
                f"{SAVE_AGAIN}, which stores it as {embedding}",
            )
    for name, stored, needed in sorted(loaded["mismatched_keys"]):
        raise DataError(
            "Q-BASE-015",
            f"{source}: {name} is {tuple(stored)}, and config.json says {tuple(needed)}: take the "
            "config.json and the weights of one model",
        )
    surplus = sorted(loaded["unexpected_keys"])
    if surplus:
        raise DataError(
            "Q-BASE-015",
            f"{source} has {surplus[0]} ({plural(len(surplus), 'tensor')} so), which is no part of the model "
            "that config.json describes, and which llama.cpp can't convert: correct config.json if it is one "
            f"(num_hidden_layers), or {SAVE_AGAIN}, which leaves such tensors out",
        )
    _need_plain({name: kept[name] for name, _ in model.named_parameters() if name in kept}, source)
    if any(name.startswith("layers.") for name in kept):
        raise DataError(
            "Q-BASE-015",
            f"{source} names its tensors without `model.`, as a model that was saved without its head, and "
            f"the merge would not find them: {SAVE_AGAIN}, which gives them their names",
        )


def _converted(tensors: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the tensors without the buffers that llama.cpp's converter leaves out."""
    return {name: entry for name, entry in tensors.items() if not name.endswith(NOT_CONVERTED)}


def _need_plain(tensors: Mapping[str, Entry], source: str) -> None:
    """Raise `DataError` if one of the tensors has a type that weights have only if they are quantized."""
    packed = next((name for name, entry in tensors.items() if entry.dtype not in PLAIN), None)
    if packed:
        raise DataError(
            "Q-BASE-011",
            f"{source} is quantized already, whatever config.json says: {packed} is stored as "
            f"{DTYPES[tensors[packed].dtype][1]}. Choose the 16-bit original",
        )


def _need_all_layers(tensors: Iterable[str], config: Any, source: str) -> None:
    """Raise `DataError` if there are tensors of fewer layers than config.json states. An absurd number of
    layers is found here, because a model of that many can't be built, even without numbers.
    """
    names = list(tensors)
    layers = len(set(map(layer_of, names)) - {None})
    # Layers that have other names, in models that are refused later, still have a tensor each.
    if (layers or len(names)) < config.num_hidden_layers:
        raise DataError(
            "Q-BASE-015",
            f"{source} has the weights of {plural(layers, 'layer')}, and config.json says "
            f"{config.num_hidden_layers}: complete the folder, or fetch it again",
        )


def _loaded(tensors: Mapping[str, Entry], config: Any) -> tuple[Any, dict[str, Any]]:
    """Return the text model of `config`, without numbers, and what transformers reports of loading it from
    tensors of these names, shapes and types: `missing_keys`, `mismatched_keys` and `unexpected_keys`.
    """
    import torch

    from pipeline.models.loading import class_for, key_mapping

    stored = {
        name: torch.empty(entry.shape, dtype=getattr(torch, DTYPES[entry.dtype][1]), device="meta")
        for name, entry in tensors.items()
    }
    config = deepcopy(config)
    config.pad_token_id = None  # One without a row is taken out of the settings later.
    # It shows progress and a table of the differences.
    with redirect_stderr(io.StringIO()):
        model, loaded = class_for(config).from_pretrained(
            None,
            config=config,
            state_dict=stored,
            device_map={"": "meta"},
            key_mapping=key_mapping(config),
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    return model, dict(loaded)


def _embedding_of(model: Any) -> str:
    """Return the name of the embeddings' weight, which some architectures call otherwise than `EMBEDDING`."""
    embeddings = model.get_input_embeddings()
    return next(f"{name}.weight" for name, module in model.named_modules() if module is embeddings)


def need_finite(tensors: Mapping[str, Entry], source: Path) -> None:
    """Raise `DataError` if a number of the tensors is not finite."""
    from pipeline.models.tensors import all_finite

    for name, entry in _converted(tensors).items():
        for first, last in spans(entry, BLOCK):
            if not all_finite(read_rows(entry, first, last)):
                raise DataError(
                    "Q-BASE-015",
                    f"{source}: {name} has numbers that are not finite (NaN or infinite), so nothing can be "
                    "trained on it: compare the file's sha256 with its publisher's, and fetch it again if "
                    "they differ; otherwise take another model",
                )


def settle_index(folder: Path, tensors: Mapping[str, Entry]) -> None:
    """Write the index of the shards of `folder` if it has none. transformers looks for no other file than
    model.safetensors without it.
    """
    names = {entry.file.name for entry in tensors.values()}
    if names != {"model.safetensors"} and not (folder / INDEX).exists():
        write_json(folder / INDEX, index_of(tensors))


def index_of(tensors: Mapping[str, Entry]) -> dict[str, Any]:
    """Return the index of the shards that contain these tensors."""
    size = sum(entry.nbytes for entry in tensors.values())
    return {
        "metadata": {"total_size": size},
        "weight_map": {name: entry.file.name for name, entry in sorted(tensors.items())},
    }


def is_untied(tensors: Mapping[str, Entry], config: Any) -> bool:
    """Return True if the head is tied by config.json, and another than the embeddings is stored, which is the
    one that transformers takes.
    """
    return bool(
        config.tie_word_embeddings
        and HEAD in tensors
        and not (EMBEDDING in tensors and same_values(tensors[HEAD], tensors[EMBEDDING]))
    )


def count_parameters(tensors: Mapping[str, Entry], config: Any, folder: Path) -> tuple[int, str]:
    """Return the number of parameters of the model in `folder`, and their most frequent type. A tied head is
    not counted, even if it is stored, and neither are buffers. Raises `DataError` if there are none.
    """
    counts: Counter[str] = Counter()
    for name, entry in _converted(tensors).items():
        if not (config.tie_word_embeddings and name == HEAD):
            counts[entry.dtype] += math.prod(entry.shape)
    if not counts.total():
        raise DataError("Q-BASE-015", f"{folder} holds no weights: fetch it again")
    return counts.total(), DTYPES[counts.most_common(1)[0][0]][1]

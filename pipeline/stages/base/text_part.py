"""The text part of a model that reads images too, as a causal language model of its own.

Gemma 3 (4B and more), Qwen3.5, Qwen2.5-VL and Mistral 3 are published as wrappers: a language model, a vision
tower and a projector. Stage `base` takes the language model out, so all later stages see an ordinary one.
Tensors keep their bytes and get the names of the text model; those of the tower are left out. The text
model's own class says which tensors there must be.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.core.errors import DataError
from pipeline.core.publish import need_disk, write_json
from pipeline.core.text import plural, quoted
from pipeline.gguf.safetensors_rows import (
    DTYPES,
    INDEX,
    Entry,
    append_rows,
    read_folder,
    read_rows,
    same_values,
    spans,
    writing_shard,
)
from pipeline.stages.base.file_choice import kept_files

TOWERS = ("vision_config", "audio_config")
# text models without a causal class of their own: the class that computes the same of text. Their rotary
# positions in several dimensions (M-RoPE) are all equal there, which is the ordinary rotary embedding
SAME_FOR_TEXT = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
PREFIXES = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.text_model.": "model.",
}
DRAFTS = "mtp."  # layers that predict tokens beyond the next one, which transformers' models leave out
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
ENDS = ("bos_token_id", "eos_token_id", "pad_token_id")
BLOCK = 1 << 22  # numbers in memory at a time


@dataclass(frozen=True)
class TextPart:
    """The language model in a wrapper of `kind`: its configuration, and whether llama.cpp can show images to
    it with the wrapper's mmproj.
    """

    kind: str
    config: Any
    sees_images: bool


def is_wrapper(config: Mapping[str, Any]) -> bool:
    """Return True if a config.json is of a language model with towers for images or sound."""
    return any(isinstance(config.get(tower), dict) for tower in TOWERS)


def text_part(config: Mapping[str, Any], source: str) -> TextPart:
    """Return the language model of a wrapper's config.json. Raises `DataError` if transformers has none."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = config.get("model_type")
    try:
        whole = AutoConfig.for_model(**config)
        text = whole.get_text_config()
        named = type(text).model_type
        chosen = SAME_FOR_TEXT.get(named, named)
        if chosen != named:
            text = AutoConfig.for_model(chosen, **_plain(text))
    # an untrusted file: the library raises what it stumbles over
    except Exception as error:
        raise DataError(
            "Q-BASE-010",
            f"{source} has model_type {quoted(kind)}, whose settings transformers can't read "
            f"({' '.join(str(error).split())[:200]}): choose another base",
        ) from error
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(chosen)
    if text is whole or name is None:
        raise DataError(
            "Q-BASE-010",
            f"{source} is a model for images or sound too ({quoted(kind)}), and its text part "
            f"({quoted(named)}) is no causal language model of transformers: choose the text-only model of "
            "this family, or another base",
        )
    text.architectures = [name]
    text.dtype = text.dtype or whole.dtype
    for key in ENDS:
        if config.get(key) is not None:
            setattr(text, key, config[key])
    # some wrappers' settings say nothing of it
    tied = getattr(whole, "tie_word_embeddings", False) or getattr(text, "tie_word_embeddings", False)
    text.tie_word_embeddings = bool(tied)
    return TextPart(str(kind), text, chosen == named)


def _plain(text: Any) -> dict[str, Any]:
    """Return the settings of a text model for the class that computes the same, without the dimensions of
    its positions.
    """
    values: dict[str, Any] = text.to_dict()
    values.pop("model_type")
    rope = values.get("rope_parameters") or {}
    own = ("mrope_section", "mrope_interleaved")
    return values | {"rope_parameters": {key: value for key, value in rope.items() if key not in own}}


def text_tensors(part: TextPart, entries: Mapping[str, Entry], source: str) -> dict[str, Entry]:
    """Return the tensors of a wrapper that are its language model's, by their names there.

    The head is tied if the two say so, and a stored one is the embeddings again, which is then left out; else
    it is the model's own. Raises `DataError` if a tensor is missing, left over, or of another shape.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(part.config, trust_remote_code=False)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    tensors: dict[str, Entry] = {}
    for stored, entry in entries.items():
        prefix = next((prefix for prefix in PREFIXES if stored.startswith(prefix)), "")
        name = PREFIXES.get(prefix, "") + stored.removeprefix(prefix)
        if name in shapes or name.startswith(DRAFTS):
            tensors[name] = entry
        elif prefix and not name.endswith(".inv_freq"):
            raise DataError(
                "Q-BASE-015",
                f"{source}: {stored} has no place in {part.config.architectures[0]}, its text part: choose "
                "the text-only model of this family",
            )
    if part.config.tie_word_embeddings and HEAD in tensors:
        if EMBEDDING in tensors and same_values(tensors[HEAD], tensors[EMBEDDING]):
            del tensors[HEAD]
        else:
            part.config.tie_word_embeddings = False
    needed = shapes.keys() - ({HEAD} if part.config.tie_word_embeddings else set())
    missing = sorted(needed - tensors.keys())
    if missing:
        raise DataError(
            "Q-BASE-015",
            f"{source} has no {missing[0]} in its text part ({plural(len(missing), 'tensor')} so): complete "
            "the folder, or fetch it again",
        )
    for name in sorted(needed):
        entry = tensors[name]
        if entry.shape != shapes[name]:
            raise DataError(
                "Q-BASE-015",
                f"{source}: {entry.name} is {entry.shape}, and config.json says {shapes[name]}: "
                "fetch it again",
            )
    return tensors


def take_text_part(folder: Path, config: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Make the text model out of the wrapper in `folder`: rewrite its weights, shard by shard, their index
    and config.json; return what to record of it. Raises `DataError` if the text part is not complete.
    """
    part = text_part(config, source)
    entries = read_folder(folder)
    tensors = text_tensors(part, entries, source)
    by_file: dict[Path, list[tuple[str, Entry]]] = {}
    for name, entry in tensors.items():
        by_file.setdefault(entry.file, []).append((name, entry))
    # Files that came from the hub stay in its cache until the model is published.
    need_disk(folder, sum(entry.nbytes for entry in tensors.values()))
    for file in {entry.file for entry in entries.values()}:
        if file in by_file:
            _rewrite(file, by_file[file])
        else:
            file.unlink()
    if (folder / INDEX).exists():
        write_json(folder / INDEX, _index(tensors))
    part.config.dtype = _dtype(part.config, tensors.values())
    _write_settings(folder, part)
    return {
        "model_type": part.kind,
        "architectures": config.get("architectures"),
        "tensors_left_out": len(entries) - len(tensors),
        "sees_images": part.sees_images,
    }


@contextmanager
def settings_only(folder: Path) -> Iterator[Path]:
    """Give the folder; of a wrapper another one, with its small files and the config.json of its text part,
    for as long as it is tried.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not is_wrapper(config):
        yield folder
        return
    with TemporaryDirectory(prefix="text-part-") as name:
        small = Path(name)
        for file in kept_files(file.name for file in folder.iterdir() if file.is_file()):
            if not file.endswith(".safetensors"):
                shutil.copyfile(folder / file, small / file)
        _write_settings(small, text_part(config, str(folder)))
        yield small


def _write_settings(folder: Path, part: TextPart) -> None:
    """Write the config.json of the text part, and let its tokenizer be read as the wrapper's is.

    transformers takes another class than the folder names for some kinds of wrappers (Qwen3.5), and not for
    their text parts: the text would be split in another way.
    """
    from transformers.models.auto.tokenization_auto import (
        MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS,
        TOKENIZER_MAPPING_NAMES,
    )

    write_json(folder / "config.json", json.loads(part.config.to_json_string(use_diff=False)))
    file = folder / "tokenizer_config.json"
    kind = TOKENIZER_MAPPING_NAMES.get(part.kind)
    if file.is_file() and kind and part.kind in MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS:
        settings = json.loads(file.read_text(encoding="utf-8"))
        write_json(file, settings | {"tokenizer_class": kind})


def _rewrite(file: Path, tensors: list[tuple[str, Entry]]) -> None:
    """Put a file in the place of `file`, which may be a link, with these of its tensors under other names."""
    aside = file.with_name(f".{file.name}.text")
    listed = [(name, entry.dtype, entry.shape) for name, entry in tensors]
    with writing_shard(aside, listed) as opened:
        for _, entry in tensors:
            for first, last in spans(entry, BLOCK):
                append_rows(opened, read_rows(entry, first, last))
    aside.replace(file)


def _index(tensors: Mapping[str, Entry]) -> dict[str, Any]:
    """Return the index of the shards that hold these tensors."""
    size = sum(entry.nbytes for entry in tensors.values())
    return {
        "metadata": {"total_size": size},
        "weight_map": {name: entry.file.name for name, entry in sorted(tensors.items())},
    }


def _dtype(config: Any, entries: Iterable[Entry]) -> str:
    """Return the name of the model's type: what it says, else that of the largest tensor."""
    if config.dtype is not None:
        return str(config.dtype).removeprefix("torch.")
    return DTYPES[max(entries, key=lambda entry: prod(entry.shape)).dtype][1]

"""The text part of a multimodal model as a causal language model of its own.

Gemma 3 (4B and more), Qwen3.5, Qwen2.5-VL and Mistral 3 are published as wrappers: a language model, a vision
tower and a projector. Stage `base` extracts the language model, so all later stages see an ordinary one.
Tensors keep their bytes and get the names of the text model; those of the tower are left out. The class of
the text model determines which tensors are required.
"""

import json
import re
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
from pipeline.gguf.safetensors_rows import (
    DTYPES,
    INDEX,
    Entry,
    append_rows,
    read_folder,
    read_rows,
    spans,
    writing_shard,
)
from pipeline.models.small_model import empty
from pipeline.models.text_config import TextPart, is_wrapper, text_part
from pipeline.stages.base.file_choice import kept_files
from pipeline.stages.base.stored_tensors import HEAD, index_of, is_untied, need_own_tensors

PREFIXES = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.text_model.": "model.",
}
DRAFTS = "mtp."  # layers that predict tokens beyond the next one; models in transformers leave them out
BLOCK = 1 << 22  # numbers in memory at a time


@dataclass(frozen=True)
class FoundPart:
    """Text part of a folder's wrapper: its tensors by their names in the text model, the classes that
    config.json names, and how many tensors are not part of it.
    """

    part: TextPart
    tensors: Mapping[str, Entry]
    architectures: Any
    left_out: int

    @property
    def record(self) -> dict[str, Any]:
        """Record of the wrapper for models/base.json."""
        return {
            "model_type": self.part.kind,
            "architectures": self.architectures,
            "tensors_left_out": self.left_out,
            "sees_images": self.part.sees_images,
        }


def find_text_part(folder: Path, config: Mapping[str, Any], source: str) -> FoundPart:
    """Return the text part of the wrapper in `folder`, found by config.json and the headers of the weights.
    Raises `DataError` if it is not complete.
    """
    part = text_part(config, source)
    entries = read_folder(folder)
    tensors = text_tensors(part, entries, source)
    return FoundPart(part, tensors, config.get("architectures"), len(entries) - len(tensors))


def text_tensors(part: TextPart, entries: Mapping[str, Entry], source: str) -> dict[str, Entry]:
    """Return the tensors of a wrapper that belong to its language model, by their names there.

    The head is tied if config.json says so, unless a head with other values than the embeddings is stored.
    A stored copy of the embeddings is then left out. Raises `DataError` if a tensor is missing, surplus, or
    of another shape or kind.
    """
    model = empty(part.config)
    names = model.state_dict().keys()
    # Keys and values of layers that use another layer's (Gemma 3n and 4). llama.cpp wants those of a 3n.
    unused = model._keys_to_ignore_on_load_unexpected or ()
    tensors: dict[str, Entry] = {}
    for stored, entry in entries.items():
        prefix = next((prefix for prefix in PREFIXES if stored.startswith(prefix)), "")
        name = PREFIXES.get(prefix, "") + stored.removeprefix(prefix)
        is_unused = prefix and any(re.search(pattern, name) for pattern in unused)
        if name in names or name.startswith(DRAFTS) or is_unused:
            tensors[name] = entry
        elif prefix and not name.endswith(".inv_freq"):
            raise DataError(
                "Q-BASE-015",
                f"{source}: {stored} has no place in {part.config.architectures[0]}, its text part: choose "
                "the text-only model of this family",
            )
    if is_untied(tensors, part.config):
        part.config.tie_word_embeddings = False
    elif part.config.tie_word_embeddings:
        tensors.pop(HEAD, None)
    need_own_tensors(tensors, part.config, source)
    return tensors


def write_text_part(found: FoundPart, folder: Path) -> None:
    """Write the text model into `folder`, which contains the wrapper's small files: its weights shard by
    shard, their index and config.json.
    """
    by_file: dict[Path, list[tuple[str, Entry]]] = {}
    for name, entry in found.tensors.items():
        by_file.setdefault(entry.file, []).append((name, entry))
    need_disk(folder, sum(entry.nbytes for entry in found.tensors.values()))
    for file, tensors in by_file.items():
        _write_shard(folder / file.name, tensors)
    if (folder / INDEX).exists():
        write_json(folder / INDEX, index_of(found.tensors))
    found.part.config.dtype = _dtype(found.part.config, found.tensors.values())
    _write_settings(folder, found.part)


def take_text_part(folder: Path, config: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Replace the wrapper in `folder` by its text model. Return what to record of it. Raises `DataError` if
    the text part is not complete.
    """
    part = find_text_part(folder, config, source)
    weights = set(folder.glob("*.safetensors"))
    # Files that came from the hub stay in its cache until the model is published.
    write_text_part(part, folder)
    for file in weights - {entry.file for entry in part.tensors.values()}:
        file.unlink()
    return part.record


@contextmanager
def settings_only(folder: Path) -> Iterator[Path]:
    """Yield the folder itself, or for a wrapper a temporary folder with its small files and the config.json
    of its text part.
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
    """Write the config.json of the text part, and let its tokenizer be read like the wrapper's.

    For some kinds of wrappers (Qwen3.5) transformers uses another class than the folder names, but not for
    their text parts. The text would be split differently.
    """
    from transformers.models.auto.tokenization_auto import (
        MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS,
        TOKENIZER_MAPPING_NAMES,
    )

    write_json(folder / "config.json", part.settings, allow_nan=True)
    file = folder / "tokenizer_config.json"
    kind = TOKENIZER_MAPPING_NAMES.get(part.kind)
    if file.is_file() and kind and part.kind in MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS:
        settings = json.loads(file.read_text(encoding="utf-8"))
        write_json(file, settings | {"tokenizer_class": kind}, allow_nan=True)


def _write_shard(file: Path, tensors: list[tuple[str, Entry]]) -> None:
    """Write these tensors under other names to `file`, which may be the file that they are read from."""
    aside = file.with_name(f".{file.name}.text")
    listed = [(name, entry.dtype, entry.shape) for name, entry in tensors]
    with writing_shard(aside, listed) as opened:
        for _, entry in tensors:
            for first, last in spans(entry, BLOCK):
                append_rows(opened, read_rows(entry, first, last))
    aside.replace(file)


def _dtype(config: Any, entries: Iterable[Entry]) -> str:
    """Return the name of the model's type: the config's if stated, otherwise that of the largest tensor."""
    if config.dtype is not None:
        return str(config.dtype).removeprefix("torch.")
    return DTYPES[max(entries, key=lambda entry: prod(entry.shape)).dtype][1]

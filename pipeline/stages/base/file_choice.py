"""Choice of the files of a repository or folder: everything that a model needs, and nothing that runs."""

import re
from collections.abc import Iterable
from pathlib import Path

from pipeline.core.errors import DataError
from pipeline.core.git_lfs import REMEDY, is_pointer

# Files that a model needs. Nothing here runs: no pickles, no Python.
KEPT = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.*",
    "LICENSE*",
    "NOTICE*",
    "README.md",
)
# Weights that are not the model's own: twice in some repositories, once in the author's form; an adapter's.
OTHER_WEIGHTS = ("consolidated*", "adapter_model*")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")


def kept_files(names: Iterable[str]) -> list[str]:
    """Return in order those files of a model's folder that the model needs and that don't run."""
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    top = [name for name in names if "/" not in name]
    return sorted(filter_repo_objects(top, allow_patterns=list(KEPT), ignore_patterns=list(OTHER_WEIGHTS)))


def choose_files(names: list[str], source: str) -> list[str]:
    """Return in order the files to copy from a model's top folder.

    Raises `DataError` unless they are a complete model with safetensors weights, a config and a fast
    tokenizer.
    """
    kept = kept_files(names)
    if not any(name.endswith(".safetensors") for name in kept):
        raise _no_weights(names, source)
    for name in ("config.json", "tokenizer.json"):
        if name not in kept:
            raise DataError(
                "Q-BASE-007",
                f"{source} has no {name}: choose a complete Hugging Face model with a fast tokenizer",
            )
    return kept


def _no_weights(names: list[str], source: str) -> DataError:
    """Return the error that `source`, which contains `names`, has no weights that a model can be made of."""
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    if any(name.startswith("adapter_model.") for name in names):
        return DataError(
            "Q-BASE-007",
            f"{source} has an adapter's weights and none of a model, so it is a LoRA adapter: name the model "
            "that it was trained on, and the adapter in train.start_from to train it further",
        )
    doubled = sorted(filter_repo_objects(names, allow_patterns=["consolidated*.safetensors"]))
    if doubled:
        return DataError(
            "Q-BASE-006",
            f"{source} has its weights in the author's own form only ({doubled[0]}): take the folder or "
            "repository of this model that has them for transformers (model.safetensors)",
        )
    pickles = sorted(filter_repo_objects(names, allow_patterns=list(PICKLES)))
    if pickles:
        return DataError(
            "Q-BASE-006",
            f"{source} has only pickle weights ({pickles[0]}), and reading a pickle can run code: take "
            "one with safetensors",
        )
    return DataError(
        "Q-BASE-006",
        f"{source} has no safetensors weights: choose a folder or repository that has them",
    )


def choose_gguf(names: list[str], file: str, source: str) -> list[str]:
    """Return the GGUF `file` (all parts if it is the first of a split file) and the files with its terms of
    use. Raises `DataError` if one is missing.
    """
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    parts = gguf_parts(file)
    top = [name for name in names if "/" not in name]
    if "/" in file and file in names:
        raise DataError(
            "Q-BASE-008",
            f"{file!r} is in a subfolder of {source}, which is not fetched: download it and name it as "
            "base.model, with revision and file null",
        )
    missing = [part for part in parts if part not in top]
    if missing:
        raise no_such_file(missing[0], names, source)
    return [*parts, *sorted(filter_repo_objects(top, allow_patterns=["LICENSE*", "NOTICE*", "README.md"]))]


def no_such_file(file: str, names: list[str], source: str) -> DataError:
    """Return the error that `source`, which contains `names`, has no GGUF `file`."""
    available = ", ".join(sorted(name for name in names if name.endswith(".gguf"))) or "none"
    return DataError(
        "Q-BASE-009",
        f"{source} has no file {file!r} (its GGUF files: {available}): correct base.file in params.yaml",
    )


def gguf_parts(file: str) -> list[str]:
    """Return the names of all parts of a split GGUF, given its first part (NAME-00001-of-00002.gguf). For any
    other file return its own name only.
    """
    match = re.fullmatch(r"(.*-)00001-of-(\d{5})\.gguf", file)
    if match is None:
        return [file]
    return [f"{match[1]}{part:05}-of-{match[2]}.gguf" for part in range(1, int(match[2]) + 1)]


def need_files(folder: Path, names: list[str]) -> None:
    """Raise `DataError` if one of the files can't be read, or is a Git LFS pointer."""
    for name in names:
        try:
            absent = is_pointer(folder / name)
        except OSError as error:
            raise DataError(
                "Q-BASE-027", f"{folder / name} can't be read ({error.strerror}): correct its rights"
            ) from error
        if absent:
            raise DataError("Q-BASE-043", f"{folder / name} is a pointer of Git LFS: {REMEDY}")

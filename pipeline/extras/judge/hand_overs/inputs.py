"""Files of a model that any tool made. A file that does not match its option is refused before it is read."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError, DataError
from pipeline.extras.judge.files import whole_header

NAMES = "--base DIR, --adapter DIR, --merged DIR, --gguf FILE"


@dataclass(frozen=True)
class Files:
    """Named paths: Hugging Face folders of base and merged model, PEFT's folder, GGUFs."""

    base: Path | None
    adapter: Path | None
    merged: Path | None
    ggufs: tuple[Path, ...]

    @property
    def text_folder(self) -> Path | None:
        """Return the last made folder with the tokenizer and template that the GGUF should have."""
        folders = (self.merged, self.adapter, self.base)
        return next((folder for folder in folders if folder and has_tokenizer(folder)), None)

    def as_values(self) -> dict[str, Any]:
        """Return the paths as JSON."""
        folders = {"base": self.base, "adapter": self.adapter, "merged": self.merged}
        named = {name: path and str(path) for name, path in folders.items()}
        return named | {"gguf": [str(path) for path in self.ggufs]}


def need_files(base: str | None, adapter: Path | None, merged: Path | None, ggufs: list[Path]) -> Files:
    """Return the named files. Raises `ConfigError` if there are fewer than two, and `DataError` for one that
    does not match its option.
    """
    named = sum(each is not None for each in (base, adapter, merged)) + len(ggufs)
    if named < 2:
        raise ConfigError(
            "Q-JUDGE-015", f"one file has no hand-over to look at: name two at least of {NAMES}"
        )
    base_path = need_model(base_folder(base), "--base") if base is not None else None
    if adapter is not None and not (adapter / "adapter_config.json").is_file():
        raise DataError(
            "Q-JUDGE-016",
            f"{adapter} has no adapter_config.json, so it is no folder of PEFT's: correct --adapter",
        )
    if merged is not None:
        need_model(merged, "--merged")
    for gguf in ggufs:
        whole_header(gguf)
    return Files(base_path, adapter, merged, tuple(ggufs))


def base_folder(name: str) -> Path:
    """Return the folder of that path. For a repository's name, return its snapshot in the hub's cache."""
    path = Path(name).expanduser()
    if path.exists() or name.count("/") != 1 or name.startswith(("/", ".", "~")):
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return path


def need_model(folder: Path, option: str) -> Path:
    """Return the folder.

    Raises `DataError` if it is not a Hugging Face folder, or if its weights are quantized.
    """
    config = folder / "config.json"
    if not config.is_file():
        what = "has no config.json"
        if folder.is_file():
            what = "is a file"
        elif not folder.exists():
            what = "is missing"
        raise DataError(
            "Q-JUDGE-016",
            f"{folder} {what}, so it is no Hugging Face folder of a model: correct {option}, or fetch the "
            "model first",
        )
    try:
        quantized = json.loads(config.read_text(encoding="utf-8")).get("quantization_config")
    except (ValueError, AttributeError, RecursionError):
        raise DataError("Q-JUDGE-016", f"{config} holds no JSON object: fetch the model again") from None
    if quantized:
        method = quantized.get("quant_method", "unknown") if isinstance(quantized, dict) else "unknown"
        raise DataError(
            "Q-JUDGE-017",
            f"the weights of {folder} are quantized ({method}), so nothing can be held against them: name "
            f"the folder in 16 bit that they were made of with {option}",
        )
    return folder


def has_tokenizer(folder: Path) -> bool:
    """Return True if the folder contains a tokenizer that can be compared."""
    return (folder / "tokenizer.json").is_file()

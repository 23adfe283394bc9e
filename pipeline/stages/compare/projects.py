"""Sub-projects below models/.compare: folders in which the real stages run, with settings of their own and links to what they share."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.core.hashing import file_hash, json_hash
from pipeline.core.publish import publishing, remove
from pipeline.llamacpp.tools import Toolchain
from pipeline.workflow.code_keys import Package, stage_module
from pipeline.workflow.stages import table

KEY = "key"  # file of a sub-project: what everything in it depends on
LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "accelerate", "tokenizers", "gguf")
Links = Mapping[str, Path]
Settings = dict[str, dict[str, Any]]


def open_project(root: Path, params: Params, settings: Settings, links: Links, key: str) -> Path:
    """The sub-project `root` with `params` under `settings` and `links` ({path in it: what it leads to}); the folder.

    What lies there of another `key` is deleted first.
    """
    said = root / KEY
    if not said.is_file() or said.read_text(encoding="utf-8") != key:
        remove(root)
    for place, target in links.items():
        link = root / place
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink() and link.readlink() != target.resolve():
            link.unlink()  # the project was copied or moved, and this leads to where it was
        if not link.is_symlink():
            link.symlink_to(target.resolve())
    values = sub_params(params, settings)
    with publishing(root / "params.yaml") as aside:
        aside.write_text(json.dumps(values, indent=2, ensure_ascii=False), encoding="utf-8")  # JSON is YAML, the same in every version
    said.write_text(key, encoding="utf-8")
    return root


def sub_params(params: Params, settings: Settings) -> Settings:
    """`params` as a dict for YAML, with what every sub-project has in common and with `settings` on top; checked."""
    kind, home = params.convert.type, params.llamacpp.home
    values: Settings = params.model_dump(mode="json")
    shared: Settings = {
        "base": {"quantization": "nf4", "level": None, "compare_with": None}, "train": {"method": "sft", "sample_rows": 0},
        "merge": {"base": "w16"}, "imatrix": {"tokens": 0}, "quantize": {"levels": list(params.compare.levels)},
        "compare": {"seeds": []}, "evaluate": {"models": [kind]},
        "llamacpp": {"home": str(Path(home).expanduser().resolve()) if home else None},
    }  # fmt: skip
    for changes in (shared, settings):
        for section, changed in changes.items():
            values[section] |= changed
    Params.model_validate(values)
    return values


def nf4_settings(seed: int, onto: str = "w16") -> Settings:
    """What a sub-project differs in that trains on NF4 with `seed` and merges into `onto`."""
    return {"train": {"seed": seed}, "merge": {"base": onto}}


def level_settings(file: Path, seed: int | None = None) -> Settings:
    """What a sub-project differs in whose base is the GGUF `file`, trained on as it is."""
    base = {"source": "gguf", "model": str(file.resolve()), "revision": None, "file": None, "quantization": "gguf"}
    return {"base": base, "evaluate": {"models": ["adapter"]}, "train": {"embeddings_on_cpu": False} | ({} if seed is None else {"seed": seed})}


def key_of(root: Path, params: Params, tools: Toolchain) -> str:
    """A hash of everything but seeds and levels that what is trained depends on: base, tokens, settings, libraries, llama.cpp and code."""
    train = params.train.model_dump(mode="json")
    return json_hash({
        "base": json.loads((root / "models/base.json").read_text(encoding="utf-8"))["files"],
        "tokens": file_hash(root / "data/tokens/manifest.json"),
        "rows": {split: file_hash(root / f"data/final/{split}.jsonl") for split in ("train", "val")},
        "train": {name: value for name, value in train.items() if name != "seed"},
        "settings": [params.preprocess.model_dump(), params.merge.dtype, params.convert.type, params.lora.type, params.quantize.tensor_types],
        "libraries": {name: version(name) for name in LIBRARIES},
        "llama.cpp": tools.version,
        "code": code_hash(*training_modules()),
    })  # fmt: skip


def training_modules() -> tuple[str, ...]:
    """The stages that run in sub-projects, and this module, which writes their settings."""
    return *map(stage_module, table().stages["compare"].starts), __name__


def code_hash(*modules: str) -> str:
    """One hash of all code that `modules` reach, as it is now."""
    return json_hash(Package().key(*modules))

"""PEFT's own merge, for comparison: the whole model in memory, summed in the type it is loaded in."""

from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError
from pipeline.gguf.safetensors_rows import read_folder
from pipeline.models.merging.record import copy_settings
from pipeline.models.runtime import silence_libraries


def merge_with_peft(base: Path, adapter: Path, folder: Path, dtype: str, onto: str) -> dict[str, Any]:
    """Write PEFT's `merge_and_unload` of `adapter` into `base` to `folder`; what is to be recorded. Raises `ConfigError` for NF4."""
    if onto != "w16":
        raise ConfigError(f"merge.method peft can't merge into {onto}: set merge.base to w16, or merge.method to stream")
    silence_libraries()
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype), local_files_only=True, trust_remote_code=False)
    tuned = PeftModel.from_pretrained(model, adapter)
    adapted = len(tuned.targeted_module_names)
    tuned.merge_and_unload().save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):  # transformers writes its own version and defaults into them
        (folder / name).unlink(missing_ok=True)
    copy_settings(base, adapter, folder, dtype, {})
    tensors = read_folder(folder)
    return {"tensors": len(tensors), "adapted": adapted, "bytes": sum(entry.nbytes for entry in tensors.values()), "config": {}, "adapters": []}

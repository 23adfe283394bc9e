"""Merge the adapter into the base's 16-bit weights on the CPU, one tensor at a time.

Reads `models/base/` and `models/adapter/`.
Writes `models/merged/` (safetensors shards, config, generation config, tokenizer and template).
Command: `python -m pipeline merge`
"""

import json
import shutil
from pathlib import Path
from typing import Any

from pipeline.errors import DataError
from pipeline.params import Params
from pipeline.publish import need_disk, publishing, write_json

PREFIX = "base_model.model."
# settings of adapters whose merge is not W + scale·B·A; each must have the value given here
PLAIN_LORA = {"peft_type": "LORA", "use_dora": False, "use_rslora": False, "bias": "none", "modules_to_save": None,
              "rank_pattern": {}, "alpha_pattern": {}, "fan_in_fan_out": False, "lora_bias": False, "trainable_token_indices": None,
              "target_parameters": None, "layer_replication": None}  # fmt: skip
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "vocab.json", "merges.txt", "tokenizer.model",
)  # fmt: skip


def merge(*, base: Path, adapter: Path, merged: Path, dtype: str) -> dict[str, Any]:
    """Write base + scale·B·A to `merged`, shard by shard: summed in float32, rounded once to `dtype`.

    Never more than one shard's tensors are held. Tensors without an adapter are only rounded (bit-equal where the
    base has the same type). Raises `DataError` where the adapter is not plain LoRA, names a tensor that the base
    lacks, or a weight does not fit `dtype`.
    """
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    target = getattr(torch, dtype)
    scale = read_scale(adapter)
    shards = sorted(base.glob("*.safetensors"))
    need_disk(merged.parent, sum(shard.stat().st_size for shard in shards))
    index: dict[str, str] = {}
    total_bytes = 0
    with safe_open(adapter / "adapter_model.safetensors", "pt") as lora, publishing(merged) as aside:
        aside.mkdir()
        pairs = adapter_pairs(list(lora.keys()))
        left = set(pairs)
        for shard in shards:
            tensors = {}
            with safe_open(shard, "pt") as weights:
                for name in weights.keys():  # noqa: SIM118 (no mapping)
                    value = weights.get_tensor(name)
                    if name in pairs:
                        a, b = (lora.get_tensor(key).to(torch.float32) for key in pairs[name])  # (r, in), (out, r)
                        value = value.to(torch.float32) + scale * (b @ a)  # (out, in)
                        left.discard(name)
                    tensors[name] = fitting(value, target, name)
                    total_bytes += tensors[name].nbytes
                    index[name] = shard.name
            save_file(tensors, aside / shard.name, metadata={"format": "pt"})
        if left:
            raise DataError(f"{len(left)} adapter targets are not in {base} ({min(left)}): the adapter belongs to another base, train it again")
        if len(shards) > 1:
            write_json(aside / "model.safetensors.index.json", {"metadata": {"total_size": total_bytes}, "weight_map": index})
        copy_settings(base, adapter, aside, dtype)
    return {"tensors": len(index), "adapted": len(pairs), "bytes": total_bytes}


def read_scale(adapter: Path) -> float:
    """lora_alpha ÷ r of a plain LoRA adapter. Raises `DataError` naming everything about it that isn't plain."""
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    odd = [f"{key} is {config[key]!r}" for key, plain in PLAIN_LORA.items() if key in config and config[key] != plain]
    if odd:
        raise DataError(f"{adapter} can't be merged ({'; '.join(odd)}): only plain LoRA is supported")
    return float(config["lora_alpha"]) / float(config["r"])


def adapter_pairs(keys: list[str]) -> dict[str, tuple[str, str]]:
    """{base tensor: (lora_A key, lora_B key)}; every key belongs to exactly one pair, else `DataError`."""
    pairs = {}
    for key in keys:
        stem, mark, _ = key.partition(".lora_A.weight")
        if mark and stem.startswith(PREFIX) and f"{stem}.lora_B.weight" in keys:
            pairs[f"{stem.removeprefix(PREFIX)}.weight"] = (key, f"{stem}.lora_B.weight")
    used = {key for pair in pairs.values() for key in pair}
    unused = sorted(set(keys) - used)
    if unused or not pairs:
        which = ", ".join(unused[:3]) or "it is empty"
        raise DataError(f"{len(unused)} of {len(keys)} adapter tensors have no place in a merge ({which}): train it again")
    return pairs


def fitting(value: Any, dtype: Any, name: str) -> Any:
    """`value` rounded to `dtype`. Raises `DataError` where a number is not finite or too large for it."""
    import torch

    rounded = value.to(dtype) if value.is_floating_point() else value
    if rounded.is_floating_point() and not torch.isfinite(rounded).all():
        raise DataError(f"{name} has values up to {value.abs().max():.3g} that {dtype} can't hold: set merge.dtype to bfloat16")
    return rounded.contiguous()


def copy_settings(base: Path, adapter: Path, merged: Path, dtype: str) -> None:
    """Config and generation config from the base, tokenizer and template from the adapter: what was trained is what ships."""
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    write_json(merged / "config.json", config | {"dtype": dtype})
    if (base / "generation_config.json").exists():
        shutil.copyfile(base / "generation_config.json", merged / "generation_config.json")
    for name in TOKENIZER_FILES:
        if (adapter / name).exists():
            shutil.copyfile(adapter / name, merged / name)


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`."""
    done = merge(base=root / "models/base", adapter=root / "models/adapter", merged=root / "models/merged", dtype=params.merge.dtype)
    print(f"merge: {done['adapted']} of {done['tensors']} tensors adapted, {done['bytes'] / 1e6:.0f} MB")

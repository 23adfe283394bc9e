"""The adapter's GGUF against the adapter that was trained: every matrix, number for number, and its scale."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.targets import alpha_alone
from pipeline.core.checks import Check
from pipeline.core.errors import DataError
from pipeline.core.publish import read_json
from pipeline.gguf.tensors import gguf_tensors
from pipeline.stages.parity.check import count_check

TITLE, WHAT = "Adapter → its GGUF", "matrices whose numbers are not the trained ones, rounded once"
AGAIN = "run `snakemake --force lora`"
PREFIX = "base_model.model."


def lora_weights(base: Path, adapter: Path, lora: Path) -> Check:
    """Each `lora_A`, `lora_B` of the folder `adapter` against the GGUF `lora`, in the type there, and α."""
    from safetensors import safe_open
    from transformers import AutoConfig

    from pipeline.models.experts.targets import expert_number
    from pipeline.models.gguf_names import in_order
    from pipeline.models.quantized_model import tensor_names

    header, tensors = gguf_tensors(lora)
    config = AutoConfig.from_pretrained(base, local_files_only=True, trust_remote_code=False)
    names = tensor_names(config, header, lora)
    wrong, seen = list[str](), set[tuple[str, int | None]]()
    with safe_open(adapter / "adapter_model.safetensors", framework="pt") as weights:
        for key in weights.keys():  # noqa: SIM118 (safe_open is no mapping)
            path, _, part = key.removeprefix(PREFIX).removesuffix(".weight").rpartition(".lora_")
            if part not in ("A", "B"):
                raise DataError(
                    "Q-PARITY-002",
                    f"{adapter} holds {key}, which is no matrix of a LoRA adapter: train with plain LoRA",
                )
            parameter = f"{path}.weight"
            name = f"{names.of(parameter)}.lora_{part.lower()}"
            found, number = tensors.get(name), expert_number(parameter)
            seen.add((name, number))
            if found and number is not None:
                found = found.part(number) if len(found.shape) == 3 and number < found.shape[0] else None
            trained = weights.get_tensor(key).float()
            if found is None or found.rows * found.columns != trained.numel():
                wrong.append(f"{name} is missing or of another shape, for {key}")
                continue
            stored: Any = found.values(0, found.rows).reshape(tuple(trained.shape))
            if part == "B":
                import torch

                stored = in_order(torch.from_numpy(stored.copy()), names.reordered(parameter)).numpy()
            if not np.array_equal(stored, rounded(trained.numpy(), found.type)):
                wrong.append(f"{name} differs from {key}")
    taken = Counter(name for name, _ in seen)
    wrong += [
        f"{name} is not all in the adapter"
        for name, one in tensors.items()
        if taken[name] != (one.shape[0] if len(one.shape) == 3 else 1)
    ]
    alpha = float(np.float32(alpha_alone(read_json(adapter / "adapter_config.json", AGAIN))))
    if header.fields.get("adapter.lora.alpha") != alpha:
        wrong.append(f"alpha is {header.fields.get('adapter.lora.alpha')} instead of {alpha}")
    return count_check(
        TITLE,
        what=WHAT,
        different=len(wrong),
        compared=len(seen) + 1,
        first="; ".join(wrong[:3]),
        cause=f"The GGUF is not of this adapter: {AGAIN}.",
    )


def rounded(values: Any, kind: str) -> Any:
    """Float32 values as the type `kind` keeps them, as float32 again."""
    return values.astype(np.float16).astype(np.float32) if kind == "F16" else values

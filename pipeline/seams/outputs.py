"""What the models say: logits of base plus adapter, of the merged model and of the F16 GGUF on the same tokens."""

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.llamacpp.logits import Floats, nmse, open_gguf
from pipeline.llamacpp.tools import Toolchain
from pipeline.params import Parity
from pipeline.seams.seam import Seam
from pipeline.training.runtime import silence_libraries


def output_seams(
    *, base: Path, adapter: Path, merged: Path, f16: Path, rows: list[list[int]], limits: Parity, threads: int, tools: Toolchain
) -> dict[str, Seam]:
    """Merge and conversion, each judged by the logits before and after it, at every position of `rows` (token ids)."""
    dtype = compare_dtype(merged)
    trained = torch_logits(base, rows, dtype, adapter)
    ours = torch_logits(merged, rows, dtype)
    size = max(len(ids) for ids in rows)
    with open_gguf(tools, f16, ctx_size=size, threads=threads, n_gpu_layers=0) as gguf:
        theirs = [gguf.logits(ids, list(range(len(ids)))) for ids in rows]
    where = f"{len(rows)} held-out rows, {sum(map(len, rows))} positions, PyTorch in {str(dtype).removeprefix('torch.')}"
    return {
        **logit_seams("merge", "16-bit base with adapter → merged model", trained, ours, limits, where),
        **logit_seams("f16", "Merged model → F16 GGUF", ours, theirs, limits, where),
    }


def logit_seams(key: str, title: str, before: list[Floats], after: list[Floats], limits: Parity, where: str) -> dict[str, Seam]:
    """Two seams of one hand-over: the worst row's squared error, and how often both rank the same token first."""
    strange = sum(int((~np.isfinite(values)).any(axis=-1).sum()) for side in (before, after) for values in side)
    if strange:
        detail = f"{strange} positions hold logits that are no finite numbers; {where}"
        return {f"{key}_logits": Seam(f"{title}, logits", "positions whose logits are not finite", float(strange), 0.0, "positions", "fail", detail)}
    worst = max(nmse(a, b[:, : a.shape[1]]) for a, b in zip(before, after, strict=True))
    same = np.concatenate([a.argmax(axis=-1) == b.argmax(axis=-1) for a, b in zip(before, after, strict=True)]).mean()
    verdicts = ["pass" if good else "fail" for good in (worst <= limits.max_nmse, same >= limits.min_same_top)]
    return {
        f"{key}_logits": Seam(
            f"{title}, logits", "largest normalised squared error of a row's logits", worst, limits.max_nmse, "", verdicts[0], where,
        ),
        f"{key}_first_choice": Seam(
            f"{title}, first choice", "share of positions where both rank the same token first", round(float(same), 4), limits.min_same_top, "",
            verdicts[1], where,
        ),
    }  # fmt: skip


def torch_logits(folder: Path, rows: list[list[int]], dtype: Any, adapter: Path | None = None) -> list[Floats]:
    """Logits (T, V) of every position of every row, by the model in `folder` with `adapter` on it; the model is freed after."""
    silence_libraries()
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, trust_remote_code=False)
    if adapter:
        model = PeftModel.from_pretrained(model, adapter)
    with torch.no_grad():
        return [model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy() for ids in rows]


def compare_dtype(merged: Path) -> Any:
    """float32 where the weights fit twice into the memory that is free, else bfloat16."""
    import psutil
    import torch

    stored = sum(shard.stat().st_size for shard in merged.glob("*.safetensors"))
    return torch.float32 if 4 * stored < psutil.virtual_memory().available else torch.bfloat16

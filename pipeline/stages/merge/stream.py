"""Merge shard by shard, tensor by tensor, with a block of rows in memory at a time. How much the adapter
changes each weight is measured on the way.
"""

from collections.abc import Mapping, Sequence
from math import gcd, sqrt
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pipeline.core.errors import DataError
from pipeline.core.publish import write_json
from pipeline.gguf.safetensors_rows import (
    DTYPES,
    INDEX,
    NAMES,
    Entry,
    append_rows,
    read_folder,
    read_rows,
    writing_shard,
)
from pipeline.metrics.adapter_norms import place_of
from pipeline.models.merging.adapter import read_adapter
from pipeline.models.merging.compute import Job, Rows, Update, check_finite, round_once
from pipeline.models.merging.inputs import copy_settings, structure
from pipeline.models.merging.nf4 import Nf4, round_trip, tensor_scales
from pipeline.models.merging.plan import plan
from pipeline.models.runtime import in_turn, one_thread

COPIED_TYPES = {
    "BOOL",
    "U8",
    "I8",
    "U16",
    "I16",
    "U32",
    "I32",
    "U64",
    "I64",
}  # types that are not weights; they are copied unchanged
SAMPLE = 1 << 18  # numbers sampled from a tensor to measure its NF4 error
Sums = NDArray[np.float64]  # five sums over the numbers of an adapted tensor, see `change_sums`


def stream(
    base: Path, adapter: Path, folder: Path, dtype: str, nf4: Nf4 | None, *, into_nf4: bool
) -> dict[str, Any]:
    """Write every tensor of the merge to `folder`, in the base's shards, with index and settings. Return the
    values to record.
    """
    planned = plan(read_folder(base), read_adapter(adapter), structure(base), nf4=into_nf4)
    files: dict[str, list[Job]] = {}
    for job in planned.jobs:
        files.setdefault(job.file, []).append(job)
    if len(files) == 1:
        files = {"model.safetensors": planned.jobs}
    diagnostics: list[dict[str, Any]] = []
    for file, jobs in files.items():
        kinds = [(job.name, kind_of(job, dtype), job.source.shape) for job in jobs]
        with one_thread(), writing_shard(folder / file, kinds) as shard:
            for job, (_, kind, _) in zip(jobs, kinds, strict=True):
                diagnostics += write_tensor(shard, job, kind, nf4)
    total = sum(
        job.source.nbytes // job.source.width * DTYPES[kind_of(job, dtype)][0] for job in planned.jobs
    )
    if len(files) > 1:
        write_json(
            folder / INDEX,
            {"metadata": {"total_size": total}, "weight_map": {job.name: job.file for job in planned.jobs}},
        )
    copy_settings(base, adapter, folder, dtype, planned.config)
    return {
        "tensors": len(planned.jobs),
        "adapted": len(diagnostics),
        "replaced": sum(job.source.file.parent == adapter for job in planned.jobs),
        "rounded": sum(kind_of(job, dtype) != job.source.dtype for job in planned.jobs),
        "bytes": total,
        "config": planned.config,
        "adapters": diagnostics,
    }


def kind_of(job: Job, dtype: str) -> str:
    """Return the type (safetensors' name) of a job's tensor in the merged model.

    Raises `DataError` for 8-bit types.
    """
    if job.source.dtype in COPIED_TYPES:
        return job.source.dtype
    if job.source.dtype.startswith("F8"):
        raise DataError("Q-GGUF-009", f"{job.name} is in {job.source.dtype}: take a base in 16 or 32 bit")
    return NAMES[dtype]


def write_tensor(shard: BinaryIO, job: Job, kind: str, nf4: Nf4 | None) -> list[dict[str, Any]]:
    """Write a job's tensor, with a few blocks of rows in memory at a time. Return the diagnostics of its
    update: one record, or an empty list if the adapter does not change the tensor.
    """
    import torch

    rows = Rows(job, nf4)
    sums = np.zeros(5)
    target = getattr(torch, DTYPES[kind][1])

    def block(span: tuple[int, int]) -> tuple[Any, Sums]:
        change = np.zeros(5)
        if job.update:
            start = rows.start(*span)
            total = rows.total(start, *span)
            change = change_sums(start, total)
            values = round_once(total, target)
        elif job.quantized or kind != job.source.dtype:
            values = round_once(rows.start(*span), target)
        else:
            values = read_rows(job.source, *span)
        check_finite(values, job.name)
        return values, change

    for values, change in in_turn(block, rows.spans()):
        sums += change
        append_rows(shard, values)
    if not job.update:
        return []
    lost = nf4_error(job.source, nf4) if nf4 and job.source.columns > 1 else None
    return [figures(job.name, job.update, sums, lost)]


def change_sums(start: Any, total: Any) -> Sums:
    """Return five sums over rows of a weight W before and after the merge (float64): the count of its
    numbers, W², |W|, Δ², |Δ|. With DoRA's lengths more than B·A changes.
    """
    import torch

    sums = [float(start.numel())]
    for values in (start, total - start):
        sums += [float(torch.linalg.vector_norm(values)) ** 2, float(values.abs().sum())]
    return np.array(sums)


def figures(name: str, update: Update, sums: Sums, lost: float | None) -> dict[str, Any]:
    """Return one tensor's record: rank, scale, Frobenius norms, mean |Δ| ÷ mean |W|, NF4 error ÷ ‖ΔW‖,
    spectral norm of Δ.

    `rows` and `columns` are those of one expert, and so is the spectral norm (the largest of all experts).
    DoRA's change has full rank, so its spectral norm is None.
    """
    layer, module = place_of(name)
    count, start_squares, start_sum, change_squares, change_sum = sums.tolist()  # see `change_sums`
    change, weight = sqrt(change_squares), sqrt(start_squares)
    return {
        "tensor": name,
        "layer": layer,
        "module": module,
        "rank": update.right.shape[1],
        "scale": update.scale,
        "norm_a": _norm(update.right),
        "norm_b": _norm(update.left),
        "norm_update": change,
        "norm_weight": weight,
        "spectral_update": _spectral(update) if update.magnitude is None else None,
        "rms_weight": weight / sqrt(count),
        "rows": update.left.shape[1],
        "columns": update.right.shape[2],
        "relative_change": change_sum / start_sum if start_sum else None,
        "nf4_error_to_update": lost * weight / change if lost is not None and change else None,
    }


def _norm(values: Any) -> float:
    import torch

    return float(torch.linalg.vector_norm(values.double()))


def _spectral(update: Update) -> float:
    """Return the largest singular value of any expert's scaled update. It is computed as that of R_left ·
    R_rightᵀ from two QR decompositions.
    """
    import torch

    left = torch.linalg.qr(update.left.double(), mode="r").R
    right = torch.linalg.qr(update.right.double().transpose(1, 2), mode="r").R
    return float(torch.linalg.svdvals(left @ right.transpose(1, 2)).max()) * abs(update.scale)


def nf4_error(entry: Entry, nf4: Nf4) -> float:
    """Return ‖16-BIT − NF4‖ ÷ ‖16-BIT‖ from at most SAMPLE numbers, in rows evenly spread over the tensor."""
    import torch

    step = nf4.block // gcd(nf4.block, entry.columns)  # number of rows that end at the end of a block
    count = max(1, SAMPLE // (entry.columns * step))
    places = sorted({int(place) // step * step for place in torch.linspace(0, entry.rows - 1, count)})
    values = torch.cat([read_rows(entry, place, min(place + step, entry.rows)).view(-1) for place in places])
    maxima, used = tensor_scales([values], nf4)
    exact = values.double()
    lost = round_trip(values, maxima, used, nf4).double() - exact
    size = float(torch.linalg.vector_norm(exact))
    return float(torch.linalg.vector_norm(lost)) / size if size else 0.0


def idle_adapters(adapters: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a list with one sentence on adapters that changed no weight; empty if all did. `adapters` are
    records of `figures`.
    """
    idle = [tensor["tensor"] for tensor in adapters if tensor["norm_update"] == 0.0]
    if not idle:
        return []
    return [
        f"{len(idle)} of {len(adapters)} adapters learned nothing (no weight changes), first {idle[0]}: "
        "train longer or with a higher rate"
    ]

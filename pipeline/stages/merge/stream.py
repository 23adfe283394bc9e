"""The merge itself: shard by shard, tensor by tensor, a block of rows in memory at a time."""

from pathlib import Path
from typing import Any, BinaryIO

from pipeline.core.errors import DataError
from pipeline.core.publish import write_json
from pipeline.gguf.safetensors_rows import (
    DTYPES,
    INDEX,
    NAMES,
    append_rows,
    read_folder,
    read_rows,
    writing_shard,
)
from pipeline.models.merging.adapter import read_adapter
from pipeline.models.merging.compute import Job, Rows, check_finite, round_once
from pipeline.models.merging.inputs import copy_settings, structure
from pipeline.models.merging.nf4 import Nf4
from pipeline.models.merging.plan import plan
from pipeline.models.runtime import in_turn, one_thread
from pipeline.stages.merge.diagnostics import ChangeStats, figures, nf4_error

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
}  # types that are no weights: copied as they are


def stream(
    base: Path, adapter: Path, folder: Path, dtype: str, nf4: Nf4 | None, *, into_nf4: bool
) -> dict[str, Any]:
    """Write every tensor of the merge to `folder`, shard by shard as the base has them, with index and
    settings; what is to be recorded.
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
    """The type (safetensors' names) of a job's tensor in the merged model. Raises `DataError` for 8 bit."""
    if job.source.dtype in COPIED_TYPES:
        return job.source.dtype
    if job.source.dtype.startswith("F8"):
        raise DataError("Q-GGUF-009", f"{job.name} is in {job.source.dtype}: take a base in 16 or 32 bit")
    return NAMES[dtype]


def write_tensor(shard: BinaryIO, job: Job, kind: str, nf4: Nf4 | None) -> list[dict[str, Any]]:
    """Write a job's tensor and its update's diagnostics, with a few blocks of rows in memory at a time."""
    import torch

    rows, change_stats = Rows(job, nf4), ChangeStats()
    target = getattr(torch, DTYPES[kind][1])

    def block(span: tuple[int, int]) -> tuple[Any, ChangeStats]:
        change = ChangeStats()
        if job.update:
            start = rows.start(*span)
            total = rows.total(start, *span)
            change.add(start, total)
            values = round_once(total, target)
        elif job.quantized or kind != job.source.dtype:
            values = round_once(rows.start(*span), target)
        else:
            values = read_rows(job.source, *span)
        check_finite(values, job.name)
        return values, change

    for values, change in in_turn(block, rows.spans()):
        change_stats += change
        append_rows(shard, values)
    if not job.update:
        return []
    lost = nf4_error(job.source, nf4) if nf4 and job.source.columns > 1 else None
    return [figures(job.name, job.update, change_stats, lost)]

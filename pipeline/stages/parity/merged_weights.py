"""Check of merged weights: base + scale·B·A within half a unit in the last place, others equal, none lost."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import isnan
from pathlib import Path
from typing import Any

from pipeline.core.checks import Check
from pipeline.core.errors import DataError
from pipeline.core.hashing import file_hash
from pipeline.core.publish import read_json
from pipeline.gguf.safetensors_rows import Entry, read_folder
from pipeline.gguf.sources import in_model
from pipeline.models.merging.adapter import WEIGHTS, read_adapter
from pipeline.models.merging.compute import Job
from pipeline.models.merging.inputs import (
    RECORD,
    Structure,
    TrainedRun,
    read_run,
    read_settings,
    structure,
    tokenizer_files,
    tokenizer_settings,
)
from pipeline.models.merging.judge import Assumption, tensor_error
from pipeline.models.merging.nf4 import Nf4
from pipeline.models.merging.plan import Plan, plan
from pipeline.models.runtime import side_by_side

TITLE = "Base with adapter → merged model, weights"
WHAT = "largest distance of a weight from base + scale·B·A"
# One rounding costs half a unit in the last place. The rest is room for the order of a float64 sum near a
# tie.
LIMIT = 0.5 + 2**-20
CAUSE_LIMIT = 0.57  # limit that includes a merge that sums in float32 or first rounds to another 16-bit type
# Settings of bitsandbytes' quantization. The weights show which of them a merge went through.
DTYPES = ("bfloat16", "float16", "float32")
BLOCKS = (64, 32, 128, 256, 512, 1024)
FORCE_MERGE = "run `snakemake --force merge`"
MERGE_AGAIN = "run `python -m pipeline merge` again."


@dataclass(frozen=True)
class Fault:
    """Fault that can be seen before a weight is read, and its likely cause with the remedy."""

    found: str
    cause: str


@dataclass(frozen=True)
class Compared:
    """Expected and actual tensors of the merged model, quantization, and records of train and merge."""

    jobs: dict[str, Job]
    merged: dict[str, Entry]
    model: Structure
    run: TrainedRun
    record: dict[str, Any]
    adapter_sha256: str

    def nf4(self, job: Job) -> Nf4 | None:
        """Return the quantization that a job's source went through according to the merge's record."""
        return self.run.nf4 if job.quantized else None


def merged_weights(base: Path, adapter: Path, merged: Path) -> Check:
    """Return one parity check over every tensor of the three folders, with its likely cause if it fails.
    Tensors are streamed in blocks of rows.

    Raises `DataError` if a folder can't be read or adapter and base don't fit.
    """
    record = read_merge(merged)
    run = read_run(adapter)
    model = structure(base)
    expected = plan(read_folder(base), read_adapter(adapter), model, nf4=record["merge_base"] == "nf4")
    jobs = {job.name: job for job in expected.jobs}
    compared = Compared(jobs, read_folder(merged), model, run, record, file_hash(adapter / WEIGHTS))
    fault = (
        _record_fault(adapter, compared)
        or _tensor_fault(compared)
        or _settings_fault(base, adapter, merged, expected)
    )
    if fault:
        return Check(TITLE, "fail", fault.found, fault.cause, what=WHAT, limit=LIMIT, unit="ulp")
    distances = side_by_side(
        lambda job: tensor_error(job, compared.merged[job.name], compared.nf4(job)), expected.jobs
    )
    errors = {job.name: error for job, error in zip(expected.jobs, distances, strict=True)}
    wrong = [name for name, error in errors.items() if isnan(error) or error > LIMIT]
    worst = max(errors, key=lambda name: errors[name])
    equal = sum(
        errors[name] == 0.0 and job.update is None and not job.quantized for name, job in jobs.items()
    )
    if wrong:
        off = f"{len(wrong)} of {len(jobs)} tensors are off, first {wrong[0]}"
        detail = f"{off}; worst {worst}, {errors[worst]:.4g} ulp"
    else:
        right = f"{len(jobs)} tensors, {equal} of them bit-equal to their source"
        detail = f"{right}; worst {worst}, {errors[worst]:.4f} ulp"
    return Check(
        TITLE,
        "fail" if wrong else "pass",
        detail,
        _cause(compared, wrong) if wrong else "",
        what=WHAT,
        # JSON has no infinity. NaN means that the distance is not defined.
        figure=errors[worst] if errors[worst] < float("inf") else None,
        limit=LIMIT,
        unit="ulp",
        figures={"tensors": float(len(jobs)), "bit_equal": float(equal), "wrong": float(len(wrong))},
    )


def read_merge(merged: Path) -> dict[str, Any]:
    """Return the merge's record. Raises `DataError` if its `merge_base` is neither 16-bit nor nf4."""
    file = merged / RECORD
    record = read_json(file, FORCE_MERGE) if file.exists() else {}
    if not isinstance(record, dict) or record.get("merge_base") not in ("16-bit", "nf4"):
        raise DataError("Q-PARITY-004", f"{file} doesn't say what the adapter was merged into: {FORCE_MERGE}")
    return record


def _record_fault(adapter: Path, compared: Compared) -> Fault | None:
    """Return the first fault in the records of train and merge."""
    recorded = compared.record.get("base_weights_sha256")
    trained = compared.run.weights_sha256
    if recorded and trained and recorded != trained:
        return Fault(
            f"the adapter was trained on weights {trained[:12]} and merged into {recorded[:12]}",
            "The adapter belongs to another base; fetch the base it was trained on, or train again.",
        )
    if compared.record.get("adapter_sha256", compared.adapter_sha256) != compared.adapter_sha256:
        return Fault(
            f"{RECORD} names another adapter than the one in {adapter.name}/",
            f"The adapter was trained again after the merge; {MERGE_AGAIN}",
        )
    return None


def _tensor_fault(compared: Compared) -> Fault | None:
    """Return the first fault in the names and shapes of the merged tensors."""
    missing = sorted(compared.jobs.keys() - compared.merged.keys())
    if missing:
        why = "The merged model was cut or is another's"
        if compared.model.head in missing:
            why = "A head of its own was dropped as if it were the embeddings"
        return Fault(f"{len(missing)} tensors are missing, first {missing[0]}", f"{why}; {MERGE_AGAIN}")
    added = sorted(compared.merged.keys() - compared.jobs.keys())
    if added:
        return Fault(
            f"{len(added)} tensors are neither the base's nor the adapter's, first {added[0]}",
            f"The merged model is of another base; {MERGE_AGAIN}",
        )
    for name, job in compared.jobs.items():
        shape = compared.merged[name].shape
        if shape != job.source.shape:
            return Fault(
                f"{name} is {shape} and should be {job.source.shape}",
                f"The merged model is of another base or adapter; {MERGE_AGAIN}",
            )
    return None


def _settings_fault(base: Path, adapter: Path, merged: Path, expected: Plan) -> Fault | None:
    """Return the first fault in config.json, the tokenizer's files and the generation config."""
    config = read_json(merged / "config.json", FORCE_MERGE)
    expected_config = read_json(base / "config.json", "run `snakemake --force base`") | expected.config
    for key in sorted(expected_config.keys() - {"dtype", "torch_dtype"}):
        if config.get(key) != expected_config[key]:
            return Fault(
                f"config.json has {key} {config.get(key)!r} in place of {expected_config[key]!r}",
                f"The config was changed after the merge; {MERGE_AGAIN}",
            )
    sources = tokenizer_files(base, adapter) | {"generation_config.json": base / "generation_config.json"}
    settings = sources.pop("tokenizer_config.json", None)
    if settings and read_settings(merged) != tokenizer_settings(base, adapter):
        return _changed_file(settings.name, adapter)
    for name, source in sources.items():
        copy = merged / name
        if source.exists() and (not copy.exists() or file_hash(source) != file_hash(copy)):
            return _changed_file(name, source.parent)
    return None


def _changed_file(name: str, folder: Path) -> Fault:
    return Fault(
        f"{name} is not the one in {folder.name}/",
        f"{name} was changed or left out after the merge; {MERGE_AGAIN}",
    )


def _cause(compared: Compared, wrong: list[str]) -> str:
    """Return the sentence of the first assumption under which a wrong tensor would be right."""
    adapted = [name for name in wrong if compared.jobs[name].update]
    name = (adapted or wrong)[0]
    job = compared.jobs[name]
    entry = compared.merged[name]
    if entry.dtype not in ("F16", "BF16"):
        return f"{name} is stored as {entry.dtype}, which no merge writes; {MERGE_AGAIN}"
    for assumed in _assumptions(job, compared):
        if tensor_error(job, entry, assumed.nf4, assumed) <= CAUSE_LIMIT:
            return f"{assumed.description}; {MERGE_AGAIN}"
    return (
        f"None of the usual causes fits {name} (not merged, merged twice, other base weights, other "
        f"type): the file may be damaged; {MERGE_AGAIN}"
    )


def _assumptions(job: Job, compared: Compared) -> Iterator[Assumption]:
    recorded = compared.nf4(job)
    description = compared.record["merge_base"]
    others: list[tuple[str, Nf4 | None]] = [("the 16-bit base", None)] if recorded else []
    if in_model(job.name) in compared.model.quantized:
        for dtype, block, double_quantization in product(DTYPES, BLOCKS, (True, False)):
            other = Nf4(dtype, double_quantization, block)
            if other == recorded:
                continue
            how = "with" if double_quantization else "without"
            name = f"NF4 in blocks of {block} {how} double quantization, computed in {dtype}"
            others.append((name, other))
    if job.update:
        yield Assumption("The adapter was not merged: the weights are the base's", recorded, times=0)
        yield Assumption("The adapter was merged twice", recorded, times=2)
    for through in ("bfloat16", "float16"):
        yield Assumption(f"The weights were rounded to {through} on the way", recorded, through=through)
    for name, nf4 in others:
        yield Assumption(
            f"The adapter was merged into {name}, where the merge's record says {description}", nf4
        )
        if job.update:
            yield Assumption(f"The adapter was not merged, and the weights went through {name}", nf4, times=0)

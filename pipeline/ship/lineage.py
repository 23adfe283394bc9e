"""Check that the records behind a GGUF are complete and about this very file: base, adapter, rows, merge. No
file counts because it merely exists.

Training recorded which adapter's folder (reports/train.json) and tokens (models/adapter/run.json) are its
own. The tokens' manifest names the rows, the evaluation the held-out ones. The GGUF's provenance names base,
adapter, tokens, settings, template and merge. Reads these and hashes them, writes nothing.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from pipeline.chat.manifest import NAME
from pipeline.config.products import product_of
from pipeline.config.tuners import ADAPTER_FILE, SCALES_FILE, trained_file
from pipeline.core.errors import DataError
from pipeline.core.hashing import file_hash, tree_hash
from pipeline.gate.inputs import Inputs, read_record
from pipeline.gate.records import Name, Number, Sha256, Shape
from pipeline.gguf.provenance import adapter_fields, folder_fields, lineage_fields

ADAPTER = "models/adapter"
BASE = "models/base.json"
PREVIOUS = "models/previous"
MERGED = "models/merged"
TOKENS = "data/tokens"
AUGMENT = "augment"
AUGMENTED = "data/augmented"  # rows that a model wrote, in addition to those of curation
ROWS = {split: f"data/final/{split}.jsonl" for split in ("train", "val", "test")}
# Prefixes of a provenance's keys about the project's own records. Others are about llama.cpp, the importance
# matrix and the tokenizer.
OWN = tuple(f"quench.{part}." for part in ("base", "adapter", "data", "config", "template", "merge"))


class Run(Shape):
    """Record of models/adapter/run.json."""

    tokens_sha256: Sha256
    previous_sha256: Sha256 | None = None
    settings: dict[str, Any]


class Adapted(Shape):
    """Change of one tensor by one adapter."""

    tensor: Name
    scale: Number


class MergeRecord(Shape):
    """Record of models/merged/merge.json."""

    adapter_sha256: Sha256
    merge_base: Name
    method: Name
    dtype: Name
    adapters: list[Adapted]


class TokensManifest(Shape):
    """Record of data/tokens/manifest.json."""

    rows: Annotated[dict[str, Sha256], Field(min_length=1)]


def need_records(root: Path, inputs: Inputs, model: str) -> dict[str, str]:
    """Return the sha256 of the rows by title. Raises `DataError` unless adapter, tokens and rows below `root`
    are those that training and evaluating `model` used.
    """
    adapter = root / ADAPTER
    if not trained_file(adapter).is_file():
        product = product_of(inputs.evaluations)
        file = SCALES_FILE if product.holds_scales and model == product.served else ADAPTER_FILE
        raise DataError("Q-SHIP-004", f"{adapter} has no {file}: {_back(ADAPTER, 'train')}")
    run = read_record(root, f"{ADAPTER}/run.json", Run, "train")
    _need(
        root,
        ADAPTER,
        "train",
        inputs.train.run.hashes.get("adapter") if inputs.train.run else None,
        tree_hash(adapter),
        "reports/train.json",
    )
    if inputs.merge is not None:
        read_record(root, f"{MERGED}/merge.json", MergeRecord, "merge")
    manifest = read_record(root, f"{TOKENS}/{NAME}", TokensManifest, "preprocess")
    _need(root, TOKENS, "preprocess", run.tokens_sha256, tree_hash(root / TOKENS), f"{ADAPTER}/run.json")
    if run.previous_sha256:
        found = tree_hash(root / PREVIOUS)
        _need(root, PREVIOUS, "previous", run.previous_sha256, found, f"{ADAPTER}/run.json")
    hashes = {split: _rows_hash(root, place, "curate") for split, place in ROWS.items()}
    for split in ("train", "val"):
        _need(
            root,
            ROWS[split],
            "curate",
            manifest.rows.get(f"{split}.jsonl"),
            hashes[split],
            f"{TOKENS}/{NAME}",
        )
    curated = {Path(place).name for place in ROWS.values()}
    for name, sha256 in manifest.rows.items():
        if name not in curated:
            place = f"{AUGMENTED}/{name}"
            _need(root, place, AUGMENT, sha256, _rows_hash(root, place, AUGMENT), f"{TOKENS}/{NAME}")
    measured = inputs.evaluations[model].rows_sha256
    if measured is None:
        raise DataError(
            "Q-SHIP-005",
            f"{root / f'reports/eval/{model}.json'} does not say which rows it measured: run "
            f"`python -m pipeline evaluate@{model}` again",
        )
    _need(root, ROWS["test"], "curate", measured, hashes["test"], f"reports/eval/{model}.json")
    return {f"{split} rows": sha256 for split, sha256 in hashes.items()}


def _rows_hash(root: Path, place: str, stage: str) -> str:
    """Return the sha256 of a file of rows. Raises `DataError` if it is missing."""
    if not (root / place).is_file():
        raise DataError("Q-SHIP-004", f"{root / place} is missing: {_back(place, stage)}")
    return file_hash(root / place)


def provenance_faults(
    fields_of_file: Mapping[str, Any],
    name: str,
    root: Path,
    *,
    merged: bool,
    inherited: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """Yield a sentence if the provenance `fields_of_file` of the GGUF `name` names another base, adapter,
    data, settings or merge than those below `root`.

    `inherited` is the provenance of the base's own GGUF if `name` is a copy of it with trained scales. Its
    other fields are about the base, and not a fault.
    """
    parts = [(BASE, lineage_fields(root / BASE)), (ADAPTER, adapter_fields(root / ADAPTER))]
    if merged:
        parts.append((MERGED, folder_fields(root / MERGED)))
    allowed = {key for _, fields in parts for key in fields}
    differ = {
        place: [key for key, value in fields.items() if fields_of_file.get(key) != value]
        for place, fields in parts
    }
    allowed |= {key for key, value in (inherited or {}).items() if fields_of_file.get(key) == value}
    differ[""] = [key for key in fields_of_file if key.startswith(OWN) and key not in allowed]
    if any(differ.values()):
        places = [place for place, keys in differ.items() if place and keys]
        if not places:
            places = [place for place, _ in parts]
        keys = dict.fromkeys(key for keys in differ.values() for key in keys)
        yield (
            f"{name}'s provenance differs from {' and '.join(places)} ({', '.join(keys)}): run `snakemake` "
            "again."
        )


def _need(root: Path, place: str, stage: str, recorded: str | None, sha256: str, where: str) -> None:
    """Raise `DataError` unless `place` has the sha256 that `where` records."""
    if recorded is None:
        raise DataError(
            "Q-SHIP-005",
            f"{root / where} does not say which {place} it is about: run the stage that writes it again, "
            "then `snakemake`",
        )
    if recorded != sha256:
        raise DataError(
            "Q-SHIP-006",
            f"{root / place} is not what {where} names (sha256 {sha256[:12]}… and {recorded[:12]!a}…), so "
            f"{stage} wrote it since, or it was changed: run `snakemake`, which runs what follows {stage}; "
            f"if that finds nothing to do, `snakemake --forcerun {stage}`",
        )


def _back(place: str, stage: str) -> str:
    """Return the advice how to restore it."""
    return (
        f"`dvc checkout --force {place}` brings back what {stage} wrote; without a copy run `python -m "
        f"pipeline {stage}`, then `snakemake`"
    )

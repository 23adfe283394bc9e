"""Preflight's checks of the files that training reads: the rows, and every shard of the base."""

import json
from collections.abc import Sequence
from pathlib import Path

from pipeline.core.checks import Check
from pipeline.core.units import disk_gb
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.header import NotGguf, read_header
from pipeline.models.experts import sign_of_experts

CONFIG = "config.json"
JSON_OBJECTS = CONFIG, "tokenizer.json"  # without which no base can be loaded


def data(tokens: Path) -> Check:
    """As many packed rows and tokens in the Parquet files as the manifest counts, and at least one row to
    train on.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    def fails(finding: str) -> Check:
        return Check("data", "fail", finding, "run `snakemake --force preprocess`", "Q-TRAIN-001")

    try:
        expected = json.loads((tokens / "manifest.json").read_text(encoding="utf-8"))["splits"]
        found = {}
        for split in ("train", "val"):
            table = pq.read_table(tokens / f"{split}.parquet", columns=["seq_lengths"])
            lengths = pc.sum(pc.list_flatten(table["seq_lengths"])).as_py() or 0
            found[split] = {"packed_rows": table.num_rows, "tokens": lengths}
            wrong = [
                f"{count} {key} instead of {expected[split][key]}"
                for key, count in found[split].items()
                if count != expected[split][key]
            ]
            if wrong:
                return fails(f"{split}.parquet has {' and '.join(wrong)}")
    except (OSError, ValueError, KeyError, TypeError) as error:  # pyarrow's own errors are among these
        return fails(f"{tokens} is not what stage preprocess writes ({' '.join(str(error).split())[:120]})")
    if not found["train"]["packed_rows"]:
        return fails("there is no row to train on")
    return Check(
        "data",
        "pass",
        ", ".join(
            f"{split} {count['packed_rows']:,} rows of {count['tokens']:,} tokens"
            for split, count in found.items()
        ),
    )


def whole_base(base: Path) -> Check:
    """Configuration, tokenizer and every shard of weights are there, and each shard is as long as its header
    says.
    """
    missing = [name for name in JSON_OBJECTS if not (base / name).is_file()]
    try:
        for name in JSON_OBJECTS:
            if name not in missing and not isinstance(
                json.loads((base / name).read_text(encoding="utf-8")), dict
            ):
                raise ValueError(f"{name} is no JSON object")
        if CONFIG not in missing and (
            sign := sign_of_experts(json.loads((base / CONFIG).read_text(encoding="utf-8")))
        ):
            return Check(
                "base",
                "fail",
                f"a mixture of experts ({sign})",
                "take a dense model as base.model",
                "Q-TRAIN-003",
            )
        if (quantized := base / MODEL_FILE).is_file():
            return quantized_base(quantized, missing)
        index = base / "model.safetensors.index.json"
        names = (
            sorted({*json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
            if index.is_file()
            else ["model.safetensors"]
        )
        missing += [name for name in names if not (base / name).is_file()]
        torn = [
            name
            for name in names
            if name not in missing and (base / name).stat().st_size != safetensors_length(base / name)
        ]
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        return Check(
            "base",
            "fail",
            f"{base} can't be read ({' '.join(str(error).split())[:120]})",
            "run `snakemake --force base`",
            "Q-TRAIN-002",
        )
    if missing or torn:
        finding = "; ".join(
            f"{', '.join(which)} {what}"
            for which, what in ((missing, "missing"), (torn, "cut short"))
            if which
        )
        return Check("base", "fail", finding, "run `snakemake --force base`", "Q-TRAIN-002")
    size = sum((base / name).stat().st_size for name in names)
    return Check(
        "base", "pass", f"{disk_gb(size)} of weights in {len(names)} file{'s' if len(names) > 1 else ''}"
    )


def quantized_base(file: Path, missing: Sequence[str]) -> Check:
    """The same of a GGUF, whose header says how long it must be."""
    try:
        header = read_header(file)
    except (NotGguf, OSError) as error:
        return Check(
            "base",
            "fail",
            f"{file} is not a complete GGUF ({error})",
            "run `snakemake --force base`",
            "Q-TRAIN-002",
        )
    if missing:
        return Check(
            "base", "fail", f"{', '.join(missing)} missing", "run `snakemake --force base`", "Q-TRAIN-002"
        )
    return Check(
        "base",
        "pass",
        f"{disk_gb(file.stat().st_size)} of weights in {file.name}, {len(header.tensors)} tensors",
    )


def safetensors_length(path: Path) -> int:
    """Bytes that a safetensors file must have by its header: 8, the header, the end of the last tensor.
    Raises `ValueError`.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > 100_000_000:  # the format's own limit
            raise ValueError(f"{path.name} has no safetensors header")
        header = json.loads(file.read(size))
    return (
        8
        + size
        + max(
            (entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0
        )
    )

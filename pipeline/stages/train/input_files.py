"""Preflight checks of the files that training reads: the rows, and every shard of the base."""

import json
from pathlib import Path
from typing import Any

from pipeline.config.sections import Quantization
from pipeline.core.checks import Check
from pipeline.core.errors import DataError
from pipeline.core.text import shortened
from pipeline.core.units import disk_gb
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.header import NotGguf
from pipeline.gguf.header import read_header as read_gguf_header
from pipeline.gguf.safetensors_rows import INDEX, read_header

JSON_OBJECTS = "config.json", "tokenizer.json"  # No base can be loaded without these.


def data(tokens: Path) -> Check:
    """Check that the Parquet files contain as many packed rows and tokens as the manifest counts, at least
    one row.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    sizes = {}
    fault = ""
    try:
        expected = json.loads((tokens / "manifest.json").read_text(encoding="utf-8"))["splits"]
        for split in ("train", "val"):
            table = pq.read_table(tokens / f"{split}.parquet", columns=["seq_lengths"])
            lengths = pc.sum(pc.list_flatten(table["seq_lengths"])).as_py() or 0
            sizes[split] = {"packed_rows": table.num_rows, "tokens": lengths}
            wrong = [
                f"{count} {key} instead of {expected[split][key]}"
                for key, count in sizes[split].items()
                if count != expected[split][key]
            ]
            if wrong and not fault:
                fault = f"{split}.parquet has {' and '.join(wrong)}"
        if not fault and not sizes["train"]["packed_rows"]:
            fault = "there is no row to train on"
    except (OSError, ValueError, KeyError, TypeError) as error:  # pyarrow's own errors are among these.
        fault = f"{tokens} is not what stage preprocess writes ({shortened(error, 120)})"
    if fault:
        return Check("data", "fail", fault, "run `snakemake --force preprocess`", "Q-TRAIN-001")
    counts = (
        f"{split} {count['packed_rows']:,} rows of {count['tokens']:,} tokens"
        for split, count in sizes.items()
    )
    return Check("data", "pass", ", ".join(counts))


def complete_base(base: Path, quantization: Quantization) -> Check:
    """Check that configuration, tokenizer and every shard of weights exist, and that each shard is as long
    as its header says. A GGUF must be there if `quantization` is gguf, and only then.
    """
    missing = [name for name in JSON_OBJECTS if not (base / name).is_file()]
    torn = []
    try:
        for name in JSON_OBJECTS:
            if name not in missing:
                _json_object(base / name)
        is_gguf = (base / MODEL_FILE).is_file()
        if is_gguf != (quantization == "gguf"):
            content = "a GGUF" if is_gguf else "no GGUF"
            finding = f"{base} holds {content}, and base.quantization is {quantization}"
            remedy = "run `snakemake base`, which makes the base that params.yaml names"
            return Check("base", "fail", finding, remedy, "Q-TRAIN-002")
        if is_gguf:
            names = [MODEL_FILE]
            content = f"{MODEL_FILE}, {len(read_gguf_header(base / MODEL_FILE).tensors)} tensors"
        else:
            index: dict[str, str] = {}
            if (base / INDEX).is_file():
                index = _json_object(base / INDEX)["weight_map"]
            names = sorted({*index.values()}) or ["model.safetensors"]
            content = f"{len(names)} file{'s' if len(names) > 1 else ''}"
            missing += [name for name in names if not (base / name).is_file()]
            torn = [name for name in names if name not in missing and _is_torn(base / name)]
        faults = []
        if missing:
            faults.append(f"{', '.join(missing)} missing")
        if torn:
            faults.append(f"{', '.join(torn)} cut short or damaged")
        finding = "; ".join(faults)
    except NotGguf as error:
        finding = f"{base / MODEL_FILE} is not a complete GGUF ({error})"
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        finding = f"{base} can't be read ({shortened(error, 120)})"
    if finding:
        return Check("base", "fail", finding, "run `snakemake --force base`", "Q-TRAIN-002")
    size = sum((base / name).stat().st_size for name in names)
    return Check("base", "pass", f"{disk_gb(size)} of weights in {content}")


def _json_object(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return value


def _is_torn(shard: Path) -> bool:
    try:
        read_header(shard)
    except DataError as error:
        return error.id != "Q-GGUF-009"  # A type that can't be merged is not damage.
    return False

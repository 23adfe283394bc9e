"""Measure by its matrices, without PyTorch, how much an adapter (PEFT folder or GGUF) changes each weight.

The norm of the update s·B·A is computed without that matrix: ‖BA‖² = tr(BᵀB · AAᵀ), two products of r × r.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.core.errors import DataError
from pipeline.core.text import listed, plural
from pipeline.gguf.safetensors_rows import Entry, read_folder
from pipeline.gguf.sources import in_model
from pipeline.gguf.tensors import GgufTensor, gguf_tensors
from pipeline.models.merging.adapter import by_slice, changed_start, read_adapter

Floats = np.ndarray[Any, np.dtype[np.float64]]
PLACE = re.compile(r"(?:^|\.)(?:layers|blk)\.(\d+)\.(.+)")
NUMBERS = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "BF16": np.uint16}
BLOCK = 1 << 22  # weights of the base that are read at a time
PAIR = (".lora_a", ".lora_b")


class Norms(NamedTuple):
    """Norms of one adapted tensor: Frobenius norms of A, B and s·B·A, of the base's weight and their ratio if
    a base was given. `rows` and `columns` are one expert's. Under DoRA, `update` is only that of s·B·A.
    """

    tensor: str
    layer: int | None
    module: str
    rank: int
    scale: float
    rows: int
    columns: int
    norm_a: float
    norm_b: float
    norm_update: float
    norm_weight: float | None = None
    relative: float | None = None


def adapter_norms(adapter: Path, base: Path | None = None) -> list[Norms]:
    """Return the norms of every tensor that the PEFT folder or GGUF `adapter` changes, in order; with the
    base's, if its folder (of safetensors) or GGUF is given.

    Raises `DataError` if there is no adapter, or if it is incomplete or belongs to another base.
    """
    if adapter.is_dir():
        norms = list(_of_folder(adapter))
    elif adapter.is_file():
        norms = list(_of_gguf(adapter))
    else:
        raise DataError("Q-METRICS-020", f"{adapter} is missing: name a PEFT folder or an adapter's GGUF")
    return norms if base is None else _beside_base(norms, base)


def uncounted(adapter: Path) -> str | None:
    """Return what a PEFT folder changes besides A and B, in one sentence; None if nothing, as in a GGUF."""
    if not adapter.is_dir():
        return None
    read = read_adapter(adapter, to_merge=False)
    replication = (read.settings.model_extra or {}).get("layer_replication")
    parts = [part for module in read.modules for part in module.parts]
    tokens = [name for name in read.full if name.endswith(".trainable_tokens_delta")]
    whole = [name for name in read.full if name not in tokens]
    also = [
        plural(parts.count("lora_magnitude_vector"), "magnitude vector (DoRA)", "magnitude vectors (DoRA)"),
        plural(parts.count("lora_B.bias"), "bias of B", "biases of B"),
        plural(len(whole), "tensor stored whole", "tensors stored whole") + f" ({', '.join(whole[:3])})",
        plural(len(tokens), "table of trained tokens", "tables of trained tokens"),
        *changed_start(read.settings),
        *([f"layer_replication is {replication}"] if replication else []),
    ]
    sentences = [words for words in also if not words.startswith("0 ")]
    return f"Not counted: {listed(sentences)}." if sentences else None


def place_of(tensor: str) -> tuple[int | None, str]:
    """Return (layer, module) of a weight's name; None for one outside the layers."""
    match = PLACE.search(tensor)
    if match is None:
        return None, tensor.removesuffix(".weight")
    return int(match[1]), match[2].removesuffix(".weight")


def update_norm(a: Floats, b: Floats) -> float:
    """Return ‖B·A‖ of A (E, r, in) and B (E, out, r), all experts together."""
    inner = np.einsum("eri,esi->ers", a, a)
    outer = np.einsum("eor,eos->ers", b, b)
    return math.sqrt(max(float(np.sum(inner * outer)), 0.0))


def _norms(tensor: str, a: Floats, b: Floats, scale: float) -> Norms:
    if a.shape[0] != b.shape[0] or a.shape[1] != b.shape[2]:
        raise DataError(
            "Q-METRICS-021",
            f"{tensor} has an A of {a.shape} and a B of {b.shape}, which can't be multiplied: copy the "
            "adapter whole",
        )
    layer, module = place_of(tensor)
    norm_a = float(np.linalg.norm(a))
    norm_b = float(np.linalg.norm(b))
    norm_update = abs(scale) * update_norm(a, b)
    _, rank, columns = a.shape
    return Norms(tensor, layer, module, rank, scale, b.shape[1], columns, norm_a, norm_b, norm_update)


def _of_folder(folder: Path) -> Iterator[Norms]:
    adapter = read_adapter(folder, to_merge=False)
    for module in adapter.modules:
        names = ("lora_A.weight", "lora_B.weight")
        if "lora_embedding_A" in module.parts:
            names = ("lora_embedding_A", "lora_embedding_B")
        a, b = (_numbers(module.parts[name]) for name in names)
        slices, rest = divmod(a.shape[0], adapter.rank(module.path))
        if rest or (slices != 1 and not adapter.settings.target_parameters):
            raise DataError(
                "Q-METRICS-021",
                f"{module.where} has an A of {a.shape[0]} rows and adapter_config.json says rank "
                f"{adapter.rank(module.path)}: copy both files from one adapter",
            )
        yield _norms(f"{module.path}.weight", *by_slice(a, b, slices), adapter.scale(module.path))


def _numbers(entry: Entry) -> Floats:
    """Return a tensor of a safetensors file as float64 (rows, columns)."""
    values = _rows(entry, 0, entry.rows)
    if not np.isfinite(values).all():
        raise DataError(
            "Q-METRICS-021", f"{entry.name} of {entry.file} is not finite: train again with a lower rate"
        )
    return values


def _rows(entry: Entry, first: int, last: int) -> Floats:
    if entry.dtype not in NUMBERS:
        raise DataError(
            "Q-METRICS-021", f"{entry.name} of {entry.file} is {entry.dtype}, and floats are needed"
        )
    count = (last - first) * entry.columns
    start = entry.start + first * entry.columns * entry.width
    raw = np.fromfile(entry.file, NUMBERS[entry.dtype], count, offset=start)
    if len(raw) < count:
        raise DataError("Q-METRICS-021", f"{entry.file} ended while it was read: copy it whole")
    if entry.dtype == "BF16":  # the upper half of a float32
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float64).reshape(last - first, entry.columns)


def _of_gguf(file: Path) -> Iterator[Norms]:
    header, tensors = gguf_tensors(file)
    kind = header.fields.get("general.type"), header.fields.get("adapter.type")
    if kind != ("adapter", "lora"):
        raise DataError(
            "Q-METRICS-020", f"{file} is not a LoRA adapter: name a PEFT folder or an adapter's GGUF"
        )
    alpha = float(header.fields.get("adapter.lora.alpha", 0.0))
    for name in dict.fromkeys(name.removesuffix(".lora_a").removesuffix(".lora_b") for name in tensors):
        if not all(name + part in tensors for part in PAIR):
            raise DataError(
                "Q-METRICS-021",
                f"{file.name} holds {name} without its pair of lora_a and lora_b: convert the adapter again",
            )
        a, b = (_three(tensors[name + part]) for part in PAIR)
        if name == "token_embd.weight":  # It is looked up like the table: (V, r).
            a = a.transpose(0, 2, 1)
        # In llama.cpp an alpha of 0 means no scale.
        yield _norms(name, a, b, alpha / a.shape[1] if alpha else 1.0)


def _three(tensor: GgufTensor) -> Floats:
    """Return (experts, rows, columns). At rank 1, the header's ones were left out."""
    values = tensor.values(0, tensor.rows).astype(np.float64)
    whole = tensor.shape if len(tensor.shape) > 1 else (1, *tensor.shape)
    return values.reshape(math.prod(whole[:-2]), *whole[-2:])


# --- compared with the base ---------------------------------------------------------------------------------


def _beside_base(updates: Sequence[Norms], base: Path) -> list[Norms]:
    weights: Mapping[str, Entry] | Mapping[str, GgufTensor]
    if base.is_dir():
        weights = {in_model(name): entry for name, entry in read_folder(base).items()}
    else:
        _, weights = gguf_tensors(base)
    sizes = [_weight_norm(weights.get(norms.tensor), norms.tensor, base) for norms in updates]
    return [
        norms._replace(norm_weight=size, relative=norms.norm_update / size if size else None)
        for norms, size in zip(updates, sizes, strict=True)
    ]


def _weight_norm(weight: Entry | GgufTensor | None, tensor: str, base: Path) -> float:
    """Return the Frobenius norm of a base weight, by blocks of rows. Raises `DataError` if there is none."""
    if weight is None:
        raise DataError(
            "Q-METRICS-022",
            f"{base} has no {tensor}: name the base's folder for a PEFT folder, its GGUF for an adapter's "
            "GGUF",
        )
    step = max(1, BLOCK // weight.columns)
    read = partial(_rows, weight) if isinstance(weight, Entry) else weight.values
    squares = []
    for first in range(0, weight.rows, step):
        last = min(first + step, weight.rows)
        squares.append(float(np.sum(np.square(read(first, last), dtype=np.float64))))
    return math.sqrt(sum(squares))  # From Python 3.12 on, `sum` is more exact than repeated addition.

"""Comparison of the merged weights with their 16-bit GGUF, bit for bit after one rounding to its type."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.checks import Check
from pipeline.gguf.attention_settings import differences
from pipeline.gguf.families.registry import family_of
from pipeline.gguf.header import USUAL_ROPE_BASE, Header
from pipeline.gguf.rope import TENSORS, same_factors
from pipeline.gguf.safetensors_rows import read_folder
from pipeline.gguf.sources import (
    Piece,
    gguf_settings,
    known_family,
    read_config,
    rope_factors,
    sources,
    text_config,
)
from pipeline.gguf.tensors import Bytes, Floats, GgufTensor, gguf_tensors
from pipeline.gguf.tied import EMBEDDINGS, HEAD
from pipeline.models.runtime import side_by_side
from pipeline.stages.parity.check import exact

WHAT = "tensors, rounded to the GGUF's type, and settings that differ from {}'s"
FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
EXPONENT = {"F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}
CONVERT = "run `snakemake --force convert`"
ROPE_BASE = ("rope.freq_base", USUAL_ROPE_BASE)


@dataclass(frozen=True)
class Fault:
    """A tensor that is not as expected: the observation, and the likely cause if there is one."""

    tensor: str
    seen: str
    cause: str = ""


def gguf_weights(merged: Path, gguf: Path, of: str = "the merged model") -> Check:
    """Check every tensor of the GGUF, streamed. The check is "not measured" for an architecture whose
    conversion is not known here. `of` names the model in the folder `merged`.
    """
    title = f"Weights of {of} → {gguf.stem}"
    what = WHAT.format(of)
    header, tensors = gguf_tensors(gguf)
    config = read_config(merged)
    architecture = (config.get("architectures") or ["none"])[0]
    family = family_of(config)
    if family is None:
        contents = f"{len(tensors)} tensors ({', '.join(sorted(tensors)[:3])} …)"
        why = f"how {architecture} is converted is not known here: {contents}"
        return Check(title, "not measured", why, what=what)
    other = another_kind(header, tensors, architecture, family.name)
    if other:
        return exact(
            title,
            count=len(tensors),
            unit="tensors",
            sentence=other,
            cause=f"The file is not the GGUF of {of}: {CONVERT}.",
            what=what,
        )
    source = sources(config, read_folder(merged))
    names = names_faults(source, tensors, merged, tied=bool(text_config(config).get("tie_word_embeddings")))
    same = sorted(source.keys() & tensors.keys())
    settings = settings_faults(config, header.fields)
    faults = [*names, *settings, *side_by_side(lambda name: tensor_fault(tensors[name], source[name]), same)]
    return weights_check(title, what, list(filter(None, faults)), tensors)


def another_kind(header: Header, tensors: dict[str, GgufTensor], architecture: str, name: str) -> str:
    """Return a sentence on a complete file that is not what its name promises: it has another architecture
    than `name`, or is quantized. Otherwise return an empty string.
    """
    stored = header.fields.get("general.architecture")
    if stored != name:
        return f"the GGUF is a {stored}, the merged model a {architecture}"
    quantized = Counter(tensor.type for tensor in tensors.values() if tensor.type not in FLOAT_BYTES)
    ggml_types = ", ".join(f"{count} {ggml_type}" for ggml_type, count in sorted(quantized.items()))
    return f"it holds quantized tensors ({ggml_types}) where 16-bit floats belong" if quantized else ""


def weights_check(title: str, what: str, faults: list[Fault], tensors: dict[str, GgufTensor]) -> Check:
    """Return the verdict over all faults, with the first one. If most tensors differ, its cause is that the
    file is another model's.
    """
    weights = sum(tensor.rows * tensor.columns for tensor in tensors.values())
    compared = f"{len(tensors)} tensors, {weights / 1e6:,.1f} M weights"
    if not faults:
        return exact(title, 0, "tensors", f"{compared}, equal bit for bit", "", what)
    first = faults[0]
    cause = first.cause or f"The file was changed or damaged after it was made: {CONVERT}."
    if not first.cause and len(faults) > len(tensors) / 2:
        cause = (
            "More than half of the tensors differ, so it is the GGUF of another model or of an older "
            f"merge: {CONVERT}."
        )
    sentence = f"{compared}; {first.tensor}: {first.seen}"
    if len(faults) > 1:
        sentence += f" (and {len(faults) - 1} more)"
    return exact(
        title,
        count=len(faults),
        unit="tensors",
        sentence=sentence,
        cause=cause,
        what=what,
    )


def names_faults(
    wanted: dict[str, list[Piece]], tensors: dict[str, GgufTensor], merged: Path, *, tied: bool
) -> Iterator[Fault | None]:
    """Yield the tensors that the GGUF lacks or adds. A tied head and rotary factors have no counterpart and
    are compared on their own.
    """
    if HEAD not in wanted and not tied:
        cause = (
            "The merged model lost its head, and its config says that it has one of its own: run "
            "`snakemake --force merge`."
        )
        yield Fault(HEAD, "is neither in the merged model nor tied to the embeddings", cause)
    for name in sorted(wanted.keys() - tensors.keys()):
        if name != HEAD:
            part = "bias" if name.endswith(".bias") else "tensor"
            cause = f"The {part} was lost on the way, llama.cpp runs without it: {CONVERT}."
        elif tied:
            continue  # stored together with the embeddings, which llama.cpp uses instead
        else:
            cause = f"The head was dropped, llama.cpp takes the embeddings in its place: {CONVERT}."
        yield Fault(name, f"is in the merged model and not in the GGUF of {len(tensors)} tensors", cause)
    factors = rope_factors(merged)
    for name in sorted(factors.keys() - tensors.keys()):
        cause = f"The factors were lost on the way, llama.cpp runs without them: {CONVERT}."
        yield Fault(name, "follows from the merged model's config and is not in the GGUF", cause)
    for name in sorted(tensors.keys() - wanted.keys()):
        if name == HEAD and tied and EMBEDDINGS in wanted:
            yield tensor_fault(tensors[name], wanted[EMBEDDINGS])
        elif name in TENSORS:
            yield rope_fault(tensors[name], factors.get(name))
        else:
            cause = f"The GGUF is of another model: {CONVERT}."
            yield Fault(name, "is in the GGUF and not in the merged model", cause)


def settings_faults(config: Mapping[str, Any], fields: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield settings that llama.cpp computes with and training did not. The family of `config`
    must be known.
    """
    end, by_default = ROPE_BASE
    for field, value in gguf_settings(config).items():
        stored = fields.get(field, by_default if field.endswith(end) else value)
        if isinstance(stored, int | float) and not math.isclose(stored, value, rel_tol=1e-6):
            cause = f"llama.cpp computes with another {field} than training did: {CONVERT}."
            yield Fault(field, f"is {stored:g}, by config.json {value:g}", cause)
    for difference in differences(text_config(config), known_family(config), fields):
        cause = f"llama.cpp computes with another {difference.field} than training did: {CONVERT}."
        yield Fault(*difference, cause)


def rope_fault(tensor: GgufTensor, expected: Floats | None) -> Fault | None:
    """Compare the rotary factors with those that transformers computes with."""
    cause = f"The rotary embedding's factors are not those of config.json: {CONVERT}."
    if expected is None:
        return Fault(tensor.name, "is in the GGUF, and the model's config asks for no such factors", cause)
    stored = tensor.values(0, tensor.rows).reshape(-1)
    if same_factors(stored, expected):
        return None
    return Fault(tensor.name, "differs from the factors that transformers computes", cause)


def tensor_fault(tensor: GgufTensor, pieces: list[Piece]) -> Fault | None:
    """Return the first difference of a tensor, given in pieces, in the GGUF's type; None if there is none."""
    size = sum((piece.last - piece.first) * piece.entry.columns for piece in pieces)
    one_number = size == 1  # A file may have it without a dimension.
    same_columns = one_number or pieces[0].entry.shape[-1:] == tensor.shape[-1:]
    if size != tensor.rows * tensor.columns or not same_columns:
        shape = " + ".join(str(list(piece.entry.shape)) for piece in pieces[:2])
        return Fault(
            tensor.name,
            f"has shape {list(tensor.shape)}, in the merged model {shape}",
            f"The GGUF is of another model: {CONVERT}.",
        )
    at = 0
    width = FLOAT_BYTES[tensor.type]
    for piece in pieces:
        for block in piece.blocks():
            expected = rounded(block, tensor.type)
            stored = flat_bytes(tensor, at, len(block))
            if not np.array_equal(expected, stored):
                first = at + int(np.flatnonzero((expected != stored).reshape(-1, width).any(axis=1))[0])
                return describe_fault(tensor, pieces, first)
            if not bits_are_finite(stored, tensor.type):
                return Fault(
                    tensor.name,
                    "holds values that are not finite",
                    "They are too large for F16: set convert.type to BF16.",
                )
            at += len(block)
    return None


def rounded(values: Floats, type: str) -> Bytes:
    """Return flat float32 values as bytes of a float type.

    The package gguf rounds them to nearest, ties to even.
    """
    from gguf import GGMLQuantizationType, quantize

    with np.errstate(over="ignore"):  # the caller reports an overflow
        stored: Bytes = quantize(values.reshape(1, -1), GGMLQuantizationType[type]).view(np.uint8).reshape(-1)
    return stored


def bits_are_finite(stored: Bytes, type: str) -> bool:
    """Return True if no number in flat bytes of a float type is infinite or NaN. Such numbers have an
    exponent of all ones.
    """
    bits: Any = stored.view(np.uint32 if type == "F32" else np.uint16)
    return not ((bits & EXPONENT[type]) == EXPONENT[type]).any()


def flat_bytes(tensor: GgufTensor, first: int, count: int) -> Bytes:
    """Return the bytes of `count` weights of a float tensor, starting at weight `first` in flat order."""
    width = FLOAT_BYTES[tensor.type]
    return np.fromfile(tensor.file, np.uint8, count * width, offset=tensor.start + first * width)


def describe_fault(tensor: GgufTensor, pieces: list[Piece], first: int) -> Fault:
    """Describe the difference of a tensor by all its rows (a vector's rows are its weights): zeros, another
    order, or other values.

    `first` is the flat index of the first different weight.
    """
    columns = pieces[0].entry.columns
    width = FLOAT_BYTES[tensor.type]
    # counts of digests, because all rows of a large tensor may differ
    left, right = Counter[bytes](), Counter[bytes]()
    at = 0
    zeros = 0
    shown = (0.0, 0.0)
    for piece in pieces:
        for block in piece.blocks():
            expected = rounded(block, tensor.type).reshape(-1, columns * width)
            stored = flat_bytes(tensor, at, len(block)).reshape(-1, columns * width)
            for row in np.flatnonzero((expected != stored).any(axis=1)):
                left[digest(expected[row])] += 1
                right[digest(stored[row])] += 1
                zeros += not stored[row].any()
            if at <= first < at + len(block):
                place, column = divmod(first, tensor.columns)
                shown = float(block[first - at]), float(tensor.values(place, place + 1)[0, column])
            at += len(block)
    where = (
        f"{left.total()} of {at // columns} rows differ, first row {first // columns} at {first % columns}"
    )
    seen = f"{where}: {shown[0]:.6g} in the merged model, {shown[1]:.6g} in the GGUF"
    if left == right:
        return Fault(
            tensor.name, seen, f"The rows of {tensor.name} are the right ones in another order: {CONVERT}."
        )
    if zeros == left.total() or shown[1] == 0.0:
        return Fault(
            tensor.name, seen, f"A block of {tensor.name} is zeroed, so the file is damaged: {CONVERT}."
        )
    return Fault(tensor.name, seen)


def digest(row: Bytes) -> bytes:
    """Return a digest of a row in 16 bytes."""
    return blake2b(row.tobytes(), digest_size=16).digest()

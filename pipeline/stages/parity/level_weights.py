"""Comparison of a level with the 16-bit GGUF it was made from. Its header shows if it is the level in its
name (type, tensors, `quantize.tensor_types`). The noise of every tensor, and of the worst weight in it, is
compared with the cost of its type.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.config.ggml_types import LEVELS
from pipeline.config.levels import ModelName
from pipeline.core.checks import Check
from pipeline.gguf.file import K_BLOCK
from pipeline.gguf.header import Header
from pipeline.gguf.tensors import NOISE, WORST_WEIGHT, Floats, GgufTensor, gguf_tensors
from pipeline.llamacpp.converters import NO_TYPES, check_tensor_types
from pipeline.models.runtime import side_by_side
from pipeline.stages.parity.check import exact

# Type of most tensors of a level (src/llama-quant.cpp, llama_ftype_get_default_type). For MXFP4_MOE it is the
# type of the experts.
DEFAULT_TYPES = {name: level.base for name, level in LEVELS.items()} | {"MXFP4_MOE": "MXFP4"}
# Tensors that llama.cpp gives a level's default type if their rows fit (llama_tensor_get_type_impl there),
# and levels with other such tensors.
PLAIN = re.compile(r"\.(attn_q|ffn_up|ffn_gate)(_exps)?\.weight$")
PLAIN_OF = {
    "MXFP4_MOE": re.compile(r"\.ffn_(up|gate|down)_exps\.weight$"),
    **dict.fromkeys(("IQ3_XXS", "IQ3_XS"), re.compile(r"\.ffn_(up|gate)(_exps)?\.weight$")),
}
# A block whose error is this share of its norm contains nothing of its weights. Zeros have 1, other weights
# 1.4.
LOST = 0.99
# Blocks whose weights are smaller than this share of the tensor's root mean square may be rounded to nothing.
SMALL = 1e-3
# The worst weight is searched in blocks with at least this share of the tensor's norm, because a float16
# scale of smaller ones has few digits left.
LARGE = 0.1
# A scale that is half a unit in the last place off moves a weight by at most this much (a code of up to 4,096
# times 2 to the power of -25), which is not an error.
FLOAT16 = 2.0**-13
EXACT = ("F32", "F16", "BF16")  # types not counted in a level's mean noise
SLACK = 1.5  # factor over its type's usual rounding error that a tensor may have
WHAT = "largest error of a tensor's weights, in multiples of what its type costs"


def file_check(
    title: str,
    name: str,
    tensor_types: Mapping[str, str],
    header: Header,
    before: dict[str, GgufTensor],
    after: dict[str, GgufTensor],
) -> Check | None:
    """Return a failure that is seen without reading weights: another level's file, other tensors or types.
    Return None if there is none.
    """
    from gguf import LlamaFileType

    level = ModelName(name).level
    remedy = remake(next(iter(after.values())).file)
    requested = given_by(after, tensor_types)

    def fail(what: str, count: int, unit: str, detail: str, cause: str) -> Check:
        return exact(title, count, unit, detail, f"{cause}: {remedy}.", what)

    expected_type = DEFAULT_TYPES.get(level, level)
    number = header.fields.get("general.file_type")
    file_types = {int(file_type): file_type.name.removeprefix("MOSTLY_") for file_type in LlamaFileType}
    stored = file_types.get(number, str(number)) if isinstance(number, int) else "none"
    another = "files of another level", 1, "files"
    if stored != level and level in file_types.values():
        return fail(
            *another, f"general.file_type is {stored}", f"The file of another level has the name of {name}"
        )
    plain = [
        tensor
        for each, tensor in after.items()
        if PLAIN_OF.get(level, PLAIN).search(each) and each not in requested
    ]
    ggml_types = sorted({tensor.type for tensor in plain if tensor.columns % K_BLOCK == 0})
    if ggml_types and expected_type not in ggml_types:
        detail = f"no query or feed-forward tensor is {expected_type}: {', '.join(ggml_types)}"
        return fail(*another, detail, f"The file of another level has the name of {name}")
    different = [
        *sorted(before.keys() ^ after.keys()),
        *(each for each in sorted(before.keys() & after.keys()) if before[each].shape != after[each].shape),
    ]
    if different:
        first = different[0]
        shapes = " and ".join(
            f"{list(side[first].shape)}" if first in side else "none" for side in (before, after)
        )
        cause = "The level was made from another model, or tensors were lost"
        return fail(
            "tensors that only one side has", len(different), "tensors", f"{first}: {shapes} at {name}", cause
        )
    wrong = of_other_types(before, after, requested, tensor_types)
    if wrong:
        first = wrong[0]
        ggml_type = tensor_types[requested[first]].upper()
        cause = f"The level was made before quantize.tensor_types asked for {ggml_type}"
        what = "tensors of another type than quantize.tensor_types"
        return fail(what, len(wrong), "tensors", f"{first} is {after[first].type}, not {ggml_type}", cause)
    return None


def given_by(names: Iterable[str], tensor_types: Mapping[str, str]) -> dict[str, str]:
    """Return {tensor: the first pattern of `tensor_types` that matches its name}, as in llama-quantize."""
    return {
        name: pattern
        for pattern in reversed(list(tensor_types))
        for name in names
        if re.search(pattern.lower(), name)
    }


def of_other_types(
    before: dict[str, GgufTensor],
    after: dict[str, GgufTensor],
    given: Mapping[str, str],
    tensor_types: Mapping[str, str],
) -> list[str]:
    """Return the tensors that don't have the type they were given. Both sides have the same tensors.

    llama-quantize does not change norms and similar tensors, and short rows fall back to another type. But
    every pattern must change something.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    wrong: list[str] = []
    for pattern, ggml_type in tensor_types.items():
        block = int(GGML_QUANT_SIZES[GGMLQuantizationType[ggml_type.upper()]][0])
        matched = [name for name, its in given.items() if its == pattern]
        others = [name for name in matched if after[name].type != ggml_type.upper()]
        quantized = [
            name
            for name in others
            if after[name].type != before[name].type and after[name].columns % block == 0
        ]
        wrong += quantized or (others if len(others) == len(matched) else [])
    return wrong


def remake(level: Path) -> str:
    """Return advice to make a level's file again.

    The rule has a wildcard, so Snakemake needs the file's name.
    """
    return f"run `snakemake --force models/gguf/{level.name}`"


@dataclass(frozen=True)
class TensorNoise:
    """Noise of one tensor: its relative error, the number of lost blocks and the first row with one; the
    largest error of a weight as a share of the largest weight in its block, and its row.
    """

    rmse: float
    lost: int
    blocks: int
    row: int
    worst: float
    worst_row: int


class BlockNoise(NamedTuple):
    """Noise of quantization blocks, an entry each: Σ error², Σ weight², largest error, largest weight."""

    error: Floats
    norm: Floats
    largest_error: Floats
    largest: Floats

    def shares(self) -> Floats:
        """Return each block's largest error ÷ its largest weight; 0 in blocks with small weights."""
        large = self.norm >= LARGE**2 * self.norm.mean()
        shares = np.zeros_like(self.largest)
        beyond = np.maximum(self.largest_error - FLOAT16, 0)
        np.divide(beyond, self.largest, out=shares, where=large & (self.largest > 0))
        return shares


def tensor_noise(before: GgufTensor, after: GgufTensor) -> TensorNoise:
    """Return a tensor's relative error, its lost blocks (of the type's own size), and its worst weight. Both
    sides must have the same shape.
    """
    parts = (
        block_noise(*(side.values(first, last).reshape(-1, after.block) for side in (before, after)))
        for first, last in after.blocks()
    )
    noise = BlockNoise(*map(np.concatenate, zip(*parts, strict=True)))
    total = float(noise.norm.sum())
    with np.errstate(invalid="ignore"):
        lost = ~(noise.error < LOST**2 * noise.norm) & ~(
            (noise.error == 0) | (noise.norm < SMALL**2 * total / len(noise.norm)) & np.isfinite(noise.error)
        )
        shares = noise.shares()
    at = np.flatnonzero(lost)
    worst = int(shares.argmax())

    def row(block: int) -> int:
        return block * after.block // after.columns

    return TensorNoise(
        float(np.sqrt(noise.error.sum() / total)) if total else float(noise.error.sum() > 0),
        len(at),
        len(noise.norm),
        row(int(at[0])) if len(at) else 0,
        float(shares[worst]),
        row(worst),
    )


def block_noise(before: Floats, after: Floats) -> BlockNoise:
    """Return the noise of blocks (blocks, weights) that became `after`."""
    difference = after - before
    return BlockNoise(
        np.einsum("ij,ij->i", difference, difference),
        np.einsum("ij,ij->i", before, before),
        np.abs(difference).max(axis=1),
        np.abs(before).max(axis=1),
    )


def level_weights(gguf: Path, level: Path, name: str, tensor_types: Mapping[str, str] = NO_TYPES) -> Check:
    """Return the parity check of one level (`name` as in `quantize.levels`). Both files are streamed.

    A tensor may have `SLACK` times its type's usual noise, and a weight `SLACK` times its type's largest
    error. The second limit does not apply to a level with an importance matrix, which gives up unimportant
    weights. `tensor_types` is `quantize.tensor_types`. If a type has no known noise or no dequantizer in the
    package gguf, the check is "not measured", unless it has failed before. Raises `ConfigError` if
    `tensor_types` is invalid.
    """
    title = f"Weights of {gguf.stem} → {name}"
    model = ModelName(name)
    check_tensor_types(gguf, tensor_types, model.imatrix)
    _, before = gguf_tensors(gguf)
    header, after = gguf_tensors(level)
    check = file_check(title, name, tensor_types, header, before, after)
    if check:
        return check
    unknown = sorted(
        {tensor.type for tensor in after.values() if tensor.type not in NOISE or not tensor.readable}
    )
    if unknown:
        return Check(
            title,
            "not measured",
            f"the noise of {', '.join(unknown)} is not known here",
            what=WHAT,
            limit=SLACK,
            unit="times",
        )
    names = sorted(after)
    noises = dict(
        zip(names, side_by_side(lambda name: tensor_noise(before[name], after[name]), names), strict=True)
    )
    lost = {tensor: noise for tensor, noise in noises.items() if noise.lost}
    if lost:
        return lost_check(title, lost, before, after)
    if model.imatrix:
        noises = {tensor: replace(noise, worst=0.0) for tensor, noise in noises.items()}
    return noise_check(title, noises, after)


def noise_check(title: str, noises: Mapping[str, TensorNoise], after: Mapping[str, GgufTensor]) -> Check:
    """Return the verdict over all tensors: the worst noise in multiples of its type's cost, over the tensor
    or in one weight.
    """
    whole = {tensor: noise.rmse / NOISE[after[tensor].type] for tensor, noise in noises.items()}
    weight = {
        tensor: noise.worst / WORST_WEIGHT.get(after[tensor].type, np.inf) for tensor, noise in noises.items()
    }
    shares = {tensor: max(whole[tensor], weight[tensor]) for tensor in noises}
    worst = max(shares, key=lambda tensor: shares[tensor])
    quantized = [noise.rmse for tensor, noise in noises.items() if after[tensor].type not in EXACT]
    detail = (
        f"{len(noises)} tensors; worst {worst}, {after[worst].type}, relative RMSE {noises[worst].rmse:.4f}, "
        f"largest error of a weight {noises[worst].worst:.2f} of the largest in its block"
    )
    passed = shares[worst] <= SLACK
    remedy = remake(after[worst].file)
    cause = (
        f"{worst} was made from other weights, or its values are unusually spread: {remedy}, or take another "
        "level if it stays so."
    )
    if whole[worst] <= SLACK:
        cause = (
            f"A scale or a weight in row {noises[worst].worst_row} of {worst} is off by more than "
            f"{after[worst].type} rounds, so the file is damaged: {remedy}."
        )
    return Check(
        title,
        "pass" if passed else "fail",
        detail,
        "" if passed else cause,
        what=WHAT,
        figure=shares[worst],
        limit=SLACK,
        unit="times",
        figures={
            "rmse_mean": float(np.mean(quantized)) if quantized else 0.0,
            "rmse_worst": max(quantized, default=0.0),
        },
    )


def lost_check(
    title: str, lost: dict[str, TensorNoise], before: dict[str, GgufTensor], after: dict[str, GgufTensor]
) -> Check:
    """Return the failed check of a level with lost blocks, with the first of them and the likely cause."""
    name, first = next(iter(lost.items()))
    stored = after[name].values(first.row, first.row + 1)[0]
    count = sum(noise.lost for noise in lost.values())
    remedy = remake(after[name].file)
    if len(lost) > len(after) / 2:
        cause = f"The level was made from another model or from an older merge: {remedy}."
    else:
        other = row_like(stored, before[name])
        if other is not None and other != first.row:
            cause = f"The rows of {name} are in another order, row {first.row} is {other}: {remedy}."
        elif (stored == 0).reshape(-1, after[name].block).all(axis=1).any():
            cause = f"A block of {name} is zeroed, so the file is damaged: {remedy}."
        else:
            cause = f"The weights of {name} are others, so the file is damaged: {remedy}."
    sentence = f"{name}, {first.lost} of {first.blocks} blocks from row {first.row} on"
    if len(lost) > 1:
        sentence += f", and {len(lost) - 1} more tensors"
    return exact(
        title,
        count=count,
        unit="blocks",
        sentence=sentence,
        cause=cause,
        what="blocks that hold nothing of their weights",
    )


def row_like(values: Floats, tensor: GgufTensor) -> int | None:
    """Return the row of a tensor closest to `values`; None if it is half of their norm or more away."""
    best = 0.5 * float(np.linalg.norm(values))
    place: int | None = None
    for first, last in tensor.blocks():
        distances = np.linalg.norm(tensor.values(first, last) - values, axis=1)
        nearest = int(distances.argmin())
        if distances[nearest] < best:
            best = float(distances[nearest])
            place = first + nearest
    return place

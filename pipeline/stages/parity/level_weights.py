"""A level's weights against those of the 16-bit GGUF it was made from: the noise of every tensor, against
what its type costs.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.levels import split_level
from pipeline.core.checks import Check
from pipeline.gguf.file import K_BLOCK
from pipeline.gguf.header import Header
from pipeline.gguf.tensor_types import check_tensor_types
from pipeline.gguf.tensors import Floats, GgufTensor, gguf_tensors
from pipeline.llamacpp.converters import NO_TYPES
from pipeline.stages.parity.check import failure
from pipeline.stages.parity.tensor_noise import TensorNoise, tensor_noise

Noise = dict[str, dict[str, Any]]  # {tensor: {"type": ggml's name, "rmse": ‖level − 16 bit‖ ÷ ‖16 bit‖}}

# Relative RMSE of each type, the largest of: 256 × 4,096 normal, Laplace and Student-t (5) numbers, and
# tensors of layers 0, 12 and 29 of SmolLM2-135M, each without and with random importances (log-normal);
# quantized by the pinned llama.cpp (ggml_quantize_chunk), measured 2026-11-20. Normal numbers alone cost some
# 20 % less.
NOISE = {
    "F32": 1e-7,
    "F16": 0.0005,
    "BF16": 0.003,
    "Q8_0": 0.0068,
    "Q6_K": 0.0243,
    "Q5_1": 0.0527,
    "Q5_0": 0.0562,
    "Q5_K": 0.0448,
    "Q4_1": 0.0919,
    "Q4_0": 0.1127,
    "Q4_K": 0.0915,
    "IQ4_NL": 0.0948,
    "IQ4_XS": 0.0955,
    "MXFP4": 0.1268,
    "NVFP4": 0.0951,
    "Q3_K": 0.1894,
    "IQ3_S": 0.1963,
    "IQ3_XXS": 0.2416,
    "Q2_K": 0.3440,
    "IQ2_S": 0.3342,
    "IQ2_XS": 0.3794,
    "IQ2_XXS": 0.4551,
    "IQ1_M": 0.5688,
    "IQ1_S": 0.6100,
    "TQ2_0": 0.8541,
    "TQ1_0": 0.8541,
}
EXACT = ("F32", "F16", "BF16")  # not counted in a level's mean noise
# the type that most tensors of a level have (src/llama-quant.cpp, llama_ftype_get_default_type), where it is
# not the level's own name
DEFAULT_TYPES = {
    "Q2_K_S": "Q2_K",
    "Q3_K_S": "Q3_K",
    "Q3_K_M": "Q3_K",
    "Q3_K_L": "Q3_K",
    "Q4_K_S": "Q4_K",
    "Q4_K_M": "Q4_K",
    "Q5_K_S": "Q5_K",
    "Q5_K_M": "Q5_K",
    "IQ2_S": "IQ2_XS",
    "IQ2_M": "IQ2_S",
    "IQ3_XS": "IQ3_S",
    "IQ3_M": "IQ3_S",
    "MXFP4_MOE": "MXFP4",
}
# the tensors that llama.cpp gives a level's default type, where their rows fit (llama_tensor_get_type_impl
# there), and levels with others
PLAIN = re.compile(r"\.(attn_q|ffn_up|ffn_gate)(_exps)?\.weight$")
FEED_FORWARD, EXPERTS = (
    re.compile(r"\.ffn_(up|gate)(_exps)?\.weight$"),
    re.compile(r"\.ffn_(up|gate|down)_exps\.weight$"),
)
PLAIN_OF = {"MXFP4_MOE": EXPERTS, "IQ3_XXS": FEED_FORWARD, "IQ3_XS": FEED_FORWARD}
WHAT = "largest error of a tensor's weights, in multiples of what its type costs"


def level_weights(
    gguf: Path, level: Path, name: str, slack: float, tensor_types: Mapping[str, str] = NO_TYPES
) -> tuple[Check, Noise]:
    """The parity check of one level (`name` as in `quantize.levels`) and the noise of each tensor; both files
    are streamed.

    `slack` is how many times its type's usual noise a tensor may have, `tensor_types` is
    `quantize.tensor_types`. A type without a known noise or a dequantizer in the package gguf leaves the
    parity check unmeasured, unless something is wrong already. Raises `ConfigError` where `tensor_types`
    can't be.
    """
    title = f"Weights of {gguf.stem} → {name}"
    check_tensor_types(gguf, tensor_types, split_level(name)[1])
    (_, before), (header, after) = gguf_tensors(gguf), gguf_tensors(level)
    if check := file_check(title, name, tensor_types, header, before, after):
        return check, {}
    if unknown := sorted(
        {tensor.type for tensor in after.values() if tensor.type not in NOISE or not tensor.readable}
    ):
        return Check(
            title,
            "not measured",
            f"the noise of {', '.join(unknown)} is not known here",
            what=WHAT,
            limit=slack,
            unit="times",
        ), {}
    found = {tensor: tensor_noise(before[tensor], after[tensor]) for tensor in sorted(after)}
    noise = {
        tensor: {"type": after[tensor].type, "rmse": one.rmse}
        for tensor, one in found.items()
        if np.isfinite(one.rmse)
    }
    if lost := {tensor: one for tensor, one in found.items() if one.lost}:
        return lost_check(title, lost, before, after), noise
    shares = {tensor: one.rmse / NOISE[after[tensor].type] for tensor, one in found.items()}
    worst = max(shares, key=lambda tensor: shares[tensor])
    quantized = [one.rmse for tensor, one in found.items() if after[tensor].type not in EXACT]
    cause = (
        f"{worst} was made from other weights, or its values are unusually spread: {remake(level)}, or "
        "raise parity.rmse_slack if it stays so."
    )
    detail = (
        f"{len(found)} tensors; worst {worst}, {after[worst].type}, relative RMSE {found[worst].rmse:.4f}"
    )
    figures = {
        "rmse_mean": float(np.mean(quantized)) if quantized else 0.0,
        "rmse_worst": max(quantized, default=0.0),
    }
    measured: Any = {
        "what": WHAT,
        "figure": shares[worst],
        "limit": slack,
        "unit": "times",
        "figures": figures,
    }
    if shares[worst] <= slack:
        return Check(title, "pass", detail, **measured), noise
    return Check(title, "fail", detail, cause, **measured), noise


def file_check(
    title: str,
    name: str,
    tensor_types: Mapping[str, str],
    header: Header,
    before: dict[str, GgufTensor],
    after: dict[str, GgufTensor],
) -> Check | None:
    """A failure that shows without reading a weight: another level's file, other tensors or types; None if
    there is none.
    """
    from gguf import LlamaFileType

    level, remedy = split_level(name)[0], remake(next(iter(after.values())).file)
    given = given_by(after, tensor_types)

    def fail(what: str, count: int, unit: str, detail: str, cause: str) -> Check:
        return failure(title, count, unit, detail, f"{cause}: {remedy}.", what)

    wanted, number = DEFAULT_TYPES.get(level, level), header.fields.get("general.file_type")
    known = {int(file_type): file_type.name.removeprefix("MOSTLY_") for file_type in LlamaFileType}
    found = known.get(number, str(number)) if isinstance(number, int) else "none"
    another = "files of another level", 1, "files"
    if found != level and level in known.values():
        return fail(
            *another, f"general.file_type is {found}", f"The file of another level has the name of {name}"
        )
    plain = [
        tensor
        for each, tensor in after.items()
        if PLAIN_OF.get(level, PLAIN).search(each) and each not in given
    ]
    ggml_types = sorted({tensor.type for tensor in plain if tensor.columns % K_BLOCK == 0})
    if ggml_types and wanted not in ggml_types:
        detail = f"no query or feed-forward tensor is {wanted}: {', '.join(ggml_types)}"
        return fail(*another, detail, f"The file of another level has the name of {name}")
    different = [
        each for each in sorted(before.keys() | after.keys()) if each not in before or each not in after
    ]
    different += [
        each for each in sorted(before.keys() & after.keys()) if before[each].shape != after[each].shape
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
    if wrong := of_other_types(before, after, given, tensor_types):
        first, ggml_type = wrong[0], tensor_types[given[wrong[0]]].upper()
        cause = f"The level was made before quantize.tensor_types asked for {ggml_type}"
        what = "tensors of another type than quantize.tensor_types"
        return fail(what, len(wrong), "tensors", f"{first} is {after[first].type}, not {ggml_type}", cause)
    return None


def given_by(names: Iterable[str], tensor_types: Mapping[str, str]) -> dict[str, str]:
    """{tensor: the pattern of `tensor_types` that gives it its type}, the first one that is found in its
    name, as llama-quantize takes them.
    """
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
    """The tensors that don't have the type they were given; both sides have the same ones.

    llama-quantize leaves norms and the like as they were, and short rows fall back to another type; but no
    pattern may change nothing.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    wrong: list[str] = []
    for pattern, ggml_type in tensor_types.items():
        block = int(GGML_QUANT_SIZES[GGMLQuantizationType[ggml_type.upper()]][0])
        mine = [name for name, its in given.items() if its == pattern]
        others = [name for name in mine if after[name].type != ggml_type.upper()]
        quantized = [
            name
            for name in others
            if after[name].type != before[name].type and after[name].columns % block == 0
        ]
        wrong += quantized or (others if len(others) == len(mine) else [])
    return wrong


def remake(level: Path) -> str:
    """What makes a level's file again; the rule has a wildcard, so that Snakemake wants the file."""
    return f"run `snakemake --force models/gguf/{level.name}`"


def lost_check(
    title: str, lost: dict[str, TensorNoise], before: dict[str, GgufTensor], after: dict[str, GgufTensor]
) -> Check:
    """The failure of a level in which blocks hold nothing of what they stand for, with the first of them and
    the likely cause.
    """
    name, first = next(iter(lost.items()))
    stored, count = after[name].values(first.row, first.row + 1)[0], sum(one.lost for one in lost.values())
    where = f"{name}, {first.lost} of {first.blocks} blocks from row {first.row} on" + (
        f", and {len(lost) - 1} more tensors" * (len(lost) > 1)
    )
    remedy = remake(after[name].file)
    if len(lost) > len(after) / 2:
        cause = f"The level was made from another model or from an older merge: {remedy}."
    elif (other := row_like(stored, before[name])) is not None and other != first.row:
        cause = f"The rows of {name} are in another order, row {first.row} is {other}: {remedy}."
    elif (stored == 0).reshape(-1, after[name].block).all(axis=1).any():
        cause = f"A block of {name} is zeroed, so the file is damaged: {remedy}."
    else:
        cause = f"The weights of {name} are others, so the file is damaged: {remedy}."
    return failure(title, count, "blocks", where, cause, "blocks that hold nothing of their weights")


def row_like(values: Floats, tensor: GgufTensor) -> int | None:
    """The row of a tensor that is closest to `values`, if less than half of their norm away."""
    best, place = 0.5 * float(np.linalg.norm(values)), None
    for first, last in tensor.blocks():
        distances = np.linalg.norm(tensor.values(first, last) - values, axis=1)
        nearest = int(distances.argmin())
        if distances[nearest] < best:
            best, place = float(distances[nearest]), first + nearest
    return place

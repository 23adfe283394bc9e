"""Check by a file's header whether it is the level in its name: type, tensors, `quantize.tensor_types`."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.config.ggml_types import LEVELS
from pipeline.config.levels import ModelName
from pipeline.core.checks import Check
from pipeline.gguf.file import K_BLOCK
from pipeline.gguf.header import Header
from pipeline.gguf.tensors import GgufTensor
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
    """Return {tensor: the first pattern of `tensor_types` that matches its name}, as llama-quantize applies
    them.
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
    """Return advice to make a level's file again. The rule has a wildcard, so Snakemake needs the file's
    name.
    """
    return f"run `snakemake --force models/gguf/{level.name}`"

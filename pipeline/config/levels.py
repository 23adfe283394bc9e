"""llama.cpp's quantization levels by name, which of them need an importance matrix, and how a level is
spelled in `params.yaml`.
"""

import re

# tools/quantize/quantize.cpp, QUANT_OPTIONS. Left out are F32, F16, BF16 and COPY, which quantize nothing,
# and the aliases Q3_K, Q4_K and Q5_K (of the _M levels: a file's name should say what its header says), and
# Q2_0, which the gguf package can't read back
LEVELS = frozenset(
    {
        "Q1_0",
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "Q2_K",
        "Q2_K_S",
        "Q3_K_S",
        "Q3_K_M",
        "Q3_K_L",
        "Q4_K_S",
        "Q4_K_M",
        "Q5_K_S",
        "Q5_K_M",
        "Q6_K",
        "IQ1_S",
        "IQ1_M",
        "IQ2_XXS",
        "IQ2_XS",
        "IQ2_S",
        "IQ2_M",
        "IQ3_XXS",
        "IQ3_XS",
        "IQ3_S",
        "IQ3_M",
        "IQ4_NL",
        "IQ4_XS",
        "TQ1_0",
        "TQ2_0",
        "MXFP4_MOE",
    }
)
# src/llama-quant.cpp, tensor_requires_imatrix: tensor types that llama-quantize makes only with one, and the
# levels that use them
TYPES_NEEDING_IMATRIX = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS"})
# ggml types that a tensor can be given by name
TYPES_TO_QUANTIZE = TYPES_NEEDING_IMATRIX | {
    "F32",
    "F16",
    "BF16",
    "Q1_0",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ3_S",
    "IQ4_NL",
    "IQ4_XS",
    "TQ1_0",
    "TQ2_0",
    "MXFP4",
}
NEEDS_IMATRIX = frozenset(
    {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS", "Q2_K_S"}
)
SUFFIX = "-imatrix"
DISTILLED = "-distilled"  # behind a level of quantize.distill: the file whose scales were taught
# levels of types whose blocks have float16 scales (`gguf.tensors.SCALES`)
WITH_SCALES = frozenset(
    level for level in LEVELS if level.startswith(("Q2", "Q3", "Q4", "Q5", "Q6", "Q8", "IQ4"))
)


def split_level(spelled: str) -> tuple[str, bool]:
    """A level of the tuned model as llama.cpp's name and whether the importance matrix is used:
    "q4_k_m-imatrix" is ("Q4_K_M", True), "Q4_0-distilled" ("Q4_0", False).
    """
    level = spelled.upper().removesuffix(DISTILLED.upper())
    name = level.removesuffix(SUFFIX.upper())
    return name, len(name) < len(level)


def improved_from(spelled: str) -> str | None:
    """The plain level that "Q4_K_M-imatrix" or "Q4_0-distilled" is made like, spelled as there; None for any
    other level.
    """
    ending = next((one for one in (SUFFIX, DISTILLED) if spelled.lower().endswith(one)), "")
    return spelled[: -len(ending)] if ending else None


def distilled_from(spelled: str) -> str | None:
    """The level that "Q4_0-distilled" was made from, spelled as there; None for any other level."""
    return spelled.removesuffix(DISTILLED) if spelled.endswith(DISTILLED) else None


def level_problem(spelled: str) -> str | None:
    """Why `spelled` can't be a level, as a sentence; None if it can."""
    name, with_imatrix = split_level(spelled)
    if spelled.lower().endswith(DISTILLED):
        return f"{spelled} is made of {name}: write {name} here, and in quantize.distill too"
    if name not in LEVELS:
        return (
            f"unknown level {spelled}: llama.cpp has {', '.join(sorted(LEVELS))}, each also with "
            f"{SUFFIX} behind it"
        )
    if name in NEEDS_IMATRIX and not with_imatrix:
        return (
            f"level {spelled} can't be made without an importance matrix: write {spelled}{SUFFIX} and "
            "set imatrix.tokens"
        )
    return None


def tensor_type_problem(pattern: str, ggml_type: str) -> str | None:
    """Why llama-quantize can't give the tensors that `pattern` finds the type `ggml_type`, as far as the
    words show; None if it can.
    """
    if ggml_type.upper() not in TYPES_TO_QUANTIZE:
        return (
            f"{pattern!r} is to have {ggml_type!r}, no type that llama-quantize makes: choose one of "
            f"{', '.join(sorted(TYPES_TO_QUANTIZE))}"
        )
    try:
        re.compile(pattern.lower())
    except (re.error, OverflowError, RecursionError) as error:
        return f"{pattern!r} is no regular expression ({error}): correct it"
    # it takes PATTERN=TYPE, and no flags or named groups
    if not pattern or "=" in pattern or re.search(r"\(\?[^:!]", pattern):
        return (
            f"{pattern!r} is no pattern that llama-quantize takes: write a part of a tensor's name, "
            "attn_v for example"
        )
    return None


def level_key(group: str, level: str) -> str:
    """The key of a level's parity check in reports/parity.json: weights_q4_k_m, outputs_q4_k_m_imatrix."""
    return f"{group}_{level.lower().replace('-', '_')}"

"""How a quantization level is spelled in `params.yaml`."""

import re

from pipeline.config.ggml_types import LEVELS, TYPES

SUFFIX = "-imatrix"
DISTILLED = "-distilled"  # behind a level of quantize.distill: the file whose scales were taught


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
    ending = next((suffix for suffix in (SUFFIX, DISTILLED) if spelled.lower().endswith(suffix)), "")
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
    if LEVELS[name].needs_imatrix and not with_imatrix:
        return f"level {spelled} can't be made without an importance matrix: write {spelled}{SUFFIX}"
    return None


def tensor_type_problem(pattern: str, ggml_type: str) -> str | None:
    """Why llama-quantize can't give the tensors that `pattern` finds the type `ggml_type`, as far as the
    words show; None if it can.
    """
    if ggml_type.upper() not in TYPES:
        return (
            f"{pattern!r} is to have {ggml_type!r}, no type that llama-quantize makes: choose one of "
            f"{', '.join(sorted(TYPES))}"
        )
    try:
        re.compile(pattern.lower())
    except (re.error, OverflowError, RecursionError) as error:
        return f"{pattern!r} is not a regular expression ({error}): correct it"
    # it takes PATTERN=TYPE, and no flags or named groups
    if not pattern or "=" in pattern or re.search(r"\(\?[^:!]", pattern):
        return (
            f"{pattern!r} is not a pattern that llama-quantize takes: write a part of a tensor's name, "
            "attn_v for example"
        )
    return None


def level_key(group: str, level: str) -> str:
    """The key of a level's parity check in reports/parity.json: weights_q4_k_m, outputs_q4_k_m_imatrix."""
    return f"{group}_{level.lower().replace('-', '_')}"

"""The spelling of models and their quantization levels: in `params.yaml`, in reports and in file names."""

import difflib
import re

from pipeline.config.ggml_types import LEVELS, TYPES

UNTUNED = "base-"  # prefix of the names of the untuned base's models
SUFFIX = "-imatrix"
DISTILLED = "-distilled"  # suffix of a level in quantize.distill: the file with distilled scales
IMPROVED_BY = {SUFFIX: "An importance matrix", DISTILLED: "Distilling the scales"}


class ModelName(str):
    """The name of a model and its parts: F16, Q4_K_M, q4_k_m-imatrix, Q4_0-distilled or base-Q4_K_M.

    It is not checked that the level exists. Levels and endings are read in any case, base- in lower case.
    """

    @property
    def untuned(self) -> bool:
        """True if it begins with base-: a model of the untuned base."""
        return self.startswith(UNTUNED)

    @property
    def bare(self) -> str:
        """The name without base-: the tuned model's file that is made in the same way."""
        return self.removeprefix(UNTUNED)

    @property
    def ending(self) -> str:
        """-imatrix or -distilled; "" for a level that llama-quantize makes on its own."""
        return next((ending for ending in IMPROVED_BY if self.lower().endswith(ending)), "")

    @property
    def plain(self) -> str:
        """The name without its ending."""
        return self[: len(self) - len(self.ending)]

    @property
    def made_of(self) -> str:
        """Level whose file a distilled level's scales were trained in; "" for any other level."""
        return self.plain if self.ending == DISTILLED else ""

    @property
    def level(self) -> str:
        """The level's name in llama.cpp, or a 16-bit type: Q4_K_M of base-q4_k_m and Q4_K_M-imatrix."""
        return self.bare.upper().removesuffix(DISTILLED.upper()).removesuffix(SUFFIX.upper())

    @property
    def imatrix(self) -> bool:
        """True if it is made with the importance matrix."""
        return self.ending == SUFFIX

    def reference(self, sixteen: str) -> str:
        """Return the model that it is compared with; `sixteen` is the 16-bit type.

        A level of the untuned base is compared with the 16-bit base, any other with the tuned 16-bit model.
        """
        untuned = UNTUNED + sixteen
        return untuned if self.untuned and self != untuned else sixteen


def level_problem(spelled: str) -> str | None:
    """Return a sentence on why `spelled` can't be a level; None if it can."""
    model = ModelName(spelled)
    name = model.upper().removesuffix(SUFFIX.upper())  # base-… is not a level.
    if model.made_of:
        return f"{spelled} is made of {model.level}: write {model.level} here, and in quantize.distill too"
    if name not in LEVELS:
        near = difflib.get_close_matches(name, LEVELS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        return (
            f"unknown level {spelled}: {hint}llama.cpp has {', '.join(sorted(LEVELS))}, each also with "
            f"{SUFFIX} behind it"
        )
    if LEVELS[name].needs_imatrix and not model.imatrix:
        return f"level {spelled} can't be made without an importance matrix: write {spelled}{SUFFIX}"
    return None


def tensor_type_problem(pattern: str, ggml_type: str) -> str | None:
    """Return a sentence on why llama-quantize can't give tensors matching `pattern` the type `ggml_type`.

    Return None if it can, as far as can be seen without the model.
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
    # It accepts PATTERN=TYPE, and no flags or named groups.
    if not pattern or "=" in pattern or re.search(r"\(\?[^:!]", pattern):
        return (
            f"{pattern!r} is not a pattern that llama-quantize takes: write a part of a tensor's name, "
            "attn_v for example"
        )
    return None


def level_key(group: str, level: str) -> str:
    """Return the key of a level's check in reports/parity.json: weights_q4_k_m, outputs_q4_k_m_imatrix."""
    return f"{group}_{level.lower().replace('-', '_')}"

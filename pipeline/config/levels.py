"""How models and their quantization levels are spelled: in `params.yaml`, in reports and in file names."""

import re

from pipeline.config.ggml_types import LEVELS, TYPES

UNTUNED = "base-"  # what the names of the untuned base's models begin with
SUFFIX = "-imatrix"
DISTILLED = "-distilled"  # behind a level of quantize.distill: the file whose scales were taught
IMPROVED_BY = {SUFFIX: "An importance matrix", DISTILLED: "Distilling the scales"}


class ModelName(str):
    """The name of a model, with what it says: F16, Q4_K_M, q4_k_m-imatrix, Q4_0-distilled or base-Q4_K_M.
    Whether there is such a level is not asked. Levels and endings are read in any case, base- in lower case.
    """

    @property
    def untuned(self) -> bool:
        """Whether it begins with base-: a model of the untuned base."""
        return self.startswith(UNTUNED)

    @property
    def bare(self) -> str:
        """The name without base-: the tuned model's file that is made in the same way."""
        return self.removeprefix(UNTUNED)

    @property
    def ending(self) -> str:
        """-imatrix or -distilled; "" where it is a level as llama-quantize makes it by itself."""
        return next((ending for ending in IMPROVED_BY if self.lower().endswith(ending)), "")

    @property
    def plain(self) -> str:
        """The name without its ending."""
        return self[: len(self) - len(self.ending)]

    @property
    def made_of(self) -> str:
        """The level in whose file scales were taught the 16-bit model's answers; "" for any other level."""
        return self.plain if self.ending == DISTILLED else ""

    @property
    def level(self) -> str:
        """llama.cpp's name of the level, or a 16-bit type: Q4_K_M of base-q4_k_m and Q4_K_M-imatrix."""
        return self.bare.upper().removesuffix(DISTILLED.upper()).removesuffix(SUFFIX.upper())

    @property
    def imatrix(self) -> bool:
        """Whether it is made with the importance matrix."""
        return self.ending == SUFFIX

    def reference(self, sixteen: str) -> str:
        """The model that it is compared with, `sixteen` being the 16-bit type: a level of the untuned base
        with the 16-bit base, any other with the tuned 16-bit model.
        """
        untuned = UNTUNED + sixteen
        return untuned if self.untuned and self != untuned else sixteen


def level_problem(spelled: str) -> str | None:
    """Why `spelled` can't be a level, as a sentence; None if it can."""
    model = ModelName(spelled)
    name = model.upper().removesuffix(SUFFIX.upper())  # base-… is no level
    if model.made_of:
        return f"{spelled} is made of {model.level}: write {model.level} here, and in quantize.distill too"
    if name not in LEVELS:
        return (
            f"unknown level {spelled}: llama.cpp has {', '.join(sorted(LEVELS))}, each also with "
            f"{SUFFIX} behind it"
        )
    if LEVELS[name].needs_imatrix and not model.imatrix:
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

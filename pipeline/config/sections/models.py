"""Sections `merge`, `convert`, `quantize` and `distill`: from an adapter to files that llama.cpp serves."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator

from pipeline.config.ggml_types import LEVELS, WITH_SCALES
from pipeline.config.levels import DISTILLED, ModelName, tensor_type_problem
from pipeline.config.sections.values import (
    ONCE,
    ModelLevels,
    Section,
    SixteenBit,
    fits,
    key,
)

FILE_NAME = "a name for files: 1 to 64 letters, digits, dots, - and _, a letter or a digit first"
IMATRIX_TOKENS = 100_000  # tokens of the training rows: 195 chunks of 512
MERGE_ROWS = 16  # rows of data/final/val.jsonl by which one of two merges is chosen
DECIDING = "Q4_K_M"  # the level at which most models are served


class Merge(Section):
    base: Literal["16-bit", "nf4", "auto"] = key(
        "auto",
        "weights the adapter is added to: 16-bit (the base's 16 bit) | nf4 (the base as training saw it) | "
        "auto (what diverges less from the trained model, both measured at the first of quantize.levels)",
    )


class Convert(Section):
    name: Annotated[str, fits("[A-Za-z0-9][A-Za-z0-9._-]{0,63}", FILE_NAME)] = key(
        "model", "file name of every GGUF: NAME-F16.gguf, NAME-Q4_K_M.gguf and so on"
    )
    type: SixteenBit = key(
        "F16",
        "16-bit type of the merged weights and of the GGUF that the levels are made from: F16 | BF16 (if a "
        "weight is too large for F16)",
    )


# Section quantize without files other than those of its levels.
LEVELS_ALONE: Mapping[str, list[str]] = {"distill": []}


class Quantize(Section):
    levels: ModelLevels = key(
        ["Q4_K_M", "Q5_K_M"],
        "levels to make, in llama.cpp's names (any case); LEVEL-imatrix uses an importance matrix, "
        "base-LEVEL is the untuned base's",
    )
    tensor_types: dict[str, str] = key(
        {},
        "regular expression of tensor names: type, for tensors that are to have another type, e.g. "
        "{attn_v: q8_0}",
    )

    distill: Annotated[list[str], ONCE] = key(
        [],
        "levels whose scales are taught the 16-bit model's own answers: spelled as in levels, made beside "
        "them as LEVEL-distilled (see section distill), e.g. [Q4_0]; []: none",
    )

    @field_validator("tensor_types")
    @classmethod
    def _types_are_known(cls, types: dict[str, str]) -> dict[str, str]:
        for pattern, kind in types.items():
            problem = tensor_type_problem(pattern, kind)
            if problem:
                raise ValueError(problem)
        return types

    def problems(self) -> Iterator[str]:
        """Yield sentences on levels that can't be distilled."""
        plain = [level for level in map(ModelName, self.levels) if not level.untuned and not level.imatrix]
        other = [level for level in self.distill if level not in plain]
        if other:
            yield (
                f"distill names {', '.join(other)}: it can name the tuned model's levels without an "
                f"importance matrix ({', '.join(plain) or 'here there is none'}), spelled as in levels"
            )
        elif fixed := [level for level in self.distill if ModelName(level).level not in WITH_SCALES]:
            yield (
                f"distill names {', '.join(fixed)}, whose blocks have no scales that could learn: name "
                "levels of Q2_K to Q8_0 or IQ4"
            )

    @property
    def tuned(self) -> list[str]:
        """The levels of the tuned model, in the order of `levels`."""
        return [level for level in self.levels if not ModelName(level).untuned]

    @property
    def files(self) -> list[str]:
        """The levels of the tuned model, each followed by the level that is distilled from it."""
        names = []
        for level in self.tuned:
            names.append(level)
            if level in self.distill:
                names.append(level + DISTILLED)
        return names

    @property
    def deciding(self) -> str:
        """The level that a merge is chosen by, in llama.cpp's spelling: the tuned model's first.

        That one is taken because it ships. It is made without an importance matrix, because that is measured
        on the merged model. It is `DECIDING` if every level needs one.
        """
        names = (model.level for model in map(ModelName, self.levels) if not model.untuned)
        return next((name for name in names if not LEVELS[name].needs_imatrix), DECIDING)

    @property
    def imatrix_tokens(self) -> int:
        """Tokens of training rows on which the importance matrix is measured; 0 if no level uses it."""
        return IMATRIX_TOKENS if any(ModelName(level).imatrix for level in self.levels) else 0

    @property
    def untuned(self) -> list[str]:
        """The levels of the untuned base (base-LEVEL), in the order of `levels`."""
        return [level for level in self.levels if ModelName(level).untuned]

    def stage_of(self, model: str) -> str:
        """Return the stage that makes a level's file, as it is run: "quantize@Q4_K_M"."""
        level = ModelName(model).made_of
        if level:
            return f"distill@{level}"
        return f"quantize@{model}"


class Distill(Section):
    max_steps: Annotated[int, Field(ge=2, le=10**9)] = key(
        100, "optimizer steps per level, each on one row of preprocess.max_length tokens at most"
    )

"""The kinds of values for keys of `params.yaml`, with their bounds, and what all sections share."""

import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, model_validator
from pydantic.fields import FieldInfo

from pipeline.config.levels import UNTUNED, ModelName, level_problem
from pipeline.core.text import quoted


def _check_text(pattern: str, needed: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise ValueError(f"{quoted(text)} is not {needed}")
    return text


def fits(pattern: str, needed: str) -> AfterValidator:
    """Return a check that a text matches `pattern`. Its message says in words what is `needed`."""
    return AfterValidator(partial(_check_text, pattern, needed))


def _each_once(values: list[Any] | None) -> list[Any] | None:
    if not values:
        return values
    twice = list(dict.fromkeys(value for value in values if values.count(value) > 1))
    if twice:
        raise ValueError(f"names {', '.join(map(str, twice))} twice: name each once")
    return values


ONCE = AfterValidator(_each_once)  # a list without duplicates
# A number outside these bounds is a typing error, or its result fits no machine.
Fraction = Annotated[float, Field(ge=0, le=1)]
SplitFraction = Annotated[float, Field(ge=0, le=0.5)]
Count = Annotated[int, Field(ge=1, le=10**9)]  # rows, steps, tokens
Tokens = Annotated[int, Field(ge=16, le=1 << 24)]  # a context or a length; the longest models have some 2²³
Threads = Annotated[int, Field(ge=1, le=4096)]
Slots = Annotated[int, Field(ge=1, le=1024)]
Divergence = Annotated[float, Field(gt=0, le=1000)]  # nats
Points = Annotated[float, Field(ge=0, le=100)]
# A limit that is computed from the level and the model's size: `pipeline.metrics.level_limits`.
AUTO: Literal["auto"] = "auto"
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]
ALL_LAYERS = 99  # llama.cpp's number for all layers
Optimizer = Literal[
    "auto",
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_bnb_8bit",
    "adamw_8bit",
    "paged_adamw_8bit",
    "paged_adamw_32bit",
    "lion_8bit",
    "paged_lion_8bit",
    "lion_32bit",
    "paged_lion_32bit",
    "sgd",
]
Format = Literal[
    "auto",
    "messages",
    "sharegpt",
    "requests",
    "gemini",
    "dialogue",
    "function_calls",
    "alpaca",
    "prompt_completion",
    "query_response",
    "input_output",
    "text",
    "preference",
    "kto",
    "prompt",
]
# models of the graphs without a merge
BASE = "base"  # only the base's GGUF
BASE_WITH_ADAPTER = "adapter"  # the base's GGUF with the adapter's GGUF
TUNED = "tuned"  # the base's GGUF with trained scales
ORIGINAL = "source"  # the file that base.level was made from
Graph = Literal["merged", "adapter", "tuned"]
NAME_PART = r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]{0,199}"  # a part of a path, not hidden
INSIDE = rf"(?=.{{1,400}}\Z){NAME_PART}(/{NAME_PART})*"
# A file below data/guard or data/evaluation. The graph watches these, so the path can't leave them.
GuardFile = Annotated[
    str,
    fits(
        INSIDE,
        "a file below data/guard or data/evaluation: name it from there on, without .. or a leading dot or "
        "slash, bench/mmlu.jsonl for example",
    ),
]
Location = Annotated[str, Field(min_length=1, max_length=500)]  # a path, or a name on the hub
THIS_MACHINE = ("127.0.0.1", "localhost", "::1")  # hosts in addresses of this machine


def _check_number(kinds: Any, least: float, most: float, needed: str, value: Any) -> Any:
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if value == AUTO or (is_number and least <= value <= most):
        return value
    raise ValueError(f"is {value!r}: give a number {needed}, or auto")


def _or_auto(kinds: Any, least: float, most: float, needed: str) -> PlainValidator:
    """Return one validator for both kinds of value, so that a wrong value is one error."""
    return PlainValidator(partial(_check_number, kinds, least, most, needed))


KldLimit = Annotated[
    float | Literal["auto"], _or_auto(int | float, math.ulp(0), 1000, "above 0 and up to 1000")
]
ON_GPU = (
    "layers on the GPU: auto (as many as fit the memory that is free there; none without one, or if "
    "llama.cpp was built for the CPU) | 0 for none | 99 for all"
)
GpuLayers = Annotated[int | Literal["auto"], _or_auto(int, 0, 10_000, "from 0 to 10,000")]
SlotsOrAuto = Annotated[int | Literal["auto"], _or_auto(int, 1, 1024, "from 1 to 1,024")]


def _recomputed(value: object) -> bool | int:
    if isinstance(value, bool) or (isinstance(value, int) and 2 <= value <= 10_000):
        return value
    raise ValueError("give true, false or a number of layers from 2 to 10,000")


Recomputed = Annotated[bool | int, PlainValidator(_recomputed)]


def _compiled(value: object) -> bool | str:
    if isinstance(value, bool):
        return value
    if value == AUTO:
        return AUTO
    raise ValueError(f"is {value!r}: give true, false or auto")


Compiled = Annotated[bool | Literal["auto"], PlainValidator(_compiled)]


def _kept_elsewhere(value: object) -> int | str:
    match value:
        case "none" | "embeddings" | "shared":
            return str(value)
        case int() if not isinstance(value, bool) and 1 <= value <= 10_000:
            return value
    raise ValueError("give none, embeddings, shared or a number of layers from 1 to 10,000")


Offload = Annotated[int | str, PlainValidator(_kept_elsewhere)]


class Section(BaseModel):
    """One section of `params.yaml`: frozen and strictly typed. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def problems(self) -> Iterator[str]:
        """Yield sentences on keys that don't fit together. A section with such rules overrides this."""
        yield from ()

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        for problem in self.problems():
            raise ValueError(problem)
        return self


def key(default: Any, comment: str) -> Any:
    """Return a key with its default (or a factory from the keys above) and its comment for `params.yaml`."""
    if callable(default):
        return Field(default_factory=default, description=comment)
    return Field(default, description=comment)


def group(section: type[Section], comment: str | None = None) -> Any:
    """Return a section, or a group of keys in one, that may be left out."""
    return Field(default_factory=section, description=comment)


Quantization = Literal["nf4", "gguf", "none"]
SixteenBit = Literal["F16", "BF16"]


Key = tuple[str, ...]  # the names of a section and of what is below it


def keys_of(model: type[Section], above: Key = ()) -> Iterator[tuple[Key, FieldInfo]]:
    """Yield every section, group and key below `model` in order, by its place."""
    for name, field in model.model_fields.items():
        yield (*above, name), field
        inner = group_of(field)
        if inner:
            yield from keys_of(inner, (*above, name))


def group_of(field: FieldInfo) -> type[Section] | None:
    """Return the section class below a section or a group; None for a key."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _check_levels(levels: list[str]) -> list[str]:
    # The spelling is kept, because DVC and Snakemake make file names from the same text.
    problems = [problem for problem in map(level_problem, levels) if problem]
    if problems:
        raise ValueError("; ".join(problems))
    if len({level.upper() for level in levels}) < len(levels):
        raise ValueError(f"{levels} names a level twice")
    return levels


def _check_model_levels(levels: list[str]) -> list[str]:
    untuned = [level.bare for level in map(ModelName, levels) if level.untuned]
    with_imatrix = [level for level in untuned if ModelName(level).imatrix]
    if with_imatrix:
        raise ValueError(
            f"{', '.join(UNTUNED + level for level in with_imatrix)}: the importance matrix is the tuned "
            "model's: leave -imatrix out"
        )
    tuned = _check_levels([level for level in levels if not ModelName(level).untuned])
    if not tuned:
        raise ValueError(
            f"{levels} names only levels of the untuned base: add one of the tuned model, Q4_K_M for example"
        )
    _check_levels(untuned)
    return levels


def _check_plain_levels(levels: list[str]) -> list[str]:
    # The matrix is measured on the merged model, which is made later or (compare) never, in half of the
    # strategies.
    with_imatrix = [level for level in levels if ModelName(level).imatrix]
    if with_imatrix:
        raise ValueError(
            f"{', '.join(with_imatrix)}: these levels are compared without an importance matrix: leave "
            "-imatrix out"
        )
    return _check_levels(levels)


PlainLevels = Annotated[list[str], Field(min_length=1), AfterValidator(_check_plain_levels)]
ModelLevels = Annotated[list[str], Field(min_length=1), AfterValidator(_check_model_levels)]

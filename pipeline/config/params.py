"""`params.yaml`, read strictly: what it leaves out has its default, unknown keys are forbidden, and all
errors are reported at once.
"""

import difflib
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError, model_validator

from pipeline.config import sections
from pipeline.config.levels import split_level
from pipeline.config.sections.renamed import GONE, KEYS, VALUES
from pipeline.config.sections.values import group, keys_of
from pipeline.core.cpu import Device, fast_dtype, training_device
from pipeline.core.errors import ConfigError
from pipeline.core.strict_yaml import Place, printable, quoted, read_strict
from pipeline.core.wording import plural

LONGEST, MOST = 400, 1900  # characters of one error, and of all


class Params(sections.Section):
    """All of `params.yaml`."""

    base: sections.Base = group(sections.Base)
    curate: sections.Curate = group(sections.Curate)
    preprocess: sections.Preprocess = group(sections.Preprocess)
    train: sections.Train = group(sections.Train)
    lora: sections.Lora = group(sections.Lora)
    merge: sections.Merge = group(sections.Merge)
    convert: sections.Convert = group(sections.Convert)
    imatrix: sections.Imatrix = group(sections.Imatrix)
    quantize: sections.Quantize = group(sections.Quantize)
    compare: sections.Compare = group(sections.Compare)
    parity: sections.Parity = group(sections.Parity)
    evaluate: sections.Evaluate = group(sections.Evaluate)
    report: sections.Report = group(sections.Report)
    serve: sections.Serve = group(sections.Serve)
    llamacpp: sections.LlamaCpp = group(sections.LlamaCpp)

    @model_validator(mode="before")
    @classmethod
    def _empty_sections_are_left_out(cls, values: Any) -> Any:
        return (
            {name: value for name, value in values.items() if value is not None}
            if isinstance(values, dict)
            else values
        )

    @property
    def training(self) -> sections.Training:
        """`training_on` what torch, which this imports, trains on here."""
        return self.training_on(training_device())

    def training_on(self, device: Device) -> sections.Training:
        """Section `train` with `base.quantization`, in the type that `device` is fast in, if it is `auto`."""
        given = self.train.bnb_4bit_compute_dtype
        decided = fast_dtype(device) if given == "auto" else given
        return sections.Training(
            **(self.train.model_dump() | {"bnb_4bit_compute_dtype": decided}),
            quantization=self.base.quantization,
        )

    @property
    def graph(self) -> sections.Graph:
        """Which of the two graphs of stages these settings need: an adapter beside the base's own GGUF, or a
        merged model and its levels.
        """
        return "adapter" if self.base.quantization == "gguf" else "merged"

    @model_validator(mode="after")
    def _models_are_made(self) -> "Params":
        if self.graph == "adapter":
            known = [
                sections.BASE,
                sections.BASE_WITH_ADAPTER,
                *([sections.ORIGINAL] if self.base.level else []),
            ]
            needed, why = sections.BASE_WITH_ADAPTER, "which is what is served"
            made_by = (
                f"({sections.BASE}: the GGUF alone, {sections.BASE_WITH_ADAPTER}: with its adapter, "
                f"{sections.ORIGINAL}: what base.level is made from)"
            )
        else:
            known = [sections.UNTUNED + self.convert.type, self.convert.type, *self.quantize.levels]
            needed, why = self.convert.type, "which every level is compared with"
            made_by = "(quantize.levels, spelled as there)"
        unknown = [model for model in self.evaluate.models if model not in known]
        if unknown:
            raise ValueError(
                f"evaluate.models names {', '.join(unknown)}: it can name {', '.join(known)} {made_by}"
            )
        if needed not in self.evaluate.models:
            raise ValueError(f"evaluate.models lacks {needed}, {why}: add it")
        return self

    @model_validator(mode="after")
    def _untuned_base_is_made(self) -> "Params":
        if self.convert.base or self.graph == "adapter":
            return self
        names = [
            model
            for model in (*self.evaluate.models, *self.quantize.levels)
            if model.startswith(sections.UNTUNED)
        ]
        wanting = [f"{name} is named" for name in dict.fromkeys(names)] + (
            ["compare.seeds names seeds"] if self.compare.seeds else []
        )
        if wanting:
            raise ValueError(
                "convert.base is false, so there is no GGUF of the untuned base, but "
                f"{' and '.join(wanting)}: set it to true"
            )
        return self

    @model_validator(mode="after")
    def _merged_levels_agree(self) -> "Params":
        if self.graph == "adapter":
            return self
        made = {split_level(level)[0] for level in self.quantize.tuned}
        strange = [level for level in self.merge.levels if level.upper() not in made]
        if self.merge.base == "auto" and strange:
            raise ValueError(
                f"merge.levels names {', '.join(strange)}, which quantize.levels doesn't make "
                f"({', '.join(self.quantize.tuned)}): the merge is "
                "judged at levels that ship, so name one of these, or set merge.base to 16-bit or nf4"
            )
        wanting = [level for level in self.quantize.tuned if split_level(level)[1]]
        if wanting and not self.imatrix.tokens:
            raise ValueError(
                f"quantize.levels names {', '.join(wanting)} and imatrix.tokens is 0: set it, 100000 for "
                "example"
            )
        if (self.merge.dtype, self.convert.type) == ("float16", "BF16"):
            raise ValueError(
                "convert.type is BF16 and merge.dtype is float16, which would round the weights twice: set "
                "merge.dtype to bfloat16"
            )
        return self

    @model_validator(mode="after")
    def _distillation_has_a_teacher(self) -> "Params":
        if self.train.method == "distill" and self.base.level is None:
            raise ValueError(
                "train.method is distill and base.level is null, so there is no original to learn from: "
                "name the level to distill"
            )
        return self

    @model_validator(mode="after")
    def _quantized_embeddings_stay(self) -> "Params":
        if self.train.embeddings_on_cpu and self.graph == "adapter":
            raise ValueError(
                "train.embeddings_on_cpu is on, but a GGUF's embeddings stay quantized and small: set it to "
                "false"
            )
        return self

    @model_validator(mode="after")
    def _strategies_can_be_compared(self) -> "Params":
        if self.compare.seeds and self.graph == "adapter":
            raise ValueError(
                "compare.seeds names seeds and base.quantization is gguf: strategies are compared where the "
                "16-bit base is: set it to nf4"
            )
        if self.compare.seeds and not self.evaluate.scorers:
            raise ValueError(
                "compare.seeds names seeds and evaluate.scorers is []: name a scorer (exact_match scores "
                "anything), or set the seeds to []"
            )
        return self

    @model_validator(mode="after")
    def _lengths_agree(self) -> "Params":
        if self.curate.max_tokens > self.preprocess.max_length:
            raise ValueError(
                f"curate.max_tokens is {self.curate.max_tokens}, more than preprocess.max_length "
                f"{self.preprocess.max_length}: "
                "lower it, or conversations that curate lets pass are rejected there"
            )
        if self.evaluate.ctx_size < self.preprocess.max_length:
            raise ValueError(
                f"evaluate.ctx_size is {self.evaluate.ctx_size}, less than preprocess.max_length "
                f"{self.preprocess.max_length}: raise it, or rows don't fit"
            )
        return self


class Read(NamedTuple):
    """A `params.yaml`: its settings with the defaults of what it leaves out, what it holds, and on which
    lines.
    """

    params: Params
    values: dict[str, Any]
    lines: dict[Place, int]


def load_params(path: Path) -> Params:
    """The settings in `params.yaml`; every error in it is named in one `ConfigError`, each with its key path
    and its line.
    """
    return read_params(path).params


def read_params(path: Path) -> Read:
    """`load_params`, with what the file itself holds."""
    values, lines = read_strict(path)
    if values is None:
        raise ConfigError("Q-CONFIG-001", f"{path} is empty: `quench use demo` writes a recipe there")
    try:
        return Read(Params.model_validate(values), values, lines)
    except ValidationError as error:
        report = _report(path, [_line(item, lines) for item in error.errors()])
        if any(_new_name(item) for item in error.errors()):
            raise ConfigError("Q-CONFIG-004", report) from None
        raise ConfigError("Q-CONFIG-003", report) from None


def with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """What a `params.yaml` holds with the defaults of what it leaves out, unchecked; sections that are
    nobody's here stay.
    """
    given = {name: value for name, value in values.items() if value is not None}
    defaults = Params().model_dump(mode="json")
    filled = {
        name: section | given[name] for name, section in defaults.items() if isinstance(given.get(name), dict)
    }
    return defaults | given | filled


def _report(path: Path, errors: list[str]) -> str:
    """As many of the errors as can be read at once."""
    shown = [f"{path} has {plural(len(errors), 'error')}:"]
    while errors and sum(map(len, shown)) < MOST - LONGEST:
        shown.append(f"  {errors.pop(0)}")
    return "\n".join([*shown, *([f"  … and {plural(len(errors), 'error')} more"] if errors else [])])


def _line(item: Any, lines: dict[Place, int]) -> str:
    key = printable(".".join(str(part) for part in item["loc"]) or "params", 120)
    found = [lines[item["loc"][:end]] for end in range(len(item["loc"]), 0, -1) if item["loc"][:end] in lines]
    place = f" (line {found[0]})" if found else ""
    return printable(f"{key}: {_sentence(item)}", LONGEST - len(place)) + place


def _sentence(item: Any) -> str:
    if renamed := _new_name(item):
        return renamed
    match item["type"]:
        case "extra_forbidden":
            return _unknown(item)
        case "missing":
            return (
                f"missing: add it, as the comment of {'.'.join(map(str, item['loc'][:-1]))} shows "
                "(`quench params`)"
            )
        case "value_error":
            return str(item["ctx"]["error"])
        case "model_type":
            return (
                f"is {quoted(item['input'])}, and a section with keys is needed (`quench params` shows "
                "every key)"
            )
    return f"is {quoted(item['input'])}, {item['msg'][0].lower()}{item['msg'][1:]}"


def _new_name(item: Any) -> str | None:
    """What became of a key or value of an older version, as a sentence; None for any other error."""
    key = _dotted(item)
    if item["type"] == "extra_forbidden" and key in GONE:
        return GONE[key]
    if item["type"] == "extra_forbidden" and key in KEYS:
        return f"is called {KEYS[key]} now: rename it"
    if new := VALUES.get(key, {}).get(str(item["input"])):
        return f"{quoted(item['input'])} is called {new} now: write that"
    return None


def _unknown(item: Any) -> str:
    """An unknown key, with the known one nearest to it."""
    key = _dotted(item)
    known = [".".join(place) for place, _ in keys_of(Params)]
    alike = {
        name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == key.rpartition(".")[0]
    }
    near = [alike[name] for name in difflib.get_close_matches(key.rpartition(".")[2], alike, n=1)]
    near = (
        near
        or [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
        or difflib.get_close_matches(key, known, n=1)
    )
    remedy = f"did you mean {near[0]}? Correct or remove it" if near else "remove it or correct its spelling"
    return f"unknown key (value {quoted(item['input'])}): {remedy}"


def _dotted(item: Any) -> str:
    return ".".join(part for part in item["loc"] if isinstance(part, str))

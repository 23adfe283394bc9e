"""`params.yaml`, read strictly: unknown keys are forbidden, and all errors are reported at once."""

import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError, model_validator

from pipeline.errors import ConfigError
from pipeline.llamacpp.levels import split_level
from pipeline.sections import (
    UNTUNED,
    Base,
    Convert,
    Curate,
    Evaluate,
    Imatrix,
    LlamaCpp,
    Merge,
    Parity,
    Preprocess,
    Quantize,
    Report,
    Section,
    Serve,
    Train,
)


class Params(Section):
    """The whole of `params.yaml`."""

    base: Base
    curate: Curate
    preprocess: Preprocess
    train: Train
    merge: Merge
    convert: Convert
    imatrix: Imatrix
    quantize: Quantize
    parity: Parity
    evaluate: Evaluate
    report: Report
    serve: Serve
    llamacpp: LlamaCpp

    @model_validator(mode="after")
    def _sections_agree(self) -> "Params":
        known = [UNTUNED + self.convert.type, self.convert.type, *self.quantize.levels]
        unknown = [model for model in self.evaluate.models if model not in known]
        if unknown:
            raise ValueError(f"evaluate.models names {', '.join(unknown)}: it can name {', '.join(known)} (quantize.levels, spelt as there)")
        if self.convert.type not in self.evaluate.models:
            raise ValueError(f"evaluate.models lacks {self.convert.type}, which every level is compared with: add it")
        made = {split_level(level)[0] for level in self.quantize.tuned}
        strange = [level for level in self.merge.levels if level.upper() not in made]
        if self.merge.base == "auto" and strange:
            raise ValueError(
                f"merge.levels names {', '.join(strange)}, which quantize.levels doesn't make ({', '.join(self.quantize.tuned)}): the merge is "
                "judged at levels that ship, so name one of these, or set merge.base to w16 or nf4"
            )
        wanting = [level for level in self.quantize.tuned if split_level(level)[1]]
        if wanting and not self.imatrix.tokens:
            raise ValueError(f"quantize.levels names {', '.join(wanting)} and imatrix.tokens is 0: set it, 100000 for example")
        if (self.merge.dtype, self.convert.type) == ("float16", "BF16"):
            raise ValueError("convert.type is BF16 and merge.dtype is float16, which would round the weights twice: set merge.dtype to bfloat16")
        if self.curate.max_tokens > self.preprocess.max_length:
            raise ValueError(
                f"curate.max_tokens is {self.curate.max_tokens}, more than preprocess.max_length {self.preprocess.max_length}: "
                "lower it, or conversations that curate lets pass are rejected there"
            )
        if self.evaluate.ctx_size < self.preprocess.max_length:
            raise ValueError(
                f"evaluate.ctx_size is {self.evaluate.ctx_size}, less than preprocess.max_length {self.preprocess.max_length}: "
                "raise it, or rows don't fit"
            )
        return self


def load_params(path: Path) -> Params:
    """Read `params.yaml`; every error in it is named in one `ConfigError`, each with its key path."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} can't be read ({error.strerror}): run in the project's folder, or name the file with --params") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    try:
        values = yaml.load(text, Loader=_UniqueKeys)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        lines = [f"  {_line(item)}" for item in error.errors()]
        raise ConfigError("\n".join([f"{path} has {_count(len(lines), 'error')}:", *lines])) from None


def _line(item: Any) -> str:
    key = ".".join(str(part) for part in item["loc"]) or "params"
    match item["type"]:
        case "extra_forbidden":
            return f"{key}: unknown key (value {item['input']!r}): remove it or mend its spelling"
        case "missing":
            return f"{key}: missing: add it (recipes/demo.yaml shows every key)"
        case "value_error":
            return f"{key}: {item['ctx']['error']}"
    hint = " (YAML reads 2e-4 as text: write 2.0e-4)" if item["type"] == "float_type" and _looks_numeric(item["input"]) else ""
    return f"{key}: is {item['input']!r}, {item['msg'][0].lower()}{item['msg'][1:]}{hint}"


def _looks_numeric(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value) is not None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class _UniqueKeys(yaml.SafeLoader):
    """A SafeLoader to which a key written twice is an error, not the last one's win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {str(key) for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"key {', '.join(sorted(twice))} is written twice", node.start_mark)
        return super().construct_mapping(node, deep)

"""`params.yaml`, read strictly.

A missing key has its default, an unknown key is an error, and all errors are reported at once.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError, model_validator

from pipeline.config import sections
from pipeline.config.conditions import refused
from pipeline.config.faults import report
from pipeline.config.levels import UNTUNED, ModelName
from pipeline.config.methods import METHODS
from pipeline.config.products import PRODUCTS, ModelFiles, Product
from pipeline.config.sections.values import group, keys_of
from pipeline.config.training_problems import training_problems
from pipeline.core.cpu import Device, training_device
from pipeline.core.errors import ConfigError
from pipeline.core.extras import need_extra
from pipeline.core.yaml_readers import Place, read_strict

# Optimizers for train.optim auto. Only a GPU has 8-bit states, which move off a small card when it is full.
OPTIMIZER: Mapping[Device, str] = {"cpu": "adamw_torch", "cuda": "paged_adamw_8bit"}


class Params(sections.Section):
    """All of `params.yaml`."""

    base: sections.Base = group(sections.Base)
    curate: sections.CurateKeys = group(sections.CurateKeys)
    augment: sections.Augment = group(sections.Augment)
    preprocess: sections.Preprocess = group(sections.Preprocess)
    train: sections.Train = group(sections.Train)
    merge: sections.Merge = group(sections.Merge)
    convert: sections.Convert = group(sections.Convert)
    quantize: sections.Quantize = group(sections.Quantize)
    distill: sections.Distill = group(sections.Distill)
    compare: sections.Compare = group(sections.Compare)
    parity: sections.Parity = group(sections.Parity)
    evaluate: sections.EvaluateKeys = group(sections.EvaluateKeys)
    report: sections.Report = group(sections.Report)
    serve: sections.ServeKeys = group(sections.ServeKeys)
    machine: sections.Machine = group(sections.Machine)

    @model_validator(mode="before")
    @classmethod
    def _empty_sections_are_left_out(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None}

    @property
    def curating(self) -> sections.Curate:
        """Section `curate` with the maximal length of rows."""
        return sections.Curate(**self.curate.model_dump(), max_tokens=self.preprocess.max_length)

    @property
    def evaluating(self) -> sections.Evaluate:
        """Section `evaluate` with the machine's threads and layers, and the maximal length of rows."""
        length = {"ctx_size": self.preprocess.max_length}
        return sections.Evaluate(**(self.evaluate.model_dump() | self._llama | length))

    @property
    def serving(self) -> sections.Serve:
        """Section `serve` with the machine's threads and layers."""
        return sections.Serve(**(self.serve.model_dump() | self._llama))

    @property
    def _llama(self) -> dict[str, Any]:
        return self.machine.model_dump(include={"threads", "n_gpu_layers"})

    @property
    def training(self) -> sections.Training:
        """`training_on` the device that torch trains on here. Imports torch."""
        return self.training_on(training_device(self.train.device))

    def training_on(self, device: Device) -> sections.Training:
        """Return section `train` with `base.quantization`.

        Type and optimizer become those for `device` if they are auto.
        """
        fit = {"bnb_4bit_compute_dtype": "bfloat16", "optim": OPTIMIZER[device]}
        decided = {key: value for key, value in fit.items() if getattr(self.train, key) == "auto"}
        return sections.Training(
            **(self.train.model_dump() | decided),
            quantization=self.base.quantization,
            rollout_type=self.rollout_type,
            machine=self.machine,
        )

    @property
    def graph(self) -> sections.Graph:
        """The graph of stages that these settings need.

        It makes a merged model and its levels, an adapter for the base's own GGUF, or that GGUF with trained
        scales.
        """
        return self.train.gguf_graph if self.base.quantization == "gguf" else "merged"

    @property
    def product(self) -> Product:
        """The artifact of that graph that is served."""
        return PRODUCTS[self.graph]

    @property
    def base_gguf(self) -> bool:
        """True if the untuned base's 16-bit GGUF is made, 15 GB at 7B.

        It is needed only to measure forgetting (evaluate), for levels of the base, for the comparison of
        strategies, and for parity in full.
        """
        named = [*self.evaluate.models, *self.quantize.levels]
        needed = any(ModelName(model).untuned for model in named)
        return needed or bool(self.compare.seeds) or self.parity.depth == "full"

    @property
    def derived(self) -> Mapping[str, Any]:
        """Values computed from settings that a stage does not read otherwise.

        `params.lock.yaml` contains them, so that these stages run again only if a value changes: another
        level needs no new merge.
        """
        return {
            "base_gguf": self.base_gguf,
            "deciding_level": self.quantize.deciding,
            "imatrix_tokens": self.quantize.imatrix_tokens,
            "rollout_type": self.rollout_type,
        }

    @property
    def rollout_type(self) -> sections.SixteenBit | None:
        """The 16-bit type of the GGUF that is made for llama-server's rollouts: the type that is served.

        None if llama-server draws none. A base that is a GGUF draws with itself.
        """
        by_server = METHODS[self.train.method].prompts and self.train.grpo.rollouts == "llama-server"
        return self.convert.type if by_server and self.base.quantization != "gguf" else None

    def files(self, root: Path, model: str) -> ModelFiles:
        """Return the paths of the files of `model` below the project's folder `root`, existing or not."""
        return self.product.files(root, self.convert.name, model)

    def problems(self) -> Iterator[str]:
        """Yield sentences on settings of different sections that don't fit together."""
        yield from refused(self)
        yield from training_problems(
            self.train,
            self.base,
            self.graph,
            full_parity=self.parity.depth == "full",
            compared=self.compare.strategies if self.compare.seeds else [],
        )
        if self.train.early_stopping_patience is not None and not self.curate.val_fraction:
            yield (
                f"train.early_stopping_patience is {self.train.early_stopping_patience} and "
                "curate.val_fraction is 0, so no rows are held out to stop by: raise it, or set the patience "
                "to null"
            )
        yield from self._of_models()
        if self.graph != "merged":
            yield from self._of_one_gguf()
        if self.compare.seeds and not self.evaluate.scorers:
            yield (
                "compare.seeds names seeds and evaluate.scorers is []: name a scorer (exact_match scores "
                "anything), or set the seeds to []"
            )
        if self.compare.seeds and len(self.compare.strategies) < 2:
            yield (
                "compare.seeds names seeds and compare.strategies "
                f"{' and '.join(self.compare.strategies) or 'none'}: name two at least, or set "
                "the seeds to []"
            )

    def _of_models(self) -> Iterator[str]:
        served = self.product.served
        if served:
            original = [sections.ORIGINAL] if self.base.level else []
            names = [sections.BASE, served, *original]
            needed = served
            why = "which is what is served"
            made_by = (
                f"({sections.BASE}: the GGUF alone, {served}: with {self.product.beside}, "
                f"{sections.ORIGINAL}: what base.level is made from)"
            )
        else:
            names = [
                UNTUNED + self.convert.type,
                self.convert.type,
                *self.quantize.files,
                *self.quantize.untuned,
            ]
            needed = self.convert.type
            why = "which every level is compared with"
            made_by = "(quantize.levels and quantize.distill, spelled as there)"
        unknown = [model for model in self.evaluate.models if model not in names]
        if unknown:
            yield f"evaluate.models names {', '.join(unknown)}: it can name {', '.join(names)} {made_by}"
        if needed not in self.evaluate.models:
            yield f"evaluate.models lacks {needed}, {why}: add it"

    def _of_one_gguf(self) -> Iterator[str]:
        if self.quantize.distill:
            yield (
                f"quantize.distill names {', '.join(self.quantize.distill)} and base.quantization is gguf, "
                "so no level is made: set it to [], and train.method to distill"
            )


class Read(NamedTuple):
    """A `params.yaml`: its settings with defaults filled in, the values in the file, and their lines."""

    params: Params
    values: dict[str, Any]
    lines: dict[Place, int]


def load_params(path: Path) -> Params:
    """Return the settings in `params.yaml`.

    Raises one `ConfigError` that names every error with its key path and line.
    """
    return read_params(path).params


def read_params(path: Path) -> Read:
    """Return the settings like `load_params`, with the file's own values and lines."""
    values, lines = read_strict(path)
    if values is None:
        raise ConfigError("Q-CONFIG-001", f"{path} is empty: `quench config use demo` writes a recipe there")
    return Read(checked(path, values, lines), values, lines)


def checked(path: Path, values: dict[str, Any], lines: Mapping[Place, int]) -> Params:
    """Return the settings of the `values` for `path`. Raises one `ConfigError` that names every error, or
    one for an extra that is missing.
    """
    try:
        params = Params.model_validate(values)
    except ValidationError as error:
        keys = [".".join(place) for place, _ in keys_of(Params)]
        raise ConfigError("Q-CONFIG-003", report(path, error.errors(), lines, keys)) from None
    need_extras(params)
    return params


def need_extras(params: Params) -> None:
    """Raise `ConfigError` if a setting asks for an extra that is not there."""
    asking = {
        "train.report_to": params.train.trackers,
        "quantize.distill": params.quantize.distill,
        "compare.seeds": params.compare.seeds,
        "evaluate.harness": params.evaluate.harness,
    }
    for setting, value in asking.items():
        if value:
            need_extra(setting)


def with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a `params.yaml` plus the missing defaults, unchecked; unknown sections stay."""
    given = {name: value for name, value in values.items() if value is not None}
    defaults = Params().model_dump(mode="json")
    filled = {
        name: section | given[name] for name, section in defaults.items() if isinstance(given.get(name), dict)
    }
    return defaults | given | filled

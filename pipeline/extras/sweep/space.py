"""Search space of a sweep: a file of its own (`space.yaml`), read as strictly as `params.yaml`."""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationError

from pipeline.config.faults import report
from pipeline.config.methods import METHODS, methods_reading
from pipeline.config.overrides import place_of, put
from pipeline.config.params import Params
from pipeline.config.params_text import value_at
from pipeline.config.sections.values import Count, Section, Seed, keys_of
from pipeline.core.errors import ConfigError
from pipeline.core.yaml_readers import read_strict
from pipeline.workflow.stages import table

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LOSS = "eval_loss"  # lower is better; for every other metric, higher
# Settings that control how a run is watched and saved. Trials that differ in them could not be compared while
# they run.
WATCHING = ("eval_steps", "save_steps", "save_total_limit", "sample_rows")
ON_GRID = 1e-9  # share of a step that rounding may put a value off the grid


class Range(Section):
    """Range of numbers from `low` to `high`. It contains only whole numbers if both are whole."""

    low: float | int
    high: float | int
    log: bool = False
    step: Annotated[float, Field(gt=0)] | Annotated[int, Field(gt=0)] | None = None

    def problems(self) -> Iterator[str]:
        """Yield a message for each value that Optuna would refuse later."""
        if self.low >= self.high:
            yield f"low is {self.low} and high is {self.high}: give a lower and a higher number"
        if self.log and (self.low <= 0 or self.step is not None):
            yield "log needs a low above 0 and no step"
        if self.is_integer and self.step is not None and not isinstance(self.step, int):
            yield f"step is {self.step} and low and high are whole: give a whole step"

    @property
    def is_integer(self) -> bool:
        """Return True if the range contains only whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def nearest(self, value: Any) -> float | int | None:
        """Return `value` as Optuna would have drawn it.

        Returns None if it is not a number, out of range or off the grid.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if not self.low <= value <= self.high:
            return None
        step = self.step
        if step is None and self.is_integer:
            step = 1
        if step is not None:
            steps = (value - self.low) / step
            if abs(steps - round(steps)) > ON_GRID:
                return None
            # The limit is needed because 0.0 + 3 · 0.05 is more than 0.15.
            value = min(self.low + round(steps) * step, self.high)
        return int(value) if self.is_integer else float(value)


Choices = Annotated[list[Any], Field(min_length=2, max_length=100)]
Searched = Annotated[
    Annotated[Range, Tag("range")] | Annotated[Choices, Tag("choices")],
    Discriminator(lambda value: "choices" if isinstance(value, list) else "range"),
]


class Space(Section):
    """Contents of the file: the keys of section train to search, and the settings of the search."""

    keys: Annotated[dict[str, Searched], Field(min_length=1, max_length=20)]
    trials: Annotated[int, Field(ge=1, le=10_000)] = 20
    seeds: Annotated[int, Field(ge=2, le=100)] = 3  # number of seeds that each finalist is trained with
    finalists: Annotated[int, Field(ge=1, le=100)] = 3
    metric: Literal["eval_loss", "accuracy", "reward"] = "eval_loss"
    sampler: Literal["tpe", "random"] = "tpe"
    pruner: Literal["median", "none"] = "median"
    startup: Count = 5  # finished trials before the sampler learns from them and the pruner prunes
    prune_after: Annotated[int, Field(ge=0, le=10**9)] = 0  # steps of a trial before it may be pruned
    seed: Seed = 0  # seed of the sampler

    @property
    def maximize(self) -> bool:
        """Return True if a higher value of the metric is better."""
        return self.metric != LOSS

    def distributions(self) -> dict[str, "BaseDistribution"]:
        """Return the space as Optuna's distributions.

        Choices are JSON, because Optuna does not support lists.
        """
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        distributions: dict[str, BaseDistribution] = {}
        for name, searched in self.keys.items():
            if isinstance(searched, list):
                distributions[name] = CategoricalDistribution([json.dumps(choice) for choice in searched])
            elif searched.is_integer:
                distributions[name] = IntDistribution(
                    int(searched.low), int(searched.high), log=searched.log, step=int(searched.step or 1)
                )
            else:
                distributions[name] = FloatDistribution(
                    searched.low, searched.high, log=searched.log, step=searched.step
                )
        return distributions

    def encoded(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return {key: value} in Optuna's form, or None if a value lies outside of the space."""
        encoded: dict[str, Any] = {}
        for name, searched in self.keys.items():
            value = settings[name]
            if isinstance(searched, list):
                if value not in searched:
                    return None
                encoded[name] = json.dumps(next(choice for choice in searched if choice == value))
            else:
                number = searched.nearest(value)
                if number is None:
                    return None
                encoded[name] = number
        return encoded

    def decoded(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return {key: value} from Optuna's form, in the order of the file."""
        return {
            name: json.loads(values[name]) if isinstance(searched, list) else values[name]
            for name, searched in self.keys.items()
        }


def read_space(path: Path) -> Space:
    """Read the file. All errors in it are reported in one `ConfigError`."""
    values, lines = read_strict(path)
    try:
        return Space.model_validate(values if values is not None else {})
    except ValidationError as error:
        tags = ("range", "choices")
        errors = [
            fault | {"loc": tuple(part for part in fault["loc"] if part not in tags)}
            for fault in error.errors()
        ]
        names = [".".join(place) for place, _ in keys_of(Space)]
        raise ConfigError("Q-SWEEP-001", report(path, errors, lines, names)) from None


def check_space(space: Space, params: Params) -> None:
    """Raise `ConfigError` for a key that can't be searched or a value that is invalid with these settings."""
    method = params.train.method
    measures = METHODS[method].measures
    if space.metric not in measures:
        raise ConfigError(
            "Q-SWEEP-002",
            f"metric is {space.metric}, which train.method {method} doesn't measure: set it to "
            f"{' or '.join(measures)}",
        )
    for name, values in space.keys.items():
        place_of(name)
        why = unsearchable(name, space.metric)
        if why:
            raise ConfigError("Q-SWEEP-002", f"{name} can't be searched, for {why}")
        for value in values if isinstance(values, list) else (values.low, values.high):
            with_settings(params, {name: value})


def unsearchable(name: str, metric: str) -> str | None:
    """Return the reason why a key can't be searched, with the remedy. Returns None if it can."""
    if name == "train.start_from":
        return (
            "all trials go on from what stage previous brings by it. Set it by hand, a sweep for each value"
        )
    stages = ("base", "curate", "preprocess")
    before = [stage for stage in stages if any(_reads(name, key) for key in table().stages[stage].params)]
    section, _, key = name.partition(".")
    if section != "train":
        return "trials share data/tokens and models/base: only keys of section train differ. Set it by hand"
    if before:
        return f"all trials share what stage {before[0]} makes by it. Set it by hand, a sweep for each value"
    if key == "seed":
        return "the finalists are trained with other seeds anyway (`seeds`): remove it"
    if key in WATCHING:
        return "it is about how a run is watched, not about what is learned: remove it"
    if metric == LOSS and methods_reading(name):
        return "it changes what eval_loss means: trials can't be compared by that. Remove it"
    return None


def _reads(name: str, key: str) -> bool:
    return name == key or name.startswith(f"{key}.")


def with_settings(params: Params, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return `params` as a dict for YAML, with these values of keys.

    Raises `ConfigError` if they are invalid.
    """
    values = deepcopy(params.model_dump(mode="json"))
    for name, value in settings.items():
        put(values, place_of(name), value)
    try:
        Params.model_validate(values)
    except ValidationError as error:
        shown = ", ".join(f"{name}={value}" for name, value in settings.items())
        names = [".".join(place) for place, _ in keys_of(Params)]
        raise ConfigError("Q-SWEEP-003", report(Path(shown), error.errors(), {}, names)) from None
    return values


def settings_of(space: Space, params: Params) -> dict[str, Any]:
    """Return the values of the space's keys in `params`. null is replaced by the method's own value."""
    values = params.model_dump(mode="json")
    train = params.train
    values["train"]["lora_dropout"] = train.dropout
    values["train"]["preference"]["beta"] = train.beta
    return {name: value_at(values, place_of(name)) for name in space.keys}

"""Settings that act only under a value of another setting: one table, its sentences, and the settings of a
project that have no effect because of it.

A default is never reported, so that `params.yaml` may have all keys. A value is refused if it can only be a
mistake. The others are reported (`quench config show --idle`, `quench config plan`, the stages), because a
project may go from one graph of stages to another and keep its settings for both.
"""

import json
from collections.abc import Iterator
from functools import cache, reduce
from itertools import groupby
from typing import Any, NamedTuple

from pipeline.config.methods import METHODS, methods_reading
from pipeline.config.sections import Augment, Section
from pipeline.config.sections.values import group_of, keys_of
from pipeline.config.strategies import STRATEGIES
from pipeline.config.tuners import REFUSED_ELSEWHERE, TUNERS, readers
from pipeline.core.text import listed


class Has(NamedTuple):
    """A condition: setting `key` is one of `values` (for a list: `names` one of them).

    Without values, it is met if the setting is set to anything.
    """

    key: str
    values: tuple[Any, ...] = ()
    verb: str = "is"

    @property
    def words(self) -> str:
        """The condition in words: "train.method is dpo or ipo"."""
        return f"{self.key} {self.verb} {listed([*map(_text, self.values)], 'or') or 'set'}"

    def holds(self, value: Any) -> bool:
        """Return True if the condition is met by a setting with this `value`."""
        if not self.values:
            return bool(value)
        items = value if isinstance(value, list) else [value]
        return any(item in self.values for item in items)


class Only(NamedTuple):
    """A rule: `keys`, or all keys of a section or group, act only if one of `either` is met.

    If it is `refused`, any value but the default is an error while none is met.
    """

    keys: tuple[str, ...]
    either: tuple[Has, ...]
    refused: bool = False

    @property
    def condition(self) -> str:
        """The condition in words: "train.method is distill or quantize.distill is set"."""
        return listed([has.words for has in self.either], "or")

    def covers(self, key: str) -> bool:
        """Return True if the rule applies to `key`."""
        return any(key == name or key.startswith(f"{name}.") for name in self.keys)


class Idle(NamedTuple):
    """A setting that differs from its default and has no effect, with the rule that it doesn't meet."""

    key: str
    value: Any
    only: Only

    def __str__(self) -> str:
        return f"{self.key} is {_text(self.value)} and acts only if {self.only.condition}"


MERGED = Has("base.quantization", ("nf4", "none"))
GGUF = Has("base.quantization", ("gguf",))
SEEDS = Has("compare.seeds")
AUGMENTING = tuple(key for key in Augment.model_fields if key != "kinds")
DISTILLING = tuple(name for name, strategy in STRATEGIES.items() if strategy.taught_by)


def of_methods() -> Iterator[Only]:
    """Yield the rules of settings that act only with the methods that read them.

    Those of section `train` are refused.
    """
    for key in dict.fromkeys(key for learning in METHODS.values() for key in learning.settings):
        methods = Has("train.method", tuple(methods_reading(key)))
        yield Only((key,), (methods,), refused=key.startswith("train."))


def of_tuners(*keys: str, refused: bool = False) -> Iterator[Only]:
    """Yield the rules of keys of `train` that act only with the tuners that read them."""
    for tuners, alike in groupby(sorted(keys, key=readers), readers):
        if len(tuners) < len(TUNERS):
            yield Only(tuple(f"train.{key}" for key in alike), (Has("train.tuner", tuners),), refused)


CONDITIONS = (
    # In train, a value for another method, start or tuner is a mistake.
    *of_methods(),
    Only(("train.reward_temperature",), (Has("train.reward", ("softmax",)),), refused=True),
    Only(("train.grpo.parallel",), (Has("train.grpo.rollouts", ("llama-server",)),), refused=True),
    *of_tuners(*REFUSED_ELSEWHERE, refused=True),
    # The others belong to another graph of stages, or wait for another setting.
    Only(("base.tie",), (MERGED,)),
    *of_tuners("r", "lora_alpha", "lora_dropout", "target_modules"),
    Only(("train.num_train_epochs",), (Has("train.max_steps", (-1,)),)),
    Only(
        ("train.warmup_ratio",),
        (Has("train.lr_scheduler_type", ("cosine", "linear", "constant_with_warmup")),),
    ),
    Only(("train.min_lr_rate",), (Has("train.lr_scheduler_type", ("cosine",)),), refused=True),
    Only(("train.offload",), (Has("train.device", ("auto", "gpu")), Has("train.offload", ("shared",)))),
    Only(tuple(f"augment.{key}" for key in AUGMENTING), (Has("augment.kinds"),)),
    Only(("merge", "convert.type"), (MERGED,)),
    Only(("quantize.levels",), (MERGED,)),
    Only(("quantize.tensor_types",), (MERGED, Has("base.level"))),
    Only(("distill",), (Has("quantize.distill"), Has("compare.strategies", DISTILLING, "names"))),
    Only(("compare.levels", "compare.strategies"), (SEEDS,)),
    Only(("parity.max_kld_served",), (GGUF,)),
    Only(("parity.max_kld_level", "report.gate.max_kld_trained"), (MERGED,)),
    Only(("evaluate.judge",), (Has("evaluate.scorers", ("judge",), "names"),)),
    Only(("evaluate.external",), (Has("evaluate.scorers", ("external",), "names"),)),
)


def idle(params: Section) -> Iterator[Idle]:
    """Yield each setting of a `Params` that is not its default and has no effect, in the schema's order."""
    for place, field in keys_of(type(params)):
        key = ".".join(place)
        if group_of(field):
            continue
        value = _at(params, key)
        if value == _default(params, key):
            continue
        only = next(_missing(params, key), None)
        if only:
            yield Idle(key, value, only)


def refused(params: Section) -> Iterator[str]:
    """Yield a sentence on each setting of a `Params` that has no effect and can only be a mistake."""
    for setting in idle(params):
        if setting.only.refused:
            needs = setting.only.either[0]
            yield (
                f"{setting}, but that is {_text(_at(params, needs.key))}: leave {setting.key} out, or set "
                f"{needs.key} to {listed([*map(_text, needs.values)], 'or')}"
            )


def _missing(params: Section, key: str) -> Iterator[Only]:
    """Return the rules for `key` with no condition met, so that the setting has no effect."""
    return (only for only in _about(key) if not any(_holds(params, has) for has in only.either))


@cache
def _about(key: str) -> tuple[Only, ...]:
    return tuple(only for only in CONDITIONS if only.covers(key))


def _holds(params: Section, has: Has) -> bool:
    """Return True if the needed setting has the needed value, and has an effect itself."""
    return has.holds(_at(params, has.key)) and not any(_missing(params, has.key))


def _at(section: Section, key: str) -> Any:
    return reduce(getattr, key.split("."), section)


def _default(params: Section, key: str) -> Any:
    section, _, name = key.partition(".")
    kind: type[Section] = type(_at(params, section))
    return _at(_as_by_default(kind), name)


@cache
def _as_by_default(section: type[Section]) -> Section:
    return section()


def _text(value: Any) -> str:
    """Return a value as it is written in `params.yaml`."""
    if isinstance(value, Section):
        value = value.model_dump(mode="json")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

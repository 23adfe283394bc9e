"""What a model of each graph is compared with, and the figures of that: the data that `pipeline.gate.rules`
judges.

A level of a merged model is compared with the 16-bit model. It may lose by rounding, so its divergence is
what `evaluate` measured. An adapter beside the GGUF that it was trained on, or that GGUF with trained scales,
loses nothing by rounding. Its divergence is that of llama.cpp's arithmetic from training's own, which parity
measures; its task score and general ability are compared with the base's file alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.config.levels import level_key
from pipeline.config.sections import (
    BASE,
    BASE_WITH_ADAPTER,
    ORIGINAL,
    UNTUNED,
    reference_of,
    served_of,
)
from pipeline.metrics.level_limits import LevelLimit, level_limit, served_limit

REFERENCES = ("F16", "BF16")
MERGED = "outputs_trained"  # parity compares the trained model with the merged one
SERVED = "outputs_served"  # parity compares training's forward with llama.cpp's
OF_ADAPTER = {
    "weights_file": "which file the base is",
    "weights_lora": "the weights of the adapter's GGUF",
    SERVED: "what base and adapter say in llama.cpp",
}
OF_TUNED = {
    "weights_file": "which file the base is",
    "weights_scales": "the scales of the tuned file",
    SERVED: "what the tuned file says in llama.cpp",
}
Evaluation = Mapping[str, Any]  # one reports/eval/MODEL.json
Evaluations = Mapping[str, Evaluation]


@dataclass(frozen=True)
class Measured:
    """A figure and its sentence, up to the limit; without a figure half a sentence that says what is
    missing."""

    figure: float | None
    words: str


@dataclass(frozen=True)
class FromTrained:
    """How far the merged model is from the one that was trained, and the limit of that for "auto"."""

    kld: Measured
    allowed: LevelLimit


@dataclass(frozen=True)
class Comparison:
    """What one model is compared with. `stage` measures how far it is from it, `allowed` is the limit of that
    for "auto".

    `needed` has the parity checks that must have passed, by key, with what each measures. `fault` is a
    sentence if the model's report compares it with something else. `ends` is parity's check of how answers
    end, for a model whose task is not scored. `trained` is there for a merged model.
    """

    against: str
    untuned: str
    needed: Mapping[str, str]
    fault: str
    stage: str
    allowed: LevelLimit
    kld: Measured
    same_top: Measured
    ends: Mapping[str, Any] | None = None
    trained: FromTrained | None = None


def comparison(model: str, evaluations: Evaluations, parity: Mapping[str, Any]) -> Comparison:
    """What `model` of `evaluations` is compared with, and how far it is from that."""
    return (
        _served(model, evaluations[model], parity["checks"])
        if model == served_of(evaluations)
        else _level(model, evaluations, parity["checks"])
    )


def _level(model: str, evaluations: Evaluations, checks: Mapping[str, Any]) -> Comparison:
    found, stage = evaluations[model], f"evaluate@{model}"
    named = found.get("reference")
    sixteen = next(
        (name for name in REFERENCES if name in evaluations),
        str(named or REFERENCES[0]).removeprefix(UNTUNED),
    )
    against = reference_of(model, sixteen)
    parameters = figure_of(found, "parameters")
    own = "weights_gguf" if model == sixteen else level_key("weights", model)
    fault = (
        f"{model}'s report compares it with {named or 'nothing'}, not with {against}: run `python -m "
        f"pipeline {stage}` again."
    )
    # the worse of the assistant's tokens and all: answers known by heart survive damage that the rest of the
    # text shows
    klds, tops = (figures_of((found, found.get("all_tokens")), key) for key in ("kld_mean", "same_top"))
    kld = Measured(None, f"{model}'s divergence from {against} is not in its report")
    if klds:
        where = f" over all tokens, {klds[0]:.4f} at the assistant's" if klds[1] > klds[0] else ""
        kld = Measured(
            max(klds), f"{model}'s mean KL divergence from {against} is {max(klds):.4f} nats{where}"
        )
    same_top = Measured(None, f"how often {model} ranks {against}'s token first is not in its report")
    if tops and max(tops) <= 1:
        where = (
            f"all positions, {share_text(tops[0])} of the assistant's"
            if tops[1] < tops[0]
            else "the positions"
        )
        same_top = Measured(
            min(tops), f"{model} ranks {against}'s token first at {share_text(min(tops))} of {where}"
        )
    return Comparison(
        against,
        UNTUNED + sixteen,
        {} if model.startswith(UNTUNED) else {own: f"the weights of {model}"},
        "" if named == against else fault,
        stage,
        level_limit(model.removeprefix(UNTUNED), parameters),
        kld,
        same_top,
        trained=None if model.startswith(UNTUNED) else _trained(checks.get(MERGED), parameters),
    )


def _trained(found: Mapping[str, Any] | None, parameters: float | None) -> FromTrained | None:
    """What parity measured between the trained model and the merged one; None where nothing was merged."""
    if found is None:
        return None
    nats = figure_of(found, "figure") if found.get("unit") == "nats" else None
    words = (
        f"Parity has not measured how far the merged model is from the trained one ({found.get('detail')})"
        if nats is None
        else f"The merged model is {nats:.2g} nats (mean KL divergence) from the trained one"
    )
    return FromTrained(Measured(nats, words), level_limit("nf4", parameters))


def _served(model: str, found: Evaluation, checks: Mapping[str, Any]) -> Comparison:
    """What is compared with the base's file: that file with its adapter, or with trained scales."""
    named, served, beside = found.get("reference"), checks.get(SERVED) or {}, model == BASE_WITH_ADAPTER
    needed, what = (OF_ADAPTER, "base and adapter") if beside else (OF_TUNED, "the tuned file")
    fault = (
        f"The report of {model} compares it with {named or 'nothing'} or names "
        f"{'no' if beside else 'an'} adapter's GGUF: run `python -m pipeline evaluate@{model}`."
    )
    nats, top = (
        figure_of(served, "figure") if served.get("unit") == "nats" else None,
        figure_of(served.get("figures"), "same_top"),
    )
    kld = Measured(
        None, f"how far {what} {'are' if beside else 'is'} from the trained model is not in parity's report"
    )
    if nats is not None:
        kld = Measured(
            nats,
            f"{what.capitalize()} in llama.cpp {'are' if beside else 'is'} {nats:.2g} nats (mean KL "
            "divergence) from the trained model",
        )
    same_top = Measured(
        None, "how often llama.cpp ranks the trained model's token first is not in parity's report"
    )
    if top is not None and top <= 1:
        same_top = Measured(
            top,
            f"{what.capitalize()} in llama.cpp {'rank' if beside else 'ranks'} the trained model's token "
            f"first at {share_text(top)} of the positions",
        )
    return Comparison(
        BASE,
        BASE,
        needed,
        "" if named in (BASE, ORIGINAL) and bool(found.get("lora")) == beside else fault,
        "parity",
        served_limit(),
        kld,
        same_top,
        ends=checks.get("behavior_answers_end") or {},
    )


def figure_of(of: Mapping[str, Any] | None, key: str) -> float | None:
    """A figure that measures something: finite and not negative; None if it is missing."""
    value = (of or {}).get(key)
    return (
        float(value)
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
        else None
    )


def figures_of(records: tuple[Mapping[str, Any] | None, ...], key: str) -> list[float]:
    """One figure of each record; empty if one of them is missing."""
    found = [figure_of(one, key) for one in records]
    return [] if None in found else [figure for figure in found if figure is not None]


def share_text(share: float) -> str:
    """As many digits as tell a figure from its limit: 84.98% is below 85%."""
    return f"{share * 100:.6g}%"

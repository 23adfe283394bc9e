"""The reference that each graph's model is compared with, and the figures for `pipeline.gate.verdict`.

A level of a merged model is compared with the 16-bit model. It may lose by rounding, so its divergence is the
one that `evaluate` measured. An adapter on the GGUF that it was trained on, or that GGUF with trained scales,
loses nothing by rounding. Its divergence is that of llama.cpp's arithmetic from training's own, which parity
measures. Its task score and general ability are compared with the base's file without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from pipeline.config.levels import UNTUNED, ModelName
from pipeline.config.products import REFERENCES, SERVED_CHECK, Product, product_of
from pipeline.config.sections import BASE, ORIGINAL
from pipeline.gate.evaluations import Evaluation, Evaluations
from pipeline.gate.records import Parity, ParityCheck
from pipeline.metrics.level_limits import LevelLimit, level_limit, served_limit

MERGED = "outputs_trained"  # Parity compares the trained model with the merged one.


@dataclass(frozen=True)
class Measured:
    """Figure and its sentence, up to the limit; without a figure half a sentence on what is missing.
    `allowed` is the limit for "auto", `stage` the stage that must have measured it, if any.
    """

    figure: float | None
    words: str
    allowed: LevelLimit
    stage: str = ""


@dataclass(frozen=True)
class Comparison:
    """Reference of one model, and the model's distance from it.

    `needed` has the parity checks that must have passed, by key, with what each measures. `fault` is a
    sentence if the model's report compares it with something else. `ends` is parity's check of how answers
    end; it judges the `served` model if its task is not scored. `trained` is the distance of a merged model
    from the trained one.
    """

    against: str
    untuned: str
    needed: Mapping[str, str]
    fault: str
    kld: Measured
    same_top: Measured
    served: bool = False
    ends: ParityCheck | None = None
    trained: Measured | None = None


def comparison(model: str, evaluations: Evaluations, parity: Parity) -> Comparison:
    """Return the reference of `model` in `evaluations`, and its distance from it."""
    product = product_of(evaluations)
    if model == product.served:
        return _served(product, evaluations[model], parity.checks)
    return _level(model, product, evaluations, parity.checks)


def _level(
    model: str, product: Product, evaluations: Evaluations, checks: Mapping[str, ParityCheck]
) -> Comparison:
    evaluation = evaluations[model]
    stage = f"evaluate@{model}"
    reported = evaluation.reference
    sixteen = next(
        (name for name in REFERENCES if name in evaluations),
        ModelName(reported or REFERENCES[0]).bare,
    )
    against = ModelName(model).reference(sixteen)
    fault = (
        f"{model}'s report compares it with {reported or 'nothing'}, not with {against}: run `python -m "
        f"pipeline {stage}` again."
    )
    parameters = evaluation.parameters
    figure = partial(Measured, allowed=level_limit(model, parameters), stage=stage)
    # Take the worse of the assistant's tokens and all: answers known by heart survive damage that shows in
    # the rest of the text.
    here = measured(evaluation.kld_mean)
    all_tokens = measured(evaluation.all_tokens.kld_mean)
    kld = figure(None, f"{model}'s divergence from {against} is not in its report")
    if here is not None and all_tokens is not None:
        where = f" over all tokens, {here:.4f} at the assistant's" if all_tokens > here else ""
        worse = max(here, all_tokens)
        kld = figure(worse, f"{model}'s mean KL divergence from {against} is {worse:.4f} nats{where}")
    here = measured(evaluation.same_top)
    all_tokens = measured(evaluation.all_tokens.same_top)
    same_top = figure(None, f"how often {model} ranks {against}'s token first is not in its report")
    if here is not None and all_tokens is not None and max(here, all_tokens) <= 1:
        where = "the positions"
        if all_tokens < here:
            where = f"all positions, {share_text(here)} of the assistant's"
        worse = min(here, all_tokens)
        same_top = figure(worse, f"{model} ranks {against}'s token first at {share_text(worse)} of {where}")
    return Comparison(
        against,
        UNTUNED + sixteen,
        product.needed_checks(model, sixteen),
        "" if reported == against else fault,
        kld,
        same_top,
        trained=None if ModelName(model).untuned else _trained(checks.get(MERGED), parameters),
    )


def _trained(check: ParityCheck | None, parameters: float | None) -> Measured | None:
    """Return parity's measurement between trained and merged model; None if nothing was merged."""
    if check is None:
        return None
    nats = nats_of(check)
    if nats is None:
        words = f"Parity has not measured how far the merged model is from the trained one ({check.detail})"
    else:
        words = f"The merged model is {nats:.2g} nats (mean KL divergence) from the trained one"
    return Measured(nats, words, level_limit("nf4", parameters))


def _served(product: Product, evaluation: Evaluation, checks: Mapping[str, ParityCheck]) -> Comparison:
    """Return the comparison with the base's file: that file with its adapter, or with trained scales."""
    model = str(product.served)
    check = checks.get(SERVED_CHECK)
    what = product.subject
    are, rank = ("are", "rank") if product.with_lora else ("is", "ranks")
    fault = (
        f"The report of {model} compares it with {evaluation.reference or 'nothing'} or names "
        f"{'no' if product.with_lora else 'an'} adapter's GGUF: run `python -m pipeline evaluate@{model}`."
    )
    nats = nats_of(check) if check else None
    top = measured(check.figures.get("same_top")) if check else None
    figure = partial(Measured, allowed=served_limit(), stage="parity")
    kld = figure(None, f"how far {what} {are} from the trained model is not in parity's report")
    if nats is not None:
        words = f"{are} {nats:.2g} nats (mean KL divergence) from the trained model"
        kld = figure(nats, f"{what.capitalize()} in llama.cpp {words}")
    same_top = figure(
        None, "how often llama.cpp ranks the trained model's token first is not in parity's report"
    )
    if top is not None and top <= 1:
        words = f"{rank} the trained model's token first at {share_text(top)} of the positions"
        same_top = figure(top, f"{what.capitalize()} in llama.cpp {words}")
    is_compared = evaluation.reference in (BASE, ORIGINAL) and bool(evaluation.lora) == product.with_lora
    return Comparison(
        BASE,
        BASE,
        product.needed_checks(model, ""),
        "" if is_compared else fault,
        kld,
        same_top,
        served=True,
        ends=checks.get("behavior_answers_end"),
    )


def nats_of(check: ParityCheck) -> float | None:
    """Return a parity check's divergence; None if it counts something else, or nothing."""
    return measured(check.figure) if check.unit == "nats" else None


def measured(figure: float | None) -> float | None:
    """Return a figure that was measured, which is not negative; otherwise None."""
    return figure if figure is not None and figure >= 0 else None


def share_text(share: float) -> str:
    """Return a share with as many digits as distinguish it from its limit: 84.98% is below 85%."""
    return f"{share * 100:.6g}%"

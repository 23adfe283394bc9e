"""The gate's judgment of every tuned model, and the recommendation which of them to serve, with the reason:
the same for report, ship and plan. Pure arithmetic on the measurements of `evaluate`.

Of the tuned models that fit in memory and that the gate does not refuse:
- levels of a merged model: the smallest whose task score is at most `max_task_drop` points below that of the
  16-bit model (F16 or BF16). If that model has no score, or one that could be lost entirely within the drop
  (0 points, for example), scores can't distinguish levels. Then the smallest that ranks the same token first
  as that model at `MIN_SAME_TOP` of the positions.
- an adapter on its base, or the base with trained scales, is the only one. It is below the standard if it
  scores more than `max_task_drop` points below the base without it, or if it was trained to recover the base
  and recovers nothing.
Scores are compared by `pipeline.gate.scores`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pipeline.config.levels import ModelName
from pipeline.config.products import REFERENCES, Product, is_base, product_of
from pipeline.config.sections import AUTO, BASE, Report, Serve
from pipeline.core.text import listed
from pipeline.gate.deciding_scorer import passed_over_sentence
from pipeline.gate.evaluations import Evaluation, Evaluations
from pipeline.gate.inputs import Inputs
from pipeline.gate.scores import TOLERANCE, Evidence, Gain, could_fall, gain_over, resolution
from pipeline.gate.verdict import Judgment, judge
from pipeline.planning.serving import GB, ServingMemory, prompt_cache

FIGURE = re.compile(r"[-+−]?\d[\d.,]*")
MIN_SAME_TOP = 0.9  # share of positions, used if no task score distinguishes levels


@dataclass(frozen=True)
class Recommendation:
    """Model to serve (None: nothing fits), a sentence of reason, warnings, and memory arithmetic per model.

    `below_standard`: nothing that fits met the standard, and `model` is only the best of it.
    """

    model: str | None
    reason: str
    warnings: tuple[str, ...]
    arithmetic: Mapping[str, str] = field(default_factory=dict)
    gains: tuple[Gain, ...] = ()
    below_standard: bool = False


@dataclass(frozen=True)
class Room:
    """Limits of the choice: the memory that a model must fit into, and by how many points of 100 its score
    may drop. `memory_gb` is in GB as cards are sold (2³⁰ bytes); `serve` sets the context and how many are
    served at once.
    """

    memory_gb: float
    max_task_drop: float
    serve: Serve

    def __str__(self) -> str:
        return f"{self.memory_gb:g} GB"


def advise(
    inputs: Inputs, settings: Report, serve: Serve, *, memory_gb: float | None = None
) -> tuple[Recommendation, dict[str, Judgment]]:
    """Judge and recommend for `memory_gb` (2³⁰ bytes each; default: report.memory_gb)."""
    evidence = Evidence(inputs.evaluations, inputs.answers)
    judgments = {
        model: judge(model, evidence, inputs.parity, settings.gate, inputs.train)
        for model in inputs.evaluations
        if not is_base(model)
    }
    refused = {
        model: " ".join(judgment.reasons)
        for model, judgment in judgments.items()
        if judgment.verdict == "fail"
    }
    room = Room(memory_gb or settings.memory_gb, settings.max_task_drop, serve)
    chosen = recommend(evidence, room, refused)
    if chosen.model is not None:
        undecided = judgments[chosen.model].undecided
        chosen = replace(chosen, warnings=(*undecided, *chosen.warnings))
    return chosen, judgments


def recommend(evidence: Evidence, room: Room, refused: Mapping[str, str]) -> Recommendation:
    """Choose among the tuned models; of a merged graph one of `REFERENCES` must be among them. `refused` has
    the gate's reason for each model that it refuses.
    """
    product = product_of(evidence.evaluations)
    memory = {
        model: memory_of(evaluation, room.serve)
        for model, evaluation in evidence.evaluations.items()
        if not is_base(model)
    }
    gains = tuple(gain_over(model, evidence, product.untuned(evidence.evaluations)) for model in memory)
    fitting = [model for model in memory if memory[model].total <= room.memory_gb * GB]
    allowed = {model: memory[model] for model in fitting if model not in refused}
    refusals = _refusals({model: refused[model] for model in memory if model in refused})
    if not fitting:
        chosen = _nothing_fits(product, memory, room, refusals)
    elif not allowed and product.served:
        reason = f"The gate refuses {product.served}, {product.whole}."
        chosen = Recommendation(None, reason, (refused[product.served],))
    elif not allowed:
        reason = f"The gate refuses every level that fits in {room}: {', '.join(fitting)}."
        chosen = Recommendation(None, reason, tuple(refusals))
    else:
        if product.served:
            fits = f"{_fits(*allowed.values())} in {room}"
            chosen = _served(product, evidence, fits, room.max_task_drop)
        else:
            chosen = _level(product, evidence, allowed, room)
        beaten = [gain.sentence for gain in gains if gain.model == chosen.model and gain.beats is False]
        unknown = f"Whether {chosen.model} fits is not known: its KV cache was not measured."
        unsure = [] if memory[str(chosen.model)].is_complete else [unknown]
        chosen = replace(chosen, warnings=(*beaten, *refusals, *unsure, *chosen.warnings))
    reasons = [evaluation.not_measured.get("task") for evaluation in evidence.evaluations.values()]
    unmeasured = next(filter(None, reasons), None)
    if unmeasured is not None:
        sentence = f"The task was not measured ({unmeasured}), so divergence decides."
        chosen = replace(chosen, warnings=(*chosen.warnings, sentence))
    passed_over = passed_over_sentence(evidence.evaluations)
    if passed_over is not None:
        chosen = replace(chosen, warnings=(*chosen.warnings, passed_over))
    return replace(chosen, arithmetic={model: str(needed) for model, needed in memory.items()}, gains=gains)


def _refusals(refused: Mapping[str, str]) -> list[str]:
    """Return a sentence for each reason why the gate refuses models. Reasons that differ only in figures and
    the model's name are said once.
    """
    alike: dict[str, list[str]] = {}
    for model, reason in refused.items():
        # "demo-F16" names a file, not the model.
        unnamed = re.sub(rf"(?<![\w-]){re.escape(model)}(?![\w-])", "", reason)
        alike.setdefault(FIGURE.sub("#", unnamed), []).append(model)
    sentences = []
    for models in alike.values():
        is_same = len({refused[model] for model in models}) == 1
        more = "" if is_same else " The others likewise."
        sentences.append(f"The gate refuses {listed(models)}: {refused[models[0]]}{more}")
    return sentences


def _nothing_fits(
    product: Product, memory: Mapping[str, ServingMemory], room: Room, refusals: list[str]
) -> Recommendation:
    """Return no model, and the advice how to make one fit."""
    least = min(memory, key=lambda model: memory[model].total)
    needs = f"needs {memory[least].total / GB:.2f} GB."
    if product.served:
        reason = f"{least}, {product.whole}, does not fit in {room}: it {needs}"
        smaller = "Take a smaller base"
    else:
        reason = f"No level fits in {room}: {least}, the smallest, {needs}"
        smaller = "Make a smaller level"
    remedy = f"{smaller}, or raise report.memory_gb ({room.memory_gb:g})."
    return Recommendation(None, reason, (remedy, *refusals))


def _level(
    product: Product, evidence: Evidence, memory: Mapping[str, ServingMemory], room: Room
) -> Recommendation:
    """Return the smallest model in `memory` that is near enough to the 16-bit model, otherwise the best."""
    evaluations = evidence.evaluations
    sixteen = product.reference(evaluations)
    by_task = could_fall(evaluations[sixteen].score, room.max_task_drop)
    compared = {model: evidence.compare(model, sixteen) for model in memory}
    if by_task:
        standard = f"stays within {room.max_task_drop:g} points of {sixteen}"
        quality = {model: standing.points if standing else -math.inf for model, standing in compared.items()}
        good = [model for model in memory if -quality[model] <= room.max_task_drop + TOLERANCE]
    else:
        standard = f"ranks the same token first as {sixteen} at {MIN_SAME_TOP:.0%} of the positions"
        tops = {model: evaluations[model].same_top for model in memory}
        quality = {model: -math.inf if top is None else top for model, top in tops.items()}
        good = [model for model in memory if model in REFERENCES or quality[model] >= MIN_SAME_TOP]
    coarse = resolution(sixteen, evaluations[sixteen], room.max_task_drop)
    warnings = [] if coarse is None else [coarse]
    if good:
        chosen = min(good, key=lambda model: (*size_and_loss(model, evaluations), model))
        fits = f"{_fits(memory[chosen])} in {room}"
        tuned = [model for model in evaluations if not is_base(model)]
        reason = f"Of {len(tuned)} tuned models, {chosen} is the smallest that {fits} and {standard}"
        if chosen in REFERENCES:
            reason = f"{chosen} {fits}, and {_why_none_smaller(len(tuned) - 1, len(memory) - 1, standard)}"
    else:
        chosen = max(memory, key=lambda model: (quality[model], -evaluations[model].bytes))
        fits = _fits(memory[chosen])
        virtue = "score" if by_task else f"divergence from {sixteen}"
        reason = (
            f"{chosen} has the best {virtue} of what {fits} in {room}, though nothing that {fits} {standard}"
        )
        warnings.insert(
            0, f"Nothing that {fits} in {room} {standard}: read the answers before you serve {chosen}."
        )
    if chosen not in REFERENCES:
        if by_task:
            figures = str(compared[chosen] or "no question has a score of both")
        else:
            share = "" if quality[chosen] == -math.inf else f"{quality[chosen]:.1%}; "
            figures = f"{share}there is no task score to judge by"
        reason += f" ({figures})"
    return Recommendation(chosen, f"{reason}.", tuple(warnings), below_standard=not good)


def _why_none_smaller(measured: int, allowed: int, standard: str) -> str:
    """Return why the 16-bit model is taken, by the number of smaller levels that were measured, and of those
    that the gate does not refuse.
    """
    if not measured:
        return "no smaller level was measured"
    if not allowed:
        return "the gate refuses every smaller level"
    of_allowed = " that the gate does not refuse" if allowed < measured else ""
    return f"no smaller level{of_allowed} {standard}"


def size_and_loss(model: str, evaluations: Evaluations) -> tuple[float, float]:
    """Return the key that sorts models, the best first: bytes, then mean KL divergence. A level with an
    importance matrix or distilled scales counts as large as the plain one if its tensors have the same types,
    because only its header is larger.
    """
    evaluation = evaluations[model]
    plain = evaluations.get(ModelName(model).plain, evaluation)
    same = plain.tensor_types == evaluation.tensor_types
    size = plain.bytes if same else evaluation.bytes
    loss = math.inf if evaluation.kld_mean is None else evaluation.kld_mean
    return size, loss


def _served(product: Product, evidence: Evidence, fits: str, max_task_drop: float) -> Recommendation:
    """Return the adapter on its base, or the base with trained scales, and whether it is worth serving."""
    model = str(product.served)
    warnings = []
    compared = evidence.compare(model, BASE)
    below = compared is not None and -round(compared.points, 1) > max_task_drop + TOLERANCE
    if compared:
        score = (
            f"; on the task it has {compared.score:.1f} points, {BASE} alone {compared.other:.1f} "
            f"({compared.reason})"
        )
    elif evidence.evaluations[model].score is None:
        score = "; there is no task score to judge by"
    else:
        score = f"; its score can't be compared, since no question has one of {BASE} too"
    reason = f"{model}, {product.whole}, {fits}, and the gate lets it pass{score}."
    recovered = evidence.recovered
    if recovered is not None:
        below = below or any(gain.verdict in ("worse", "noise") for gain in recovered[:1])
        warnings = [gain.sentence for gain in recovered if gain.verdict in ("worse", "noise")]
        unknown = f"How much it recovers was not measured: evaluate.models does not name {BASE}."
        reason += f" {recovered[0].sentence if recovered else unknown}"
    return Recommendation(model, reason, tuple(warnings), below_standard=below)


def _fits(memory: ServingMemory) -> str:
    return "fits" if memory.is_complete else "may fit"


def memory_of(evaluation: Evaluation, serve: Serve) -> ServingMemory:
    """Return the memory for serving a model with a context of `serve.ctx_size` × `serve.parallel` tokens.

    It has the server's own peak (the GPU's with layers on it) if that was measured at this context with the
    same layers on the GPU.
    """
    context = serve.ctx_size * serve.parallel
    cache = evaluation.kv_cache_bytes
    served = evaluation.serving
    if cache is not None:
        cache = round(cache * context / evaluation.ctx_size)
    # the value that auto resolved to
    if served and serve.n_gpu_layers == AUTO and served.n_gpu_layers is not None:
        serve = serve.model_copy(update={"n_gpu_layers": served.n_gpu_layers})
    settings = (serve.ctx_size, serve.parallel, serve.n_gpu_layers)
    peak = None
    if served and settings == (served.ctx_size, served.parallel, served.n_gpu_layers):
        peak = served.gpu_memory_bytes if serve.on_gpu else served.peak_memory_bytes
    # llama-server keeps nothing for an adapter (`cache_arguments`).
    kept = 0 if evaluation.lora else prompt_cache(serve)
    return ServingMemory(evaluation.bytes, cache, context, peak, kept)

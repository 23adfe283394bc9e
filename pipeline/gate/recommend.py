"""Which tuned model to serve, and why: pure arithmetic on what `evaluate` measured.

Of the tuned models that fit in memory and that the gate does not refuse:
- levels of a merged model: the smallest whose task score is at most `max_task_drop` points below that of the
  16-bit model (F16 or BF16); without a task score, the smallest that ranks the same token first as that model
  at `MIN_SAME_TOP` of the positions.
- an adapter beside its base, or the base with trained scales, is the only one. It is below the standard if it
  scores more than `max_task_drop` points below the base alone, or if it was trained to recover the base and
  recovers nothing.
How scores are compared: `pipeline.gate.task_scores`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pipeline.config.levels import improved_from
from pipeline.config.sections import AUTO, BASE, BASE_WITH_ADAPTER, ORIGINAL, TUNED, UNTUNED, Serve, served_of
from pipeline.gate.comparison import REFERENCES, Evaluation, Evaluations
from pipeline.gate.distillation import distillation, is_distillation, sentence
from pipeline.gate.drops import Answers
from pipeline.gate.task_scores import Evidence, Gain, gain_over, scored_rows, task_score
from pipeline.planning.serving import GB, ServingMemory, prompt_cache

MIN_SAME_TOP = 0.9  # share of positions, used if no task score was measured
TOLERANCE = 1e-9  # points: 75.0 - 70.0 may come out as 5.000000000000004
WHAT = {
    BASE_WITH_ADAPTER: f"{BASE_WITH_ADAPTER}, the base GGUF with the adapter's GGUF on it,",
    TUNED: f"{TUNED}, the base GGUF with trained scales,",
}


@dataclass(frozen=True)
class Recommendation:
    """The model to serve (None: nothing fits), the sentence that says why, what to beware of, and the memory
    arithmetic per model.

    `below_standard`: nothing that fits met the standard, and `model` is only the best of it.
    """

    model: str | None
    reason: str
    warnings: tuple[str, ...]
    arithmetic: Mapping[str, str] = field(default_factory=dict)
    gains: tuple[Gain, ...] = ()
    below_standard: bool = False


def recommend(
    evaluations: Evaluations,
    *,
    memory_gb: float,
    max_task_drop: float,
    serve: Serve,
    refused: Mapping[str, str] | None = None,
    answers: Answers | None = None,
    seed: int = 0,
) -> Recommendation:
    """Choose among the tuned models; of a merged graph one of `REFERENCES` must be among them.

    `memory_gb` is in GB as cards are sold (2³⁰ bytes), `max_task_drop` in points of 100; `serve` says the
    context and how many are served at once. `refused` has the gate's reason for each model that it refuses.
    `answers` (rows of MODEL.answers.jsonl by model) let scores be compared on the same questions.
    """
    refused, unmerged, room = refused or {}, served_of(evaluations), f"{memory_gb:g} GB"
    evidence = Evidence(evaluations, answers or {}, seed)
    memory = {name: memory_of(found, serve) for name, found in evaluations.items() if not is_base(name)}
    gains = tuple(gain_over(name, evidence, untuned_name(evaluations)) for name in memory)
    refusals = [f"The gate refuses {name}: {refused[name]}" for name in memory if name in refused]
    fitting = [name for name in memory if memory[name].total <= memory_gb * GB]
    allowed = {name: memory[name] for name in fitting if name not in refused}
    if not fitting:
        chosen = _nothing_fits(memory, memory_gb, unmerged, refusals)
    elif not allowed and unmerged:
        reason = f"The gate refuses {WHAT[unmerged].removesuffix(',')}."
        chosen = Recommendation(None, reason, (refused[unmerged],))
    elif not allowed:
        reason = f"The gate refuses every level that fits in {room}: {', '.join(fitting)}."
        chosen = Recommendation(None, reason, tuple(refusals))
    else:
        if unmerged:
            fits = f"{_fits(memory[unmerged])} in {room}"
            chosen = _served(unmerged, evidence, fits, max_task_drop, gains[0])
        else:
            chosen = _level(evidence, allowed, room, max_task_drop)
        beaten = [gain.sentence for gain in gains if gain.model == chosen.model and gain.beats is False]
        unknown = f"Whether {chosen.model} fits is not known: its KV cache was not measured."
        unsure = [] if memory[str(chosen.model)].known else [unknown]
        chosen = replace(chosen, warnings=(*beaten, *refusals, *unsure, *chosen.warnings))
    return replace(chosen, arithmetic={name: str(needed) for name, needed in memory.items()}, gains=gains)


def _nothing_fits(
    memory: Mapping[str, ServingMemory], memory_gb: float, unmerged: str | None, refusals: list[str]
) -> Recommendation:
    """No model, and what to do so that one fits."""
    least = min(memory, key=lambda name: memory[name].total)
    needs = f"needs {memory[least].total / GB:.2f} GB."
    reason = (
        f"{WHAT[unmerged]} does not fit in {memory_gb:g} GB: it {needs}"
        if unmerged
        else f"No level fits in {memory_gb:g} GB: {least}, the smallest, {needs}"
    )
    smaller = "Take a smaller base" if unmerged else "Make a smaller level"
    return Recommendation(None, reason, (f"{smaller}, or raise report.memory_gb ({memory_gb:g}).", *refusals))


def _level(
    evidence: Evidence, memory: Mapping[str, ServingMemory], room: str, max_task_drop: float
) -> Recommendation:
    """Of the models in `memory`, the smallest that is near enough to the 16-bit model, else the best."""
    evaluations, name_16 = evidence.evaluations, reference_name(evidence.evaluations)
    by_task = task_score(evaluations[name_16]) is not None
    compared = {name: evidence.compare(name, name_16) for name in memory}
    if by_task:
        standard = f"stays within {max_task_drop:g} points of {name_16}"
        quality = {name: found.points if found else -math.inf for name, found in compared.items()}
        good = [name for name in memory if -quality[name] <= max_task_drop + TOLERANCE]
    else:
        standard = f"ranks the same token first as {name_16} at {MIN_SAME_TOP:.0%} of the positions"
        tops = {name: evaluations[name].get("same_top") for name in memory}
        quality = {name: -math.inf if top is None else top for name, top in tops.items()}
        good = [name for name in memory if name in REFERENCES or quality[name] >= MIN_SAME_TOP]
    warnings = _resolution(evaluations[name_16], max_task_drop)
    if good:
        chosen = min(good, key=lambda name: (*size_and_loss(name, evaluations), name))
        fits, tuned = f"{_fits(memory[chosen])} in {room}", sum(not is_base(name) for name in evaluations)
        reason = f"Of {tuned} tuned models, {chosen} is the smallest that {fits} and {standard}"
        if chosen in REFERENCES:
            reason = f"{chosen} {fits}, and no smaller level {standard if tuned > 1 else 'was measured'}"
    else:
        chosen = max(memory, key=lambda name: (quality[name], -evaluations[name]["bytes"]))
        fits, virtue = _fits(memory[chosen]), "score" if by_task else f"divergence from {name_16}"
        reason = (
            f"{chosen} has the best {virtue} of what {fits} in {room}, though nothing that {fits} {standard}"
        )
        warnings.insert(
            0, f"Nothing that {fits} in {room} {standard}: read the answers before you serve {chosen}."
        )
    if chosen not in REFERENCES:
        share = "" if by_task or quality[chosen] == -math.inf else f"{quality[chosen]:.1%}; "
        score = compared[chosen] or "no question has a score of both"
        reason += f" ({score if by_task else f'{share}there is no task score to judge by'})"
    return Recommendation(chosen, f"{reason}.", tuple(warnings), below_standard=not good)


def size_and_loss(model: str, evaluations: Evaluations) -> tuple[float, float]:
    """What models are ordered by, the best first: bytes, then mean KL divergence. A level with an importance
    matrix or distilled scales counts as large as the plain one if its tensors have the same types: only its
    header says more.
    """
    found = evaluations[model]
    plain = evaluations.get(improved_from(model) or "", found)
    same = plain.get("tensor_types") == found.get("tensor_types")
    divergence = found.get("kld_mean")
    return (plain if same else found)["bytes"], math.inf if divergence is None else divergence


def _served(model: str, evidence: Evidence, fits: str, max_task_drop: float, gain: Gain) -> Recommendation:
    """The adapter on its base, or the base with trained scales, and whether it is worth serving."""
    below = gain.points is not None and -gain.points > max_task_drop + TOLERANCE
    compared, warnings = evidence.compare(model, BASE), []
    if compared:
        score = (
            f"; on the task it has {compared.mine:.1f} points, {BASE} alone {compared.theirs:.1f} "
            f"({compared.words})"
        )
    elif task_score(evidence.evaluations[model]) is None:
        score = "; there is no task score to judge by"
    else:
        score = f"; its score can't be compared, since no question has one of {BASE} too"
    reason = f"{WHAT[model]} {fits}, and the gate lets it pass{score}."
    if is_distillation(evidence.evaluations):
        recovered = distillation(evidence.evaluations, evidence.seed)
        below = below or any(one.verdict in ("worse", "noise") for one in recovered[:1])
        warnings = [sentence(one) for one in recovered if one.verdict in ("worse", "noise")]
        unknown = f"How much it recovers was not measured: evaluate.models does not name {BASE}."
        reason += f" {sentence(recovered[0]) if recovered else unknown}"
    return Recommendation(model, reason, tuple(warnings), below_standard=below)


def _fits(memory: ServingMemory) -> str:
    return "fits" if memory.known else "may fit"


def reference_name(evaluations: Evaluations) -> str:
    """The model that the tuned ones are compared with: which of `REFERENCES` was evaluated, without a merge
    the base's file alone."""
    return BASE if served_of(evaluations) else next(name for name in REFERENCES if name in evaluations)


def untuned_name(evaluations: Evaluations) -> str:
    """The untuned model that what was forgotten is measured from."""
    return BASE if served_of(evaluations) else UNTUNED + reference_name(evaluations)


def is_base(model: str) -> bool:
    """Whether a model of `evaluate.models` is untuned."""
    return model.startswith(UNTUNED) or model in (BASE, ORIGINAL)


def memory_of(evaluation: Evaluation, serve: Serve) -> ServingMemory:
    """What serving a model takes at the context served, `serve.ctx_size` × `serve.parallel` tokens.

    It has the server's own peak (the GPU's with layers on it) if that was measured at this context with the
    same layers on the GPU.
    """
    context, cache = serve.ctx_size * serve.parallel, evaluation.get("kv_cache_bytes")
    measured, peak = evaluation.get("serving") or {}, None
    if cache is not None:
        cache = round(cache * context / evaluation["ctx_size"])
    layers = measured.get("n_gpu_layers")
    if serve.n_gpu_layers == AUTO and layers is not None:  # it came to this
        serve = serve.model_copy(update={"n_gpu_layers": layers})
    if all(measured.get(key) == getattr(serve, key) for key in ("ctx_size", "parallel", "n_gpu_layers")):
        peak = measured.get("gpu_memory_bytes" if serve.on_gpu else "peak_memory_bytes")
    # llama-server keeps nothing of an adapter's (`cache_arguments`)
    kept = 0 if evaluation.get("lora") else prompt_cache(serve)
    return ServingMemory(evaluation["bytes"], cache, context, peak, kept)


def _resolution(reference: Evaluation, max_task_drop: float) -> list[str]:
    task = reference.get("task")
    if not task or task_score(reference) is None:
        return []
    half = (task["score_high"] - task["score_low"]) / 2 * 100
    coarse = (
        f"{scored_rows(task)} rows measure a score to ± {half:.0f} points, coarser than the "
        f"{max_task_drop:g} allowed: raise evaluate.task_rows for a firmer choice."
    )
    return [coarse] if half > max_task_drop else []

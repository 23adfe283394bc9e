"""Which level to serve, and why: pure arithmetic on what `evaluate` measured.

The rule: of the tuned models that fit in memory and that the gate does not refuse, the smallest whose task score is at most `max_task_drop` points
below that of the 16-bit model (the reference, F16 or BF16); without a task score, the smallest that ranks the same token first as the reference at
`MIN_SAME_TOP` of the positions.
How scores are compared: `pipeline.gate.task_scores`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config.sections import ADAPTED, BARE, SOURCE, UNTUNED, Serve
from pipeline.gate.rules import REFERENCES, Answers
from pipeline.gate.task_scores import Evaluation, Evidence, Standing, scored_rows, task_score
from pipeline.planning.serving import GB, ServingMemory, prompt_cache

MIN_SAME_TOP = 0.9  # share of positions, used where no task score was measured


@dataclass(frozen=True)
class Gain:
    """A tuned model against the untuned base. `points` (of 100) is None without a task score, `beats` None where nothing tells."""

    model: str
    points: float | None
    beats: bool | None
    sentence: str


@dataclass(frozen=True)
class Recommendation:
    """The level to serve (None: nothing fits), the sentence that says why, what to beware of, and the memory arithmetic per model.

    `below_standard`: nothing that fits met the standard, and `model` is only the best of it.
    """

    model: str | None
    reason: str
    warnings: tuple[str, ...]
    arithmetic: Mapping[str, str]
    gains: tuple[Gain, ...]
    below_standard: bool = False


def recommend(
    evaluations: Mapping[str, Evaluation], *, memory_gb: float, max_task_drop: float, serve: Serve, refused: Mapping[str, str] | None = None,
    answers: Answers | None = None, seed: int = 0,
) -> Recommendation:  # fmt: skip
    """Choose among the tuned models (any not called base-*); one of `REFERENCES` must be among them.

    `memory_gb` is in GB as cards are sold (2³⁰ bytes), `max_task_drop` in points of 100; `serve` says the context and how many are served at once.
    `refused` has the gate's reason for each level that it refuses. `answers` (rows of MODEL.answers.jsonl by model) let scores be compared on the
    same questions.
    """
    refused = refused or {}
    evidence = Evidence(evaluations, answers or {}, seed)
    tuned = {name: found for name, found in evaluations.items() if not is_base(name)}
    memory = {name: memory_of(found, serve) for name, found in tuned.items()}
    name_16, room = reference_name(evaluations), f"{memory_gb:g} GB"
    gains = tuple(gain_over(name, evidence, UNTUNED + name_16) for name in tuned)
    arithmetic = {name: str(needed) for name, needed in memory.items()}
    refusals = [f"The gate refuses {name}: {refused[name]}" for name in tuned if name in refused]
    fitting = [name for name in tuned if memory[name].total <= memory_gb * GB]
    if not fitting:
        least = min(memory, key=lambda name: memory[name].total)
        reason = f"No level fits in {room}: {least}, the smallest, needs {memory[least].total / GB:.2f} GB."
        remedy = f"Make a smaller level, or raise report.memory_gb ({memory_gb:g})."
        return Recommendation(None, reason, (remedy, *refusals), arithmetic, gains)
    allowed = [name for name in fitting if name not in refused]
    if not allowed:
        reason = f"The gate refuses every level that fits in {room}: {', '.join(fitting)}."
        return Recommendation(None, reason, tuple(refusals), arithmetic, gains)
    reference = tuned[name_16]
    by_task = task_score(reference) is not None
    compared = {name: evidence.compare(name, name_16) for name in allowed}
    good = [name for name in allowed if (_near_by_task(compared[name], max_task_drop) if by_task else _near_by_top(name, tuned[name]))]
    likeness = f"ranks the same token first as {name_16} at {MIN_SAME_TOP:.0%} of the positions"
    standard = f"stays within {max_task_drop:g} points of {name_16}" if by_task else likeness
    warnings = _resolution(reference, max_task_drop)
    if good:
        chosen = min(good, key=lambda name: (tuned[name]["bytes"], name))
        fits = _fits(memory[chosen])
        reason = _praise(chosen, len(tuned), f"{fits} in {room}", standard)
    else:
        chosen = max(allowed, key=lambda name: (_quality(tuned[name], compared[name], by_task), -tuned[name]["bytes"]))
        fits, virtue = _fits(memory[chosen]), "score" if by_task else f"likeness to {name_16}"
        reason = f"{chosen} has the best {virtue} of what {fits} in {room}, though nothing that {fits} {standard}"
        warnings.insert(0, f"Nothing that {fits} in {room} {standard}: read the answers before you serve {chosen}.")
    reason += _words(chosen, tuned[chosen], compared[chosen], by_task)
    if fits != "fits":
        warnings.insert(0, f"Whether {chosen} fits is not known: its KV cache was not measured.")
    warnings[:0] = [gain.sentence for gain in gains if gain.model == chosen and gain.beats is False] + refusals
    return Recommendation(chosen, reason + ".", tuple(warnings), arithmetic, gains, below_standard=not good)


def reference_name(evaluations: Mapping[str, Evaluation]) -> str:
    """The model that the tuned ones are compared with: which of `REFERENCES` was evaluated, without a merge the base's file alone."""
    return BARE if ADAPTED in evaluations else next(name for name in REFERENCES if name in evaluations)


def untuned_name(evaluations: Mapping[str, Evaluation]) -> str:
    """The untuned model that what was forgotten is measured from."""
    return BARE if ADAPTED in evaluations else UNTUNED + reference_name(evaluations)


def is_base(model: str) -> bool:
    """Whether a model of `evaluate.models` is untuned."""
    return model.startswith(UNTUNED) or model in (BARE, SOURCE)


def memory_of(evaluation: Evaluation, serve: Serve) -> ServingMemory:
    """What serving a model takes at the context served, `serve.ctx_size` × `serve.parallel` tokens; with the server's own peak where it was measured
    at that context with the same layers on the GPU (the GPU's where there are any)."""
    context, cache, measured = serve.ctx_size * serve.parallel, evaluation.get("kv_cache_bytes"), evaluation.get("serving") or {}
    scaled = round(cache * context / evaluation["ctx_size"]) if cache is not None and "ctx_size" in evaluation else None
    at_this = all(measured.get(key) == getattr(serve, key) for key in ("ctx_size", "parallel", "n_gpu_layers"))
    peak = measured.get("gpu_memory_bytes" if serve.n_gpu_layers else "peak_memory_bytes") if at_this else None
    kept = 0 if evaluation.get("lora") else prompt_cache(serve)  # llama-server is told to keep nothing of an adapter's (`cache_arguments`)
    return ServingMemory(evaluation["bytes"], scaled, context, peak, kept)


def _fits(memory: ServingMemory) -> str:
    return "fits" if memory.known else "may fit"


def _near_by_task(compared: Standing | None, max_task_drop: float) -> bool:
    return compared is not None and -compared.points <= max_task_drop + 1e-9  # 75.0 - 70.0 may come out as 5.000000000000004


def _near_by_top(name: str, found: Evaluation) -> bool:
    return name in REFERENCES or (found.get("same_top") or 0.0) >= MIN_SAME_TOP


def _quality(found: Evaluation, compared: Standing | None, by_task: bool) -> float:
    figure = (compared.points if compared else None) if by_task else found.get("same_top")
    return -math.inf if figure is None else float(figure)


def _praise(chosen: str, tuned: int, fits: str, standard: str) -> str:
    if chosen in REFERENCES:
        return f"{chosen} {fits}, and no smaller level {standard if tuned > 1 else 'was measured'}"
    return f"Of {tuned} tuned models, {chosen} is the smallest that {fits} and {standard}"


def _words(chosen: str, found: Evaluation, compared: Standing | None, by_task: bool) -> str:
    if chosen in REFERENCES:
        return ""
    if not by_task:
        share = "" if found.get("same_top") is None else f"{found['same_top']:.1%}; "
        return f" ({share}there is no task score to judge by)"
    return f" ({compared})" if compared else " (no question has a score of both)"


def _resolution(reference: Evaluation, max_task_drop: float) -> list[str]:
    task = reference.get("task")
    half = (task["score_high"] - task["score_low"]) / 2 * 100 if task and task_score(reference) is not None else 0.0
    if not task or half <= max_task_drop:
        return []
    coarse = f"{scored_rows(task)} rows measure a score to ± {half:.0f} points, coarser than the {max_task_drop:g} allowed"
    return [f"{coarse}: raise evaluate.task_rows for a firmer choice."]


def gain_over(name: str, evidence: Evidence, untuned: str) -> Gain:
    """What the tuned model `name` scores above the model `untuned`, by perplexity where there are no scores."""
    found, base = evidence.evaluations[name], evidence.evaluations.get(untuned)
    if base is None:
        return Gain(name, None, None, f"Not measured: evaluate.models does not name {untuned}.")
    compared = evidence.compare(name, untuned)
    if compared is None:
        if found.get("perplexity") is None or base.get("perplexity") is None:
            return Gain(name, None, None, "Not measured: there is neither a task score nor a perplexity.")
        better = found["perplexity"] < base["perplexity"]
        figures = f"{found['perplexity']:.2f} against {base['perplexity']:.2f}"
        return Gain(name, None, better, f"{name}'s held-out perplexity is {'' if better else 'not '}below the untuned base's ({figures}).")
    points, figures = round(compared.points, 1), str(compared)
    if not compared.apart:
        return Gain(name, points, False, f"{name} does not measurably beat the untuned base ({figures}).")
    figures = figures.removesuffix(", so it is more than noise")
    if compared.points < 0:
        return Gain(name, points, False, f"{name} is worse than the untuned base ({figures}).")
    return Gain(name, points, True, f"{name} beats the untuned base by {points:.1f} points ({figures}).")

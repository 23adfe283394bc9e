"""Which level to serve, and why: pure arithmetic on what `evaluate` measured.

The rule: of the tuned models that fit in memory and that the gate does not refuse, the smallest whose task score is at most `max_task_drop` points
below that of the 16-bit model (the reference, F16 or BF16); without a task score, the smallest that ranks the same token first as the reference at
`MIN_SAME_TOP` of the positions.
A difference is only called one where the rows support it: by the paired test on the same questions where there are answers, else where the 95 %
intervals of both scores lie apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.planning.serving import GB, ServingMemory
from pipeline.sections import UNTUNED, Serve
from pipeline.shipping.gate import REFERENCES, Answers, paired_scores

MIN_SAME_TOP = 0.9  # share of positions, used where no task score was measured
SIGNIFICANT = 0.05  # p below which a difference is called one
Evaluation = Mapping[str, Any]  # one reports/eval/MODEL.json


@dataclass(frozen=True)
class Gain:
    """A tuned model against the untuned base. `points` (of 100) is None without a task score, `beats` None where nothing tells."""

    model: str
    points: float | None
    beats: bool | None
    sentence: str


@dataclass(frozen=True)
class Recommendation:
    """The level to serve (None: nothing fits), the sentence that says why, what to beware of, and the memory arithmetic per model."""

    model: str | None
    reason: str
    warnings: tuple[str, ...]
    arithmetic: Mapping[str, str]
    gains: tuple[Gain, ...]


@dataclass(frozen=True)
class _Evidence:
    """The evaluations, and the answers to compare scores on the same questions."""

    evaluations: Mapping[str, Evaluation]
    answers: Answers
    seed: int

    def apart(self, one: str, other: str) -> tuple[bool, str]:
        """Whether the scores of two models differ beyond noise, and the words for that."""
        scores = paired_scores(self.answers, one, other)
        found = self.evaluations[one]
        if scores is None:
            differ = not intervals_overlap(found, self.evaluations[other])
            return differ, "the intervals lie apart, so it is more than noise" if differ else noise(found)
        from pipeline.scoring.paired import compare_scores

        difference = compare_scores(*scores, self.seed)
        if difference.p_value >= SIGNIFICANT:
            return False, noise(found)
        return True, f"more than noise, p = {difference.p_value:.2g} on the same {len(scores[0])} questions"


def recommend(
    evaluations: Mapping[str, Evaluation], *, memory_gb: float, max_task_drop: float, serve: Serve, refused: Mapping[str, str] | None = None,
    answers: Answers | None = None, seed: int = 0,
) -> Recommendation:  # fmt: skip
    """Choose among the tuned models (any not called base-*); one of `REFERENCES` must be among them.

    `memory_gb` is in GB (10⁹ bytes), `max_task_drop` in points of 100; `serve` says the context and how many are served at once. `refused` has the
    gate's reason for each level that it refuses. `answers` (rows of MODEL.answers.jsonl by model) let scores be compared on the same questions.
    """
    refused = refused or {}
    evidence = _Evidence(evaluations, answers or {}, seed)
    tuned = {name: found for name, found in evaluations.items() if not is_base(name)}
    memory = {name: memory_of(found, serve) for name, found in tuned.items()}
    name_16 = reference_name(evaluations)
    gains = tuple(_gain(name, evidence, UNTUNED + name_16) for name in tuned)
    arithmetic = {name: str(needed) for name, needed in memory.items()}
    refusals = [f"The gate refuses {name}: {refused[name]}" for name in tuned if name in refused]
    fitting = {name: found for name, found in tuned.items() if memory[name].total <= memory_gb * GB}
    if not fitting:
        least = min(memory, key=lambda name: memory[name].total)
        reason = f"No level fits in {memory_gb:g} GB: {least}, the smallest, needs {memory[least].total / GB:.2f} GB."
        remedy = f"Make a smaller level, or raise report.memory_gb ({memory_gb:g})."
        return Recommendation(None, reason, (remedy, *refusals), arithmetic, gains)
    allowed = {name: found for name, found in fitting.items() if name not in refused}
    if not allowed:
        reason = f"The gate refuses every level that fits in {memory_gb:g} GB: {', '.join(fitting)}."
        return Recommendation(None, reason, tuple(refusals), arithmetic, gains)
    reference = tuned[name_16]
    by_task = task_score(reference) is not None
    good = [name for name, found in allowed.items() if (_near_by_task(found, reference, max_task_drop) if by_task else _near_by_top(name, found))]
    likeness = f"ranks the same token first as {name_16} at {MIN_SAME_TOP:.0%} of the positions"
    standard = f"stays within {max_task_drop:g} points of {name_16}" if by_task else likeness
    warnings = _resolution(reference, max_task_drop)
    if good:
        chosen = min(good, key=lambda name: (tuned[name]["bytes"], name))
        reason = _praise(chosen, len(tuned), memory_gb, standard)
    else:
        chosen = max(allowed, key=lambda name: (_quality(allowed[name], by_task), -allowed[name]["bytes"]))
        virtue = "score" if by_task else f"likeness to {name_16}"
        reason = f"{chosen} has the best {virtue} of what fits in {memory_gb:g} GB, though nothing that fits {standard}"
        warnings.insert(0, f"Nothing that fits in {memory_gb:g} GB {standard}: read the answers before you serve {chosen}.")
    reason += _words(chosen, name_16, evidence, by_task)
    warnings[:0] = [gain.sentence for gain in gains if gain.model == chosen and gain.beats is False] + refusals
    return Recommendation(chosen, reason + ".", tuple(warnings), arithmetic, gains)


def reference_name(evaluations: Mapping[str, Evaluation]) -> str:
    """Which of `REFERENCES` was evaluated."""
    return next(name for name in REFERENCES if name in evaluations)


def is_base(model: str) -> bool:
    """Whether a model of `evaluate.models` is the untuned base."""
    return model.startswith(UNTUNED)


def memory_of(evaluation: Evaluation, serve: Serve) -> ServingMemory:
    """What serving a model takes at the context served, `serve.ctx_size` × `serve.parallel` tokens; with the server's own peak where it was measured
    at that context (the GPU's where layers are on it)."""
    context, cache, measured = serve.ctx_size * serve.parallel, evaluation.get("kv_cache_bytes"), evaluation.get("serving") or {}
    scaled = round(cache * context / evaluation["ctx_size"]) if cache is not None and "ctx_size" in evaluation else None
    at_this = measured.get("ctx_size") == serve.ctx_size and measured.get("parallel") == serve.parallel
    peak = measured.get("gpu_memory_bytes" if serve.n_gpu_layers else "peak_memory_bytes") if at_this else None
    return ServingMemory(evaluation["bytes"], scaled, context, peak)


def task_score(evaluation: Evaluation) -> float | None:
    """The task score from 0 to 1, None where none was measured."""
    task = evaluation.get("task")
    return None if not task else float(task["score"])


def intervals_overlap(one: Evaluation, other: Evaluation) -> bool:
    """Whether the 95 % intervals of two task scores share a point: then the rows can't tell the models apart."""
    first, second = one["task"], other["task"]
    return bool(first["score_low"] <= second["score_high"] and second["score_low"] <= first["score_high"])


def noise(evaluation: Evaluation) -> str:
    """The words for a difference that the rows can't support."""
    return f"the difference is within the noise of {evaluation['task']['rows']} rows"


def _near_by_task(found: Evaluation, reference: Evaluation, max_task_drop: float) -> bool:
    mine, best = task_score(found), task_score(reference)
    return mine is not None and best is not None and (best - mine) * 100 <= max_task_drop + 1e-9  # 75.0 - 70.0 may come out as 5.000000000000004


def _near_by_top(name: str, found: Evaluation) -> bool:
    return name in REFERENCES or (found.get("same_top") or 0.0) >= MIN_SAME_TOP


def _quality(found: Evaluation, by_task: bool) -> float:
    score = task_score(found) if by_task else found.get("same_top")
    return -1.0 if score is None else float(score)


def _praise(chosen: str, tuned: int, memory_gb: float, standard: str) -> str:
    if chosen in REFERENCES:
        return f"{chosen} fits in {memory_gb:g} GB, and no smaller level {standard if tuned > 1 else 'was measured'}"
    return f"Of {tuned} tuned models, {chosen} is the smallest that fits in {memory_gb:g} GB and {standard}"


def _words(chosen: str, name_16: str, evidence: _Evidence, by_task: bool) -> str:
    found, reference = evidence.evaluations[chosen], evidence.evaluations[name_16]
    if chosen in REFERENCES:
        return ""
    if not by_task:
        share = "" if found.get("same_top") is None else f"{found['same_top']:.1%}; "
        return f" ({share}there is no task score to judge by)"
    if task_score(found) is None:
        return " (its own score was not measured)"
    _, words = evidence.apart(chosen, name_16)
    return f" ({found['task']['score'] * 100:.1f} against {reference['task']['score'] * 100:.1f} points; {words})"


def _resolution(reference: Evaluation, max_task_drop: float) -> list[str]:
    task = reference.get("task")
    half = (task["score_high"] - task["score_low"]) / 2 * 100 if task else 0.0
    if not task or half <= max_task_drop:
        return []
    coarse = f"{task['rows']} rows measure a score to ± {half:.0f} points, coarser than the {max_task_drop:g} allowed"
    return [f"{coarse}: raise evaluate.task_rows for a firmer choice."]


def _gain(name: str, evidence: _Evidence, untuned: str) -> Gain:
    found, base = evidence.evaluations[name], evidence.evaluations.get(untuned)
    if base is None:
        return Gain(name, None, None, f"Not measured: evaluate.models does not name {untuned}.")
    mine, before = task_score(found), task_score(base)
    if mine is None or before is None:
        if found.get("perplexity") is None or base.get("perplexity") is None:
            return Gain(name, None, None, "Not measured: there is neither a task score nor a perplexity.")
        better = found["perplexity"] < base["perplexity"]
        figures = f"{found['perplexity']:.2f} against {base['perplexity']:.2f}"
        return Gain(name, None, better, f"{name}'s held-out perplexity is {'' if better else 'not '}below the untuned base's ({figures}).")
    points = round((mine - before) * 100, 1)
    scores = f"({mine * 100:.1f} against {before * 100:.1f} points"
    apart, words = evidence.apart(name, untuned)
    if not apart:
        return Gain(name, points, False, f"{name} does not measurably beat the untuned base {scores}; {words}).")
    words = words.removesuffix(", so it is more than noise")
    if points < 0:
        return Gain(name, points, False, f"{name} is worse than the untuned base {scores}; {words}).")
    return Gain(name, points, True, f"{name} beats the untuned base by {points:.1f} points {scores}; {words}).")

"""Which level to serve, and why: pure arithmetic on what `evaluate` measured.

The rule: of the tuned models that fit in memory, the smallest whose task score is at most `max_task_drop` points below
F16's; without a task score, the smallest that ranks the same token first as F16 at `MIN_SAME_TOP` of the positions.
A difference is only called one where the 95 % intervals of both scores lie apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MIN_SAME_TOP = 0.9  # share of positions, used where no task score was measured
MEMORY_MARGIN = 1.1  # a tenth on top of weights and KV cache, for compute buffers and the process itself
GB = 1e9
Evaluation = Mapping[str, Any]  # one reports/eval/MODEL.json


@dataclass(frozen=True)
class Memory:
    """What serving takes, in bytes; `kv_cache` is None where it was not measured."""

    weights: int
    kv_cache: int | None

    @property
    def total(self) -> int:
        """Weights and KV cache and a tenth more, in bytes."""
        return round((self.weights + (self.kv_cache or 0)) * MEMORY_MARGIN)

    def __str__(self) -> str:
        cache = "KV cache not measured" if self.kv_cache is None else f"{self.kv_cache / GB:.2f} GB KV cache"
        return f"{self.weights / GB:.2f} GB weights + {cache} + 10 % = {self.total / GB:.2f} GB"


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


def recommend(evaluations: Mapping[str, Evaluation], *, memory_gb: float, max_task_drop: float, context_ratio: float = 1.0) -> Recommendation:
    """Choose among the tuned models (any not called base-*); "F16" must be one of them.

    `memory_gb` is in GB (10⁹ bytes), `max_task_drop` in points of 100. `context_ratio` is the context served over the
    context for which `kv_cache_bytes` was measured: the cache grows with it.
    """
    tuned = {name: found for name, found in evaluations.items() if not is_base(name)}
    memory = {name: memory_of(found, context_ratio) for name, found in tuned.items()}
    gains = tuple(_gain(name, found, evaluations.get("base-F16")) for name, found in tuned.items())
    arithmetic = {name: str(needed) for name, needed in memory.items()}
    fitting = {name: found for name, found in tuned.items() if memory[name].total <= memory_gb * GB}
    if not fitting:
        least = min(memory, key=lambda name: memory[name].total)
        reason = f"No level fits in {memory_gb:g} GB: {least}, the smallest, needs {memory[least].total / GB:.2f} GB."
        return Recommendation(None, reason, (f"Make a smaller level, or raise report.memory_gb ({memory_gb:g}).",), arithmetic, gains)
    reference = tuned["F16"]
    by_task = task_score(reference) is not None
    good = [name for name, found in fitting.items() if (_near_by_task(found, reference, max_task_drop) if by_task else _near_by_top(name, found))]
    likeness = f"ranks the same token first as F16 at {MIN_SAME_TOP:.0%} of the positions"
    standard = f"stays within {max_task_drop:g} points of F16" if by_task else likeness
    warnings = _resolution(reference, max_task_drop)
    if good:
        chosen = min(good, key=lambda name: (tuned[name]["bytes"], name))
        reason = _praise(chosen, len(tuned), memory_gb, standard)
    else:
        chosen = max(fitting, key=lambda name: (_quality(fitting[name], by_task), -fitting[name]["bytes"]))
        virtue = "score" if by_task else "likeness to F16"
        reason = f"{chosen} has the best {virtue} of what fits in {memory_gb:g} GB, though nothing that fits {standard}"
        warnings.insert(0, f"Nothing that fits in {memory_gb:g} GB {standard}: read the answers before you serve {chosen}.")
    reason += _evidence(chosen, tuned[chosen], reference, by_task)
    warnings[:0] = [gain.sentence for gain in gains if gain.model == chosen and gain.beats is False]
    return Recommendation(chosen, reason + ".", tuple(warnings), arithmetic, gains)


def is_base(model: str) -> bool:
    """Whether a model of `evaluate.models` is the untuned base."""
    return model.startswith("base-")


def memory_of(evaluation: Evaluation, context_ratio: float) -> Memory:
    """Bytes that serving a model takes at `context_ratio` times the evaluated context."""
    cache = evaluation.get("kv_cache_bytes")
    return Memory(evaluation["bytes"], None if cache is None else round(cache * context_ratio))


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
    return name == "F16" or (found.get("same_top") or 0.0) >= MIN_SAME_TOP


def _quality(found: Evaluation, by_task: bool) -> float:
    score = task_score(found) if by_task else found.get("same_top")
    return -1.0 if score is None else float(score)


def _praise(chosen: str, tuned: int, memory_gb: float, standard: str) -> str:
    if chosen == "F16":
        return f"F16 fits in {memory_gb:g} GB, and no smaller level {standard if tuned > 1 else 'was measured'}"
    return f"Of {tuned} tuned models, {chosen} is the smallest that fits in {memory_gb:g} GB and {standard}"


def _evidence(chosen: str, found: Evaluation, reference: Evaluation, by_task: bool) -> str:
    if chosen == "F16":
        return ""
    if not by_task:
        share = "" if found.get("same_top") is None else f"{found['same_top']:.1%}; "
        return f" ({share}there is no task score to judge by)"
    if task_score(found) is None:
        return " (its own score was not measured)"
    apart = noise(found) if intervals_overlap(found, reference) else "the intervals lie apart, so it is more than noise"
    return f" ({found['task']['score'] * 100:.1f} against {reference['task']['score'] * 100:.1f} points; {apart})"


def _resolution(reference: Evaluation, max_task_drop: float) -> list[str]:
    task = reference.get("task")
    half = (task["score_high"] - task["score_low"]) / 2 * 100 if task else 0.0
    if not task or half <= max_task_drop:
        return []
    coarse = f"{task['rows']} rows measure a score to ± {half:.0f} points, coarser than the {max_task_drop:g} allowed"
    return [f"{coarse}: raise evaluate.task_rows for a firmer choice."]


def _gain(name: str, found: Evaluation, base: Evaluation | None) -> Gain:
    if base is None:
        return Gain(name, None, None, "Not measured: evaluate.models does not name base-F16.")
    mine, before = task_score(found), task_score(base)
    if mine is None or before is None:
        if found.get("perplexity") is None or base.get("perplexity") is None:
            return Gain(name, None, None, "Not measured: there is neither a task score nor a perplexity.")
        better = found["perplexity"] < base["perplexity"]
        figures = f"{found['perplexity']:.2f} against {base['perplexity']:.2f}"
        return Gain(name, None, better, f"{name}'s held-out perplexity is {'' if better else 'not '}below the untuned base's ({figures}).")
    points = round((mine - before) * 100, 1)
    scores = f"({mine * 100:.1f} against {before * 100:.1f} points"
    if intervals_overlap(found, base):
        return Gain(name, points, False, f"{name} does not measurably beat the untuned base {scores}; {noise(found)}).")
    if points < 0:
        return Gain(name, points, False, f"{name} is worse than the untuned base {scores}; the intervals lie apart).")
    return Gain(name, points, True, f"{name} beats the untuned base by {points:.1f} points {scores}; the intervals lie apart).")

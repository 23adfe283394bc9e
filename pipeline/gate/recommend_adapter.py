"""Whether to serve the base's GGUF with its adapter, and why: the counterpart of `pipeline.gate.recommend` where nothing is merged.

There is one tuned model, so nothing is chosen among levels. It is recommended where it fits in memory and the gate does not refuse it; it is below
the standard where it scores more than `max_task_drop` points below the base alone, and, of an adapter that is to heal the base, where it heals
nothing.
"""

from collections.abc import Mapping
from dataclasses import replace

from pipeline.config.sections import ADAPTED, BARE, Serve
from pipeline.gate.distillation import healing, is_healing, sentence
from pipeline.gate.recommend import Gain, Recommendation, gain_over, memory_of
from pipeline.gate.rules import Answers
from pipeline.gate.task_scores import Evaluation, Evidence, task_score
from pipeline.planning.serving import GB

WHAT = "the base GGUF with the adapter's GGUF on it"


def recommend_adapter(
    evaluations: Mapping[str, Evaluation], *, memory_gb: float, max_task_drop: float, serve: Serve, refused: Mapping[str, str],
    answers: Answers, seed: int,
) -> Recommendation:  # fmt: skip
    """Judge the model "adapter" of `evaluations`, against "base" where that was evaluated.

    `memory_gb` is in GB as cards are sold (2³⁰ bytes), `max_task_drop` in points of 100; `serve` says the context and how many are served at once.
    `refused` has the gate's reason where it refuses, `answers` (rows of MODEL.answers.jsonl by model) let scores be compared on the same questions.
    """
    found, evidence, room = evaluations[ADAPTED], Evidence(evaluations, answers, seed), f"{memory_gb:g} GB"
    memory = memory_of(found, serve)
    arithmetic, gain = {ADAPTED: str(memory)}, _gain(evidence)
    if memory.total > memory_gb * GB:
        remedy = f"Take a smaller base, or raise report.memory_gb ({memory_gb:g})."
        refusals = [f"The gate refuses {ADAPTED}: {refused[ADAPTED]}"] if ADAPTED in refused else []
        reason = f"{ADAPTED}, {WHAT}, does not fit in {room}: it needs {memory.total / GB:.2f} GB."
        return Recommendation(None, reason, (remedy, *refusals), arithmetic, (gain,))
    if ADAPTED in refused:
        return Recommendation(None, f"The gate refuses {ADAPTED}, {WHAT}.", (refused[ADAPTED],), arithmetic, (gain,))
    fits = "fits" if memory.known else "may fit"
    warnings = [] if memory.known else [f"Whether {ADAPTED} fits is not known: its KV cache was not measured."]
    below = gain.points is not None and -gain.points > max_task_drop + 1e-9
    if gain.beats is False:
        warnings.append(gain.sentence)
    reason = f"{ADAPTED}, {WHAT}, {fits} in {room}, and the gate lets it pass{_words(evidence)}."
    if is_healing(evaluations):
        healed = healing(evaluations, seed)
        below = below or any(one.verdict in ("worse", "noise") for one in healed[:1])
        warnings += [sentence(one) for one in healed if one.verdict in ("worse", "noise")]
        reason += f" {sentence(healed[0])}" if healed else f" How much it heals was not measured: evaluate.models does not name {BARE}."
    return Recommendation(ADAPTED, reason, tuple(warnings), arithmetic, (gain,), below_standard=below)


def _gain(evidence: Evidence) -> Gain:
    """The task score above the base's. An adapter that heals is to be no worse than the base, it need not beat it."""
    gain = gain_over(ADAPTED, evidence, BARE)
    compared = evidence.compare(ADAPTED, BARE) if BARE in evidence.evaluations else None
    as_good = compared is not None and not (compared.apart and compared.points < 0)
    return replace(gain, beats=None) if gain.beats is False and as_good and is_healing(evidence.evaluations) else gain


def _words(evidence: Evidence) -> str:
    """What the task score says, in half a sentence."""
    if task_score(evidence.evaluations[ADAPTED]) is None:
        return "; there is no task score to judge by"
    compared = evidence.compare(ADAPTED, BARE) if BARE in evidence.evaluations else None
    if compared is None:
        return f"; its score can't be compared, since no question has one of {BARE} too"
    return f"; on the task it has {compared.mine:.1f} points, {BARE} alone {compared.theirs:.1f} ({compared.words})"

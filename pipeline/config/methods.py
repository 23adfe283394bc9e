"""The methods of training (`train.method`): the rows that each learns from, what it needs, and what is said
of rows that it doesn't use.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pipeline.core.text import count, listed, most, plural

# folders beside the checkpoints: what the teacher answers, what was drawn, the base as a GGUF to draw with
TEACHER, ROUNDS, ROLLOUTS = "teacher", "rounds", "rollouts"
# tokens per position whose probability by the teacher is kept: more are truer and take 6 bytes of disk each
TEACHER_TOP_K = 64
Method = Literal["sft", "distill", "dpo", "ipo", "kto", "orpo", "simpo", "grpo"]


@dataclass(frozen=True)
class Learning:
    """What a method learns from.

    `rows` are the kinds of rows (`pipeline.chat.rows.Kind`) that are trained. `settings` are the settings
    that not every method reads. `answers` says in words what is done with entire answers, of whose
    likelihoods it learns; empty if it learns tokens. `pairs` says that they are compared in pairs,
    `reference` that they are also scored by the model without its adapter, `others` that other prompts'
    answers are scored too, `beta` and `dropout` are the defaults of `train.preference.beta` and
    `train.lora_dropout`. `loss` says in words what is made smaller, `measures` what a sweep can go by.
    `prompts` says that the model gives its own answers and is only shown what stands before the last one,
    `teacher` that it learns how the file that its base was made from answers. `keeps` are the folders beside
    the checkpoints that a start from nothing leaves: they know what they are of.
    `learner` is its module below `pipeline.stages.train`.
    """

    rows: tuple[str, ...]
    loss: str
    settings: tuple[str, ...]
    measures: tuple[str, ...] = ("eval_loss",)
    answers: str = ""
    pairs: bool = False
    prompts: bool = False
    teacher: bool = False
    reference: bool = False
    others: bool = False
    beta: float | None = None
    dropout: float = 0.05
    keeps: tuple[str, ...] = ()
    learner: str = "learner"


REWARD, SFT_WEIGHT = "train.reward", "train.sft_weight"
OF_JUDGED = ("train.preference.beta", "report.gate.min_preference_accuracy")
_judged = partial(
    Learning,
    settings=OF_JUDGED,
    measures=("eval_loss", "accuracy"),
    answers="compares answers to one prompt",
    learner="preference.learner",
)
_paired = partial(_judged, ("preference",), pairs=True)
_pulled = partial(_paired, settings=(*OF_JUDGED, SFT_WEIGHT))  # towards the chosen answers too

METHODS: Mapping[Method, Learning] = {
    "sft": Learning(("chat", "text"), "cross entropy, weighted by rewards", (REWARD,)),
    "distill": Learning(
        ("chat", "text"),
        "divergence from the original",
        (SFT_WEIGHT,),
        teacher=True,
        keeps=(TEACHER,),
        learner="distill.learner",
    ),
    "dpo": _pulled("log-sigmoid of the margin", reference=True, beta=0.1),
    "ipo": _pulled("squared distance from a margin", reference=True, beta=0.1),
    "kto": _judged(("feedback", "preference"), "sigmoid of the gain", reference=True, others=True, beta=0.1),
    "orpo": _paired("cross entropy and log-odds ratio", beta=0.1),
    "simpo": _pulled("log-sigmoid of the mean margin", beta=2.0),
    "grpo": Learning(
        ("prompt", "chat"),
        "clipped policy gradient of rewards",
        ("train.grpo",),
        measures=("reward",),
        answers="learns from the model's own answers alone",
        prompts=True,
        dropout=0.0,
        keeps=(ROUNDS, ROLLOUTS),
        learner="grpo.learner",
    ),
}


def methods_reading(setting: str) -> list[Method]:
    """The methods that read one of the `settings`."""
    return [method for method, learning in METHODS.items() if setting in learning.settings]


def learners(kind: str) -> list[Method]:
    """The methods that learn from rows of a kind."""
    return [method for method, learning in METHODS.items() if kind in learning.rows]


def kinds_sentences(kinds: Mapping[str, int], scored: int) -> list[str]:
    """What must be set for rows other than chats and text to be trained, and for rewards to count: a sentence
    each. `kinds` has rows by kind, `scored` the chats with a reward.
    """
    sentences = [
        f"{plural(rows, 'row')} of kind {kind}: trained by train.method {listed(learners(kind), 'or')} only."
        if learners(kind)
        else f"{plural(rows, 'row')} of kind {kind}: no train.method learns from them."
        for kind, rows in most(kinds)
        if rows and kind not in METHODS["sft"].rows
    ]
    if scored:
        has = plural(scored, "chat has", "chats have")
        sentences.append(f"{has} a reward (or score), by which train.method sft weights it (train.reward).")
    return sentences


def unused_sentences(kinds: Mapping[str, int], method: Method) -> list[str]:
    """The rows, by kind, that `method` doesn't learn from: one sentence, none if there are no such rows."""
    if not (rows := sum(kinds.values())):
        return []
    others = sorted({other for kind, number in kinds.items() if number for other in learners(kind)})
    named = listed([f"{count(number)} {kind}" for kind, number in most(kinds) if number])
    remedy = f" Set it to {listed(others, 'or')} for them." if others else ""
    return [
        f"{plural(rows, 'row')} won't be trained ({named}): train.method {method} learns from rows of kind "
        f"{listed(METHODS[method].rows)}.{remedy}"
    ]

"""The methods of training (`train.method`): the rows that each learns from, what it needs, and the sentences
on rows that it doesn't use.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pipeline.core.text import count, listed, most, plural

# folders next to the checkpoints
TEACHER = "teacher"  # the teacher's answers
ROUNDS = "rounds"  # the drawn answers
ROLLOUTS = "rollouts"  # the base as a GGUF for drawing
# Tokens per position for which the teacher's probability is kept. More are more exact and need 6 bytes of
# disk each.
TEACHER_TOP_K = 64
Method = Literal["sft", "distill", "dpo", "ipo", "kto", "orpo", "simpo", "grpo"]


@dataclass(frozen=True)
class Learning:
    """The properties of one method.

    `rows` are the kinds of rows (`pipeline.chat.rows.Kind`) that are trained. `settings` are the settings
    that not every method reads. `answers` describes in words what a method does that learns from the
    likelihoods of entire answers; empty if it learns tokens. With `pairs` they are compared in pairs. With
    `reference` they are also scored by the model without its adapter. With `others` answers to other prompts
    are scored too. `beta` and `dropout` are the defaults of `train.preference.beta` and `train.lora_dropout`.
    `loss` names in words what is minimized. `measures` are the measures that a sweep can use. With `prompts`
    the model generates its own answers and is only given the part before the last one. With `teacher` it
    learns to answer like the file that its base was made from. `keeps` are the folders next to the
    checkpoints that stay when a run starts from nothing, because they record what they belong to. `module`
    is its module below `pipeline.stages.train`.
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
    module: str = "method"


REWARD = "train.reward"
SFT_WEIGHT = "train.sft_weight"
GAMMA = "train.preference.gamma"
ANSWER_SETTINGS = ("train.preference.beta", "report.gate.min_preference_accuracy")
_comparing_answers = partial(
    Learning,
    settings=ANSWER_SETTINGS,
    measures=("eval_loss", "accuracy"),
    answers="compares answers to one prompt",
    module="preference.method",
)
_comparing_pairs = partial(_comparing_answers, ("preference",), pairs=True)
# These can also train on the chosen answers.
_with_sft_weight = partial(_comparing_pairs, settings=(*ANSWER_SETTINGS, SFT_WEIGHT))

METHODS: Mapping[Method, Learning] = {
    "sft": Learning(("chat", "text"), "cross entropy, weighted by rewards", (REWARD,)),
    "distill": Learning(
        ("chat", "text"),
        "divergence from the original",
        (SFT_WEIGHT,),
        teacher=True,
        keeps=(TEACHER,),
        module="distill.method",
    ),
    "dpo": _with_sft_weight("log-sigmoid of the margin", reference=True, beta=0.1),
    "ipo": _with_sft_weight("squared distance from a margin", reference=True, beta=0.1),
    "kto": _comparing_answers(
        ("feedback", "preference"), "sigmoid of the gain", reference=True, others=True, beta=0.1
    ),
    "orpo": _comparing_pairs("cross entropy and log-odds ratio", beta=0.1),
    "simpo": _comparing_pairs(
        "log-sigmoid of the mean margin", settings=(*ANSWER_SETTINGS, GAMMA, SFT_WEIGHT), beta=2.0
    ),
    "grpo": Learning(
        ("prompt", "chat"),
        "clipped policy gradient of rewards",
        ("train.grpo",),
        measures=("reward",),
        answers="learns from the model's own answers alone",
        prompts=True,
        dropout=0.0,
        keeps=(ROUNDS, ROLLOUTS),
        module="grpo.method",
    ),
}


def methods_reading(setting: str) -> list[Method]:
    """Return the methods that read one of the `settings`."""
    return [method for method, learning in METHODS.items() if setting in learning.settings]


def methods_for(kind: str) -> list[Method]:
    """Return the methods that learn from rows of a kind."""
    return [method for method, learning in METHODS.items() if kind in learning.rows]


def kinds_sentences(kinds: Mapping[str, int], scored: int) -> list[str]:
    """Return a sentence on each setting that rows other than chats and text, and rewards, need.

    `kinds` has rows by kind, `scored` the chats with a reward.
    """
    sentences = []
    for kind, rows in most(kinds):
        if not rows or kind in METHODS["sft"].rows:
            continue
        subject = f"{plural(rows, 'row')} of kind {kind}"
        methods = listed(methods_for(kind), "or")
        if methods:
            sentences.append(f"{subject}: trained by train.method {methods} only.")
        else:
            sentences.append(f"{subject}: no train.method learns from them.")
    if scored:
        has = plural(scored, "chat has", "chats have")
        sentences.append(f"{has} a reward (or score), by which train.method sft weights it (train.reward).")
    return sentences


def unused_sentences(kinds: Mapping[str, int], method: Method) -> list[str]:
    """Return one sentence on the rows, by kind, that `method` doesn't learn from; empty if there are none."""
    rows = sum(kinds.values())
    if not rows:
        return []
    others = sorted({other for kind, number in kinds.items() if number for other in methods_for(kind)})
    named = listed([f"{count(number)} {kind}" for kind, number in most(kinds) if number])
    remedy = f" Set it to {listed(others, 'or')} for them." if others else ""
    return [
        f"{plural(rows, 'row')} won't be trained ({named}): train.method {method} learns from rows of kind "
        f"{listed(METHODS[method].rows)}.{remedy}"
    ]

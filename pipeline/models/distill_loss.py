"""The loss of distillation: the distance of a level's answers from its original's. It is computed by blocks
of the vocabulary, without all logits and without a dense head.

Of the teacher, its k likeliest tokens T and the probability of all others together are known: p_j for j in T,
and p_R. With the student's q_j, and q_R the sum of q_j over the tokens not in T,

    KL = Σ over T of p_j · log(p_j ÷ q_j) + p_R · log(p_R ÷ q_R).

It is a divergence between two true distributions over k + 1 outcomes, so it is never negative, and 0 if they
agree. Merging outcomes can't raise a divergence (the log-sum inequality). So it is a lower bound of the
divergence over the entire vocabulary, and equal to it if k is the vocabulary.

Its gradient by a logit is q_j − p_j in T, and q_j · (1 − p_R ÷ q_R) elsewhere.
"""

from typing import Any, NamedTuple

import torch

from pipeline.models.chunked_loss import head_loss
from pipeline.models.loss_parts import LossWithGradient, logit_rule
from pipeline.models.quantized_head import (
    BLOCK_HEAD,
    TINY,
    rows_at,
    sums_outside,
)


class TopK(NamedTuple):
    """The teacher's distribution at P positions: the ids (P, k) of its likeliest tokens, and the logarithms
    (P, k + 1) of their probabilities and of the probability of all others together.
    """

    ids: Any
    logs: Any


def distill_loss(model: Any, inputs: dict[str, Any], sft_weight: float, positions: Any, answered: Any) -> Any:
    """Return (1 − w) · sum of KL ÷ `positions` + w · sum of cross entropies ÷ `answered`, a float32 scalar.

    w is `sft_weight`. `model` is the causal model below PEFT. `inputs` has `labels` and `position_ids` (1,
    S), the teacher's `teacher_ids` (P, k) and `teacher_logs` (P, k + 1) for the P positions after which a
    token follows in the same row, and the forward's own arguments.
    """
    loss_keys = ("labels", "teacher_ids", "teacher_logs")
    hidden = model.model(
        **{key: value for key, value in inputs.items() if key not in loss_keys}, use_cache=False
    )[0][:, :-1]  # (1, S - 1, H)
    parts = []
    if sft_weight < 1:
        states = hidden[followed(inputs["position_ids"])]
        teacher = TopK(inputs["teacher_ids"], inputs["teacher_logs"])
        divergence = Divergence.apply(states, teacher, model, positions, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
        parts.append((1 - sft_weight) * divergence)
    if sft_weight > 0:
        targets = inputs["labels"][:, 1:]
        entropy = head_loss(hidden[targets != -100], targets[targets != -100], model, answered)
        parts.append(sft_weight * entropy)
    return sum(parts[1:], start=parts[0])


def followed(position_ids: Any) -> Any:
    """Return a mask of the positions (1, S - 1) that are followed by a token of the same row. `position_ids`
    (1, S) restart with every row.
    """
    return position_ids[:, 1:] != 0


class Divergence(LossWithGradient):
    """Divergence with its gradient. Both are computed together, so that no logit is computed and no block
    dequantized a third time.
    """

    @staticmethod
    def forward(ctx: Any, states: Any, teacher: TopK, model: Any, divisor: Any, with_gradient: bool) -> Any:
        """Return the sum of KL ÷ `divisor`; `states` (P, H). The head is frozen: it gets no gradient."""
        with torch.autocast(states.device.type, enabled=False):
            total, gradient = divergence_and_gradient(states, teacher, model, with_gradient)
        if gradient is not None:
            Divergence.keep(ctx, states, gradient / divisor)
        return total / divisor


def divergence_and_gradient(states: Any, teacher: TopK, model: Any, with_gradient: bool) -> tuple[Any, Any]:
    """Return the summed KL (float32) and its gradient (P, H) by `states` (None without).

    T is kept out of the running sums: if level and original nearly agree, q_j − p_j would be lost in the
    head's 16 bits.
    """
    ids = teacher.ids.long()
    kept = teacher.ids.shape[1]
    head = model.lm_head
    factor, softcap = logit_rule(model.config)
    # float16 has rounded them; normalize them to a distribution again.
    logs = teacher.logs.float().log_softmax(1)
    logits, slopes, highest, others, pulled = sums_outside(states, head, ids, factor, softcap, with_gradient)
    ours = torch.cat([logits, (highest + others.log())[:, None]], 1).log_softmax(1)  # (P, k + 1)
    chances = logs.exp()
    total = torch.where(chances > 0, chances * (logs - ours), 0.0).sum()  # 0 · log 0 is 0
    if pulled is None:
        return total, None
    wrong = ours.exp() - chances
    pulled.mul_((wrong[:, kept] / others.clamp(min=TINY))[:, None])
    return total, pull_kept(pulled, head, ids, wrong[:, :kept] * slopes)


def pull_kept(gradient: Any, head: Any, ids: Any, weights: Any) -> Any:
    """Add to `gradient` (P, H) the head's rows for `ids` (P, k), times `weights` (P, k). A few positions are
    added at a time, and each row is dequantized once.
    """
    step = max(1, BLOCK_HEAD // (ids.shape[1] * gradient.shape[1]))
    for start in range(0, len(ids), step):
        piece = slice(start, start + step)
        unique, places = ids[piece].unique(return_inverse=True)
        gradient[piece] += torch.nn.functional.embedding_bag(
            places, rows_at(head, unique), mode="sum", per_sample_weights=weights[piece]
        )
    return gradient

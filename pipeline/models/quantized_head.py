"""The loss of a quantized head, and of a dense one that products widen. Blocks of the vocabulary are
dequantized or widened once each, so that neither that head nor the logits are ever in memory entirely.

The softmax is summed up block by block, with the largest logit so far subtracted, and so are the gradients
(as for attention in arXiv:2112.05682; over a vocabulary: Cut Cross-Entropy, arXiv:2411.09009).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from pipeline.gguf.dequantize import dequantize
from pipeline.models.loss_parts import LossWithGradient, logit_rule
from pipeline.models.quantized_linear import QuantizedLinear
from pipeline.models.wide_products import are_widened

# Logits alive at once, of all trained positions and a block of the vocabulary. A block takes 12 bytes a
# logit.
BLOCK_LOGITS = 5 << 20
BLOCK_HEAD = 8 << 20  # weights of the head that are dense at once
# Used instead of −∞ and 0, which would give NaN.
LOWEST = -1e38
TINY = 1e-38


def goes_by_blocks(model: Any) -> bool:
    """Return True if `QuantizedHeadLoss` is the loss for this causal model (below PEFT). Other losses would
    widen a dense head whole for every few rows of logits.
    """
    is_widened = are_widened() and model.lm_head.weight.dtype == torch.bfloat16
    return isinstance(model.lm_head, QuantizedLinear) or is_widened


class QuantizedHeadLoss(LossWithGradient):
    """`ChunkedLoss` by blocks of the vocabulary: the same number and the same gradients. They are
    computed with the loss, so that no logit is computed and no row dequantized twice.
    """

    @staticmethod
    def forward(ctx: Any, states: Any, targets: Any, model: Any, divisor: Any, with_gradient: bool) -> Any:
        """Return the loss; `states` (N, H), `targets` (N,). The head is frozen: it gets no gradient."""
        with torch.autocast(states.device.type, enabled=False):
            losses, gradient = losses_and_gradient(
                states, targets, model.lm_head, *logit_rule(model.config), with_gradient
            )
        if gradient is not None:
            QuantizedHeadLoss.keep(ctx, states, gradient / divisor)
        return losses.sum() / divisor


def losses_and_gradient(
    states: Any, targets: Any, head: Any, factor: float, softcap: float | None, with_gradient: bool
) -> tuple[Any, Any]:
    """Return the cross entropies (N,), float32, and the gradient (N, H) of each by its state (None without).
    `head` is a `QuantizedLinear` or dense.

    The target is kept out of the sums: if the model is sure of a token, softmax − 1 would be lost in the
    head's 16 bits.
    """
    target_logits, slopes, highest, others, pulled = sums_outside(
        states, head, targets[:, None], factor, softcap, with_gradient
    )
    log_others = highest + others.log()
    # −log softmax(target) = log(1 + others ÷ target)
    losses = torch.nn.functional.softplus(log_others - target_logits[:, 0])
    if pulled is None:
        return losses, None
    wrong = torch.sigmoid(log_others - target_logits[:, 0])  # 1 − softmax(target)
    of_targets = rows_at(head, targets) * (wrong * slopes[:, 0])[:, None]
    return losses, pulled.mul_((wrong / others.clamp(min=TINY))[:, None]).sub_(of_targets)


def sums_outside(
    states: Any, head: Any, ids: Any, factor: float, softcap: float | None, with_gradient: bool
) -> tuple[Any, ...]:
    """Make one pass over the vocabulary. Return the logits of `ids` (N, k), their slopes, and sums over all
    other tokens, all float32.

    The sums are the largest other logit (N,), Σ exp(logit − largest) (N,) and, for the gradient, Σ exp(logit
    − largest) · slope · row (N, H; None without). `head` is a `QuantizedLinear` or dense.
    """
    x = states.to(compute_type(head))
    highest = torch.full((len(ids),), -torch.inf, device=x.device)
    others = torch.zeros(len(ids), device=x.device)
    pulled = torch.zeros(x.shape, device=x.device) if with_gradient else None
    id_logits = torch.zeros(ids.shape, device=x.device)
    id_slopes = torch.full(ids.shape, factor, device=x.device)
    for first, last in vocabulary_blocks(head, len(ids)):
        logits, slopes, rows = block_logits(x, head, first, last, factor, softcap)
        at, place = ((ids >= first) & (ids < last)).nonzero(as_tuple=True)
        columns = ids[at, place] - first
        id_logits[at, place] = logits[at, columns]
        if slopes is not None:
            id_slopes[at, place] = slopes[at, columns]
        logits[at, columns] = -torch.inf
        raised = torch.maximum(highest, logits.amax(1))
        shrink = torch.where(raised == highest, 1.0, (highest - raised).exp())
        # All are 0 in a block that contains no other token.
        weights = logits.sub_(raised.clamp(min=LOWEST)[:, None]).exp_()
        others = others * shrink + weights.sum(1)
        if pulled is not None:
            weights.mul_(factor if slopes is None else slopes)
            pulled.mul_(shrink[:, None]).add_(weights.to(rows.dtype) @ rows)
        highest = raised
    return id_logits, id_slopes, highest, others, pulled


class BlockLogits(NamedTuple):
    """Float32 logits (N, c), their slopes by the head's output (None: the factor everywhere), and the head's
    rows (c, H) in its compute type.
    """

    logits: Any
    slopes: Any
    rows: Any


def block_logits(
    x: Any, head: Any, first: int, last: int, factor: float, softcap: float | None
) -> BlockLogits:
    """Return the logits of states x (N, H) by rows [first, last) of a head, quantized or dense."""
    rows = head.rows(first, last) if isinstance(head, QuantizedLinear) else head.weight[first:last]
    logits = torch.nn.functional.linear(x, rows, None if head.bias is None else head.bias[first:last])
    if factor != 1.0:
        logits *= factor
    if softcap is None:
        return BlockLogits(logits.float(), None, rows)
    bent = (logits / softcap).tanh()
    return BlockLogits((bent * softcap).float(), (1 - bent.float().square()) * factor, rows)


def vocabulary_blocks(head: Any, count: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) row of the head's blocks for `count` trained positions."""
    step = max(1, min(BLOCK_HEAD // head.in_features, BLOCK_LOGITS // max(count, 1)))
    return ((first, min(first + step, head.out_features)) for first in range(0, head.out_features, step))


def compute_type(head: Any) -> torch.dtype:
    """Return the type that a head, quantized or dense, computes in."""
    dtype: torch.dtype = head.compute_dtype if isinstance(head, QuantizedLinear) else head.weight.dtype
    return dtype


def rows_at(head: Any, ids: Any) -> Any:
    """Return the rows (n, H) of a head, quantized or dense, for token ids (n,), as float32."""
    if not isinstance(head, QuantizedLinear):
        return head.weight[ids].float()
    return dequantize(head.weight.index_select(0, ids), head.ggml_type, head.compute_dtype).float()

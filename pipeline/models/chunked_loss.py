"""The loss in plain torch, log-probabilities of the trained tokens, and losses computed from them. None holds
all logits: only trained positions are computed, a few of them at a time.
"""

from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from pipeline.core.errors import GateError, ToolError
from pipeline.models.loss_parts import LossWithGradient, gradient_type, logit_rule, to_logits, trained_states
from pipeline.models.quantized_head import QuantizedHeadLoss, goes_by_blocks, losses_and_gradient

CHUNK_LOGITS = 5 << 20  # Logits alive at once: 34 rows of 151,936. A chunk takes 12 bytes a logit.


def chunked_loss(model: Any, inputs: dict[str, Any], tokens: Any = None) -> Any:
    """Return the summed cross entropy over the trained tokens ÷ `tokens` (default: the number that `inputs`
    trains), a float32 scalar.

    `model` is the causal model below PEFT. `inputs` is the collator's output: `labels` (B, S), -100 for
    positions that do not train, and the forward's own arguments. Logits have the head's type and the softmax
    is in float32, as in transformers' own loss.
    """
    states, targets = trained_states(model, inputs)
    return head_loss(states, targets, model, max(len(targets), 1) if tokens is None else tokens)


def head_loss(states: Any, targets: Any, model: Any, divisor: Any) -> Any:
    """Return the summed cross entropy ÷ `divisor` of `states` (N, H) for `targets` (N,). A quantized head has
    a loss of its own, `pipeline.models.quantized_head`, and so has a head that trains.
    """
    if head_trains(model):
        return recomputed_losses(states, targets, model).sum() / divisor
    loss = QuantizedHeadLoss if goes_by_blocks(model) else ChunkedLoss
    return loss.apply(states, targets, model, divisor, torch.is_grad_enabled())  # type: ignore[no-untyped-call]


class ChunkedLoss(LossWithGradient):
    """Chunked loss with its gradient.

    Both are computed together, so that no logit is computed twice (as in Liger, arXiv:2410.10989).
    """

    @staticmethod
    def forward(ctx: Any, states: Any, targets: Any, model: Any, divisor: Any, with_gradient: bool) -> Any:
        """Return the loss; `states` (N, H), `targets` (N,). The head is frozen: it gets no gradient."""
        gradient = torch.empty(states.shape, dtype=gradient_type(states.dtype), device=states.device)
        # For float16 states the division comes last, in float32.
        if gradient.dtype == states.dtype:
            before, after = divisor, 1
        else:
            before, after = 1, divisor
        total = torch.zeros((), device=states.device)
        rows = max(1, CHUNK_LOGITS // model.config.vocab_size)
        for start in range(0, len(targets), rows):
            piece = slice(start, start + rows)
            with torch.set_grad_enabled(with_gradient):
                chunk = states[piece].detach().requires_grad_(with_gradient)
                loss = cross_entropy(to_logits(model, chunk), targets[piece], reduction="sum") / before
            total += loss.detach()
            if with_gradient:
                gradient[piece] = torch.autograd.grad(loss, chunk)[0]
        if with_gradient:
            ChunkedLoss.keep(ctx, states, gradient.div_(after))
        return total / after


def check_head(model: Any) -> None:
    """Prove on four tokens that `to_logits` of the last hidden states equals the output of `model` (below
    PEFT). Raises `ToolError` if not.

    Also refuses a head with an adapter, because neither this loss nor Liger's computes gradients for it here.
    """
    trained = [name for name, weight in model.lm_head.named_parameters() if weight.requires_grad]
    if any(not name.startswith("modules_to_save.") for name in trained):
        raise ToolError(
            "Q-MODELS-007",
            "lm_head has an adapter, for which the losses here make no gradients: take lm_head out of "
            "train.target_modules",
        )
    ids = torch.arange(4, device=model.lm_head.weight.device)[None]
    with torch.no_grad():
        ours = to_logits(model, model.model(input_ids=ids, use_cache=False)[0])
        theirs = model(input_ids=ids, use_cache=False).logits.float()
    if not theirs.isfinite().all():
        raise GateError(
            "Q-MODELS-008",
            "the base's answers are not numbers before any training: run stage base again, for its weights "
            "are damaged",
        )
    if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2 * float(theirs.abs().max())):
        raise ToolError(
            "Q-MODELS-009",
            f"{model.config.model_type} makes its logits in a way the fused and the chunked loss don't "
            "know: take another base",
        )


def token_logps(model: Any, inputs: dict[str, Any]) -> Any:
    """Return log p of each trained token given the tokens before it, float32 (N,), in the order of `labels`.

    `model` is the causal model below PEFT; `inputs` has `labels` (B, S), -100 for positions that do not
    train, and the forward's own arguments. The head, quantized or dense, gets a gradient only if it trains.
    """
    states, targets = trained_states(model, inputs)
    if head_trains(model):
        return -recomputed_losses(states, targets, model)
    return TokenLogps.apply(states, targets, model, torch.is_grad_enabled())  # type: ignore[no-untyped-call]


def head_trains(model: Any) -> bool:
    """Return True if the head of a causal model (below PEFT) trains whole (`train.modules_to_save`)."""
    return any(weight.requires_grad for weight in model.lm_head.parameters())


def recomputed_losses(states: Any, targets: Any, model: Any) -> Any:
    """Return the cross entropy (N,), float32, of `states` (N, H) for `targets` (N,), a few rows of logits at
    a time. The backward computes them again and gives gradients to states and head.
    """
    rows = max(1, CHUNK_LOGITS // model.config.vocab_size)
    pieces = [
        checkpoint(
            _losses, model, states[start : start + rows], targets[start : start + rows], use_reentrant=False
        )
        for start in range(0, max(len(targets), 1), rows)
    ]
    return torch.cat(pieces)


def _losses(model: Any, states: Any, targets: Any) -> Any:
    return cross_entropy(to_logits(model, states), targets, reduction="none")


class TokenLogps(LossWithGradient):
    """Log-probabilities with their gradients. Each token's gradient is computed with its log-probability, so
    that no logit is computed twice. The backward scales it by the loss's own gradient.
    """

    @staticmethod
    def forward(ctx: Any, states: Any, targets: Any, model: Any, with_gradient: bool) -> Any:
        """Return the log-probabilities (N,); `states` (N, H), `targets` (N,)."""
        if goes_by_blocks(model):
            with torch.autocast(states.device.type, enabled=False):
                losses, gradient = losses_and_gradient(
                    states, targets, model.lm_head, *logit_rule(model.config), with_gradient
                )
        else:
            losses, gradient = dense_losses_and_gradient(states, targets, model, with_gradient)
        if gradient is not None:
            TokenLogps.keep(ctx, states, -gradient)
        return -losses

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        """Return the gradient of `states`: each token's times the loss's gradient by its log-probability."""
        (gradient,) = ctx.saved_tensors
        return (gradient * upstream[0][:, None]).to(ctx.type), None, None, None


def dense_losses_and_gradient(states: Any, targets: Any, model: Any, with_gradient: bool) -> tuple[Any, Any]:
    """Return −log p (N,) and its gradient by `states` (N, H; None without).

    They are computed a few rows of logits at a time.
    """
    losses = torch.empty(len(targets), device=states.device)
    kind = gradient_type(states.dtype)
    gradient = torch.empty(states.shape, dtype=kind, device=states.device) if with_gradient else None
    rows = max(1, CHUNK_LOGITS // model.config.vocab_size)
    for start in range(0, len(targets), rows):
        piece = slice(start, start + rows)
        with torch.set_grad_enabled(with_gradient):
            chunk = states[piece].detach().requires_grad_(with_gradient)
            chunk_losses = cross_entropy(to_logits(model, chunk), targets[piece], reduction="none")
            if gradient is not None:
                gradient[piece] = torch.autograd.grad(chunk_losses.sum(), chunk)[0]
        losses[piece] = chunk_losses.detach()
    return losses, gradient


def at_trained(values: Any, labels: Any) -> Any:
    """Return the trained tokens' values (N,), in the order of `token_logps`, out of all tokens' (B, S)."""
    return values[:, 1:][labels[:, 1:] != -100]


def sums_by_sequence(values: Any, inputs: dict[str, Any], count: int) -> Any:
    """Return the sums (count,) of a packed batch's values (N,) of trained tokens, one per sequence."""
    numbers = (inputs["position_ids"] == 0).cumsum(1) - 1  # Positions restart with every sequence.
    places = at_trained(numbers, inputs["labels"])
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add(0, places, values)


def weighted_loss(model: Any, inputs: dict[str, Any], weights: Any, tokens: Any) -> Any:
    """Return Σ weight · cross entropy of trained tokens ÷ `tokens`, a float32 scalar.

    `weights` (1, S) are per token.
    """
    return -(token_logps(model, inputs) * at_trained(weights, inputs["labels"])).sum() / tokens

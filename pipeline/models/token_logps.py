"""Log-probabilities of the trained tokens, never with all logits, and losses that are made of them."""

from typing import Any

import torch

from pipeline.models.loss_parts import LossWithGradient, gradient_type, logit_rule, to_logits, trained_states
from pipeline.models.quantized_head import has_quantized_head, losses_and_gradient

CHUNK_LOGITS = 5 << 20  # logits alive at once, as in `pipeline.models.chunked_loss`


def token_logps(model: Any, inputs: dict[str, Any]) -> Any:
    """log p of each trained token behind what is before it, float32 (N,), in the order of `labels`.

    `model` is the causal model below PEFT; `inputs` has `labels` (B, S), -100 where nothing is trained, and
    the forward's own arguments. The head, quantized or dense, is frozen and gets no gradient.
    """
    states, targets = trained_states(model, inputs)
    return TokenLogps.apply(states, targets, model, torch.is_grad_enabled())  # type: ignore[no-untyped-call]


class TokenLogps(LossWithGradient):
    """Each token's gradient is made along with its log-probability, so that no logit is computed twice; the
    loss's own gradient scales it.
    """

    @staticmethod
    def forward(ctx: Any, states: Any, targets: Any, model: Any, with_gradient: bool) -> Any:
        """The log-probabilities (N,); `states` (N, H), `targets` (N,)."""
        if has_quantized_head(model):
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
        """The gradient of `states`: each token's, times the loss's gradient by its log-probability."""
        (gradient,) = ctx.saved_tensors
        return (gradient * upstream[0][:, None]).to(ctx.type), None, None, None


def dense_losses_and_gradient(states: Any, targets: Any, model: Any, with_gradient: bool) -> tuple[Any, Any]:
    """−log p (N,) and its gradient by each of the `states` (N, H; None without), a few rows of logits at a
    time.
    """
    losses = torch.empty(len(targets), device=states.device)
    kind = gradient_type(states.dtype)
    gradient = torch.empty(states.shape, dtype=kind, device=states.device) if with_gradient else None
    rows = max(1, CHUNK_LOGITS // model.config.vocab_size)
    for start in range(0, len(targets), rows):
        piece = slice(start, start + rows)
        with torch.set_grad_enabled(with_gradient):
            chunk = states[piece].detach().requires_grad_(with_gradient)
            found = torch.nn.functional.cross_entropy(
                to_logits(model, chunk), targets[piece], reduction="none"
            )
            if gradient is not None:
                gradient[piece] = torch.autograd.grad(found.sum(), chunk)[0]
        losses[piece] = found.detach()
    return losses, gradient


def at_trained(values: Any, labels: Any) -> Any:
    """Of values (B, S) of tokens those of the trained ones (N,), in the order of `token_logps`."""
    return values[:, 1:][labels[:, 1:] != -100]


def sequence_of(position_ids: Any) -> Any:
    """The number (1, S), from 0, of the sequence that each token of a packed batch is in; positions restart
    with every sequence.
    """
    return (position_ids == 0).cumsum(1) - 1


def sums_by_sequence(values: Any, inputs: dict[str, Any], count: int) -> Any:
    """Sums (count,) of values (N,) of the trained tokens of a packed batch, one for each of its sequences."""
    places = at_trained(sequence_of(inputs["position_ids"]), inputs["labels"])
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add(0, places, values)


def weighted_loss(model: Any, inputs: dict[str, Any], weights: Any, tokens: Any) -> Any:
    """Σ weight · cross entropy over the trained tokens ÷ `tokens`, a float32 scalar; `weights` (1, S) are
    those of the tokens.
    """
    return -(token_logps(model, inputs) * at_trained(weights, inputs["labels"])).sum() / tokens

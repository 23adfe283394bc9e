"""The loss in plain torch that never holds all logits: trained positions only, a few of them at a time."""

from typing import Any

import torch

from pipeline.core.errors import GateError, ToolError
from pipeline.models.loss_parts import LossWithGradient, gradient_type, to_logits, trained_states
from pipeline.models.quantized_head import has_quantized_head, quantized_head_loss

CHUNK_LOGITS = 5 << 20  # logits alive at once, 34 rows of 151,936; a chunk takes 12 bytes a logit


def chunked_loss(model: Any, inputs: dict[str, Any], tokens: Any = None) -> Any:
    """Summed cross entropy over the trained tokens ÷ `tokens` (default: as many as `inputs` trains); a
    float32 scalar.

    `model` is the causal model below PEFT, `inputs` what the collator gives: `labels` (B, S), -100 where
    nothing is trained, and the forward's own arguments. Logits have the head's type and the softmax is in
    float32, as in transformers' own loss. A quantized head has a loss of its own,
    `pipeline.models.quantized_head`.
    """
    if has_quantized_head(model):
        return quantized_head_loss(model, inputs, tokens)
    states, targets = trained_states(model, inputs)
    divisor = max(len(targets), 1) if tokens is None else tokens
    return ChunkedLoss.apply(states, targets, model, divisor, torch.is_grad_enabled())  # type: ignore[no-untyped-call]


class ChunkedLoss(LossWithGradient):
    """Gradients are made along with the loss, so that no logit is computed twice (as Liger does,
    arXiv:2410.10989).
    """

    @staticmethod
    def forward(ctx: Any, states: Any, targets: Any, model: Any, divisor: Any, with_gradient: bool) -> Any:
        """The loss; `states` (N, H), `targets` (N,). The head is frozen: it gets no gradient."""
        gradient = torch.empty(states.shape, dtype=gradient_type(states.dtype), device=states.device)
        # where it is divided by, of a chunk or of all
        before, after = (divisor, 1) if gradient.dtype == states.dtype else (1, divisor)
        total = torch.zeros((), device=states.device)
        rows = max(1, CHUNK_LOGITS // model.config.vocab_size)
        for start in range(0, len(targets), rows):
            piece = slice(start, start + rows)
            with torch.set_grad_enabled(with_gradient):
                chunk = states[piece].detach().requires_grad_(with_gradient)
                loss = (
                    torch.nn.functional.cross_entropy(
                        to_logits(model, chunk), targets[piece], reduction="sum"
                    )
                    / before
                )
            total += loss.detach()
            if with_gradient:
                gradient[piece] = torch.autograd.grad(loss, chunk)[0]
        if with_gradient:
            ChunkedLoss.keep(ctx, states, gradient.div_(after))
        return total / after


def check_head(model: Any) -> None:
    """Prove on four tokens that `to_logits` of the last hidden states is what `model` (below PEFT) answers;
    `ToolError` if not.

    Also refuses a head that is trained: neither this loss nor Liger's makes gradients for it here.
    """
    if any(parameter.requires_grad for parameter in model.lm_head.parameters()):
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
            "the base's answers are no numbers before any training: run stage base again, for its weights "
            "are damaged",
        )
    if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2 * float(theirs.abs().max())):
        raise ToolError(
            "Q-MODELS-009",
            f"{model.config.model_type} makes its logits in a way the fused and the chunked loss don't "
            "know: take another base",
        )

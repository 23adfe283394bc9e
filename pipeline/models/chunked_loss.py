"""The loss in plain torch that never holds all logits: trained positions only, a few of them at a time."""

from typing import Any

import torch

from pipeline.core.errors import GateError, ToolError

CHUNK_LOGITS = 5 << 20  # logits alive at once, 34 rows of 151,936; a chunk takes 12 bytes a logit
# what architectures multiply (1) or divide (-1) their logits by
SCALES = {"logit_scale": 1, "lm_head_multiplier": 1, "output_multiplier": 1, "logits_scaling": -1}


def chunked_loss(model: Any, inputs: dict[str, Any], tokens: Any = None) -> Any:
    """Summed cross entropy over the trained tokens ÷ `tokens` (default: as many as `inputs` trains); a float32 scalar.

    `model` is the causal model below PEFT, `inputs` what the collator gives: `labels` (B, S), -100 where nothing is
    trained, and the forward's own arguments. Logits have the head's type and the softmax is in float32, as in
    transformers' own loss. A packed head has a loss of its own, `pipeline.models.quantized_head`.
    """
    from pipeline.models.quantized_head import has_packed_head, packed_loss

    if has_packed_head(model):
        return packed_loss(model, inputs, tokens)
    states, targets = trained_states(model, inputs)
    divisor = max(len(targets), 1) if tokens is None else tokens
    return ChunkedLoss.apply(states, targets, model, divisor, torch.is_grad_enabled())  # type: ignore[no-untyped-call]


def trained_states(model: Any, inputs: dict[str, Any]) -> tuple[Any, Any]:
    """The last hidden states (N, H) of the positions whose next token is trained, and those tokens' ids (N,)."""
    hidden = model.model(**{key: value for key, value in inputs.items() if key != "labels"}, use_cache=False)[0]  # (B, S, H)
    targets = inputs["labels"][:, 1:]
    trained = targets != -100
    return hidden[:, :-1][trained], targets[trained]


class LossWithGradient(torch.autograd.Function):
    """A loss of hidden states, its first argument, whose gradient is made along with it; nothing else gets one."""

    @staticmethod
    def keep(ctx: Any, states: Any, gradient: Any) -> None:
        """For `forward` to end with: the gradient of `states`, before the loss's own."""
        ctx.save_for_backward(gradient.to(gradient_type(states.dtype)))
        ctx.type = states.dtype

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        """The gradient of `states`, scaled by the loss's own gradient."""
        (gradient,) = ctx.saved_tensors
        return (gradient * upstream[0]).to(ctx.type), *(None for _ in ctx.needs_input_grad[1:])


class ChunkedLoss(LossWithGradient):
    """Gradients are made along with the loss, so that no logit is computed twice (as Liger does, arXiv:2410.10989)."""

    @staticmethod
    def forward(ctx: Any, states: Any, targets: Any, model: Any, divisor: Any, with_gradient: bool) -> Any:
        """The loss; `states` (N, H), `targets` (N,). The head is frozen: it gets no gradient."""
        gradient = torch.empty(states.shape, dtype=gradient_type(states.dtype), device=states.device)
        before, after = (divisor, 1) if gradient.dtype == states.dtype else (1, divisor)  # where it is divided by, of a chunk or of all
        total = torch.zeros((), device=states.device)
        rows = max(1, CHUNK_LOGITS // model.config.vocab_size)
        for start in range(0, len(targets), rows):
            piece = slice(start, start + rows)
            with torch.set_grad_enabled(with_gradient):
                chunk = states[piece].detach().requires_grad_(with_gradient)
                loss = torch.nn.functional.cross_entropy(to_logits(model, chunk), targets[piece], reduction="sum") / before
            total += loss.detach()
            if with_gradient:
                gradient[piece] = torch.autograd.grad(loss, chunk)[0]
        if with_gradient:
            ChunkedLoss.keep(ctx, states, gradient.div_(after))
        return total / after


def gradient_type(states: torch.dtype) -> torch.dtype:
    """The type in which the gradient of hidden states waits for the loss scale: theirs, but of float16 float32.

    Divided by the tokens of a step most of it is below float16's smallest number, 6e-8, until it is scaled (arXiv:1710.03740, section 3.2).
    """
    return torch.float32 if states == torch.float16 else states


def logit_rule(config: Any) -> tuple[float, float | None]:
    """What an architecture does to its head's output: a factor (Granite, Cohere) and a softcap (Gemma 2; None: none)."""
    factor = 1.0
    for key, power in SCALES.items():
        value = getattr(config, key, None)
        factor *= 1.0 if value is None else float(value) ** power
    return factor, getattr(config, "final_logit_softcapping", None)


def to_logits(model: Any, states: Any) -> Any:
    """Float32 logits (N, V) of last hidden states (N, H)."""
    factor, softcap = logit_rule(model.config)
    logits = model.lm_head(states)
    if factor != 1.0:
        logits = logits * factor
    if softcap is not None:
        logits = (logits / softcap).tanh() * softcap
    return logits.float()


def check_head(model: Any) -> None:
    """Prove on four tokens that `to_logits` of the last hidden states is what `model` (below PEFT) answers; `ToolError` if not.

    Also refuses a head that is trained: neither this loss nor Liger's makes gradients for it here.
    """
    if any(parameter.requires_grad for parameter in model.lm_head.parameters()):
        raise ToolError("lm_head has an adapter, for which the losses here make no gradients: take lm_head out of train.target_modules")
    ids = torch.arange(4, device=model.lm_head.weight.device)[None]
    with torch.no_grad():
        ours = to_logits(model, model.model(input_ids=ids, use_cache=False)[0])
        theirs = model(input_ids=ids, use_cache=False).logits.float()
    if not theirs.isfinite().all():
        raise GateError("the base's answers are no numbers before any training: run stage base again, for its weights are damaged")
    if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2 * float(theirs.abs().max())):
        raise ToolError(f"{model.config.model_type} makes its logits in a way the fused and the chunked loss don't know: take another base")

"""What every loss here is made of: the hidden states that are trained, how they become logits, a gradient
made along with the loss.
"""

from typing import Any

import torch

# what architectures multiply (1) or divide (-1) their logits by
SCALES = {"logit_scale": 1, "lm_head_multiplier": 1, "output_multiplier": 1, "logits_scaling": -1}


def trained_states(model: Any, inputs: dict[str, Any]) -> tuple[Any, Any]:
    """The last hidden states (N, H) of positions whose next token is trained, and those tokens' ids (N,)."""
    hidden = model.model(**{key: value for key, value in inputs.items() if key != "labels"}, use_cache=False)[
        0
    ]  # (B, S, H)
    targets = inputs["labels"][:, 1:]
    trained = targets != -100
    return hidden[:, :-1][trained], targets[trained]


class LossWithGradient(torch.autograd.Function):
    """A loss of hidden states, its first argument, with the gradient made along; nothing else gets one."""

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


def gradient_type(states: torch.dtype) -> torch.dtype:
    """The type in which the gradient of hidden states waits for the loss scale: theirs, but of float16
    float32.

    Divided by the tokens of a step most of it is below float16's smallest number, 6e-8, until it is scaled
    (arXiv:1710.03740, section 3.2).
    """
    return torch.float32 if states == torch.float16 else states


def logit_rule(config: Any) -> tuple[float, float | None]:
    """An architecture's factor (Granite, Cohere) and softcap (Gemma 2; None: none) on its head's output."""
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

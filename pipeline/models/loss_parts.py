"""Parts of every loss here: the hidden states that train, their logits, a gradient made with the loss."""

from typing import Any

import torch

# {key of config.json: 1 if the architecture multiplies its logits by the value, -1 if it divides them}
SCALES = {"logit_scale": 1, "lm_head_multiplier": 1, "output_multiplier": 1, "logits_scaling": -1}


def trained_states(model: Any, inputs: dict[str, Any]) -> tuple[Any, Any]:
    """Return last hidden states (N, H) of positions whose next token trains, and those tokens' ids (N,)."""
    hidden = model.model(**{key: value for key, value in inputs.items() if key != "labels"}, use_cache=False)[
        0
    ]  # (B, S, H)
    targets = inputs["labels"][:, 1:]
    trained = targets != -100
    return hidden[:, :-1][trained], targets[trained]


class LossWithGradient(torch.autograd.Function):
    """Loss of hidden states, its first argument, whose gradient is computed with it.

    No other argument gets a gradient.
    """

    @staticmethod
    def keep(ctx: Any, states: Any, gradient: Any) -> None:
        """Keep the gradient of `states`, before scaling by the loss's own, as the last call of `forward`."""
        ctx.save_for_backward(gradient.to(gradient_type(states.dtype)))
        ctx.type = states.dtype

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        """Return the gradient of `states`, scaled by the loss's own gradient."""
        (gradient,) = ctx.saved_tensors
        return (gradient * upstream[0]).to(ctx.type), *(None for _ in ctx.needs_input_grad[1:])


def gradient_type(states: torch.dtype) -> torch.dtype:
    """Return the type in which the gradient of hidden states is kept until the loss is scaled: their own, but
    float32 for float16.

    Divided by the tokens of a step, most of it is below float16's smallest number, 6e-8, until it is scaled
    (arXiv:1710.03740, section 3.2).
    """
    return torch.float32 if states == torch.float16 else states


def logit_rule(config: Any) -> tuple[float, float | None]:
    """Return an architecture's factor (Granite, Cohere) and softcap (Gemma 2; None: none) on head outputs."""
    factor = 1.0
    for key, power in SCALES.items():
        value = getattr(config, key, None)
        factor *= 1.0 if value is None else float(value) ** power
    return factor, getattr(config, "final_logit_softcapping", None)


def to_logits(model: Any, states: Any) -> Any:
    """Return float32 logits (N, V) of last hidden states (N, H)."""
    factor, softcap = logit_rule(model.config)
    logits = model.lm_head(states)
    if factor != 1.0:
        logits = logits * factor
    if softcap is not None:
        logits = (logits / softcap).tanh() * softcap
    return logits.float()

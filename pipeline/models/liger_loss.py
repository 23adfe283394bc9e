"""Liger's kernels: RMSNorm, RoPE, SwiGLU put into transformers before the model loads, and the fused loss."""

import inspect
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.core.errors import ToolError

# of an architecture that has all kernels
SWITCHES = {"rope", "rms_norm", "swiglu", "cross_entropy", "fused_linear_cross_entropy"}


def choose_loss(wanted: str, *, mixture: bool = False, norms: bool = False) -> str:
    """`auto` as what this machine can do: liger on a GPU with Triton, chunked elsewhere, for a mixture of
    experts and where `norms` train. Raises `ToolError` for liger without these.
    """
    import torch

    if (mixture or norms) and wanted == "auto":
        return "chunked"
    missing = [
        what
        for what, there in (("a GPU", torch.cuda.is_available()), ("Triton", find_spec("triton") is not None))
        if not there
    ]
    if wanted == "auto":
        return "chunked" if missing else "liger"
    if wanted == "liger" and missing:
        raise ToolError(
            "Q-MODELS-013",
            f"train.loss is liger, whose kernels need {missing[0]}, and this machine has none: set it to "
            "auto or chunked",
        )
    return wanted


def apply_liger(folder: Path) -> None:
    """Swap this architecture's RMSNorm, RoPE and SwiGLU for Liger's kernels, in this process for good, before
    the model is loaded.

    Raises `ToolError` if Liger doesn't have them for the architecture.
    """
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    model_type = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    apply = MODEL_TYPE_TO_APPLY_LIGER_FN.get(model_type)
    if apply is None or not set(inspect.signature(apply).parameters) >= SWITCHES:
        raise ToolError(
            "Q-MODELS-014",
            f"Liger has no kernels for RMSNorm, RoPE and SwiGLU of {model_type}: set train.loss to chunked",
        )
    # the fused loss is called by the trainer itself, at the trained positions only
    apply(rope=True, rms_norm=True, swiglu=True, fused_linear_cross_entropy=False, cross_entropy=False)


def check_liger(model: Any) -> None:
    """Prove that the loaded `model` (below PEFT) is made of Liger's parts; `ToolError` names the first that
    isn't.

    Liger replaces classes by name, so where transformers renames one nothing would happen, in silence.
    """
    from liger_kernel.transformers.rope import liger_rotary_pos_emb

    layer = model.model.layers[0]
    if getattr(sys.modules[type(model).__module__], "apply_rotary_pos_emb", None) is not liger_rotary_pos_emb:
        raise ToolError(
            "Q-MODELS-014",
            f"RoPE of {model.config.model_type} is not Liger's after loading: set train.loss to chunked",
        )
    for part in (layer.input_layernorm, layer.post_attention_layernorm, layer.mlp, model.model.norm):
        if not type(part).__name__.startswith("Liger"):
            raise ToolError(
                "Q-MODELS-014",
                f"{type(part).__name__} of {model.config.model_type} is not Liger's after loading: set "
                "train.loss to chunked",
            )


def fused_loss(model: Any, inputs: dict[str, Any], tokens: Any = None) -> Any:
    """`chunked_loss` by Liger's fused linear cross entropy (arXiv:2410.10989): the same number, and
    gradients, from one kernel.

    Liger's kernel needs the entire head dense, so a quantized one has a loss of its own,
    `pipeline.models.quantized_head`.
    """
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    from pipeline.models.chunked_loss import chunked_loss
    from pipeline.models.loss_parts import logit_rule, trained_states
    from pipeline.models.quantized_head import has_quantized_head

    if has_quantized_head(model):
        return chunked_loss(model, inputs, tokens)
    states, targets = trained_states(model, inputs)
    factor, softcap = logit_rule(model.config)
    head = model.lm_head
    # the head is linear: a factor on its output is one on its input, but for the bias, which no architecture
    # has with a factor
    loss = LigerFusedLinearCrossEntropyLoss(reduction="sum", softcap=softcap)(
        head.weight, states * factor, targets, head.bias
    )
    return loss / (max(len(targets), 1) if tokens is None else tokens)

"""Liger's RMSNorm, RoPE and SwiGLU, put into transformers before the model loads, and its fused loss."""

import inspect
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.core.errors import ToolError
from pipeline.core.text import shortened
from pipeline.models.small_model import empty
from pipeline.models.text_config import read_text_config

# arguments of an architecture that has all kernels
SWITCHES = {"rope", "rms_norm", "swiglu", "cross_entropy", "fused_linear_cross_entropy"}


def choose_loss(wanted: str, *, mixture: bool = False, norms: bool = False) -> str:
    """Return the loss that `auto` stands for on this machine: liger on a GPU with Triton, chunked elsewhere,
    for a mixture of experts and if `norms` train. Raises `ToolError` for liger without these. `try_liger`
    decides whether Liger knows the architecture.
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
    """Replace kernels as `try_liger` does.

    Raises `ToolError` if Liger doesn't have them for the architecture.
    """
    lacking = try_liger(folder)
    if lacking:
        raise ToolError("Q-MODELS-014", f"{lacking}: set train.loss to auto or chunked")


def try_liger(folder: Path) -> str:
    """Replace this architecture's RMSNorm, RoPE and SwiGLU by Liger's kernels, permanently in this process,
    before the model is loaded. Return an empty text, or what Liger lacks for the architecture; nothing is
    replaced then.
    """
    return lacking_kernels(read_text_config(folder), swap=True)


def lacking_kernels(config: Any, *, swap: bool) -> str:
    """Return what Liger lacks for the architecture of transformers' `config`, an empty text if nothing. If
    `swap` is set, Liger's parts then stay in place of the architecture's.
    """
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    model_type = config.model_type
    apply = MODEL_TYPE_TO_APPLY_LIGER_FN.get(model_type)
    if apply is None or not set(inspect.signature(apply).parameters) >= SWITCHES:
        return f"Liger has no kernels for RMSNorm, RoPE and SwiGLU of {model_type}"
    plain = empty(config)
    missing = [name for name, part in swapped_parts(plain).items() if part is None]
    if missing:
        return f"{model_type} has no {missing[0]}, whose place Liger's kernel would take"
    code = sys.modules[type(plain).__module__]
    before = dict(vars(code))
    stays = False
    try:
        # The trainer itself calls the fused loss, only at the trained positions.
        apply(rope=True, rms_norm=True, swiglu=True, fused_linear_cross_entropy=False, cross_entropy=False)
        check_liger(empty(config))
        stays = swap
    # Liger raises exceptions of any type for an architecture that it only partly knows.
    except Exception as error:
        return f"Liger has not all kernels for {model_type} ({shortened(error)})"
    finally:
        if not stays:  # Parts that were replaced before a failure would otherwise stay in the model.
            vars(code).update(before)
    return ""


def swapped_parts(model: Any) -> dict[str, Any]:
    """Return the modules that Liger's kernels replace, by their names in Llama; None for one that the
    architecture doesn't have.
    """
    decoder = getattr(model, "model", None)
    layers = getattr(decoder, "layers", None)
    layer = layers[0] if layers else None
    in_layer = ("input_layernorm", "post_attention_layernorm", "mlp")
    return {name: getattr(layer, name, None) for name in in_layer} | {"norm": getattr(decoder, "norm", None)}


def check_liger(model: Any) -> None:
    """Prove that the loaded `model` (below PEFT) consists of Liger's parts. Raises `ToolError` naming the
    first that isn't one.

    Liger replaces classes by name. If transformers renames one, nothing is replaced and no error is raised.
    """
    from liger_kernel.transformers.rope import liger_rotary_pos_emb

    model_type = model.config.model_type
    if getattr(sys.modules[type(model).__module__], "apply_rotary_pos_emb", None) is not liger_rotary_pos_emb:
        raise ToolError(
            "Q-MODELS-014", f"RoPE of {model_type} is not Liger's after loading: set train.loss to chunked"
        )
    for name, part in swapped_parts(model).items():
        if not type(part).__name__.startswith("Liger"):
            raise ToolError(
                "Q-MODELS-014",
                f"{name} of {model_type} is {type(part).__name__} after loading, not Liger's: set train.loss "
                "to chunked",
            )


def fused_loss(model: Any, inputs: dict[str, Any], tokens: Any = None) -> Any:
    """Return `chunked_loss` by Liger's fused linear cross entropy (arXiv:2410.10989): the same number and
    gradients from one kernel.

    Liger's kernel needs the entire head dense, so a quantized head has a loss of its own,
    `pipeline.models.quantized_head`.
    """
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    from pipeline.models.chunked_loss import chunked_loss
    from pipeline.models.loss_parts import logit_rule, trained_states
    from pipeline.models.quantized_head import goes_by_blocks

    if goes_by_blocks(model):
        return chunked_loss(model, inputs, tokens)
    states, targets = trained_states(model, inputs)
    factor, softcap = logit_rule(model.config)
    head = model.lm_head
    # The head is linear: a factor on its output is one on its input, except for the bias. No architecture has
    # both a bias and a factor.
    loss = LigerFusedLinearCrossEntropyLoss(reduction="sum", softcap=softcap)(
        head.weight, states * factor, targets, head.bias
    )
    return loss / (max(len(targets), 1) if tokens is None else tokens)

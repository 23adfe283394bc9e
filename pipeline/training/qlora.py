"""The model that QLoRA trains: a frozen NF4 base with a float32 LoRA adapter, and its fused or chunked loss."""

from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, ToolError
from pipeline.params import Train


def load_quantised(folder: Path, train: Train) -> Any:
    """The base model with its linears in NF4 (or plain 16 bit where `load_in_4bit` is off), frozen.

    Unlike PEFT's `prepare_model_for_kbit_training` nothing is cast to float32: embeddings and head would cost
    2 GB more at 7B, for nothing.
    """
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    dtype = getattr(torch, train.bnb_4bit_compute_dtype)
    nf4 = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=train.bnb_4bit_use_double_quant,
        bnb_4bit_compute_dtype=dtype,
    )
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, quantization_config=nf4 if train.load_in_4bit else None, device_map={"": device},
        local_files_only=True, trust_remote_code=False, use_safetensors=True,
    )  # fmt: skip
    model.config.use_cache = False  # with a cache, packed rows leak into each other (field-measured: logits differ by 25)
    model.requires_grad_(False)
    return model


def lora_config(train: Train) -> Any:
    """PEFT's configuration of the adapter, sorted so that its file has the same bytes in every run."""
    from peft import LoraConfig

    return LoraConfig(
        task_type="CAUSAL_LM",
        r=train.r,
        lora_alpha=train.lora_alpha,
        lora_dropout=train.lora_dropout,
        target_modules=list(train.target_modules),
        bias="none",
    )


def check_adapter(model: Any, train: Train) -> int:
    """The number of trainable parameters, proven to be Σ r·(in + out) over all targeted linears (LoRA, arXiv:2106.09685).

    Raises `ConfigError` where a target module is nowhere in the model, `AssertionError` where the count is off.
    """
    from peft.tuners.lora import LoraLayer

    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    hit = {name.rpartition(".")[2] for name in layers}
    missed = sorted(set(train.target_modules) - hit)
    if missed:
        raise ConfigError(
            f"train.target_modules names {', '.join(missed)}, which this model has not: take names of its linears, {', '.join(sorted(hit))} do exist"
        )
    expected = sum(train.r * (layer.in_features + layer.out_features) for layer in layers.values())
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    if trainable != expected:
        raise AssertionError(f"{trainable} parameters are trainable, {expected} by the formula")
    return int(trainable)


def choose_loss(wanted: str) -> str:
    """`auto` as what this machine can do: liger on a GPU, chunked elsewhere. Raises `ToolError` for liger without a GPU."""
    import torch

    if wanted == "auto":
        return "liger" if torch.cuda.is_available() else "chunked"
    if wanted == "liger" and not torch.cuda.is_available():
        raise ToolError("train.loss is liger, whose kernels need a GPU, and this machine has none: set it to auto or chunked")
    return wanted


def apply_liger(folder: Path) -> None:
    """Swap this architecture's RMSNorm, RoPE and SwiGLU for Liger's kernels, before the model is loaded.

    Raises `ToolError` where Liger doesn't know the architecture.
    """
    import json

    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    model_type = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    apply = MODEL_TYPE_TO_APPLY_LIGER_FN.get(model_type)
    if apply is None:
        raise ToolError(f"Liger has no kernels for {model_type}: set train.loss to chunked")
    # the fused loss is called by train.py's trainer itself: TRL patches the model's forward and forbids Liger's
    apply(fused_linear_cross_entropy=False, cross_entropy=False)


def fused_loss(model: Any, inputs: dict[str, Any], tokens: Any) -> Any:
    """Summed cross entropy over the trained tokens ÷ `tokens`, by Liger's fused linear cross entropy (arXiv:2410.10989).

    The logits (T, V) are never whole in memory. `model` is the causal model below PEFT.
    """
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    labels = inputs["labels"]
    hidden = model.model(**{key: value for key, value in inputs.items() if key != "labels"}, use_cache=False)[0]  # (B, T, H)
    hidden, targets = hidden[:, :-1].reshape(-1, hidden.shape[-1]), labels[:, 1:].reshape(-1)
    loss = LigerFusedLinearCrossEntropyLoss(reduction="sum")(model.lm_head.weight, hidden, targets)
    return loss / (tokens if tokens is not None else (targets != -100).sum().clamp(min=1))

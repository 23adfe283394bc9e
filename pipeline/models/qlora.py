"""Load the model that QLoRA trains: a frozen base in NF4 or a GGUF's blocks with a float32 LoRA adapter.
Prove that it is that.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from pipeline.config.sections import Train, Training
from pipeline.config.targets import is_router, is_target, layer_of, trains_in
from pipeline.core.errors import ConfigError, ToolError
from pipeline.models.merging.nf4 import quick_quantizer
from pipeline.models.read_weights import kept_in_16_bit
from pipeline.models.runtime import freed_at_once
from pipeline.models.small_model import empty
from pipeline.models.text_config import read_text_config

# Settings for a model that only answers: where its weights are changes no number.
ON_ONE_DEVICE = {"offload": "none"}


def load_quantized(folder: Path, train: Training, device: str | None = None) -> Any:
    """Return the base model quantized by `train.quantization`, frozen, on the GPU if there is one: linears in
    NF4, in a GGUF's own blocks, or in 16 bit.

    Unlike PEFT's `prepare_model_for_kbit_training` nothing is cast to float32: see `float32_cast_bytes`.
    Raises `ToolError` if a linear is not NF4, `DataError` if a GGUF can't be trained on, `ConfigError` if the
    embeddings can't be in main memory.
    """
    import torch

    from pipeline.models.wide_products import widen_products

    dtype = getattr(torch, train.bnb_4bit_compute_dtype)
    device = device or ("cuda:0" if torch.cuda.is_available() else "cpu")
    widen_products()
    if train.quantization == "gguf":
        from pipeline.models.quantized_model import load_gguf

        return load_gguf(folder, compute_dtype=dtype, device=device, in_main_memory=train.offloaded_layers)
    with freed_at_once():
        return load_safetensors(folder, train, dtype, device)


def load_safetensors(folder: Path, train: Training, dtype: Any, device: str) -> Any:
    """Return a Hugging Face folder's model, linears in NF4, or in `dtype` if `train.quantization` is none."""
    from pipeline.models.loading import load_model

    with quick_quantizer():
        model = load_model(
            folder,
            dtype=dtype,
            quantization_config=nf4_settings(folder, dtype) if train.quantization == "nf4" else None,
            device_map={"": device},
        )
    # With a cache, packed rows leak into each other (measured: logits differ by 25).
    model.config.use_cache = False
    model.requires_grad_(False)
    if train.quantization == "nf4":
        check_quantized(model, train)
        forbid_repacking(model)
    alone = not model.config.tie_word_embeddings
    if train.embeddings_in_ram and (alone or train.offload == "embeddings"):
        keep_embeddings_on_cpu(model)
    return model


def nf4_settings(folder: Path, dtype: Any) -> Any:
    """Return transformers' settings for the model in `folder` in NF4, computed in `dtype`."""
    from transformers import BitsAndBytesConfig
    from transformers.quantizers.base import get_keys_to_not_convert

    model = empty(read_text_config(folder))
    apart = kept_in_16_bit(model)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,  # saves 0.37 bit a parameter
        bnb_4bit_compute_dtype=dtype,
        # A list replaces the modules that are left out by themselves.
        llm_int8_skip_modules=[*get_keys_to_not_convert(model), *apart] if apart else None,
    )


def check_quantized(model: Any, train: Training) -> None:
    """Prove before an adapter is added that every linear it will be added to is quantized and NF4, routers
    excepted. Raises `ToolError` naming the first that isn't.
    """
    for name, module in model.named_modules():
        if is_target(name, train) and hasattr(module, "in_features") and not is_router(name):
            state = getattr(getattr(module, "weight", None), "quant_state", None)
            quant_type = "not quantized" if state is None else state.quant_type
            if quant_type != "nf4":
                raise ToolError(
                    "Q-MODELS-024",
                    f"{name} is {quant_type} where NF4 was asked for: run `make setup` for the pinned "
                    "bitsandbytes, or set base.quantization to none",
                )


def forbid_repacking(model: Any) -> None:
    """Keep bitsandbytes from rewriting the weights at the first evaluation.

    On a CPU with AVX512-BF16 its `Linear4bit.forward` repacks the weight in place, permanently, the first
    time it runs in evaluation mode. Its kernel for that layout has no backward. From then on training would
    lose every gradient through the base, with no more than a warning (0.50.2).
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def float32_cast_bytes(model: Any) -> int:
    """Return the bytes that PEFT's `prepare_model_for_kbit_training` would add: it casts every 16-bit
    parameter to float32.

    These are embeddings, head and norms; 2.18 GB for Qwen2.5-7B. `model` is a base from `load_quantized`.
    """
    return sum(p.numel() * 2 for p in model.parameters() if p.element_size() == 2 and p.is_floating_point())


def keep_embeddings_on_cpu(model: Any) -> None:
    """Put the input embeddings into main memory.

    A forward moves only the rows it looks up to the device of the rest. The table is not a parameter then, so
    nothing that moves the model moves it. Without a GPU nothing changes. Raises `ConfigError` if head and
    embeddings are one table, which the head needs on the GPU anyway.
    """
    import torch

    if model.config.tie_word_embeddings:
        raise ConfigError(
            "Q-MODELS-025",
            "train.offload is embeddings, but this base's embeddings are also its head, which stays on "
            "the GPU: set it to none",
        )
    embeddings = model.get_input_embeddings()

    class EmbeddingsInMainMemory(torch.nn.Module):
        """Embeddings whose rows are looked up on the device of the table."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = embeddings.weight.detach().cpu()  # (V, H)

        def forward(self, ids: Any) -> Any:
            """Return rows (B, S, H) on the head's device for token ids (B, S)."""
            rows = torch.nn.functional.embedding(ids.cpu(), self.weight)
            return rows.to(model.get_output_embeddings().weight.device)

    model.set_input_embeddings(EmbeddingsInMainMemory())


def check_layers(paths: Iterable[str], train: Train, targets: Sequence[str], layers: int, what: str) -> None:
    """Raise `ConfigError` unless each of these `layers` that trains has one of `paths` for each of `targets`.
    `what` names the things with a path.
    """
    counts = Counter((layer_of(path), path.rpartition(".")[2]) for path in paths)
    training_layers = [number for number in range(layers) if trains_in(number, train)]
    for number, target in product(training_layers, targets):
        if counts[number, target] != 1:
            raise ConfigError(
                "Q-MODELS-026",
                f"layer {number} has {counts[number, target]} {what.format(target)}, and each layer must "
                "have 1: take targets that all its layers have, or a regular expression as "
                rf".*\.({target}), which trains a linear in each layer that has it",
            )


def linear_names(model: Any) -> list[str]:
    """Return the names of the layers' linears ("layers.3.self_attn.q_proj"), with or without an adapter."""
    import torch

    return [
        f"layers.{name.partition('.layers.')[2].removesuffix('.base_layer')}"
        for name, module in model.named_modules()
        if ".layers." in name and ".lora_" not in name and isinstance(module, torch.nn.Linear)
    ]

"""The model that QLoRA trains: a frozen base in NF4 or a GGUF's blocks with a float32 LoRA adapter, and the
proofs that it is that.
"""

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

from pipeline.config.sections import Training
from pipeline.core.errors import ConfigError, ToolError
from pipeline.models.experts.targets import check_routed, is_routed, plain_targets


def load_quantized(folder: Path, train: Training, device: str | None = None) -> Any:
    """The base model as `train.quantization` says, frozen, on the GPU if there is one: linears in NF4, in a
    GGUF's own blocks, or in 16 bit.

    Unlike PEFT's `prepare_model_for_kbit_training` nothing is cast to float32: see `float32_cast_bytes`.
    Raises `ToolError` if a linear is not NF4, `DataError` if a GGUF can't be trained on, `ConfigError` if
    `embeddings_on_cpu` can't be.
    """
    import torch

    dtype = getattr(torch, train.bnb_4bit_compute_dtype)
    device = device or ("cuda:0" if torch.cuda.is_available() else "cpu")
    if train.quantization == "gguf":
        from pipeline.models.quantized_model import load_gguf

        return load_gguf(folder, compute_dtype=dtype, device=device, dense=not train.keep_quantized)
    return load_safetensors(folder, train, dtype, device)


def load_safetensors(folder: Path, train: Training, dtype: Any, device: str) -> Any:
    """The model of a Hugging Face folder with its linears in NF4, or in `dtype` where `train.quantization` is
    none.
    """
    from transformers import BitsAndBytesConfig

    from pipeline.models.experts.separate import load_model

    nf4 = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=train.bnb_4bit_use_double_quant,
        bnb_4bit_compute_dtype=dtype,
    )
    model = load_model(
        folder,
        dtype=dtype,
        quantization_config=nf4 if train.quantization == "nf4" else None,
        device_map={"": device},
    )
    # with a cache, packed rows leak into each other (field-measured: logits differ by 25)
    model.config.use_cache = False
    model.requires_grad_(False)
    if train.quantization == "nf4":
        check_quantized(model, train)
        forbid_repacking(model)
    if train.embeddings_on_cpu:
        keep_embeddings_on_cpu(model)
    return model


def check_quantized(model: Any, train: Training) -> None:
    """Prove, before an adapter is put on, that every linear it will be put on is quantized and NF4;
    `ToolError` names the first that isn't.
    """
    for name, module in model.named_modules():
        if ".layers." in name and name.rpartition(".")[2] in train.target_modules:
            state = getattr(getattr(module, "weight", None), "quant_state", None)
            found = "not quantized" if state is None else state.quant_type
            if found != "nf4":
                raise ToolError(
                    "Q-MODELS-024",
                    f"{name} is {found} where NF4 was asked for: run `make setup` for the pinned "
                    "bitsandbytes, or set base.quantization to none",
                )


def forbid_repacking(model: Any) -> None:
    """Keep bitsandbytes from rewriting the weights at the first evaluation.

    On a CPU with AVX512-BF16 its `Linear4bit.forward` repacks the weight in place, for good, the first time
    it runs in evaluation mode; its kernel for that has no backward, so that from then on training loses every
    gradient through the base, with no more than a warning (0.50.2).
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def float32_cast_bytes(model: Any) -> int:
    """Bytes that PEFT's `prepare_model_for_kbit_training` would add: it casts every 16-bit parameter to
    float32.

    These are embeddings, head and norms; 2.18 GB for Qwen2.5-7B. `model` is a base as `load_quantized` gives
    it.
    """
    return sum(p.numel() * 2 for p in model.parameters() if p.element_size() == 2 and p.is_floating_point())


def keep_embeddings_on_cpu(model: Any) -> None:
    """Put the input embeddings into main memory; a forward moves only the rows it looks up to where the rest
    is.

    The table is no parameter then, so nothing that moves the model takes it along. Without a GPU nothing
    changes. Raises `ConfigError` if head and embeddings are one table, which the head needs on the GPU
    anyway.
    """
    import torch

    if model.config.tie_word_embeddings:
        raise ConfigError(
            "Q-MODELS-025",
            "train.embeddings_on_cpu is on, but this base's embeddings are also its head, which stays on "
            "the GPU: set it to false",
        )
    embeddings, device = model.get_input_embeddings(), model.get_output_embeddings().weight.device

    class EmbeddingsInMainMemory(torch.nn.Module):
        """Looks up where the table is."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = embeddings.weight.detach().cpu()  # (V, H)

        def forward(self, ids: Any) -> Any:
            """Rows (B, S, H) on the model's device for token ids (B, S)."""
            return torch.nn.functional.embedding(ids.cpu(), self.weight).to(device)

    model.set_input_embeddings(EmbeddingsInMainMemory())


def linear_names(model: Any) -> list[str]:
    """The names of all linears in the layers, "layers.3.self_attn.q_proj", whether they have an adapter or
    not.
    """
    import torch

    return [
        f"layers.{name.partition('.layers.')[2].removesuffix('.base_layer')}"
        for name, module in model.named_modules()
        if ".layers." in name and ".lora_" not in name and isinstance(module, torch.nn.Linear)
    ]


def lora_config(train: Training) -> Any:
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


def check_adapter(model: Any, train: Training) -> int:
    """The number of trainable parameters, proven to be Σ r·(in + out) over every target of every layer (LoRA,
    arXiv:2106.09685).

    Raises `ConfigError` if a layer lacks a target or a linear outside the layers has an adapter,
    `AssertionError` where anything but LoRA trains or the count is off.
    """
    from peft.tuners.lora import LoraLayer

    layers = model.get_base_model().model.layers
    matched = {
        f"layers.{number}.{name}": module
        for number, layer in enumerate(layers)
        for name, module in layer.named_modules()
        if isinstance(module, LoraLayer)
    }
    linears = linear_names(model)
    check_routed(matched, linears, train)
    ours, asked = [name for name in matched if not is_routed(name)], plain_targets(train, linears)
    hit = sorted({name.rpartition(".")[2] for name in ours})
    if unknown := sorted(set(asked) - set(hit)):
        raise ConfigError(
            "Q-MODELS-026",
            f"train.target_modules names {', '.join(unknown)}, which this model's layers have not: take "
            f"names of its linears, as {linears[0].rpartition('.')[2]}",
        )
    # by layer and target: "layers.3.self_attn.q_proj" is q_proj of layer 3
    counts = Counter((int(name.split(".")[1]), name.rpartition(".")[2]) for name in ours)
    for number, target in product(range(len(layers)), asked):
        if counts[number, target] != 1:
            raise ConfigError(
                "Q-MODELS-026",
                f"layer {number} has {counts[number, target]} adapters named {target}, and each layer must "
                "have 1: take targets that all its layers have",
            )
    inside = set(matched.values())
    adapted = ((name, one) for name, one in model.named_modules() if isinstance(one, LoraLayer))
    if outside := next((name for name, one in adapted if one not in inside), None):
        raise ConfigError(
            "Q-MODELS-026",
            f"{outside} got an adapter, and only the layers' linears can have one: take it out of "
            "train.target_modules",
        )
    training = {name: one.numel() for name, one in model.named_parameters() if one.requires_grad}
    if other := next((name for name in training if ".lora_" not in name), None):
        raise AssertionError(f"{other} is trainable, and only the adapter should be")
    trainable = sum(training.values())
    expected = sum(train.r * (layer.in_features + layer.out_features) for layer in matched.values())
    if trainable != expected:
        raise AssertionError(f"{trainable} parameters are trainable, {expected} by the formula")
    return int(trainable)

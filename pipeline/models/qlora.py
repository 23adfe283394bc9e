"""The model that QLoRA trains: a frozen base in NF4 or a GGUF's blocks with a float32 LoRA adapter, and the
proofs that it is that.
"""

import re
from collections import Counter
from itertools import product
from math import isclose
from pathlib import Path
from typing import Any

from pipeline.config.sections import Training
from pipeline.config.targets import is_target, left_out, misfits, rank_of, scale_of, trains_in
from pipeline.core.errors import ConfigError, ToolError


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
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    nf4 = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=train.bnb_4bit_use_double_quant,
        bnb_4bit_compute_dtype=dtype,
    )
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        quantization_config=nf4 if train.quantization == "nf4" else None,
        device_map={"": device},
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
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
        if is_target(name, train) and hasattr(module, "in_features"):
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


def lora_config(train: Training) -> Any:
    """PEFT's configuration of the adapter, sorted so that its file has the same bytes in every run."""
    from peft import LoraConfig

    targets = train.target_modules
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=train.r,
        lora_alpha=train.lora_alpha,
        lora_dropout=train.lora_dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=left_out(train),
        rank_pattern=dict(train.rank_pattern),
        alpha_pattern=dict(train.alpha_pattern),
        use_rslora=train.use_rslora,
        use_dora=train.use_dora,
        init_lora_weights=True if train.init_lora_weights == "default" else train.init_lora_weights,
        bias="none",
    )


def check_targets(model: Any, train: Training) -> None:
    """Raise `ConfigError` where `train` names linears, layers or patterns that `model` (without an adapter
    yet) has not.
    """
    linears = [name for name, one in model.named_modules() if hasattr(one, "in_features")]
    if problem := next(misfits(train, linears, len(model.model.layers)), None):
        raise ConfigError("Q-MODELS-026", problem)
    if not isinstance(train.target_modules, str):
        return
    pattern, inside = re.compile(train.target_modules), {name for name in linears if ".layers." in name}
    others = (name for name, _ in model.named_modules() if name and name not in inside)
    if other := next((name for name in others if pattern.fullmatch(name)), None):
        raise ConfigError(
            "Q-MODELS-026",
            f"train.target_modules is {train.target_modules!r}, which matches {other} too, and that is no "
            "linear of a layer: make the pattern narrower",
        )


def check_adapter(model: Any, train: Training) -> int:
    """The number of trainable parameters, proven to be Σ r·(in + out) over every target of every layer that
    trains (LoRA, arXiv:2106.09685), under DoRA Σ r·(in + out) + out, each at its own r and scale.

    Raises `ConfigError` if a layer lacks a target or a linear outside the layers has an adapter,
    `AssertionError` where anything but LoRA trains or a rank, a scale or the count is off.
    """
    from peft.tuners.lora import LoraLayer

    layers = model.get_base_model().model.layers
    matched = {
        f"model.layers.{number}.{name}": module
        for number, layer in enumerate(layers)
        for name, module in layer.named_modules()
        if isinstance(module, LoraLayer)
    }
    # by layer and target: "model.layers.3.self_attn.q_proj" is q_proj of layer 3
    counts = Counter((int(name.split(".")[2]), name.rpartition(".")[2]) for name in matched)
    named = [] if isinstance(train.target_modules, str) else train.target_modules
    training_layers = [number for number in range(len(layers)) if trains_in(number, train)]
    for number, target in product(training_layers, named):
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
    _check_each(model, matched, train)
    training = {name: one.numel() for name, one in model.named_parameters() if one.requires_grad}
    if other := next((name for name in training if ".lora_" not in name), None):
        raise AssertionError(f"{other} is trainable, and only the adapter should be")
    trainable = sum(training.values())
    expected = sum(
        rank_of(name, train) * (layer.in_features + layer.out_features)
        + (layer.out_features if train.use_dora else 0)
        for name, layer in matched.items()
    )
    if trainable != expected:
        raise AssertionError(f"{trainable} parameters are trainable, {expected} by the formula")
    return int(trainable)


def _check_each(model: Any, matched: dict[str, Any], train: Training) -> None:
    """Raise `AssertionError` unless exactly the targets have an adapter, each of its own rank and scale."""
    linears = (name for name, one in model.get_base_model().named_modules() if hasattr(one, "in_features"))
    of_an_adapter = re.compile(r".*\.(base_layer|lora_.*)")
    wanted = {name for name in linears if is_target(name, train) and not of_an_adapter.match(name)}
    if wrong := sorted(wanted ^ matched.keys()):
        raise AssertionError(f"{wrong[0]} has an adapter and is no target, or the other way round")
    for name, layer in matched.items():
        (adapter,) = layer.r
        found, scale = layer.r[adapter], layer.scaling[adapter]
        if found != rank_of(name, train) or not isclose(scale, scale_of(name, train)):
            raise AssertionError(f"{name} has rank {found} and scale {scale}, by the settings it has others")

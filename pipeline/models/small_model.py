"""Build a small random model of a base's own architecture. It shows in a second what can't be computed, or
not as training does, before gigabytes are fetched and data is curated.
"""

from typing import Any

# tokens; longer rows slide if attention has a window
WINDOW = 8
INNER = 64  # features between gate or up and down, also of a mixture's experts
# Sizes that make any architecture small. Those that a config lacks are left out.
SMALL = {
    "vocab_size": 64,
    "vocab_size_per_layer_input": 64,
    "linear_num_key_heads": 2,
}
MAMBA_HEADS = 4
# Standard deviations of weights that make all of a model visible in its logits: of a linear's outputs for
# inputs of 1, and of biases and the logarithms of factors.
GAIN = 1.3
SPREAD = 0.3
# Most parameters of a model that keeps its own widths: 1 GB in float32, built in some seconds.
MOST_PARAMETERS = 1 << 28
WITHOUT_SIZE = {"quantization_config", "dtype", "torch_dtype"}


class TooLarge(Exception):
    """Error for a model that can't be made narrower and takes too long to try."""


def small_model(config: Any) -> Any:
    """Return a random float32 model by `config`, a text model's. It has a layer of each type and is narrow,
    or has its own widths if the architecture can't be built narrow.

    Raises what transformers does if it can't build or compute that one either, and `TooLarge`.
    """
    try:
        return checked(build(narrow_config(config)))
    except Exception:  # Any architecture may require sizes of its own.
        wide = cut_config(config)
    count = parameters(wide)
    if count > MOST_PARAMETERS:
        raise TooLarge(f"it can't be built narrow, and has {count:,} parameters")
    return checked(build(wide))


def narrow_config(full: Any, layers: int | None = None) -> Any:
    """Return `cut_config` with small widths."""
    cut = cut_config(full, layers)
    values = cut.to_dict()
    small: dict[str, Any] = {
        key: INNER for key in values if key.endswith("intermediate_size") and values[key]
    }
    small["hidden_size"] = INNER
    heads = values.get("num_attention_heads")
    if heads:
        # The head size is kept because rotary frequencies can be listed one by one.
        head_size = values.get("head_dim") or full.hidden_size // heads
        groups = 1 if (values.get("num_key_value_heads") or heads) < heads else 2
        # llama.cpp scales the scores of some models by a head's share of the width, which is kept too.
        share = full.hidden_size // heads if values.get("head_dim") else head_size
        small |= {"num_attention_heads": 2, "num_key_value_heads": groups, "hidden_size": 2 * share}
        if values.get("per_layer_config"):
            small["per_layer_config"] = {
                number: layer | ({"num_key_value_heads": groups} if "num_key_value_heads" in layer else {})
                for number, layer in values["per_layer_config"].items()
            }
    if values.get("expand"):
        small["intermediate_size"] = int(values["expand"] * small["hidden_size"])
    if values.get("mamba_num_heads"):
        small |= {"mamba_num_heads": MAMBA_HEADS, "n_groups": MAMBA_HEADS // 2}
    if values.get("mamba_n_heads"):
        inner = int((values.get("mamba_expand") or 1) * small["hidden_size"])
        small |= {"mamba_n_heads": MAMBA_HEADS, "mamba_d_head": inner // MAMBA_HEADS, "mamba_n_groups": 1}
        if "mamba_d_ssm" in values:
            small["mamba_d_ssm"] = inner
    return type(cut).from_dict(values | small)


def cut_config(full: Any, layers: int | None = None) -> Any:
    """Return the configuration with its first `layers`, by default as many as cover each type, and with few
    tokens.
    """
    layers = layers or layers_of_all_types(full)
    values = full.to_dict()
    small: dict[str, Any] = {key: value for key, value in SMALL.items() if values.get(key)}
    small["num_hidden_layers"] = layers
    if values.get("linear_num_value_heads"):
        groups = values["linear_num_value_heads"] // values["linear_num_key_heads"]
        small["linear_num_value_heads"] = SMALL["linear_num_key_heads"] * groups
    if values.get("num_kv_shared_layers") and layers < full.num_hidden_layers:
        small["num_kv_shared_layers"] = 0
    if values.get("sliding_window"):
        small["sliding_window"] = WINDOW
    for key, value in values.items():
        if isinstance(value, list) and len(value) == full.num_hidden_layers:
            small[key] = value[:layers]
        if isinstance(value, dict) and value and all(str(number).isdigit() for number in value):
            small[key] = {number: part for number, part in value.items() if int(number) < layers}
    ids = {key: 0 for key, value in values.items() if key.endswith("_token_id") and value is not None}
    kept = {key: value for key, value in values.items() if key not in WITHOUT_SIZE}
    return type(full).from_dict(kept | small | ids)


def layers_of_all_types(config: Any) -> int:
    """Return the number of layers that covers every type, at least two."""
    types: list[str] = getattr(config, "layer_types", None) or []
    needed = max([2, *(types.index(kind) + 1 for kind in set(types))])
    return min(int(config.num_hidden_layers), needed)


def build(config: Any) -> Any:
    """Return a random float32 model in evaluation mode, the same for the same configuration."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def with_visible_weights(model: Any) -> Any:
    """Give a random model weights of which none can be lost or exchanged without changing its logits, and
    return it: attention that prefers some tokens, norms and factors other than 1, biases other than 0.
    """
    import torch

    random = torch.Generator().manual_seed(0)
    changed = set()  # A tied head is the same memory as the embeddings.
    with torch.no_grad():
        for name, values in model.state_dict().items():
            if not values.is_floating_point() or values.data_ptr() in changed:
                continue
            changed.add(values.data_ptr())
            drawn = torch.randn(values.shape, generator=random)
            if values.dim() > 1:
                values.copy_(drawn * GAIN / values.shape[-1] ** 0.5)
            elif name.endswith("bias"):
                values.copy_(drawn * SPREAD)
            elif values.any():
                values.mul_((drawn * SPREAD).exp())
            else:  # a norm that multiplies by one more than it contains
                values.copy_((drawn * SPREAD).exp() - 1)
        for module in model.modules():
            # Norms make the scores of attention without a scale (Gemma 4) so large that rounding decides.
            if hasattr(module, "q_norm") and getattr(module, "scaling", None) == 1:
                module.q_norm.weight.mul_(2 / module.head_dim**0.5)
    return model


def parameters(config: Any) -> int:
    """Return the number of parameters of a model with this configuration."""
    return sum(parameter.numel() for parameter in empty(config).parameters())


def empty(config: Any) -> Any:
    """Return the model of a configuration without weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def checked(model: Any) -> Any:
    """Return the model after it computed two tokens. Raises what that raises."""
    import torch

    with torch.inference_mode():
        model(input_ids=torch.ones((1, 2), dtype=torch.long), use_cache=False)
    return model

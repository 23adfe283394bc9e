"""Mixtures of experts, recognized by configuration, and refused if their experts can't have an adapter."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import DataError

# Keys for the number of experts in config.json (Qwen, Mixtral, DeepSeek, DBRX …). The count of a GGUF is put
# under the first.
COUNT = re.compile(r"(?:moe_)?(?:num|n)_(?:local_|routed_)?experts")
# {model_type of mixtures whose experts can be trained: general.architecture of their GGUF}
TRAINABLE = {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "mixtral": "llama"}
# {model_type: whether llama.cpp divides the chosen experts' weights by their sum} (`build_moe_ffn` in its
# src/models). No GGUF key overrides it.
NORMALIZED = {"qwen2_moe": False, "qwen3_moe": True}
# {key of config.json that only a mixture has: field in a GGUF's header}
ROUTING = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}


@dataclass(frozen=True)
class Routing:
    """Routed experts of a layer: how many there are, how many of them a token is sent to, and how many
    features each has between gate or up and down. `shared` is that width in the shared expert, 0 if there is
    none. `normalized` is set if the chosen experts' weights are divided by their sum.
    """

    number: int
    used: int
    width: int
    shared: int
    normalized: bool

    def kept(self, hidden: int) -> tuple[int, int, int]:
        """Return the values that a layer keeps of a token in addition to its linears' inputs
        (`pipeline.models.experts.separate`), as (activations, indices, float32 numbers). They are the
        experts' answers before and after weighting and the shared expert's before it; which tokens go to
        which expert; the router's output.
        """
        answers = self.used * (2 * hidden + 1) + (hidden + 1 if self.shared else 0)
        return answers, 3 * self.used, self.number + (self.used + 1 if self.normalized else 0)


def read_routing(config: Mapping[str, Any], number: Callable[[str], int]) -> Routing | None:
    """Return the experts of a model with this config.json, whose keys `number` reads; None if it is dense."""
    kind = config.get("model_type")
    if kind not in TRAINABLE:
        return None
    return Routing(
        number("num_local_experts" if "num_local_experts" in config else "num_experts"),
        number("num_experts_per_tok"),
        number("intermediate_size" if kind == "mixtral" else "moe_intermediate_size"),
        number("shared_expert_intermediate_size") if kind == "qwen2_moe" else 0,
        bool(config.get("norm_topk_prob", kind == "mixtral")),
    )


def check_experts(config: Mapping[str, Any], where: str) -> None:
    """Raise `DataError` if a model with this config.json (or with these fields of a GGUF's header) is a
    mixture of experts that can't be trained: of another kind, or with dense layers among the others.
    """
    sign = sign_of_experts(config)
    if not sign:
        return
    if str(config.get("model_type")).startswith("deepseek"):
        raise DataError(
            "Q-MODELS-010",
            f"{where} is a DeepSeek ({sign}): llama.cpp splits its attention's kv_b_proj into two tensors, "
            "one of them transposed, and its first layers are dense, so an adapter can't be served and "
            "compared tensor by tensor: take a Qwen2-MoE, Qwen3-MoE or Mixtral",
        )
    if config.get("model_type") not in TRAINABLE:
        raise DataError(
            "Q-MODELS-010",
            f"{where} is a mixture of experts ({sign}) of a kind whose experts no adapter can be trained "
            "for: take a Qwen2-MoE, Qwen3-MoE or Mixtral, or a dense model, a Qwen2.5, Qwen3, Llama or "
            "Mistral whose name says no number of active weights (A3B) or experts (8x7B)",
        )
    dense = {"decoder_sparse_step": (None, 1), "mlp_only_layers": (None, [])}
    for key, usual in dense.items():
        if config.get(key) not in usual:
            raise DataError(
                "Q-MODELS-010",
                f"{where} has {key} {config[key]}, so some of its layers are dense, and mixtures are trained "
                "only where every layer has experts: take another mixture",
            )


def check_experts_of(fields: Mapping[str, Any], where: str) -> None:
    """Raise `DataError` as `check_experts` does, for the fields of a GGUF's header."""
    architecture = fields.get("general.architecture")
    count = fields.get(f"{architecture}.expert_count")
    check_experts({"model_type": kind_of(fields), "num_experts": count}, where)


def kind_of(fields: Mapping[str, Any]) -> Any:
    """Return a mixture's model_type from its GGUF's header: a Llama with experts is a Mixtral, others are
    what the header says.
    """
    architecture = fields.get("general.architecture")
    kinds = {gguf: kind for kind, gguf in TRAINABLE.items()}
    dense = architecture == "llama" and _largest(fields.get("llama.expert_count")) < 2
    return architecture if dense else kinds.get(str(architecture), architecture)


def expert_settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of config.json that only a mixture has, its model_type included, from a GGUF's header.
    transformers 5.23 does not read all of them. Empty for a dense model.
    """
    architecture = fields.get("general.architecture")
    kind = kind_of(fields)
    if kind not in TRAINABLE:
        return {}
    values = {key: fields.get(f"{architecture}.{field}") for key, field in ROUTING.items()}
    if kind == "mixtral":
        values["num_local_experts"] = values.pop("num_experts")
    settings = {"model_type": kind, **{key: value for key, value in values.items() if value is not None}}
    if kind == "mixtral":
        return settings
    return settings | {"norm_topk_prob": NORMALIZED[kind], "decoder_sparse_step": 1, "mlp_only_layers": []}


def weighted_otherwise(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield every way in which llama.cpp would weight the experts of a model with this config.json
    differently from training.
    """
    kind = str(config.get("model_type"))
    normalized = bool(config.get("norm_topk_prob", False))
    expected = NORMALIZED.get(kind, normalized)
    if normalized != expected:
        how = "always" if expected else "never"
        yield (
            f"norm_topk_prob is {str(normalized).lower()}, but llama.cpp {how} normalizes the experts' "
            f"weights of {kind}: take a base that was trained with norm_topk_prob {str(expected).lower()}"
        )


def sign_of_experts(config: Mapping[str, Any]) -> str | None:
    """Return the key and value by which a model is a mixture; None for a dense one."""
    # Each layer of a Nemotron-H is of one type. Its class has a number of experts even if none is of these.
    kinds = config.get("layers_block_type") or config.get("hybrid_override_pattern")
    if kinds and not {"moe", "E"} & set(kinds):
        return None
    counts = {key: value for key, value in config.items() if COUNT.fullmatch(key)}
    many = next((key for key, value in counts.items() if _largest(value) > 1), None)
    if many:
        return f"{many} {counts[many]}"
    if not any(value is not None for value in counts.values()):
        named = next((key for key, value in config.items() if key.startswith("moe_") and value), None)
        if named or "moe" in str(config.get("model_type")).lower():
            return f"{named} {config[named]}" if named else f"model_type {config['model_type']}"
    # The config.json of a model with images and that of DBRX keep them in such parts.
    parts = (value for key, value in config.items() if isinstance(value, Mapping) and key.endswith("_config"))
    return next((sign for part in parts if (sign := sign_of_experts(part))), None)


def _largest(value: Any) -> int:
    """Return a number of experts, or the largest of a list by layer."""
    numbers = value if isinstance(value, list) else [value]
    return max((number for number in numbers if isinstance(number, int)), default=0)

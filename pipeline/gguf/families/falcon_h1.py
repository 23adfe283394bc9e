"""Falcon-H1, a hybrid of attention and state spaces whose GGUF contains products in place of its weights.

Its activations are multiplied by settings of config.json. llama.cpp has no such settings. Its converter
multiplies the weights, one factor after the other, and those of a state space's input part by part.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.gguf import state_spaces
from pipeline.gguf.families.base import Config, Family, Settings


class FalconH1(Family):
    """Falcon-H1."""

    def assumed_settings(self, config: Config) -> Settings:
        """Return the multiplier of a head that is tied to the embeddings, which are multiplied when they are
        converted. It is the same tensor then.
        """
        if not config.get("tie_word_embeddings"):
            return {}
        return {"lm_head_multiplier": config["embedding_multiplier"]}

    def stored_shape(self, name: str, shape: tuple[int, ...], config: Config) -> tuple[int, ...]:
        """Return the shape in the GGUF, which is another for some tensors of a state space."""
        return state_spaces.stored_shape(name, shape, config, groups="mamba_n_groups")

    def products(self, name: str, rows: int, config: Config) -> list[tuple[int, int, Callable[[Any], Any]]]:
        """Return the multiplications of a tensor's rows."""
        linear = name.removesuffix(".weight").rpartition(".")[2]
        if linear == "in_proj":
            return list(input_products(config))
        product = products(config).get(linear)
        return [(0, rows, product)] if product else []


@dataclass(frozen=True)
class Product:
    """Multiplication by one factor after the other. Each may round."""

    factors: tuple[float, ...]

    def __call__(self, rows: Any) -> Any:
        """Return the products of the values."""
        for factor in self.factors:
            rows = rows * factor
        return rows


def products(config: Config) -> dict[str, Product]:
    """Return {linear: product that it is multiplied by}, without a state space's input."""
    attention = config["attention_in_multiplier"]
    gate, down = config["mlp_multipliers"]
    factors = {
        "q_proj": (attention,),
        "k_proj": (config["key_multiplier"], attention),
        "v_proj": (attention,),
        "o_proj": (config["attention_out_multiplier"],),
        "gate_proj": (gate,),
        "down_proj": (down,),
        "out_proj": (config["ssm_out_multiplier"],),
        "embed_tokens": (config["embedding_multiplier"],),
        "lm_head": (config["lm_head_multiplier"],),
    }
    return {name: Product(each) for name, each in factors.items()}


def input_products(config: Config) -> Iterator[tuple[int, int, Product]]:
    """Yield the first and last row of each part of a state space's input, and the part's multiplier.

    The parts are the gate, the input, the two projections of the state, and the steps.
    """
    inner = config["mamba_d_ssm"]
    state = config["mamba_n_groups"] * config["mamba_d_state"]
    first = 0
    widths = (inner, inner, state, state, config["mamba_n_heads"])
    for width, factor in zip(widths, config["ssm_multipliers"], strict=True):
        yield first, first + width, Product((config["ssm_in_multiplier"], factor))
        first += width


FALCON_H1 = FalconH1("falcon-h1", ("FalconH1ForCausalLM",), settings=state_spaces.SETTINGS)

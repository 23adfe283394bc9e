"""The products that the GGUF of a Falcon-H1 contains in place of its weights.

Its activations are multiplied by settings of config.json. llama.cpp has no such settings. Its converter
multiplies the weights, one factor after the other, and those of a state space's input part by part.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Product:
    """Multiplication by one factor after the other. Each may round."""

    factors: tuple[float, ...]

    def __call__(self, rows: Any) -> Any:
        """Return the products of the values."""
        for factor in self.factors:
            rows = rows * factor
        return rows


def products(config: Mapping[str, Any]) -> dict[str, Product]:
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


def input_products(config: Mapping[str, Any]) -> Iterator[tuple[int, int, Product]]:
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

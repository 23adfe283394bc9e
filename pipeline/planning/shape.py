"""The shape of a Qwen-, Llama- or Mistral-like model, dense or a mixture, read from its config.json."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError, DataError
from pipeline.models.experts.recognize import ROUTING, Routing, check_experts, read_routing

KNOWN = ("llama", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "mixtral")
# keys of a config.json that a shape is made of
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
KEYS = (*SIZES, "vocab_size", "tie_word_embeddings")
MIXTURE_KEYS = (*ROUTING, "norm_topk_prob")  # and of a mixture's, as many as it has
ROUTED = "experts."  # before the names of a routed expert's linears
TENSORS = {  # the GGUF's names of a layer's linears, without their `ending`
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "shared_expert_gate": "ffn_gate_inp_shexp",
}


@dataclass(frozen=True)
class Linear:
    """One linear of a layer: `inputs` → `outputs` features; `reads` says which tensor of the layer goes
    in.

    Of a routed expert's linear a layer has `copies`, of which a token goes through `used`.
    """

    name: str
    inputs: int
    outputs: int
    bias: bool
    reads: str
    copies: int = 1
    used: int = 1
    inside: str = ""  # the module of attention or of the MLP that it is in
    ending: str = ""  # of its name in a GGUF

    @property
    def tensor(self) -> str:
        """Its name in a GGUF, without the layer."""
        return TENSORS[self.name.removeprefix(ROUTED)] + self.ending

    @property
    def weights(self) -> int:
        """Elements of the weight of one copy, without the bias."""
        return self.inputs * self.outputs

    def path(self, layer: int, copy: int = 0) -> str:
        """Its name in transformers' model, of a routed expert's linear that of one copy."""
        part = "self_attn" if self.reads in ("normed", "attended") else "mlp"
        name = self.name.replace(ROUTED, f"{ROUTED}{copy}.")
        return ".".join(filter(None, ("model.layers", str(layer), part, self.inside, name)))


@dataclass(frozen=True)
class Shape:
    """A decoder of `layers` equal layers; `qk_norms` says that queries and keys are normalized (Qwen3).

    `intermediate` is how many features a token has between gate or up and down, in a mixture in all of its
    experts together, the shared one included. `routing` is None where it is dense.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    qk_norms: bool
    positions: int
    linears: tuple[Linear, ...]  # of one layer
    routing: Routing | None = None

    @property
    def mixture(self) -> bool:
        """Whether it is a mixture of experts."""
        return self.routing is not None

    @property
    def adaptable(self) -> tuple[Linear, ...]:
        """A layer's linears that can have an adapter: `linears`, and the router, which no level quantizes."""
        if self.routing is None:
            return self.linears
        return (*self.linears, Linear("gate", self.hidden, self.routing.number, False, "normed again"))

    @property
    def queries(self) -> int:
        """Width of the queries, and of what attention gives."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of the keys, and of the values."""
        return self.kv_heads * self.head_dim

    @cached_property
    def linear_weights(self) -> int:
        """Elements of all linears' weights but the head's."""
        return self.layers * sum(linear.weights * linear.copies for linear in self.linears)

    @cached_property
    def used_weights(self) -> int:
        """Those of them that a token is multiplied with: the same but in a mixture."""
        return self.layers * sum(linear.weights * linear.used for linear in self.linears)

    @property
    def table_weights(self) -> int:
        """Elements of the embedding; the head has as many."""
        return self.vocabulary * self.hidden

    @cached_property
    def small_weights(self) -> int:
        """Elements of norms, biases and routers."""
        biases = sum(linear.outputs for linear in self.linears if linear.bias)
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norms else 0)
        router = self.routing.number * self.hidden if self.routing else 0
        return self.layers * (biases + norms + router) + self.hidden

    @property
    def parameters(self) -> int:
        """Elements of the entire model; a tied head counts once, as in its file."""
        return self.linear_weights + self.table_weights * (1 if self.tied else 2) + self.small_weights


def read_shape(config: Mapping[str, Any], where: str = "config.json") -> Shape:
    """The shape that a config.json describes, as transformers' `modeling_{llama,mistral,qwen2,qwen3,
    qwen2_moe,qwen3_moe,mixtral}.py` build it.

    Raises `ConfigError` for another architecture, `DataError` for a mixture of experts that can't be trained
    and where a number is missing or can't be.
    """
    check_experts(config, where)
    kind = config.get("model_type")
    if kind not in KNOWN:
        raise ConfigError(
            "Q-PLANNING-005",
            f"{where} is of a {kind!r} model, whose memory can't be planned: plans are made for "
            f"{', '.join(KNOWN)}",
        )

    def number(key: str, default: int | None = None) -> int:
        value = default if config.get(key) is None else config[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise DataError(
                "Q-PLANNING-006",
                f"{where} has {key} {value!r}, which is not a number above 0: take the file that the model "
                "was published with",
            )
        return value

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    kv_heads = number("num_key_value_heads", heads)
    head_dim = number("head_dim", 128 if kind == "qwen3" else hidden // heads)
    if heads % kv_heads:
        raise DataError(
            "Q-PLANNING-006",
            f"{where} has {heads} attention heads over {kv_heads} key-value heads, which don't divide them: "
            "take the file that the model was published with",
        )
    output_bias = kind in ("llama", "qwen3", "qwen3_moe") and bool(config.get("attention_bias"))
    attention_bias = output_bias or kind == "qwen2" or (kind == "qwen2_moe" and config.get("qkv_bias", True))
    mlp_bias = kind == "llama" and bool(config.get("mlp_bias"))
    queries, keys = heads * head_dim, kv_heads * head_dim
    routing = read_routing(config, number)
    inner = number("intermediate_size") if routing is None else routing.shared + routing.used * routing.width
    return Shape(
        layers=number("num_hidden_layers"),
        hidden=hidden,
        intermediate=inner,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=number("vocab_size"),
        tied=bool(config.get("tie_word_embeddings")),
        qk_norms=kind.startswith("qwen3"),
        positions=number("max_position_embeddings", 32_768),
        linears=(
            Linear("q_proj", hidden, queries, attention_bias, "normed"),
            Linear("k_proj", hidden, keys, attention_bias, "normed"),
            Linear("v_proj", hidden, keys, attention_bias, "normed"),
            Linear("o_proj", queries, hidden, output_bias, "attended"),
            *(gated(hidden, inner, mlp_bias) if routing is None else mixed(hidden, routing)),
        ),
        routing=routing,
    )


def gated(hidden: int, inner: int, bias: bool) -> tuple[Linear, ...]:
    """The linears of a dense layer's MLP, or of one expert."""
    return (
        Linear("gate_proj", hidden, inner, bias, "normed again"),
        Linear("up_proj", hidden, inner, bias, "normed again"),
        Linear("down_proj", inner, hidden, bias, "gated"),
    )


def mixed(hidden: int, routing: Routing) -> Iterator[Linear]:
    """The linears of a mixture's MLP: the shared expert's, if there is one, and the routed ones'."""
    if routing.shared:
        for linear in gated(hidden, routing.shared, False):
            yield replace(linear, inside="shared_expert", ending="_shexp")
        yield Linear("shared_expert_gate", hidden, 1, False, "normed again")
    for linear in gated(hidden, routing.width, False):
        apart = replace(linear, name=ROUTED + linear.name, reads=ROUTED + linear.reads, ending="_exps")
        yield replace(apart, copies=routing.number, used=routing.used)


def load_shape(path: Path) -> Shape:
    """`read_shape` of a file; `DataError` where it can't be read."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))  # NaN, Infinity: not ours to refuse
    except OSError as error:
        raise DataError(
            "Q-PLANNING-006",
            f"{path} can't be read ({error.strerror}): run `snakemake base`, or name a config.json with "
            "--config",
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            "Q-PLANNING-006",
            f"{path} is not valid JSON ({error}): take the file that the model was published with",
        ) from error
    if not isinstance(config, dict):
        raise DataError(
            "Q-PLANNING-006", f"{path} is not a JSON object: take the file that the model was published with"
        )
    return read_shape(config, str(path))

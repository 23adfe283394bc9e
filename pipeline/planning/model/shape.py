"""The shape of a decoder, dense or a mixture, and its computation from the numbers in the config.json of a
Qwen-, Llama- or Mistral-like model.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from math import ceil
from typing import Any

from pipeline.core.errors import DataError
from pipeline.gguf.families.registry import LINEARS
from pipeline.models.experts.recognize import ROUTING, Routing, check_experts, read_routing

KNOWN = ("llama", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "mixtral")
# Keys of a config.json that define a shape.
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
MIXTURE_KEYS = (*ROUTING, "norm_topk_prob")  # additional keys of a mixture, which has some or all of them
ROUTED = "experts."  # prefix of the names of a routed expert's linears
TENSORS = {  # GGUF names of a layer's linears, without their `ending`
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "shared_expert_gate": "ffn_gate_inp_shexp",
}
# GGUF names of fused linears, such as Phi's.
FUSED_TENSORS = {"qkv_proj": "attn_qkv", "gate_up_proj": "ffn_up"}


@dataclass(frozen=True)
class Linear:
    """One linear of a layer: `inputs` → `outputs` features; `reads` names its input, a tensor of the layer.

    Of a routed expert's linear a layer has `copies`, of which a token goes through `used`.
    """

    name: str
    inputs: int
    outputs: int
    bias: bool
    reads: str
    copies: int = 1
    used: int = 1
    inside: str = ""  # module of attention or of the MLP that contains it
    ending: str = ""  # suffix of its name in a GGUF
    adapts: bool = True  # True if it can have an adapter
    # Its name in transformers' model with {} for the layer, for an architecture that was built to be planned.
    place: str = ""

    @property
    def tensor(self) -> str:
        """Its name in a GGUF, without the layer; its own name if the GGUF's is not known."""
        placed = LINEARS.get(".".join(self.place.split(".")[-2:]))
        if placed:
            return placed
        name = self.name.removeprefix(ROUTED)
        return (TENSORS | FUSED_TENSORS).get(name, name) + self.ending

    @property
    def weights(self) -> int:
        """Elements of the weight of one copy, without the bias."""
        return self.inputs * self.outputs

    def path(self, layer: int, copy: int = 0) -> str:
        """Return its name in transformers' model; for a routed expert's linear that of one copy."""
        if self.place:
            return self.place.format(layer)
        part = "self_attn" if self.reads in ("normed", "attended") else "mlp"
        name = self.name.replace(ROUTED, f"{ROUTED}{copy}.")
        return ".".join(filter(None, ("model.layers", str(layer), part, self.inside, name)))


@dataclass(frozen=True)
class Kept:
    """Bytes that a forward keeps for the backward, as a polynomial of the row's tokens.

    `values` are those of `step`, 2 · `step` and 3 · `step` tokens, activations in 16 bit. If `whole` is set,
    the layer works in pieces of `step` tokens, the last one padded.
    """

    step: int
    values: tuple[int, int, int]
    whole: bool = False

    def bytes(self, tokens: int) -> int:
        """Return the bytes of a row of `tokens`."""
        steps = Fraction(tokens, self.step)
        if self.whole:
            steps = Fraction(ceil(steps))
        steps -= 1
        first, second, third = self.values
        slope = second - first
        bend = third - 2 * second + first
        return max(0, ceil(first + steps * slope + steps * (steps - 1) * bend / 2))


@dataclass(frozen=True)
class Built:
    """Figures of an architecture that no code here knows, from transformers' own model built without weights
    (`pipeline.planning.model.built`). All of it counts the layers one by one, because they may differ.

    `small` are the elements of all weights that are neither a layer's linears nor the embedding or the head.
    `buffers` are bytes that are in no file. `keys_and_values` are the numbers of a token in the KV cache.
    `kept` is what each layer keeps for the backward without an adapter, `ends_kept` what the rest keeps;
    `widest` is the largest of these tensors, in numbers of a token. `liger` is True if Liger has the loss and
    kernels.
    """

    layers: tuple[tuple[Linear, ...], ...]
    norms: tuple[tuple[tuple[str, int], ...], ...]  # (name, elements) of each layer's norms
    small: int
    buffers: int
    keys_and_values: int
    kept: tuple[Kept, ...]
    ends_kept: Kept
    widest: int
    liger: bool


@dataclass(frozen=True)
class Shape:
    """A decoder of `layers` layers, which are equal unless it was `built`.

    With `qk_norms`, queries and keys are normalized (Qwen3). `intermediate` is the number of features of a
    token between gate or up and down, in a mixture in all of its experts together, the shared one included.
    `routing` is None for a dense model.
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
    linears: tuple[Linear, ...]  # those of one layer; `by_layer` has those of each
    routing: Routing | None = None
    built: Built | None = None

    @property
    def mixture(self) -> bool:
        """True for a mixture of experts."""
        return self.routing is not None

    @property
    def by_layer(self) -> tuple[tuple[Linear, ...], ...]:
        """The linears of each layer."""
        return self.built.layers if self.built else (self.linears,) * self.layers

    @property
    def adaptable(self) -> tuple[tuple[Linear, ...], ...]:
        """Each layer's linears that can have an adapter: its own and the router, which no level quantizes."""
        if self.routing is None:
            return tuple(tuple(linear for linear in linears if linear.adapts) for linears in self.by_layer)
        router = Linear("gate", self.hidden, self.routing.number, False, "normed again")
        return tuple((*linears, router) for linears in self.by_layer)

    @property
    def queries(self) -> int:
        """Width of the queries, and of attention's output."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of the keys, and of the values."""
        return self.kv_heads * self.head_dim

    @cached_property
    def linear_weights(self) -> int:
        """Elements of all linears' weights but the head's."""
        return sum(linear.weights * linear.copies for layer in self.by_layer for linear in layer)

    @cached_property
    def used_weights(self) -> int:
        """Elements of the linears' weights that a token is multiplied with; in a dense model all of them."""
        return sum(linear.weights * linear.used for layer in self.by_layer for linear in layer)

    @property
    def table_weights(self) -> int:
        """Elements of the embedding; the head has as many."""
        return self.vocabulary * self.hidden

    @cached_property
    def small_weights(self) -> int:
        """Elements of norms, biases and routers, and of everything that is not a linear's weight."""
        if self.built:
            return self.built.small
        biases = sum(linear.outputs for linear in self.linears if linear.bias)
        norms = 2 * self.hidden
        if self.qk_norms:
            norms += 2 * self.head_dim
        router = self.routing.number * self.hidden if self.routing else 0
        return self.layers * (biases + norms + router) + self.hidden

    @property
    def keys_and_values(self) -> int:
        """Numbers of a token in the KV cache."""
        return self.built.keys_and_values if self.built else self.layers * 2 * self.keys

    @property
    def parameters(self) -> int:
        """Elements of the entire model; a tied head counts once, as in its file."""
        return self.linear_weights + self.table_weights * (1 if self.tied else 2) + self.small_weights


def known_shape(config: Mapping[str, Any], where: str = "config.json") -> Shape:
    """Return the shape that a config.json of one of the types `KNOWN` describes, as transformers'
    `modeling_{llama,mistral,qwen2,qwen3,qwen2_moe,qwen3_moe,mixtral}.py` build it.

    Raises `DataError` for a mixture of experts that can't be trained and for a missing or impossible number.
    """
    check_experts(config, where)
    kind = str(config["model_type"])
    number = partial(number_in, config, where)
    hidden = number("hidden_size")
    heads = number("num_attention_heads")
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
    queries = heads * head_dim
    keys = kv_heads * head_dim
    routing = read_routing(config, number)
    mlp: Iterable[Linear]
    if routing is None:
        inner = number("intermediate_size")
        mlp = gated(hidden, inner, mlp_bias)
    else:
        inner = routing.shared + routing.used * routing.width
        mlp = mixed(hidden, routing)
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
            *mlp,
        ),
        routing=routing,
    )


def number_in(config: Mapping[str, Any], where: str, key: str, default: int | None = None) -> int:
    """Return the number under `key`. Raises `DataError` for one that is missing or below 1."""
    value = default if config.get(key) is None else config[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DataError(
            "Q-PLANNING-006",
            f"{where} has {key} {value!r}, which is not a number above 0: take the file that the model was "
            "published with",
        )
    return value


def gated(hidden: int, inner: int, bias: bool) -> tuple[Linear, ...]:
    """Return the linears of a dense layer's MLP, or of one expert."""
    return (
        Linear("gate_proj", hidden, inner, bias, "normed again"),
        Linear("up_proj", hidden, inner, bias, "normed again"),
        Linear("down_proj", inner, hidden, bias, "gated"),
    )


def mixed(hidden: int, routing: Routing) -> Iterator[Linear]:
    """Yield the linears of a mixture's MLP: the shared expert's, if there is one, and the routed ones'."""
    if routing.shared:
        for linear in gated(hidden, routing.shared, False):
            yield replace(linear, inside="shared_expert", ending="_shexp")
        yield Linear("shared_expert_gate", hidden, 1, False, "normed again")
    for linear in gated(hidden, routing.width, False):
        apart = replace(linear, name=ROUTED + linear.name, reads=ROUTED + linear.reads, ending="_exps")
        yield replace(apart, copies=routing.number, used=routing.used)

"""Bytes of a GGUF before it is made: each tensor has the type that llama-quantize would give it.

It follows llama.cpp, src/llama-quant.cpp: `llama_tensor_get_type_impl` (mixtures below 3 bits are some per
cent off), and `tensor_type_fallback` for rows that a type can't pack.
"""

from collections import Counter
from collections.abc import Iterator

from pipeline.config.ggml_types import LEVELS, TYPES
from pipeline.config.levels import ModelName
from pipeline.planning.model.shape import Shape

# Bytes of a token in the vocabulary: text, score, type and merges. 36.3 were measured with SmolLM2's 49,152
# tokens.
HEADER_PER_TOKEN = 36
EIGHT = 8  # experts of a Mixtral, for which llama-quantize has types of its own
LOW = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
# {tensor: {level (with -imatrix if that matters): (place in the layers, type)}}. The first place that matches
# counts; otherwise the tensor has the level's own type.
RULES: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {
    "output": {
        **dict.fromkeys((*LOW, "IQ3_XXS"), (("all", "Q5_K"),)),
        **dict.fromkeys(("Q8_0", "MXFP4_MOE"), (("all", "Q8_0"),)),
    },
    "token_embd": {
        **dict.fromkeys(LOW[:4], (("all", "Q2_K"),)),
        **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), (("all", "IQ3_S"),)),
        **dict.fromkeys(("TQ1_0", "TQ2_0"), (("all", "Q4_K"),)),
    },
    "attn_v": {
        **dict.fromkeys(LOW[:4], (("shared", "Q4_K"), ("all", "Q2_K"))),
        **dict.fromkeys(LOW[4:], (("shared", "Q4_K"), ("all", "IQ3_S"))),
        "Q2_K": (("shared", "Q4_K"), ("all", "Q3_K")),
        **dict.fromkeys(("Q2_K_S", "IQ3_XXS", "IQ3_XS", "IQ3_S"), (("shared", "Q4_K"),)),
        "IQ3_M": (("all", "Q4_K"),),
        "Q3_K_M": (("first 2", "Q5_K"), ("all", "Q4_K")),
        "Q3_K_L": (("all", "Q5_K"),),
        **dict.fromkeys(("IQ4_NL", "IQ4_XS"), (("shared", "Q5_K"),)),
        "Q4_K_S": (("first 4", "Q5_K"),),
        **dict.fromkeys(("Q4_K_M", "Q5_K_M"), (("sensitive", "Q6_K"),)),
    },
    "attn_k": {"IQ3_XS": (("all", "IQ3_XXS"),), "IQ3_XXS": (("all", "IQ2_S"),)},
    "attn_q": {"IQ3_XS": (("all", "IQ3_XXS"),), "IQ3_XXS": (("all", "IQ2_S"),)},
    "attn_output": {
        **dict.fromkeys(LOW[:2], (("all", "IQ2_XXS"),)),
        **dict.fromkeys((*LOW[4:], "IQ3_XXS"), (("all", "IQ3_S"),)),
        "Q2_K": (("all", "Q3_K"),),
        "Q3_K_L": (("all", "Q5_K"),),
        **dict.fromkeys(("Q3_K_M", "IQ3_M"), (("all", "Q4_K"),)),
    },
    "ffn_gate": {"IQ3_XS": (("middle", "IQ3_XXS"),)},
    "ffn_up": {"IQ3_XS": (("middle", "IQ3_XXS"),)},
    "ffn_down": {
        **dict.fromkeys(LOW[:4], (("first eighth", "Q2_K"),)),
        **dict.fromkeys(LOW[4:], (("first eighth", "IQ3_S"),)),
        "Q2_K": (("all", "Q3_K"),),
        **dict.fromkeys(("Q2_K_S", "IQ3_M"), (("first eighth", "Q4_K"),)),
        "Q3_K_M": (("first sixteenth", "Q5_K"), ("all", "Q4_K")),
        "Q3_K_L": (("all", "Q5_K"),),
        **dict.fromkeys(("Q4_K_M", "Q5_K_M"), (("sensitive", "Q6_K"),)),
        **dict.fromkeys(("Q4_K_S", "IQ4_NL", "IQ4_XS"), (("first eighth", "Q5_K"),)),
        "IQ4_NL-imatrix": (),
        "IQ4_XS-imatrix": (),
        "Q4_0-imatrix": (("first eighth", "Q4_1"),),
        "Q5_0-imatrix": (("first eighth", "Q5_1"),),
    },
}


# Levels at which attention's output is Q5_K if there are 8 experts, as in Mixtral.
FINER_OUTPUT = frozenset(
    (
        "Q2_K",
        "Q3_K_S",
        "Q3_K_M",
        "Q4_K_S",
        "Q4_K_M",
        "IQ3_XXS",
        "IQ3_XS",
        "IQ3_S",
        "IQ3_M",
        "IQ4_NL",
        "IQ4_XS",
    )
)


def level_bytes(shape: Shape, level: str) -> int:
    """Return the bytes of the GGUF of `level` as `quantize.levels` spells it, or of a 16-bit type.

    These are quantized tensors, float32 norms and biases, and the header.
    """
    return sum(size for *_, size in matrices(shape, level)) + unquantized_bytes(shape)


def unquantized_bytes(shape: Shape) -> int:
    """Return the bytes that every level of a model has: float32 norms and biases, and the header."""
    return 4 * shape.small_weights + HEADER_PER_TOKEN * shape.vocabulary


def tensor_type(
    shape: Shape, level: str, tensor: str, columns: int, number: int = 0, count: int | None = None
) -> str:
    """Return the ggml type that `tensor` (attn_v, token_embd, …; rows of `columns` weights) gets.

    It is tensor `number` of the model's `count` tensors under the same rules, by default one in each layer.
    """
    count = shape.layers if count is None else count
    name = ModelName(level).level
    with_matrix = ModelName(level).imatrix
    if name in ("F32", "F16", "BF16"):
        return name
    base = LEVELS[name].base
    # A tied embedding is the output matrix as well.
    is_output = tensor == "output" or (tensor == "token_embd" and shape.tied)
    if is_output and columns % TYPES[base].weights:
        return _quantized("Q8_0", columns)
    if tensor == "ffn_gate_inp_shexp":  # treated like a vector
        return "F32"
    if name == "MXFP4_MOE" and tensor.endswith("_exps"):
        return _quantized("MXFP4", columns)
    if shape.routing and shape.routing.number == EIGHT and name not in LOW:
        if tensor in ("attn_k", "attn_v"):
            return _quantized("Q8_0", columns)
        if tensor == "attn_output":
            return _quantized("Q5_K" if name in FINER_OUTPUT else base, columns)
        if tensor.startswith("ffn_down_") and name == "IQ3_M" and _holds("sensitive", shape, number, count):
            return _quantized("Q4_K", columns)
    # A tensor without a rule, such as a mixer's, has the level's own type.
    rules = RULES.get("output" if is_output else ruled_as(tensor), {})
    default: tuple[tuple[str, str], ...] = (("all", "Q6_K"),) if is_output else ()
    places = rules.get(name, default)
    if with_matrix:
        places = rules.get(f"{name}-imatrix", places)
    types = (ggml_type for where, ggml_type in places if _holds(where, shape, number, count))
    return _quantized(next(types, base), columns)


def ruled_as(tensor: str) -> str:
    """Return the tensor whose rules apply to this one: llama-quantize treats attn_qkv like attn_v."""
    part = tensor.removesuffix("_exps").removesuffix("_shexp")
    return "attn_v" if part == "attn_qkv" else part


def matrices(shape: Shape, level: str) -> Iterator[tuple[str, str, int]]:
    """Yield (name without the layer, ggml type, bytes) of every matrix in the GGUF of `level`.

    The names are token_embd, output (missing if it is tied), attn_q, …
    """

    # In hybrids, not every layer has a tensor of each kind.
    counts = Counter((ruled_as(linear.tensor), linear.ending) for layer in shape.by_layer for linear in layer)
    seen = Counter[tuple[str, str]]()

    def stored(tensor: str, columns: int, rows: int, number: int = 0, count: int = 1) -> tuple[str, str, int]:
        ggml_type = tensor_type(shape, level, tensor, columns, number, count)
        return tensor, ggml_type, columns * rows // TYPES[ggml_type].weights * TYPES[ggml_type].bytes

    for table in ("token_embd",) if shape.tied else ("token_embd", "output"):
        yield stored(table, shape.hidden, shape.vocabulary)
    for linears in shape.by_layer:
        for linear in linears:
            kind = (ruled_as(linear.tensor), linear.ending)
            rows = linear.outputs * linear.copies
            yield stored(linear.tensor, linear.inputs, rows, seen[kind], counts[kind])
            seen[kind] += 1


def _quantized(ggml_type: str, columns: int) -> str:
    choices = (ggml_type, TYPES[ggml_type].fallback)
    return next((name for name in choices if columns % TYPES[name].weights == 0), "F16")


def _holds(where: str, shape: Shape, number: int, count: int) -> bool:
    eighth = count // 8
    last = 7 * count // 8
    return {
        "all": True,
        "shared": shape.heads >= 4 * shape.kv_heads,
        "first 2": number < 2,
        "first 4": number < 4,
        "first eighth": number < eighth,
        "first sixteenth": number < count // 16,
        "middle": eighth <= number < last,
        "sensitive": number < eighth or number >= last or (number - eighth) % 3 == 2,
    }[where]

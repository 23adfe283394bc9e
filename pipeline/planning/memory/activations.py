"""Bytes allocated and freed in every step: what the forward keeps for the backward, the loss, workspace.

A padding-free micro batch is one sequence of T = micro batch × max_length tokens. What autograd keeps is
known operation by operation (transformers' `modeling_qwen2.py`, PEFT's `lora/bnb.py`, Liger's `rms_norm.py`
and `swiglu.py`). A frozen linear keeps nothing. On the CPU the tests count the kept tensors and find exactly
these numbers.
"""

from pipeline.config.sections.adapters import TABLES
from pipeline.config.targets import rank_of, trains_in
from pipeline.planning.memory.weights import (
    Linears,
    first_trained,
    lora_parameters,
    table_trains,
    targets,
)
from pipeline.planning.model.shape import Built, Linear
from pipeline.planning.setup import FLOAT, Setup, base_kind

INDEX = 8  # bytes of an int64
CUBLAS_WORKSPACE = 8_519_680  # bytes; torch's default for a stream, :4096:2:16:8


def norm_kept(setup: Setup, rows: int, width: int) -> int:
    """Return the bytes that an RMSNorm over `rows` vectors keeps.

    These are the input (float32 unless Liger's) and the reciprocal roots.
    """
    element = setup.element if setup.loss == "liger" else FLOAT
    return rows * (width * element + FLOAT)


def lora_kept(setup: Setup, layer: int, targets: Linears, without_mask: tuple[str, ...] = ()) -> int:
    """Return the bytes kept by a layer's LoRA branches, on `targets`.

    These are dropout's mask and output (or the input), and A's output. Without dropout, linears that read the
    same tensor share it, unless each makes its own float32 copy. On a CPU only routers and DoRA with dropout
    do. All else shares it with dropout too, and keeps a byte of mask and A's output in 16 bit
    (`pipeline.models.lean_lora`). Inputs named in `without_mask` need no gradient, so their dropout keeps no
    mask. Linears whose scales train keep only their inputs.
    """
    train = setup.train
    lean = [linear for linear in targets if setup.lean and linear in setup.shape.by_layer[layer]]
    shared = list(targets)
    apart: list[Linear] = []
    if train.dropout or setup.lora_element != setup.element:
        shared = lean
        apart = [linear for linear in targets if linear not in lean]
    kept = 0
    if not train.tuning.inside:
        for linear in targets:
            low_element = setup.element if linear in lean else setup.lora_element
            kept += linear.used * rank_of(linear.path(layer), train) * low_element
    mask = 1 if setup.device == "cuda" else setup.lora_element  # a bool on CUDA, the noise itself on the CPU
    for linear in apart:
        masked = train.dropout and linear.reads not in without_mask
        kept += linear.used * linear.inputs * (setup.lora_element + (mask if masked else 0))
    # Attention keeps its output anyway.
    inputs = {linear.reads: linear.used * linear.inputs for linear in shared if linear.reads != "attended"}
    kept += sum(inputs.values()) * setup.element
    if train.dropout:
        kept += sum(linear.used * linear.inputs for linear in shared)
    return setup.tokens * kept


def attention_kept(setup: Setup) -> int:
    """Return the bytes kept by one layer's attention.

    These are queries, keys, values, output, log-sums and, for packed rows, the T × T mask as bias. With a
    mask, transformers' SDPA copies keys and values for every head (`use_gqa_in_sdpa`, `repeat_kv`). A single
    one is a view.
    """
    shape = setup.shape
    keys = shape.keys if shape.kv_heads == 1 else shape.queries
    kept = setup.tokens * (2 * (shape.queries + keys) * setup.element + shape.heads * FLOAT)
    if shape.qk_norms:
        kept += norm_kept(setup, setup.tokens * (shape.heads + shape.kv_heads), shape.head_dim)
    return kept + setup.tokens**2 * setup.element


def layer_kept(setup: Setup, layer: int, targets: Linears, first: bool = False) -> int:
    """Return the bytes that the forward of `layer`, with `targets` that train, keeps.

    The `first` one's input needs no gradient, which saves a norm and masks.
    """
    if setup.shape.built:
        return built_kept(setup, setup.shape.built, layer, targets)
    norms = norm_kept(setup, setup.tokens, setup.shape.hidden)
    if not first:
        norms *= 2
    tensors = 2 if setup.loss == "liger" else 3  # gate, up and, unless Liger's, SiLU's output
    gated = setup.tokens * setup.shape.intermediate * setup.element * tensors
    whole = whole_norms(setup, layer)
    without_mask = ("normed",) if first and "input_layernorm" not in whole else ()
    lora = lora_kept(setup, layer, targets, without_mask)
    if setup.train.use_dora:
        lora += dora_kept(setup, layer, targets)
    return norms + normalized_kept(setup, whole) + lora + attention_kept(setup) + gated + routing_kept(setup)


def built_kept(setup: Setup, built: Built, layer: int, targets: Linears) -> int:
    """Return at most what the forward of `layer` keeps, for an architecture that was built to be planned.

    That is what transformers' own code keeps of it, Liger's or not, and what its adapter adds.
    """
    whole = whole_norms(setup, layer)
    kept = in_elements(built.kept[layer].bytes(setup.tokens), setup)
    kept += normalized_kept(setup, whole) + lora_kept(setup, layer, targets)
    if setup.train.use_dora:
        kept += dora_kept(setup, layer, targets)
    return kept


def in_elements(size: int, setup: Setup) -> int:
    """Return the size of 16-bit activations in the compute type, at most, in bytes."""
    return size * setup.element // 2


def dora_kept(setup: Setup, layer: int, targets: Linears) -> int:
    """Return the bytes that a layer's forward keeps under DoRA in addition to LoRA's.

    `pipeline.models.lean_lora` keeps the plain adapter's output. PEFT's own DoRA (peft 0.21.2,
    `tuners/lora/dora.py`) computes B·A of a unit matrix for the lengths of the weight's rows; of that the
    result is an upper bound. The unit matrices are in × in: for wide linears they outweigh all else, unless
    layers are recomputed.
    """
    element = setup.element
    lora_element = setup.lora_element
    dropout = setup.train.dropout > 0
    output = (2 if dropout else 1) * element + lora_element  # bytes of a number of the output
    kept = 0
    for linear in targets:
        if setup.lean and linear in setup.shape.by_layer[layer]:
            kept += linear.outputs * (setup.tokens * element + 3 * FLOAT)  # and vectors with the lengths
            continue
        kept += setup.tokens * linear.outputs * output
        # The unit matrix, and A of it.
        kept += linear.inputs * (linear.inputs + rank_of(linear.path(layer), setup.train)) * lora_element
        # The dequantized weight, its copy for the product, and the lengths of its rows.
        if dropout:
            kept += 2 * element * linear.weights
        kept += 3 * linear.outputs * FLOAT
    return kept


def routing_kept(setup: Setup) -> int:
    """Return the bytes that a mixture's layer keeps in addition to its linears' inputs; 0 if it is dense."""
    if setup.shape.routing is None:
        return 0
    activations, indices, floats = setup.shape.routing.kept(setup.shape.hidden)
    return setup.tokens * (activations * setup.element + indices * INDEX + floats * FLOAT)


def whole_norms(setup: Setup, layer: int) -> set[str]:
    """Return the names of norms that train fully in `layer`."""
    named: set[str] = set(setup.train.modules_to_save)
    return named - {*TABLES} if trains_in(layer, setup.train) else set()


def normalized_kept(setup: Setup, whole: set[str]) -> int:
    """Return the bytes of the tensors that fully trained norms of a layer multiply by their weights."""
    shape = setup.shape
    widths = {"input_layernorm": shape.hidden, "post_attention_layernorm": shape.hidden}
    widths |= {"q_norm": shape.queries, "k_norm": shape.keys, "norm": 0}
    return setup.tokens * sum(widths[name] for name in whole) * setup.element


def ends_kept(setup: Setup) -> int:
    """Return the bytes kept outside layers.

    These are shared cosines and sines, the final norm, which may train too, and the ids of embeddings that
    train.
    """
    whole = 0
    if "norm" in setup.train.modules_to_save:
        whole += setup.tokens * setup.shape.hidden * setup.element
    if table_trains("embed_tokens", setup):
        whole += setup.tokens * INDEX
    if setup.shape.built:
        return in_elements(setup.shape.built.ends_kept.bytes(setup.tokens), setup) + whole
    rope = 2 * setup.tokens * setup.shape.head_dim * setup.element
    return rope + norm_kept(setup, setup.tokens, setup.shape.hidden) + whole


def kept_by_layer(setup: Setup) -> dict[int, int]:
    """Return {layer: bytes that its forward keeps} from the first layer that trains; those below keep none.

    With gradient checkpointing, or embeddings that train, the first layer's input needs a gradient too.
    """
    by_layer = targets(setup)
    first = first_trained(setup)
    has_gradient = setup.train.gradient_checkpointing or table_trains("embed_tokens", setup)
    entry = None if has_gradient and not first else first
    return {
        layer: layer_kept(setup, layer, by_layer[layer], layer == entry)
        for layer in range(first, setup.shape.layers)
    }


def recomputed_layers(setup: Setup) -> list[int]:
    """Return the layers with a backward whose number `train.gradient_checkpointing` (1 if true) divides.

    They are counted as in transformers. There are none if it is false.
    """
    every = int(setup.train.gradient_checkpointing)
    return [layer for layer in kept_by_layer(setup) if every and layer % every == 0]


def forward_kept(setup: Setup) -> int:
    """Return the bytes kept for the backward.

    These are a recomputed layer's input, all that the others keep, and `ends_kept`.
    """
    layer_input = setup.tokens * setup.shape.hidden * setup.element
    by_layer = kept_by_layer(setup) | dict.fromkeys(recomputed_layers(setup), layer_input)
    return sum(by_layer.values()) + ends_kept(setup)


def recomputed_kept(setup: Setup) -> int:
    """Return the bytes that the forward of the widest recomputed layer keeps; 0 without checkpointing."""
    by_layer = kept_by_layer(setup)
    return max((by_layer[layer] for layer in recomputed_layers(setup)), default=0)


def autocast_copies(setup: Setup) -> int:
    """Return the bytes of autocast's 16-bit copies of the adapter and of a head that trains.

    They are kept for an entire forward.
    """
    copied = setup.device == "cuda" and setup.element < FLOAT
    head = setup.shape.table_weights if table_trains("lm_head", setup) else 0
    return (lora_parameters(setup) + head) * setup.element if copied else 0


def gradients_in_flight(setup: Setup) -> int:
    """Return the bytes of activation gradients at a layer's widest point.

    These are two of hidden width and one of intermediate width.
    """
    return setup.tokens * (2 * setup.shape.hidden + setup.shape.intermediate) * setup.element


def workspace(setup: Setup) -> tuple[int, str]:
    """Return the bytes that linears need while they run, with cuBLAS's own workspace, and a description."""
    size, words = base_kind(setup).workspace
    if setup.device == "cuda":
        size += CUBLAS_WORKSPACE
        words = f"{words}, cuBLAS" if words else "cuBLAS"
    if setup.is_widened:
        size += widened_bytes(setup)
        words = f"{words}, operands in float32" if words else "operands in float32"
    return size, words or "none"


def widened_bytes(setup: Setup) -> int:
    """Return the bytes of the largest product's operands and result in float32, which stay for the next one
    (`pipeline.models.wide_products`).
    """
    linears = [linear for layer in setup.shape.by_layer for linear in layer]
    activations = setup.tokens * max(max(linear.inputs, linear.outputs) for linear in linears)
    weights = max(linear.weights for linear in linears)
    return FLOAT * (2 * activations + max(activations, weights))


def loss(setup: Setup) -> tuple[int, str]:
    """Return the bytes that the loss adds, and a description.

    These are logits, and the last hidden states with their gradient.
    """
    logits, words = base_kind(setup).logits
    if table_trains("lm_head", setup):
        # Autograd's sum of the head's gradient so far, and a chunk's, before they are added to it.
        logits += 2 * setup.shape.table_weights * FLOAT
        words = f"{words}, and the head's gradients"
    return 2 * setup.tokens * setup.shape.hidden * setup.element + logits, words

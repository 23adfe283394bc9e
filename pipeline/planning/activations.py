"""Bytes that come and go with every step: what the forward keeps for the backward, the loss, workspace.

A padding-free micro batch is one sequence of T = micro batch × max_length tokens. What autograd keeps is
known operation by operation (transformers' `modeling_qwen2.py`, PEFT's `lora/bnb.py`, Liger's `rms_norm.py`
and `swiglu.py`); a frozen linear keeps nothing. On the CPU the tests count the kept tensors and find these
very numbers.
"""

from math import ceil

from pipeline.config.methods import METHODS
from pipeline.config.targets import rank_of, trains_in
from pipeline.planning.setup import FLOAT, Setup
from pipeline.planning.weights import NF4_BLOCK, Linears, first_trained, lora_parameters, targets

INDEX = 8  # bytes of an int64
# of `pipeline.models.quantized_linear`, `quantized_head` and `chunked_loss`, which import torch (a test keeps
# them equal): weights that are dense at a time, of linears, of the head; logits in a chunk
BLOCK_WEIGHTS = {"cuda": 32 << 20, "cpu": 8 << 20}
BLOCK_HEAD = 8 << 20
CHUNK_LOGITS = 5 << 20
LOSS_BYTES = 3 * FLOAT  # per logit alive: log-softmax and two gradients
CUBLAS_WORKSPACE = 8_519_680  # torch's default for a stream, :4096:2:16:8


def norm_kept(setup: Setup, rows: int, width: int) -> int:
    """Bytes kept by an RMSNorm over `rows` vectors: its input (float32 unless Liger's) and each one's
    reciprocal root.
    """
    return rows * (width * (setup.element if setup.loss == "liger" else FLOAT) + FLOAT)


def lora_kept(setup: Setup, layer: int, targets: Linears, without_mask: tuple[str, ...] = ()) -> int:
    """Bytes kept by a layer's LoRA branches, on `targets`: dropout's mask and output (or the input), and A's
    output.

    Without dropout, linears that read the same tensor share it, unless each makes its own float32 copy: on a
    CPU all but those on NF4 without DoRA (`pipeline.models.lean_lora`), which share it with dropout too, and
    keep a byte of mask; the router is none of those.
    Inputs named in `without_mask` need no gradient, so their dropout keeps no mask. Linears whose scales
    train keep their inputs alone.
    """
    train = setup.train
    lean = setup.device == "cpu" and train.quantization == "nf4" and not train.use_dora
    shared, apart = list(targets), []
    if train.dropout or setup.lora_element != setup.element:
        shared = [linear for linear in targets if lean and linear in setup.shape.linears]
        apart = [linear for linear in targets if linear not in shared]
    ranks = sum(linear.used * rank_of(linear.path(layer), train) for linear in targets)
    kept = 0 if setup.train.tuning.inside else ranks * setup.lora_element
    mask = 1 if setup.device == "cuda" else setup.lora_element  # a bool on CUDA, on the CPU the noise itself
    for linear in apart:
        masked = train.dropout and linear.reads not in without_mask
        kept += linear.used * linear.inputs * (setup.lora_element + (mask if masked else 0))
    # attention keeps its output anyway
    inputs = {linear.reads: linear.used * linear.inputs for linear in shared if linear.reads != "attended"}
    kept += sum(inputs.values()) * setup.element
    if train.dropout:
        kept += sum(linear.used * linear.inputs for linear in shared)
    return setup.tokens * kept


def attention_kept(setup: Setup) -> int:
    """Bytes kept by one layer's attention: queries, keys, values, output, log-sums and, of packed rows, the T
    × T mask as bias.

    With a mask, transformers' SDPA copies keys and values for every head (`use_gqa_in_sdpa`, `repeat_kv`); a
    single one is viewed.
    """
    shape = setup.shape
    keys = shape.keys if shape.kv_heads == 1 else shape.queries
    kept = setup.tokens * (2 * (shape.queries + keys) * setup.element + shape.heads * FLOAT)
    if shape.qk_norms:
        kept += norm_kept(setup, setup.tokens * (shape.heads + shape.kv_heads), shape.head_dim)
    return kept + setup.tokens**2 * setup.element


def layer_kept(setup: Setup, layer: int, targets: Linears, first: bool = False) -> int:
    """Bytes that the forward of `layer`, with `targets` that train, keeps; the `first` one's input needs no
    gradient, which saves a norm and masks.
    """
    norms = norm_kept(setup, setup.tokens, setup.shape.hidden)
    # gate, up and, unless Liger's, SiLU's output
    gated = setup.tokens * setup.shape.intermediate * setup.element * (2 if setup.loss == "liger" else 3)
    whole: set[str] = {*setup.train.modules_to_save} if trains_in(layer, setup.train) else set()
    lora = lora_kept(setup, layer, targets, ("normed",) if first and "input_layernorm" not in whole else ())
    if setup.train.use_dora:
        lora += dora_kept(setup, layer, targets)
    return (
        norms * (1 if first else 2)
        + normalized_kept(setup, whole)
        + lora
        + attention_kept(setup)
        + gated
        + experts_kept(setup)
    )


def dora_kept(setup: Setup, layer: int, targets: Linears) -> int:
    """Bytes that a layer's forward keeps under DoRA above LoRA's (peft 0.21.2, `tuners/lora/dora.py`): it
    makes B·A of a unit matrix to have the weight's lengths.

    An upper bound. The unit matrices are in × in: of wide linears they outweigh all else, unless layers are
    recomputed.
    """
    element, lora_element, dropout, kept = setup.element, setup.lora_element, setup.train.dropout > 0, 0
    for linear in targets:
        kept += setup.tokens * linear.outputs * (element * (2 if dropout else 1) + lora_element)
        # the unit matrix, and A of it
        kept += linear.inputs * (linear.inputs + rank_of(linear.path(layer), setup.train)) * lora_element
        # the dequantized weight, and as the product reads it; its rows' lengths
        kept += (2 * element * linear.weights if dropout else 0) + 3 * linear.outputs * FLOAT
    return kept


def experts_kept(setup: Setup) -> int:
    """Bytes that a mixture's layer keeps beside its linears' inputs: what the router gives, which tokens go
    where, the experts' answers before and after they are weighted, the shared one's before.
    """
    shape = setup.shape
    shared = any(linear.name == "shared_expert_gate" for linear in shape.linears)
    answers = shape.chosen * (2 * shape.hidden + 1) + shared * (shape.hidden + 1)
    weights = shape.experts + shape.normalized * (shape.chosen + 1)
    return setup.tokens * (answers * setup.element + shape.chosen * 3 * INDEX + weights * FLOAT)


def normalized_kept(setup: Setup, whole: set[str]) -> int:
    """Bytes of what the norms of a layer that train whole multiply by their weights."""
    shape = setup.shape
    widths = {"input_layernorm": shape.hidden, "post_attention_layernorm": shape.hidden}
    widths |= {"q_norm": shape.queries, "k_norm": shape.keys, "norm": 0}
    return setup.tokens * sum(widths[name] for name in whole) * setup.element


def ends_kept(setup: Setup) -> int:
    """Bytes kept outside the layers: cosines and sines, which all share, and the final norm, which may train
    too.
    """
    rope = 2 * setup.tokens * setup.shape.head_dim * setup.element
    whole = setup.tokens * setup.shape.hidden * setup.element if "norm" in setup.train.modules_to_save else 0
    return rope + norm_kept(setup, setup.tokens, setup.shape.hidden) + whole


def kept_by_layer(setup: Setup) -> dict[int, int]:
    """{layer: bytes that its forward keeps} from the first layer that trains on: those below keep nothing.
    With gradient checkpointing the first layer's input needs a gradient too.
    """
    by_layer, first = targets(setup), first_trained(setup)
    entry = None if setup.train.gradient_checkpointing and not first else first
    return {
        layer: layer_kept(setup, layer, by_layer[layer], layer == entry)
        for layer in range(first, setup.shape.layers)
    }


def recomputed_layers(setup: Setup) -> list[int]:
    """The layers with a backward whose number `train.gradient_checkpointing` (1 if true) divides, as
    transformers counts; none if it is false.
    """
    every = int(setup.train.gradient_checkpointing)
    return [layer for layer in kept_by_layer(setup) if every and layer % every == 0]


def forward_kept(setup: Setup) -> int:
    """Bytes kept for the backward: a recomputed layer's input, all that the others keep, and `ends_kept`."""
    layer_input = setup.tokens * setup.shape.hidden * setup.element
    by_layer = kept_by_layer(setup) | dict.fromkeys(recomputed_layers(setup), layer_input)
    return sum(by_layer.values()) + ends_kept(setup)


def recomputed_kept(setup: Setup) -> int:
    """With gradient checkpointing: what the forward of a recomputed layer keeps, of the widest one."""
    by_layer = kept_by_layer(setup)
    return max((by_layer[layer] for layer in recomputed_layers(setup)), default=0)


def autocast_copies(setup: Setup) -> int:
    """Autocast's 16-bit copies of the adapter, which a forward holds to its end."""
    copied = setup.device == "cuda" and setup.element < FLOAT
    return lora_parameters(setup) * setup.element if copied else 0


def gradients_in_flight(setup: Setup) -> int:
    """Activations' gradients alive at a layer's widest point: two of the hidden width, one of the
    intermediate width.
    """
    return setup.tokens * (2 * setup.shape.hidden + setup.shape.intermediate) * setup.element


def workspace_bytes(setup: Setup) -> int:
    """What linears take while they run, and cuBLAS's own workspace.

    NF4: the largest one dequantized, with its scales in float32 twice. A GGUF's: rows of at most
    `BLOCK_WEIGHTS` weights of the largest one, and what the dequantizer takes beside. If its scales train
    also the gradient of these, and copies of the bytes.
    """
    cublas = CUBLAS_WORKSPACE if setup.device == "cuda" else 0
    if setup.packed:
        most = BLOCK_WEIGHTS[setup.device]
        block = max(
            min(linear.outputs, max(1, most // linear.inputs)) * linear.inputs
            for linear in setup.shape.linears
        )
        dense = block * setup.element
        if setup.train.tuning.inside:  # its gradient too, and in float32, and the derivatives by a scale
            dense += block * (setup.element + 2 * FLOAT) + 2 * block
        return cublas + dense + setup.packed.scratch(setup.device, block)
    if setup.train.quantization != "nf4":
        return cublas
    largest = max(linear.weights for linear in setup.shape.linears)
    return cublas + largest * setup.element + 2 * ceil(largest / NF4_BLOCK) * FLOAT


def loss_bytes(setup: Setup) -> int:
    """Bytes that the loss adds: logits alive at once, and the last hidden states with their gradient.

    Plain and chunked: log-softmax and two gradients in float32; plain keeps the logits too. Liger
    (arXiv:2410.10989, `fused_linear_cross_entropy_forward`): one chunk of logits, overwritten by its
    gradient; rows in it are T ÷ ⌈V/h⌉ rounded up to a power of two. Quantized: `quantized_head_bytes`.
    """
    shape, tokens = setup.shape, setup.tokens
    states = 2 * tokens * shape.hidden * setup.element
    if setup.packed:
        return states + quantized_head_bytes(setup)
    if setup.loss == "liger" and not METHODS[setup.train.method].preferences:
        rows = min(tokens, 1 << (ceil(tokens / ceil(shape.vocabulary / shape.hidden)) - 1).bit_length())
        return states + rows * shape.vocabulary * setup.element + tokens * FLOAT
    if setup.loss == "plain":
        return states + tokens * shape.vocabulary * (LOSS_BYTES + setup.element)
    return states + min(tokens, max(1, CHUNK_LOGITS // shape.vocabulary)) * shape.vocabulary * LOSS_BYTES


def quantized_head_bytes(setup: Setup) -> int:
    """Bytes that the loss of a quantized head adds, besides the last hidden states
    (`pipeline.models.quantized_head`; arXiv:2411.09009).

    A block of the vocabulary, dense, and its logits as often as elsewhere, each of at most `BLOCK_HEAD`
    elements; gradients summed up in float32, with the block's part. After the blocks these are there twice
    more, for the targets' own rows.
    """
    shape = setup.shape
    gradient = setup.tokens * shape.hidden
    head, logits = min(shape.table_weights, BLOCK_HEAD), min(setup.tokens * shape.vocabulary, BLOCK_HEAD)
    return max(
        head * setup.element + logits * LOSS_BYTES + gradient * (FLOAT + setup.element), 3 * gradient * FLOAT
    )

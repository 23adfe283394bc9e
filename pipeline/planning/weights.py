"""Bytes that stay from the first step to the last: weights, adapter, gradients, optimizer. Exact, tensor by
tensor.
"""

import json
from functools import lru_cache
from math import ceil

from pipeline.config.sections import LoraType, Train, Training
from pipeline.config.targets import is_target, misfits, rank_of, tells_experts_apart, trains_in
from pipeline.core.errors import ConfigError
from pipeline.models.experts.targets import check_mixture
from pipeline.planning.level_bytes import NAMES
from pipeline.planning.quantized import QuantizedBase
from pipeline.planning.shape import Linear, Shape

FLOAT = 4  # bytes of a float32
ELEMENT = {"bfloat16": 2, "float16": 2, "float32": 4}  # bytes of what train.bnb_4bit_compute_dtype names
NF4_BLOCK, SCALE_BLOCK = 64, 256  # weights a scale is for; scales a scale of scales is for
# tables and offset that bitsandbytes keeps per linear
NF4_CODE, SCALE_CODE, OFFSET = 16 * FLOAT, 256 * FLOAT, FLOAT
EIGHT_BIT_BLOCK, SMALLEST_EIGHT_BIT = 256, 4096  # of bitsandbytes' 8-bit optimizers, in elements
EIGHT_BIT_CODE = 256 * FLOAT
# states an optimizer keeps per trained parameter, by transformers' name for it: (how many, are they 8 bit, is
# there a step tensor)
OPTIMIZERS = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused"), (2, False, True)),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit"), (2, True, False)),
    "paged_adamw_32bit": (2, False, False),
    **dict.fromkeys(("lion_8bit", "paged_lion_8bit"), (1, True, False)),
    **dict.fromkeys(("lion_32bit", "paged_lion_32bit"), (1, False, False)),
    "sgd": (0, False, False),
}
# what `misfits` reads of the settings
ASKED = {"target_modules", "target_experts", "freeze_layers", "layers", "r", "lora_alpha", "use_rslora"}
ASKED |= {"rank_pattern", "offload_layers", "router"}


def nf4_bytes(weights: int, double_quant: bool) -> int:
    """Bytes of a linear's `weights` in NF4: packed halves, scales, tables (QLoRA, arXiv:2305.14314;
    bitsandbytes `quantize_4bit`).

    Two weights a byte, the odd one padded; a float32 scale per 64 weights. With double quantization these are
    uint8, with a float32 scale per 256 of them, an offset and a table.
    """
    scales = ceil(weights / NF4_BLOCK)
    quantized = ceil(weights / 2) + NF4_CODE
    return quantized + (
        scales + ceil(scales / SCALE_BLOCK) * FLOAT + OFFSET + SCALE_CODE if double_quant else scales * FLOAT
    )


def held_quantized(train: Training, quantized: QuantizedBase | None) -> QuantizedBase | None:
    """`quantized` where the base stays as its GGUF packs it, None where it doesn't. Raises `AssertionError`
    where its bytes are then missing.
    """
    if train.quantization != "gguf" or not train.keep_quantized:
        return None
    assert quantized, "base.quantization is gguf, and nobody has said how many bytes its GGUF has"
    return quantized


def linear_bytes(shape: Shape, train: Training, quantized: QuantizedBase | None = None) -> int:
    """Bytes of all linears' weights but the head's: NF4, the GGUF's own, or dense in the compute type."""
    if held := held_quantized(train, quantized):
        return held.linears
    if train.quantization != "nf4":
        return shape.linear_weights * ELEMENT[train.bnb_4bit_compute_dtype]
    return shape.layers * sum(
        nf4_bytes(linear.weights, train.bnb_4bit_use_double_quant) * linear.copies for linear in shape.linears
    )


def table_bytes(shape: Shape, train: Training, quantized: QuantizedBase | None = None) -> int:
    """Bytes of embedding and head, which NF4 leaves as they are and a GGUF packs too; a tied head has none of
    its own.
    """
    if held := held_quantized(train, quantized):
        return held.tables
    return shape.table_weights * (1 if shape.tied else 2) * ELEMENT[train.bnb_4bit_compute_dtype]


def small_bytes(shape: Shape, train: Train) -> int:
    """Bytes of norms and biases, and of the rotary embedding's two float32 tables of frequencies."""
    return shape.small_weights * ELEMENT[train.bnb_4bit_compute_dtype] + 2 * ceil(shape.head_dim / 2) * FLOAT


def targets(shape: Shape, train: Train) -> list[list[Linear]]:
    """The linears that train, of each layer. Raises `ConfigError` for targets or layers that the model
    hasn't, and as `check_mixture`.
    """
    check_mixture(train, mixture=bool(shape.experts))
    if problem := _misfit(shape, train.model_dump_json(include=ASKED)):
        raise ConfigError("Q-PLANNING-007", problem)
    return [
        [linear for linear in shape.adaptable if is_target(linear.path(layer), train)]
        for layer in range(shape.layers)
    ]


@lru_cache(maxsize=64)  # a plan asks often, and a mixture may have 18,432 experts' linears
def _misfit(shape: Shape, asked: str) -> str | None:
    """The first of `misfits`; `asked` has the settings as JSON, which a cache can hold."""
    train = Train.model_construct(**json.loads(asked))
    apart = tells_experts_apart(train)
    paths = (
        linear.path(layer, expert)
        for layer in range(shape.layers)
        for linear in shape.adaptable
        for expert in range(linear.copies if apart else 1)
    )
    return next(misfits(train, paths, shape.layers), None)


def lora_shapes(shape: Shape, train: Train) -> list[int]:
    """Elements of every tensor of the adapter: A (r × in) and B (out × r) of each targeted linear, under DoRA
    its magnitudes (out) too.

    Raises what `targets` does.
    """
    return [
        elements
        for layer, linears in enumerate(targets(shape, train))
        for linear in linears
        for rank in (rank_of(linear.path(layer), train),)
        for elements in (
            rank * linear.inputs,
            rank * linear.outputs,
            *((linear.outputs,) if train.use_dora else ()),
        )
        * linear.copies
    ]


def saved_norms(shape: Shape, train: Train) -> list[tuple[int, int]]:
    """(layer, elements) of every norm that trains whole; the last one's layer is the number of layers.
    Raises `ConfigError` for one that the model hasn't.
    """
    sizes = dict.fromkeys(("input_layernorm", "post_attention_layernorm"), shape.hidden)
    sizes |= dict.fromkeys(("q_norm", "k_norm"), shape.head_dim) if shape.qk_norms else {}
    layers = [layer for layer in range(shape.layers) if trains_in(layer, train)]
    found = []
    for name in train.modules_to_save:
        if name != "norm" and name not in sizes:
            raise ConfigError(
                "Q-PLANNING-007",
                f"train.modules_to_save names {name}, which this model has not: take it out",
            )
        found += [(shape.layers, shape.hidden)] if name == "norm" else [(one, sizes[name]) for one in layers]
    return found


def first_trained(shape: Shape, train: Train) -> int:
    """The first layer in which something trains: the ones below have no backward."""
    norms = [layer for layer, _ in saved_norms(shape, train)]
    linears = (layer for layer, linears in enumerate(targets(shape, train)) if linears)
    return min([next(linears), *norms])


def lora_parameters(shape: Shape, train: Train) -> int:
    """Σ r·(in + out) over the targeted linears (LoRA, arXiv:2106.09685); with DoRA + out."""
    return sum(lora_shapes(shape, train))


def lora_bytes(shape: Shape, train: Train, ggml_type: LoraType) -> int:
    """Bytes of the adapter's GGUF: Σ r·(in + out) × 2 in F16, × 4 in F32; its header is some kilobytes."""
    return lora_parameters(shape, train) * (2 if ggml_type == "F16" else 4)


def tunes_scales(train: Train) -> bool:
    """Whether the scales of a GGUF's blocks train, not an adapter."""
    return train.tuner == "scales" and getattr(train, "quantization", None) == "gguf"


def trained_tensors(shape: Shape, train: Train, quantized: QuantizedBase | None = None) -> list[int]:
    """Elements of every tensor that trains: the adapter's matrices and norms that train whole, or the scales
    of each targeted linear.

    Raises `ConfigError` for a target that the layers don't have, `AssertionError` if scales train and nobody
    has said how many there are.
    """
    matrices = lora_shapes(shape, train)
    if not tunes_scales(train):
        return matrices + [size for _, size in saved_norms(shape, train)]
    assert quantized, "the scales of a GGUF train, and nobody has said how many it has"
    trained = {
        f"blk.{layer}.{NAMES[linear.name]}"
        for layer, linears in enumerate(targets(shape, train))
        for linear in linears
    }
    return [count for name, count in quantized.scales if name in trained]


def optimizer_bytes(shape: Shape, train: Train, quantized: QuantizedBase | None = None) -> int:
    """Bytes of the optimizer's states for what trains, as torch's and bitsandbytes' `init_state` allocate
    them.

    An 8-bit state has a float32 scale per 256 elements and shares one table per state; a matrix below 4,096
    elements keeps 32-bit states. A paged one counts as on the card: it leaves it only when memory runs short.
    """
    states, eight_bit, step = OPTIMIZERS[train.optim]
    matrices = trained_tensors(shape, train, quantized)
    if not eight_bit:
        return states * FLOAT * sum(matrices) + (FLOAT * len(matrices) if step else 0)
    large = [size for size in matrices if size >= SMALLEST_EIGHT_BIT]
    small = sum(matrices) - sum(large)
    each = sum(size + ceil(size / EIGHT_BIT_BLOCK) * FLOAT for size in large) + small * FLOAT
    return states * (each + (EIGHT_BIT_CODE if large else 0))

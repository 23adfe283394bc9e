"""The input of a plan: a model's shape, its training, the device, and the resulting files; and the format of
the frozen base in memory while something trains on it: in the compute type, in NF4, or in the blocks of its
GGUF. Callers use `base_kind(setup)` instead of `base.quantization`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal, NamedTuple

from pipeline.config.methods import METHODS
from pipeline.config.params import Params
from pipeline.config.sections import Quantization, Train, Training
from pipeline.core.cpu import Device, multiplies_bfloat16
from pipeline.core.errors import ConfigError
from pipeline.core.hardware import Card
from pipeline.planning.model.gguf_base import QuantizedBase
from pipeline.planning.model.shape import Shape

FLOAT = 4  # bytes of a float32
# bytes of the types of train.bnb_4bit_compute_dtype
ELEMENT = {"bfloat16": 2, "float16": 2, "float32": FLOAT}
Loss = Literal["liger", "chunked", "plain"]  # plain: transformers' own, with all logits; for comparison
NF4_BLOCK = 64  # weights for each scale
SCALE_BLOCK = 256  # scales for each scale of scales
# Bytes of the tables and the offset that bitsandbytes keeps per linear.
NF4_CODE = 16 * FLOAT
SCALE_CODE = 256 * FLOAT
OFFSET = FLOAT
# From `pipeline.models.quantized_linear`, `quantized_head` and `chunked_loss`, which import torch (a test
# keeps them equal): weights that are dense at a time, of linears and of the head; logits in a chunk.
BLOCK_WEIGHTS = {"cuda": 32 << 20, "cpu": 8 << 20}
BLOCK_HEAD = 8 << 20
CHUNK_LOGITS = 5 << 20
LOSS_BYTES = 3 * FLOAT  # bytes per logit in memory: log-softmax and two gradients
LOGITS: Mapping[Loss, str] = {
    "liger": "one chunk of logits",
    "chunked": "one chunk of logits",
    "plain": "all logits",
}
BY_BLOCKS = "a block of the vocabulary"


@dataclass(frozen=True)
class Setup:
    """A training with rows of `max_length` tokens. Without `card`, it is on a GPU with unknown memory.

    `quantized` has the sizes of a base that is trained on as a GGUF. Of several `processes` the memory of one
    is planned. `levels` are those of the tuned model and of the untuned base. `untuned` is
    `Params.base_gguf`, which only the plan of the disk depends on.
    """

    shape: Shape
    train: Training
    max_length: int
    card: Card | None = None
    quantized: QuantizedBase | None = None
    processes: int = 1
    levels: Sequence[str] = ()
    untuned: bool = True

    @property
    def device(self) -> Device:
        """The device that trains."""
        return self.card.device if self.card else "cuda"

    @property
    def loss(self) -> Loss:
        """`train.loss`, with auto resolved.

        auto is liger on a GPU. It is chunked on a CPU, for mixtures of experts, for trained norms, and for
        architectures without Liger kernels.
        """
        if self.train.loss != "auto":
            return self.train.loss
        fused = self.device == "cuda" and not self.shape.mixture and not self.train.modules_to_save
        if self.shape.built:
            fused = fused and self.shape.built.liger
        return "liger" if fused else "chunked"

    @property
    def tokens(self) -> int:
        """Tokens of a padding-free micro batch, which is one sequence."""
        return self.max_length * self.train.per_device_train_batch_size

    @property
    def element(self) -> int:
        """Bytes of an activation, and of a weight that is not quantized."""
        return ELEMENT[self.train.bnb_4bit_compute_dtype]

    @property
    def lora_element(self) -> int:
        """Bytes of an activation in the trained part.

        It is float32 in an adapter if no autocast makes it 16 bit, which means on the CPU.
        """
        return self.element if self.device == "cuda" or self.train.tuning.inside else FLOAT

    @property
    def lean(self) -> bool:
        """True if LoRA on base linears computes in 16 bit on a CPU, and so shares their input with dropout
        too (`pipeline.models.lean_lora`). DoRA with dropout is computed by PEFT.
        """
        train = self.train
        if self.device != "cpu" or train.bnb_4bit_compute_dtype != "bfloat16":
            return False
        return not train.compiled and not (train.use_dora and train.dropout)

    @property
    def is_widened(self) -> bool:
        """True if products of bfloat16 are computed in float32 (`pipeline.models.wide_products`)."""
        narrow = self.train.bnb_4bit_compute_dtype == "bfloat16"
        return self.device == "cpu" and narrow and not multiplies_bfloat16()

    @property
    def parts(self) -> int:
        """The number of parts that the layers are shared out in among the processes; 1 if each has all."""
        return self.processes if self.train.shares_base else 1

    @property
    def offload_left(self) -> Literal["shared", "layers", ""]:
        """The weights that `train.offload` could still move off a card.

        These are the base, shared out, or layers; "" for none.
        """
        train = self.train
        if self.processes > 1 and not train.use_dora and not train.offloaded_layers:
            return "shared"
        return "layers" if self.device == "cuda" and not train.use_dora and not train.shares_base else ""

    def exchanged(self, trained: int) -> int:
        """Return the bytes for exchanging gradients.

        These are a round's gradients in one piece, what others send, and this process's part of the sum.
        """
        return 2 * trained + trained // self.processes if self.processes > 1 else 0

    def at(self, max_length: int, **changes: Any) -> "Setup":
        """Return the set-up with rows of `max_length` tokens and other values for keys of `train`."""
        return replace(self, train=self.train.model_copy(update=changes), max_length=max_length)


def setup_of(
    params: Params,
    shape: Shape,
    card: Card | None = None,
    quantized: QuantizedBase | None = None,
    processes: int = 1,
) -> Setup:
    """Return the set-up of `params` for a base of this shape."""
    return Setup(
        shape,
        params.training_on(card.device if card else "cuda"),
        params.preprocess.max_length,
        card,
        quantized,
        processes,
        levels=(*params.quantize.files, *params.quantize.untuned),
        untuned=params.base_gguf,
    )


def needs_gpu(optim: str) -> bool:
    """Return True if an optimizer's states are of a kind that only a GPU has."""
    return "8bit" in optim or "paged" in optim


def wants_gpu(train: Train) -> bool:
    """Return True if the settings are for training on a GPU."""
    return (
        train.device == "gpu" or train.loss == "liger" or needs_gpu(train.optim) or train.offloaded_layers > 0
    )


def check_offload(train: Train, device: Device) -> None:
    """Raise `ConfigError` if weights should be kept off a GPU, and training is on the CPU."""
    if train.offloaded_layers and device == "cpu":
        raise ConfigError(
            "Q-PLANNING-008",
            f"train.offload is {train.offload}, which spares a GPU's memory, and training is on the CPU: set "
            "it to none",
        )


class BaseKind(NamedTuple):
    """Bytes of a base's parts, exact, tensor by tensor, each with a description.

    The description of linears is `called` and `source`. `linears` are all weights of linears but the head's,
    `layers` those of each layer (for NF4 without the scales). `tables` are embedding and head; a tied head
    has none of its own. `workspace` is what linears need while they run, `logits` what the loss keeps of
    them. With `is_file` it is the GGUF, which is loaded tensor by tensor and never merged.
    """

    called: str
    source: str
    linears: int
    layers: list[int]
    tables: tuple[int, str]
    workspace: tuple[int, str]
    logits: tuple[int, str]
    is_file: bool = False


def unquantized(setup: Setup) -> BaseKind:
    """Return the kind of a base with everything in the compute type."""
    shape = setup.shape
    element = setup.element
    kind = setup.train.bnb_4bit_compute_dtype
    layers = [sum(linear.weights * linear.copies for linear in linears) for linears in shape.by_layer]
    logits = logits_bytes(setup), LOGITS[setup.loss]
    if setup.is_widened:
        logits = quantized_head_bytes(setup), BY_BLOCKS
    return BaseKind(
        "linears",
        kind,
        shape.linear_weights * element,
        [element * weights for weights in layers],
        (shape.table_weights * (1 if shape.tied else 2) * element, kind),
        (0, ""),
        logits,
    )


def nf4(setup: Setup) -> BaseKind:
    """Return the kind of a base with linears in NF4.

    The largest is dequantized at a time, with its scales in float32 twice.
    """
    shape = setup.shape
    linears = [linear for layer in shape.by_layer for linear in layer]
    largest = max(linear.weights for linear in linears)
    dense = largest * setup.element + 2 * ceil(largest / NF4_BLOCK) * FLOAT
    return unquantized(setup)._replace(
        called="linears in NF4",
        source="scales quantized too",
        linears=sum(nf4_bytes(linear.weights) * linear.copies for linear in linears),
        layers=[
            sum(ceil(linear.weights / 2) * linear.copies for linear in layer) for layer in shape.by_layer
        ],
        workspace=(dense, "the largest linear dequantized"),
    )


def packed(setup: Setup) -> BaseKind:
    """Return the kind of a base with linears, embeddings and head in the GGUF's own blocks.

    At most `BLOCK_WEIGHTS` weights of the largest linear are dequantized at a time. Raises `AssertionError`
    if their bytes are missing.
    """
    assert setup.quantized, "base.quantization is gguf, and how many bytes its GGUF has is missing"
    file = setup.quantized
    most = BLOCK_WEIGHTS[setup.device]
    block = max(
        min(linear.outputs, max(1, most // linear.inputs)) * linear.inputs
        for layer in setup.shape.by_layer
        for linear in layer
    )
    dense = block * setup.element + file.scratch(setup.device, block)
    if setup.train.tuning.inside:  # The block's gradient, also in float32, and the derivatives by a scale.
        dense += block * (setup.element + 2 * FLOAT) + 2 * block
    return unquantized(setup)._replace(
        called="quantized linears",
        source=file.source,
        linears=file.linears,
        layers=list(file.layers),
        tables=(file.tables, "quantized too"),
        workspace=(dense, "a block of linears dequantized"),
        logits=(quantized_head_bytes(setup), BY_BLOCKS),
        is_file=True,
    )


KINDS: Mapping[Quantization, Callable[[Setup], BaseKind]] = {"none": unquantized, "nf4": nf4, "gguf": packed}


def base_kind(setup: Setup) -> BaseKind:
    """Return the kind that `base.quantization` selects."""
    return KINDS[setup.train.quantization](setup)


def nf4_bytes(weights: int) -> int:
    """Return the bytes of a linear's `weights` in NF4: packed halves, scales, tables (QLoRA,
    arXiv:2305.14314; bitsandbytes `quantize_4bit`).

    There are two weights a byte, an odd one is padded. Each 64 weights have a scale in uint8, each 256 of
    these a float32 scale, with an offset and a table (double quantization).
    """
    scales = ceil(weights / NF4_BLOCK)
    quantized = ceil(weights / 2) + NF4_CODE
    return quantized + scales + ceil(scales / SCALE_BLOCK) * FLOAT + OFFSET + SCALE_CODE


def logits_bytes(setup: Setup) -> int:
    """Return the bytes of the logits that are in memory at once.

    Plain and chunked: log-softmax and two gradients in float32; plain keeps the logits too. Liger
    (arXiv:2410.10989, `fused_linear_cross_entropy_forward`): one chunk of logits, overwritten by its
    gradient; rows in it are T ÷ ⌈V/h⌉ rounded up to a power of two.
    """
    shape = setup.shape
    tokens = setup.tokens
    if setup.loss == "liger" and not METHODS[setup.train.method].answers:
        rows = min(tokens, 1 << (ceil(tokens / ceil(shape.vocabulary / shape.hidden)) - 1).bit_length())
        return rows * shape.vocabulary * setup.element + tokens * FLOAT
    if setup.loss == "plain":
        return tokens * shape.vocabulary * (LOSS_BYTES + setup.element)
    return min(tokens, max(1, CHUNK_LOGITS // shape.vocabulary)) * shape.vocabulary * LOSS_BYTES


def quantized_head_bytes(setup: Setup) -> int:
    """Return the bytes that the loss of a quantized head adds, besides the last hidden states.

    See `pipeline.models.quantized_head` and arXiv:2411.09009.

    A block of the vocabulary, dense, and its logits as often as elsewhere, each of at most `BLOCK_HEAD`
    elements; gradients summed up in float32, with the block's part. After the blocks these exist twice more,
    for the targets' own rows.
    """
    shape = setup.shape
    gradient = setup.tokens * shape.hidden
    head = min(shape.table_weights, BLOCK_HEAD)
    logits = min(setup.tokens * shape.vocabulary, BLOCK_HEAD)
    in_blocks = head * setup.element + logits * LOSS_BYTES + gradient * (FLOAT + setup.element)
    return max(in_blocks, 3 * gradient * FLOAT)

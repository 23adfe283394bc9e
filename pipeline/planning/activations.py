"""Bytes that come and go with every step: what the forward keeps for the backward, the loss, workspace.

A padding-free micro batch is one sequence of T = micro batch × max_length tokens. What autograd keeps is
known operation by operation (transformers' `modeling_qwen2.py`, PEFT's `lora/bnb.py`, Liger's `rms_norm.py`
and `swiglu.py`); a frozen linear keeps nothing. On the CPU the tests count the kept tensors and find these
very numbers.
"""

from dataclasses import dataclass
from math import ceil
from typing import Literal

from pipeline.config.sections import Training
from pipeline.config.targets import rank_of, trains_in
from pipeline.core.cpu import Device
from pipeline.planning.dora import dora_kept
from pipeline.planning.experts import experts_kept
from pipeline.planning.quantized import QuantizedBase
from pipeline.planning.shape import Linear, Shape
from pipeline.planning.weights import (
    ELEMENT,
    FLOAT,
    NF4_BLOCK,
    first_trained,
    lora_parameters,
    targets,
    tunes_scales,
)

Loss = Literal["liger", "chunked", "plain"]  # plain: transformers' own, with all logits; for comparison
# `pipeline.gguf.base_files`'s, which import torch too: dense at a time of a linear
BLOCK_WEIGHTS = 32 << 20
BLOCK_SCALED = 8 << 20  # `pipeline.models.scaled_linear`'s
CUBLAS_WORKSPACE = 8_519_680  # torch's default for a stream, :4096:2:16:8


@dataclass(frozen=True)
class Step:
    """What the bytes of a step depend on: model, settings, device, loss, and tokens in a sequence."""

    shape: Shape
    train: Training
    device: Device
    loss: Loss
    tokens: int

    @property
    def element(self) -> int:
        """Bytes of an activation."""
        return ELEMENT[self.train.bnb_4bit_compute_dtype]

    @property
    def lora_element(self) -> int:
        """Bytes of an activation in the adapter: float32 where no autocast makes it 16 bit, that is on the
        CPU.
        """
        return self.element if self.device == "cuda" else FLOAT

    @property
    def quantized(self) -> bool:
        """Whether linears, embeddings and head stay as the GGUF packs them."""
        return self.train.quantization == "gguf" and self.train.keep_quantized


def norm_kept(step: Step, rows: int, width: int) -> int:
    """Bytes kept by an RMSNorm over `rows` vectors: its input (float32 unless Liger's) and each one's
    reciprocal root.
    """
    return rows * (width * (step.element if step.loss == "liger" else FLOAT) + FLOAT)


def lora_kept(step: Step, layer: int, targets: list[Linear], without_mask: tuple[str, ...] = ()) -> int:
    """Bytes kept by a layer's LoRA branches, on `targets`: dropout's mask and output (or the input), and A's
    output.

    Without dropout, linears that read the same tensor share it, unless each makes its own float32 copy: on a
    CPU all but those on NF4 without DoRA (`pipeline.models.lean_lora`), which share it with dropout too, and
    keep a byte of mask; the router is none of those.
    Inputs named in `without_mask` need no gradient, so their dropout keeps no mask. Linears whose scales
    train keep their inputs alone.
    """
    train, scaled = step.train, tunes_scales(step.train)
    lean = step.device == "cpu" and train.quantization == "nf4" and not train.use_dora
    shared, apart = list(targets), []
    if not scaled and (train.dropout or step.lora_element != step.element):
        shared = [linear for linear in targets if lean and linear in step.shape.linears]
        apart = [linear for linear in targets if linear not in shared]
    ranks = sum(linear.used * rank_of(linear.path(layer), train) for linear in targets)
    kept = 0 if scaled else ranks * step.lora_element
    mask = 1 if step.device == "cuda" else step.lora_element  # a bool on CUDA, on the CPU the noise itself
    for linear in apart:
        masked = train.dropout and linear.reads not in without_mask
        kept += linear.used * linear.inputs * (step.lora_element + (mask if masked else 0))
    # attention keeps its output anyway
    inputs = {linear.reads: linear.used * linear.inputs for linear in shared if linear.reads != "attended"}
    kept += sum(inputs.values()) * step.element
    if train.dropout and not scaled:
        kept += sum(linear.used * linear.inputs for linear in shared)
    return step.tokens * kept


def attention_kept(step: Step) -> int:
    """Bytes kept by one layer's attention: queries, keys, values, output, log-sums and, of packed rows, the T
    × T mask as bias.

    With a mask, transformers' SDPA copies keys and values for every head (`use_gqa_in_sdpa`, `repeat_kv`); a
    single one is viewed.
    """
    shape = step.shape
    keys = shape.keys if shape.kv_heads == 1 else shape.queries
    kept = (
        step.tokens * (2 * (shape.queries + keys) * step.element + shape.heads * FLOAT)
        + step.tokens**2 * step.element
    )
    if shape.qk_norms:
        kept += norm_kept(step, step.tokens * shape.heads, shape.head_dim) + norm_kept(
            step, step.tokens * shape.kv_heads, shape.head_dim
        )
    return kept


def layer_kept(step: Step, layer: int, targets: list[Linear], first: bool = False) -> int:
    """Bytes that the forward of `layer`, with `targets` that train, keeps; the `first` one's input needs no
    gradient, which saves a norm and masks.
    """
    norms = norm_kept(step, step.tokens, step.shape.hidden)
    # gate, up and, unless Liger's, SiLU's output
    gated = step.tokens * step.shape.intermediate * step.element * (2 if step.loss == "liger" else 3)
    whole: set[str] = {*step.train.modules_to_save} if trains_in(layer, step.train) else set()
    lora = lora_kept(step, layer, targets, ("normed",) if first and "input_layernorm" not in whole else ())
    if step.train.use_dora:
        lora += dora_kept(step.train, layer, targets, step.tokens, step.element, step.lora_element)
    return (
        norms * (1 if first else 2)
        + normalized_kept(step, whole)
        + lora
        + attention_kept(step)
        + gated
        + experts_kept(step.shape, step.tokens, step.element)
    )


def normalized_kept(step: Step, whole: set[str]) -> int:
    """Bytes of what the norms of a layer that train whole multiply by their weights."""
    shape = step.shape
    widths = {"input_layernorm": shape.hidden, "post_attention_layernorm": shape.hidden}
    widths |= {"q_norm": shape.queries, "k_norm": shape.keys, "norm": 0}
    return step.tokens * sum(widths[name] for name in whole) * step.element


def rope_bytes(step: Step) -> int:
    """Cosines and sines, which all layers share."""
    return 2 * step.tokens * step.shape.head_dim * step.element


def ends_kept(step: Step) -> int:
    """Bytes kept outside the layers: cosines and sines, and the final norm, which may train too."""
    whole = step.tokens * step.shape.hidden * step.element if "norm" in step.train.modules_to_save else 0
    return rope_bytes(step) + norm_kept(step, step.tokens, step.shape.hidden) + whole


def kept_by_layer(step: Step) -> dict[int, int]:
    """{layer: bytes that its forward keeps} from the first layer that trains on: those below keep nothing.
    With gradient checkpointing the first layer's input needs a gradient too.
    """
    by_layer, first = targets(step.shape, step.train), first_trained(step.shape, step.train)
    entry = None if step.train.gradient_checkpointing and not first else first
    return {
        layer: layer_kept(step, layer, by_layer[layer], layer == entry)
        for layer in range(first, step.shape.layers)
    }


def recomputed_layers(step: Step) -> list[int]:
    """The layers with a backward whose number `train.checkpoint_every` divides, as transformers counts."""
    return [layer for layer in kept_by_layer(step) if layer % step.train.checkpoint_every == 0]


def inputs_kept(step: Step) -> int:
    """With gradient checkpointing: the input of every layer that is recomputed, T·h elements each, what the
    others keep, and what is kept outside the layers.
    """
    again, kept = set(recomputed_layers(step)), kept_by_layer(step)
    inputs = len(again) * step.tokens * step.shape.hidden * step.element
    return inputs + sum(size for layer, size in kept.items() if layer not in again) + ends_kept(step)


def recomputed_kept(step: Step) -> int:
    """With gradient checkpointing: what the forward of a recomputed layer keeps, of the widest one."""
    kept = kept_by_layer(step)
    return max((kept[layer] for layer in recomputed_layers(step)), default=0)


def all_kept(step: Step) -> int:
    """Without gradient checkpointing: all that the layers keep, and what is kept outside them."""
    return sum(kept_by_layer(step).values()) + ends_kept(step)


def autocast_copies(step: Step) -> int:
    """Autocast's 16-bit copies of the adapter, which a forward holds to its end."""
    return (
        lora_parameters(step.shape, step.train) * step.element
        if step.device == "cuda" and step.element < FLOAT and not tunes_scales(step.train)
        else 0
    )


def gradients_in_flight(step: Step) -> int:
    """Activations' gradients alive at a layer's widest point: two of the hidden width, one of the
    intermediate width.
    """
    return step.tokens * (2 * step.shape.hidden + step.shape.intermediate) * step.element


def workspace_bytes(step: Step, quantized: QuantizedBase | None = None) -> int:
    """What linears take while they run, and cuBLAS's own workspace.

    NF4: the largest one dequantized, with its scales in float32 twice. A GGUF's: rows of at most
    `BLOCK_WEIGHTS` weights of the largest one
    (`pipeline.models.quantized_linear`), and what the dequantizer takes beside. If its scales train: of
    `BLOCK_SCALED` weights also the gradient, and copies of the bytes (`pipeline.models.scaled_linear`).
    """
    cublas = CUBLAS_WORKSPACE if step.device == "cuda" else 0
    if quantized and step.quantized:
        at_once = BLOCK_SCALED if tunes_scales(step.train) else BLOCK_WEIGHTS
        block = max(
            min(linear.outputs, max(1, at_once // linear.inputs)) * linear.inputs
            for linear in step.shape.linears
        )
        dense = block * step.element
        if tunes_scales(step.train):  # its gradient too, and in float32, and the derivatives by a scale
            dense += block * (step.element + 2 * FLOAT) + 2 * block
        return cublas + dense + quantized.scratch(step.device, block)
    if step.train.quantization != "nf4":
        return cublas
    largest: Linear = max(step.shape.linears, key=lambda linear: linear.weights)
    return cublas + largest.weights * step.element + 2 * ceil(largest.weights / NF4_BLOCK) * FLOAT

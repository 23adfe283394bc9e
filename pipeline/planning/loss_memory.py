"""Bytes that the loss takes while it runs."""

from math import ceil

from pipeline.config.methods import METHODS
from pipeline.planning.activations import Step
from pipeline.planning.weights import FLOAT

CHUNK_LOGITS = 5 << 20  # `pipeline.models.chunked_loss`'s, which imports torch; a test keeps them equal
LOSS_BYTES = 3 * FLOAT  # per logit alive: log-softmax and two gradients
BLOCK_HEAD = 8 << 20  # `pipeline.models.quantized_head`'s


def loss_bytes(step: Step) -> int:
    """Bytes that the loss adds: logits alive at once, and the last hidden states with their gradient.

    Plain and chunked: log-softmax and two gradients in float32; plain keeps the logits too. Liger
    (arXiv:2410.10989, `fused_linear_cross_entropy_forward`): one chunk of logits, overwritten by its
    gradient; rows in it are T ÷ ⌈V/h⌉ rounded up to a power of two. Quantized: `quantized_head_bytes`.
    """
    shape = step.shape
    states = 2 * step.tokens * shape.hidden * step.element
    if step.quantized:
        return states + quantized_head_bytes(step)
    if step.loss == "liger" and not METHODS[step.train.method].preferences:
        rows = min(
            step.tokens, 1 << (ceil(step.tokens / ceil(shape.vocabulary / shape.hidden)) - 1).bit_length()
        )
        return states + rows * shape.vocabulary * step.element + step.tokens * FLOAT
    if step.loss == "plain":
        return states + step.tokens * shape.vocabulary * (LOSS_BYTES + step.element)
    return states + min(step.tokens, max(1, CHUNK_LOGITS // shape.vocabulary)) * shape.vocabulary * LOSS_BYTES


def quantized_head_bytes(step: Step) -> int:
    """Bytes that the loss of a quantized head adds, besides the last hidden states
    (`pipeline.models.quantized_head`; arXiv:2411.09009).

    A block of the vocabulary, dense, and its logits as often as elsewhere, each of at most `BLOCK_HEAD`
    elements; gradients summed up in float32, with the block's part. After the blocks these are there twice
    more, for the targets' own rows.
    """
    shape = step.shape
    gradient = step.tokens * shape.hidden
    head, logits = min(shape.table_weights, BLOCK_HEAD), min(step.tokens * shape.vocabulary, BLOCK_HEAD)
    return max(
        head * step.element + logits * LOSS_BYTES + gradient * (FLOAT + step.element), 3 * gradient * FLOAT
    )

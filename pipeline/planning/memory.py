"""The memory plan: every part of a training run in bytes, and their peak."""

from dataclasses import dataclass

from pipeline.config.sections import Training
from pipeline.core.cpu import Device
from pipeline.core.text import plural
from pipeline.core.units import memory_gb
from pipeline.planning import activations, loss_memory, weights
from pipeline.planning.activations import Loss, Step
from pipeline.planning.offload import check_offload, offloaded_bytes
from pipeline.planning.processes import exchanged_bytes, shared_bytes
from pipeline.planning.quantized import QuantizedBase
from pipeline.planning.rollouts import server_memory
from pipeline.planning.shape import Shape
from pipeline.planning.weights import held_quantized

CUDA_CONTEXT = 500_000_000  # assumed: 0.3 to 0.8 GB, by card and driver
CUDA_SLACK = 0.03  # assumed: what torch's allocator reserves above what is allocated, rounding included
CPU_LIBRARIES = 920_000_000  # what a process takes beside its tensors
# of what is kept for the backward, on a CPU: holes that it leaves in glibc's heap. 0.5 with 0.5 billion
# parameters, 0.45 with 1.5 (docs/gpu.md)
HOLES = 0.48
# with dropout, whose masks are kept too: of one run of 216 forwards with 0.5 billion (docs/recipes.md)
HOLES_WITH_DROPOUT = 1.5
# assumed: free memory of a GPU, in sizes of a 16-bit model's file, with which it answers there
TEACHER_ROOM = 1.5


@dataclass(frozen=True)
class Part:
    """One line of the plan; `at_peak` is False for what is never alive together with the rest."""

    name: str
    bytes: int
    source: str
    at_peak: bool = True


@dataclass(frozen=True)
class MemoryPlan:
    """All parts, on the device that trains."""

    parts: tuple[Part, ...]
    device: Device
    loss: Loss
    tokens: int  # in one forward
    loading: int = 0  # bytes on the device while weights load, some of which training has elsewhere
    mapped: int = 0  # bytes on a CPU while weights load, with the file, whose pages the system takes back

    @property
    def total(self) -> int:
        """Bytes needed on the device, all assumed parts included."""
        return max(self.loading, sum(part.bytes for part in self.parts if part.at_peak))

    @property
    def peak(self) -> int:
        """Bytes that are seen of the process at most, where there is room: a mapped file counts."""
        return max(self.mapped, self.total)

    @property
    def allocated(self) -> int:
        """Bytes of tensors at the peak: what `torch.cuda.max_memory_allocated` measures."""
        return sum(part.bytes for part in self.parts if part.at_peak and part.name not in ASSUMED)


LOGITS: dict[Loss, str] = {
    "liger": "one chunk of logits",
    "chunked": "one chunk of logits",
    "plain": "all logits",
}
KEPT = ("layer inputs kept", "activations kept")
SERVER = "llama-server"  # another process, beside training's
ASSUMED = ("CUDA context", "allocator slack", "Python and libraries", "holes in the heap", SERVER)


def plan_memory(
    shape: Shape,
    train: Training,
    max_length: int,
    device: Device,
    loss: Loss,
    quantized: QuantizedBase | None = None,
    processes: int = 1,
) -> MemoryPlan:
    """The parts for training rows of `max_length` tokens, in packed micro batches of
    `train.per_device_train_batch_size`, on the card of one of so many processes.

    Two moments can be the peak: the loss, and the backward of the layer that comes first there. The smaller
    one's own bytes don't count. `quantized` is what a base takes that stays in its GGUF's blocks
    (`train.quantization` gguf, `train.keep_quantized`). Raises `ConfigError` for targets or an optimizer that
    can't be planned.
    """
    check_offload(train, device)
    tokens = max_length * train.per_device_train_batch_size
    step = Step(shape, train, device, loss, tokens)
    trained, scaled = 4 * sum(weights.trained_tensors(shape, train, quantized)), weights.tunes_scales(train)
    held = held_quantized(train, quantized)
    linears, how, dequantized = _storage(train, held)
    table = weights.table_bytes(shape, train, quantized)
    dense = train.quantization != "gguf"
    off_card = table // 2 if train.embeddings_on_cpu and device == "cuda" and not shape.tied and dense else 0
    tables = (
        "quantized too" if held else train.bnb_4bit_compute_dtype,
        "one table for both" if shape.tied else "",
        "embeddings in main memory" if off_card else "",
    )
    # all layers are given the mask that keeps packed rows apart, T × T bools; autograd doesn't keep it
    mask, copies = tokens**2, activations.autocast_copies(step)
    in_layer, at_loss = activations.gradients_in_flight(step), loss_memory.loss_bytes(step)
    if train.gradient_checkpointing:
        inputs = activations.inputs_kept(step) + mask
        kept = Part(KEPT[0], inputs, "layers × tokens × hidden width")
        in_layer += activations.recomputed_kept(step)
        moment, source = "one layer recomputed", "what its forward keeps, and gradients"
        at_loss += copies  # the recomputed layer makes its own again
    else:
        outputs = activations.all_kept(step) + mask + copies
        kept = Part(KEPT[1], outputs, "what all layers' forwards keep")
        moment, source = "gradients in flight", "of one layer's activations"
    workspace = activations.workspace_bytes(step, held)
    takes = ", ".join(filter(None, (dequantized, "cuBLAS" if device == "cuda" else ""))) or "none"
    in_backward = in_layer + workspace >= at_loss
    away = offloaded_bytes(shape, train, quantized)
    exchanged = exchanged_bytes(trained, processes)
    elsewhere, gathered = shared_bytes(shape, train, quantized, processes)
    linear_bytes = weights.linear_bytes(shape, train, quantized)
    parts = [
        Part(linears, linear_bytes - sum(away) - elsewhere, how),
        *([Part("gathered layers", gathered, f"the rest is with {processes} processes")] if gathered else []),
        *([Part("offloaded layer", max(away), _offloaded(away))] if away else []),
        Part("embeddings and head", table - off_card, ", ".join(filter(None, tables))),
        Part("norms and biases", weights.small_bytes(shape, train), train.bnb_4bit_compute_dtype),
        Part("scales" if scaled else "LoRA", trained, f"{trained // 4:,} parameters, float32"),
        Part("gradients", trained, "float32"),
        *([Part("exchanged gradients", exchanged, "a round's and their sum")] if exchanged else []),
        Part("optimizer", weights.optimizer_bytes(shape, train, quantized), train.optim),
        kept,
        Part(moment, in_layer, source, in_backward),
        Part("workspace", workspace, takes, in_backward),
        Part("loss", at_loss, "a block of the vocabulary" if held else LOGITS[loss], not in_backward),
    ]
    if server := server_memory(shape, train, max_length, device, quantized):
        parts.append(Part(SERVER, *server))
    everything = linear_bytes + table + weights.small_bytes(shape, train)
    # all are put on the GPU before some go to main memory, on a CPU the 16-bit file is mapped; a GGUF is
    # loaded tensor by tensor, what is shared out in main memory
    whole = not held and not gathered
    loading = everything + CUDA_CONTEXT if whole and device == "cuda" else 0
    mapped = everything + CPU_LIBRARIES + 2 * shape.parameters if whole and device == "cpu" else 0
    holes = HOLES_WITH_DROPOUT if train.dropout and not scaled else HOLES
    return MemoryPlan((*parts, *_assumed(parts, device, holes)), device, loss, tokens, loading, mapped)


def _offloaded(away: list[int]) -> str:
    return f"one at a time; {memory_gb(sum(away))} of {plural(len(away), 'layer')} in main memory"


def _storage(train: Training, held: QuantizedBase | None) -> tuple[str, str, str]:
    """What linears are called, how they are stored, and what is dequantized of them at a time."""
    if held:
        return "quantized linears", held.source, "a block of linears dequantized"
    if train.quantization == "nf4":
        scales = "scales quantized too" if train.bnb_4bit_use_double_quant else "scales in float32"
        return "linears in NF4", scales, "the largest linear dequantized"
    return "linears", train.bnb_4bit_compute_dtype, ""


def _assumed(parts: list[Part], device: Device, holes: float) -> list[Part]:
    """What a process takes beside the tensors of `parts`; `holes` is a share of what is kept."""
    if device == "cpu":
        kept = sum(part.bytes for part in parts if part.name in KEPT)
        return [
            Part("holes in the heap", int(holes * kept), f"assumed; {holes:.0%} of what is kept"),
            Part("Python and libraries", CPU_LIBRARIES, "assumed"),
        ]
    slack = int(CUDA_SLACK * sum(part.bytes for part in parts if part.at_peak and part.name != SERVER))
    return [
        Part("CUDA context", CUDA_CONTEXT, "assumed; 0.3 to 0.8 GB by card and driver"),
        Part("allocator slack", slack, f"assumed; {CUDA_SLACK:.0%} of all tensors"),
    ]

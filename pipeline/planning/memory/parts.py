"""The memory plan: every part of a training run in bytes, and their peak."""

from dataclasses import dataclass, replace

from pipeline.config.methods import METHODS
from pipeline.config.sections import Training
from pipeline.core.text import plural
from pipeline.core.units import memory_gb
from pipeline.planning.memory import activations, weights
from pipeline.planning.model.level_bytes import level_bytes
from pipeline.planning.serving import BUFFERS, ServingMemory, cache_per_token
from pipeline.planning.setup import FLOAT, Setup, base_kind, check_offload

CUDA_CONTEXT = 500_000_000  # bytes, assumed: 0.3 to 0.8 GB, by card and driver
CUDA_SLACK = 0.03  # assumed share that torch's allocator reserves on top, rounding included
CPU_LIBRARIES = 920_000_000  # bytes of a process in addition to its tensors
# Holes in glibc's heap as a share of what is kept for the backward, on a CPU. 0.5 with 0.5 billion
# parameters, 0.45 with 1.5 (docs/gpu.md).
HOLES = 0.48
# The same with dropout, whose masks are kept too: from one run of 216 forwards with 0.5 billion
# (docs/recipes.md).
HOLES_WITH_DROPOUT = 1.5
# Assumed: free memory of a GPU in which a 16-bit model answers, in sizes of its file.
TEACHER_ROOM = 1.5
MORE = 8  # tokens that GRPO's rollouts request in addition to prompt and completion


@dataclass(frozen=True)
class Part:
    """One line of the plan. `at_peak` is False for a part that is never in memory together with the rest."""

    name: str
    bytes: int
    source: str
    at_peak: bool = True


@dataclass(frozen=True)
class MemoryPlan:
    """All parts, on the device that trains."""

    parts: tuple[Part, ...]
    loading: int = 0  # bytes on the device while weights load, some of which are elsewhere during training
    mapped: int = 0  # bytes on a CPU while weights load, with the file, whose pages the system reclaims

    @property
    def total(self) -> int:
        """Bytes needed on the device, all assumed parts included."""
        return max(self.loading, sum(part.bytes for part in self.parts if part.at_peak))

    @property
    def peak(self) -> int:
        """Bytes that the process is seen to use at most, if there is room: a mapped file counts."""
        return max(self.mapped, self.total)

    @property
    def allocated(self) -> int:
        """Bytes of tensors at the peak, as `torch.cuda.max_memory_allocated` measures them."""
        return sum(part.bytes for part in self.parts if part.at_peak and part.name not in ASSUMED)


WHOLE_TABLES = "trained embeddings and head"
SERVER = "llama-server"  # another process, next to training's
ASSUMED = ("CUDA context", "allocator slack", "Python and libraries", "holes in the heap", SERVER)


def plan_memory(setup: Setup) -> MemoryPlan:
    """Return the parts for training on packed micro batches, on the card of one of the processes.

    Two moments can be the peak: the loss, and the backward of the layer that comes first there. The smaller
    one's own bytes don't count. Raises `ConfigError` for targets or an optimizer that can't be planned.
    """
    check_offload(setup.train, setup.device)
    kept, backward, loss = step_parts(setup)
    smaller = min([loss], backward, key=lambda moment: sum(part.bytes for part in moment))
    moments = [replace(part, at_peak=part not in smaller) for part in (*backward, loss)]
    parts = [*lasting_parts(setup), kept, *moments, *server_parts(setup)]
    # All weights are put on the GPU before some move to main memory; on a CPU the 16-bit file is mapped. A
    # GGUF is loaded tensor by tensor, and a base that is shared out is loaded in main memory.
    frozen = weights.frozen_bytes(setup)
    loading = 0
    mapped = 0
    if not base_kind(setup).is_file and setup.parts == 1:
        if setup.device == "cuda":
            loading = frozen + CUDA_CONTEXT
        else:
            mapped = frozen + CPU_LIBRARIES + 2 * setup.shape.parameters
    return MemoryPlan((*parts, *assumed_parts(setup, parts, kept)), loading, mapped)


def lasting_parts(setup: Setup) -> list[Part]:
    """Return the parts that stay from the first step to the last, also those of sharing and offloading."""
    shape = setup.shape
    train = setup.train
    base = base_kind(setup)
    away = weights.offloaded_bytes(setup)
    elsewhere, gathered = weights.shared_bytes(setup)
    in_main_memory = f"{memory_gb(sum(away))} of {plural(len(away), 'layer')} in main memory"
    table, table_source = base.tables
    off_card = weights.off_card_bytes(setup)
    tables = (
        table_source,
        "one table for both" if shape.tied else "",
        "embeddings in main memory" if off_card else "",
    )
    trained = FLOAT * sum(weights.trained_tensors(setup))
    whole = FLOAT * sum(weights.saved_tables(setup))
    adapter = trained - whole
    parts = [
        Part(base.called, base.linears - sum(away) - elsewhere, base.source),
        Part("gathered layers", gathered, f"the rest is with {setup.parts} processes"),
        Part("offloaded layer", max(away, default=0), f"one at a time; {in_main_memory}"),
        Part("embeddings and head", table - off_card, ", ".join(filter(None, tables))),
        Part("norms and biases", weights.small_bytes(setup), train.bnb_4bit_compute_dtype),
        Part(setup.train.tuning.called, adapter, f"{adapter // FLOAT:,} parameters, float32"),
        Part(WHOLE_TABLES, whole, f"{whole // FLOAT:,} parameters, float32, beside the frozen ones"),
        Part("gradients", trained, "float32"),
        Part("exchanged gradients", setup.exchanged(trained), "a round's and their sum"),
        Part("optimizer", weights.optimizer_bytes(setup), train.optim),
    ]
    rare = ("gathered layers", "offloaded layer", WHOLE_TABLES, "exchanged gradients")
    return [part for part in parts if part.bytes or part.name not in rare]


def step_parts(setup: Setup) -> tuple[Part, list[Part], Part]:
    """Return (what is kept for the backward, what the backward needs in addition, what the loss needs)."""
    # All layers get the mask that keeps packed rows apart, T × T bools. Autograd doesn't keep it.
    mask = setup.tokens**2
    copies = activations.autocast_copies(setup)
    in_layer = activations.gradients_in_flight(setup)
    at_loss, logits = activations.loss(setup)
    in_forward = activations.forward_kept(setup) + mask
    bound = "at most " if setup.shape.built else ""  # counted with transformers' own code, and not Liger's
    if setup.train.gradient_checkpointing:
        kept = Part("layer inputs kept", in_forward, "layers × tokens × hidden width")
        in_layer += activations.recomputed_kept(setup)
        moment = Part("one layer recomputed", in_layer, f"{bound}what its forward keeps, and gradients")
        at_loss += copies  # The recomputed layer makes its own again.
    else:
        kept = Part("activations kept", in_forward + copies, f"{bound}what all layers' forwards keep")
        moment = Part("gradients in flight", in_layer, "of one layer's activations")
    return kept, [moment, Part("workspace", *activations.workspace(setup))], Part("loss", at_loss, logits)


def assumed_parts(setup: Setup, parts: list[Part], kept: Part) -> list[Part]:
    """Return the parts of a process in addition to the tensors of `parts`, which include `kept`."""
    if setup.device == "cpu":
        holes = HOLES_WITH_DROPOUT if setup.train.dropout else HOLES
        return [
            Part("holes in the heap", int(holes * kept.bytes), f"assumed; {holes:.0%} of what is kept"),
            Part("Python and libraries", CPU_LIBRARIES, "assumed"),
        ]
    slack = int(CUDA_SLACK * sum(part.bytes for part in parts if part.at_peak and part.name != SERVER))
    return [
        Part("CUDA context", CUDA_CONTEXT, "assumed; 0.3 to 0.8 GB by card and driver"),
        Part("allocator slack", slack, f"assumed; {CUDA_SLACK:.0%} of all tensors"),
    ]


# --- llama-server next to training


def answers_by_server(train: Training) -> bool:
    """Return True if llama-server gives the model's own answers while it trains."""
    return METHODS[train.method].prompts and train.grpo.rollouts == "llama-server"


def made_file(setup: Setup) -> int:
    """Return the bytes of the GGUF that is made for llama-server; 0 if none is made.

    It is kept until training is done.
    """
    kind = setup.train.rollout_type
    return level_bytes(setup.shape, kind) if kind else 0


def server_parts(setup: Setup) -> list[Part]:
    """Return llama-server's part if it shares the device with training; empty if there is no server.

    It is planned for a round with the longest prompts. Its layers on a GPU share one with training; those in
    main memory count if training is there too.
    """
    if not answers_by_server(setup.train):
        return []
    shape = setup.shape
    grpo = setup.train.grpo
    file = made_file(setup)
    if not file:  # Rollouts use the file that is trained on.
        assert setup.quantized, "base.quantization is gguf, and how many bytes its GGUF has is missing"
        file = setup.quantized.file
    context = (setup.max_length + grpo.max_new_tokens + MORE) * grpo.parallel
    memory = ServingMemory(file, cache_per_token(shape) * context, context=context)
    on_gpu = min(setup.train.rollout_layers, shape.layers) / shape.layers
    here = on_gpu if setup.device == "cuda" else 1 - on_gpu
    sizes = f"{memory_gb(memory.weights)} file, {context:,} tokens of KV cache, {BUFFERS:.0%}"
    source = sizes if here == 1 else f"{here:.0%} of {memory_gb(memory.total)}"
    return [Part(SERVER, round(memory.total * here), source)]

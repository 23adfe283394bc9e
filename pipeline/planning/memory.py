"""The memory plan: every part of a training run in bytes, and their peak."""

from dataclasses import dataclass, replace

from pipeline.config.methods import METHODS
from pipeline.config.sections import Training
from pipeline.core.text import plural
from pipeline.core.units import memory_gb
from pipeline.planning import activations, weights
from pipeline.planning.base_kinds import base_kind
from pipeline.planning.level_bytes import level_bytes
from pipeline.planning.serving import BUFFERS, ServingMemory, cache_per_token
from pipeline.planning.setup import FLOAT, Setup, check_offload

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
MORE = 8  # tokens that GRPO's rollouts ask for beside prompt and completion


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


WHOLE_TABLES = "trained embeddings and head"
SERVER = "llama-server"  # another process, beside training's
ASSUMED = ("CUDA context", "allocator slack", "Python and libraries", "holes in the heap", SERVER)


def plan_memory(setup: Setup) -> MemoryPlan:
    """The parts for training on packed micro batches, on the card of one of the processes.

    Two moments can be the peak: the loss, and the backward of the layer that comes first there. The smaller
    one's own bytes don't count. Raises `ConfigError` for targets or an optimizer that can't be planned.
    """
    check_offload(setup.train, setup.device)
    kept, backward, loss = step_parts(setup)
    smaller = min([loss], backward, key=lambda moment: sum(part.bytes for part in moment))
    moments = [replace(part, at_peak=part not in smaller) for part in (*backward, loss)]
    parts = [*lasting_parts(setup), kept, *moments, *server_parts(setup)]
    # all are put on the GPU before some go to main memory, on a CPU the 16-bit file is mapped; a GGUF is
    # loaded tensor by tensor, what is shared out in main memory
    frozen, loading, mapped = weights.frozen_bytes(setup), 0, 0
    if not base_kind(setup).is_file and setup.parts == 1:
        if setup.device == "cuda":
            loading = frozen + CUDA_CONTEXT
        else:
            mapped = frozen + CPU_LIBRARIES + 2 * setup.shape.parameters
    return MemoryPlan((*parts, *assumed_parts(setup, parts, kept)), loading, mapped)


def lasting_parts(setup: Setup) -> list[Part]:
    """What stays from the first step to the last; what several processes and offloading come to as well."""
    shape, train, base = setup.shape, setup.train, base_kind(setup)
    away, (elsewhere, gathered) = weights.offloaded_bytes(setup), weights.shared_bytes(setup)
    in_main_memory = f"{memory_gb(sum(away))} of {plural(len(away), 'layer')} in main memory"
    (table, table_source), off_card = base.tables, weights.off_card_bytes(setup)
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
    """(what is kept for the backward, what the backward takes beside, what the loss does)."""
    # all layers are given the mask that keeps packed rows apart, T × T bools; autograd doesn't keep it
    mask, copies = setup.tokens**2, activations.autocast_copies(setup)
    in_layer, (at_loss, logits) = activations.gradients_in_flight(setup), activations.loss(setup)
    in_forward = activations.forward_kept(setup) + mask
    bound = "at most " if setup.shape.built else ""  # counted by transformers' own code, and not by Liger's
    if setup.train.gradient_checkpointing:
        kept = Part("layer inputs kept", in_forward, "layers × tokens × hidden width")
        in_layer += activations.recomputed_kept(setup)
        moment = Part("one layer recomputed", in_layer, f"{bound}what its forward keeps, and gradients")
        at_loss += copies  # the recomputed layer makes its own again
    else:
        kept = Part("activations kept", in_forward + copies, f"{bound}what all layers' forwards keep")
        moment = Part("gradients in flight", in_layer, "of one layer's activations")
    return kept, [moment, Part("workspace", *activations.workspace(setup))], Part("loss", at_loss, logits)


def assumed_parts(setup: Setup, parts: list[Part], kept: Part) -> list[Part]:
    """What a process takes beside the tensors of `parts`, `kept` among them."""
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


# --- llama-server beside training


def answers_by_server(train: Training) -> bool:
    """Whether llama-server gives the model's own answers while it trains."""
    return METHODS[train.method].prompts and train.grpo.rollouts == "llama-server"


def made_file(setup: Setup) -> int:
    """Bytes of the GGUF that is made for llama-server, until training has ended; 0 where none is."""
    kind = setup.train.rollout_type
    return level_bytes(setup.shape, kind) if kind and answers_by_server(setup.train) else 0


def server_parts(setup: Setup) -> list[Part]:
    """llama-server where training is, while a round is drawn for the longest prompts; nothing where there is
    no server.

    Its layers on a GPU share one with training, those in main memory count where training is there too.
    """
    if not answers_by_server(setup.train):
        return []
    shape, grpo = setup.shape, setup.train.grpo
    if not (file := made_file(setup)):  # it draws with the one that is trained on
        assert setup.quantized, "base.quantization is gguf, and how many bytes its GGUF has is missing"
        file = setup.quantized.file
    context = (setup.max_length + grpo.max_new_tokens + MORE) * grpo.parallel
    memory = ServingMemory(file, cache_per_token(shape) * context, context=context)
    on_gpu = min(setup.train.rollout_layers, shape.layers) / shape.layers
    here = on_gpu if setup.device == "cuda" else 1 - on_gpu
    sizes = f"{memory_gb(memory.weights)} file, {context:,} tokens of KV cache, {BUFFERS:.0%}"
    source = sizes if here == 1 else f"{here:.0%} of {memory_gb(memory.total)}"
    return [Part(SERVER, round(memory.total * here), source)]

"""What GRPO's rollouts take: the time to draw them, and llama-server's memory. Estimates: how long answers
become and how fast a machine decodes is not known before the run.

A token of an answer needs every weight once, so decoding goes as fast as these are read.
"""

from dataclasses import dataclass

from pipeline.config.methods import METHODS
from pipeline.config.sections import Training
from pipeline.core.cpu import Device
from pipeline.core.units import disk_gb, memory_gb
from pipeline.planning.level_bytes import level_bytes
from pipeline.planning.offload import PCIE, offloaded_bytes
from pipeline.planning.quantized import QuantizedBase
from pipeline.planning.serving import BUFFERS, ServingMemory, cache_per_token
from pipeline.planning.shape import Shape
from pipeline.planning.weights import linear_bytes, table_bytes

# assumed: bytes a second that decoding reads weights with; two channels of DDR4 reach some 30 of 51 GB/s, an
# RTX 4060 has 272
BANDWIDTH: dict[Device, float] = {"cpu": 20e9, "cuda": 250e9}
MORE = 8  # tokens that rollouts ask for beside prompt and completion


@dataclass(frozen=True)
class Drawing:
    """Rollouts of a run: completions in all (None: not measured), the longest one in tokens, tokens drawn a
    second, and what that rests on.
    """

    completions: int | None
    max_new_tokens: int
    tokens_per_second: float
    basis: str

    @property
    def seconds(self) -> float | None:
        """Seconds until all are drawn if each is as long as it may be."""
        if self.completions is None:
            return None
        return self.completions * self.max_new_tokens / self.tokens_per_second


def draws(train: Training) -> bool:
    """Whether the model gives its own answers while it trains."""
    return METHODS[train.method].prompts


def plan_drawing(
    shape: Shape, train: Training, steps: int | None, device: Device, quantized: QuantizedBase | None = None
) -> Drawing | None:
    """What a run of `steps` optimizer steps (None: not known) on `device` draws; None for a method that
    doesn't. Training on a GGUF draws with its own file, `quantized`.
    """
    if not draws(train):
        return None
    grpo = train.grpo
    if grpo.rollouts == "llama-server":
        place: Device = "cuda" if grpo.n_gpu_layers else "cpu"
        read = _read(shape, server_file(shape, train, quantized))
        # on a GPU a read serves all slots; a CPU's few threads are busy with one
        at_once, seconds = grpo.parallel if grpo.n_gpu_layers else 1, read / BANDWIDTH[place]
    else:
        place, at_once = device, grpo.group_size
        read = _read(shape, linear_bytes(shape, train, quantized) + table_bytes(shape, train, quantized))
        seconds = read / BANDWIDTH[device] + sum(offloaded_bytes(shape, train, quantized)) / PCIE
    basis = (
        f"estimated: {disk_gb(read)} of weights are read for each token, at {BANDWIDTH[place] / 1e9:g} GB/s "
        f"assumed, {at_once} at a time"
    )
    rows = train.per_device_train_batch_size * train.gradient_accumulation_steps
    completions = None if steps is None else steps * rows * grpo.group_size
    return Drawing(completions, grpo.max_new_tokens, at_once / seconds, basis)


def _read(shape: Shape, model: int) -> int:
    """Bytes of a model that a token needs: of a mixture's linears, those it is sent through."""
    unused = (shape.linear_weights - shape.used_weights) / shape.parameters
    return round(model * (1 - unused))


def server_file(shape: Shape, train: Training, quantized: QuantizedBase | None = None) -> int:
    """Bytes of the GGUF that llama-server draws with: the one that is trained on, or one that is made."""
    if train.quantization == "gguf":
        assert quantized, "base.quantization is gguf, and nobody has said how many bytes its GGUF has"
        return quantized.file
    return level_bytes(shape, train.grpo.rollout_type)


def made_file(shape: Shape, train: Training) -> int:
    """Bytes of the GGUF that is made for llama-server, until training has ended; 0 where none is."""
    served = draws(train) and train.grpo.rollouts == "llama-server" and train.quantization != "gguf"
    return server_file(shape, train) if served else 0


def server_memory(
    shape: Shape, train: Training, max_length: int, device: Device, quantized: QuantizedBase | None = None
) -> tuple[int, str] | None:
    """(bytes of llama-server where training is, in words how they come about) while a round is drawn for
    prompts of up to `max_length` tokens; None where there is no server.

    Its layers on a GPU share one with training, those in main memory count where training is there too.
    """
    if not draws(train) or train.grpo.rollouts != "llama-server":
        return None
    grpo = train.grpo
    context = (max_length + grpo.max_new_tokens + MORE) * grpo.parallel
    memory = ServingMemory(
        server_file(shape, train, quantized), cache_per_token(shape) * context, context=context
    )
    on_gpu = min(grpo.n_gpu_layers, shape.layers) / shape.layers
    here = on_gpu if device == "cuda" else 1 - on_gpu
    words = f"{memory_gb(memory.weights)} file, {context:,} tokens of KV cache, {BUFFERS:.0%}"
    return round(memory.total * here), words if here == 1 else f"{here:.0%} of {memory_gb(memory.total)}"

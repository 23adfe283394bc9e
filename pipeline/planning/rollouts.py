"""What GRPO takes beside its steps: the GGUF that llama-server draws with, and that server's memory."""

from pipeline.config.methods import METHODS
from pipeline.config.sections import Training
from pipeline.core.cpu import Device
from pipeline.core.units import memory_gb
from pipeline.planning.level_bytes import level_bytes
from pipeline.planning.quantized import QuantizedBase
from pipeline.planning.serving import BUFFERS, ServingMemory, cache_per_token
from pipeline.planning.shape import Shape

MORE = 8  # tokens that rollouts ask for beside prompt and completion


def by_server(train: Training) -> bool:
    """Whether llama-server gives the model's own answers while it trains."""
    return METHODS[train.method].prompts and train.grpo.rollouts == "llama-server"


def server_file(shape: Shape, train: Training, quantized: QuantizedBase | None = None) -> int:
    """Bytes of the GGUF that llama-server draws with: the one that is trained on, or one that is made."""
    if train.quantization == "gguf":
        assert quantized, "base.quantization is gguf, and nobody has said how many bytes its GGUF has"
        return quantized.file
    return level_bytes(shape, train.grpo.rollout_type)


def made_file(shape: Shape, train: Training) -> int:
    """Bytes of the GGUF that is made for llama-server, until training has ended; 0 where none is."""
    return server_file(shape, train) if by_server(train) and train.quantization != "gguf" else 0


def server_memory(
    shape: Shape, train: Training, max_length: int, device: Device, quantized: QuantizedBase | None = None
) -> tuple[int, str] | None:
    """(bytes of llama-server where training is, in words how they come about) while a round is drawn for
    prompts of up to `max_length` tokens; None where there is no server.

    Its layers on a GPU share one with training, those in main memory count where training is there too.
    """
    if not by_server(train):
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

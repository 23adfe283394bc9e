"""Bytes of the tensors that training really makes, part by part, to hold the planner against."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pipeline.config.sections import Training
from pipeline.core.hardware import main_memory
from pipeline.models.tuners import causal_model
from pipeline.planning.memory.parts import plan_memory
from pipeline.planning.model.shape import Shape
from pipeline.planning.setup import Setup


def adapted(base: Path, train: Training) -> Any:
    """The model as training has it."""
    from pipeline.models.qlora import load_quantized
    from pipeline.models.tuners import put_tuner

    return put_tuner(load_quantized(base, train), train)


def hidden_states(model: Any, tokens: int) -> Any:
    """The last hidden states (1, T, H) of a packed sequence of two rows, `tokens` together."""
    import torch

    ids = torch.arange(tokens)[None] % model.config.vocab_size
    positions = torch.cat([torch.arange(tokens // 3), torch.arange(tokens - tokens // 3)])[None]
    return causal_model(model).model(input_ids=ids, position_ids=positions, use_cache=False)[0]


def quant_tensors(module: Any) -> Iterator[Any]:
    """A 4-bit linear's packed weight and everything its quantization state holds."""
    state = module.weight.quant_state
    yield from (module.weight, state.absmax, state.code)
    if state.state2 is not None:
        yield from (state.offset, state.state2.absmax, state.state2.code)


def size(tensors: Iterable[Any]) -> int:
    """Bytes of all of them."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def measured(model: Any, optimizer: Any) -> dict[str, int]:
    """Bytes of the real tensors, by the planner's parts."""
    import torch

    from pipeline.models.experts.separate import Router

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    layers = [
        m
        for name, m in model.named_modules()
        if isinstance(m, torch.nn.Linear)
        and not isinstance(m, Router)  # in floats at any level
        and "lora_" not in name
        and "lm_head" not in name
    ]
    quantized = [layer for layer in layers if hasattr(layer.weight, "quant_state")]
    base = causal_model(model)
    tables = {
        id(table): table
        for table in (base.get_input_embeddings().weight, base.get_output_embeddings().weight)
    }
    norms = [
        parameter
        for name, parameter in model.named_parameters()
        if name.endswith((".bias", ".mlp.gate.weight")) or "norm" in name
    ]
    states = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    return {
        "linears": size(t for m in quantized for t in quant_tensors(m))
        if quantized
        else size(m.weight for m in layers),
        "tables": size(tables.values()),
        "small": size([*norms, *model.buffers()]),
        "lora": size(trained),
        "gradients": size(parameter.grad for parameter in trained),
        "optimizer": size({id(value): value for value in states}.values()),
    }


def planned(shape: Shape, train: Training, packed: Any = None) -> dict[str, int]:
    """The same by the planner: what stays, whatever the sequence."""
    setup = Setup(shape, train, 64, main_memory(), packed)
    parts = {part.name: part.bytes for part in plan_memory(setup).parts}
    linears = next(name for name in parts if "linears" in name)
    trained = next(name for name in parts if name in ("LoRA", "scales"))
    names = (linears, "embeddings and head", "norms and biases", trained, "gradients", "optimizer")
    return dict(
        zip(
            ("linears", "tables", "small", "lora", "gradients", "optimizer"),
            map(parts.__getitem__, names),
            strict=True,
        )
    )


def kept_bytes(model: Any, forward: Callable[[], Any]) -> int:
    """Bytes of the storages that a forward keeps for the backward, the model's own aside."""
    import torch

    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    own |= {
        t.untyped_storage().data_ptr()
        for m in model.modules()
        if hasattr(getattr(m, "weight", None), "quant_state")
        for t in quant_tensors(m)
    }
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    assert result.requires_grad
    return sum(storage.nbytes() for storage in kept.values())

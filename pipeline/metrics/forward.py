"""Models in PyTorch that parity queries: merged, 16-bit base with its adapter, and as in training."""

import gc
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from pipeline.config.sections import Training
from pipeline.core.errors import DataError
from pipeline.metrics.divergence import Prompt
from pipeline.models.qlora import ON_ONE_DEVICE, load_quantized
from pipeline.models.runtime import give_back_holes
from pipeline.models.tuners import restored
from pipeline.models.tuners.lora import with_adapter


@contextmanager
def trained_model(
    base: Path, adapter: Path | None, *, float32: bool = False, settings_of: Path | None = None
) -> Iterator["TorchSpeaker"]:
    """Yield the base as in training (recorded in `run.json`), with the trained adapter or scales, on the GPU
    if there is one.

    Without an adapter it is the base without one, loaded as in the run of `settings_of`. It computes in
    training's own type, or with `float32` in float32 on the same weights: the difference is the rounding of
    training's arithmetic. Raises `DataError` if the adapter has no record of its run.
    """
    trained_in = adapter or settings_of
    assert trained_in, "a base alone needs the settings of a run"
    with quantized_base(base, trained_in) as bare:
        model = restored(bare, adapter) if adapter else bare
        speaker = TorchSpeaker(in_float32(model) if float32 else model)
        yield speaker
        speaker.forget()
        del bare, model


def quantized_base(base: Path, trained: Path) -> AbstractContextManager[Any]:
    """Return the base as in the training of the folder `trained`, without what it trained (`loaded_base`)."""
    return loaded_base(base, run_settings(trained).model_copy(update=ON_ONE_DEVICE))


@contextmanager
def loaded_base(base: Path, settings: Training, device: str | None = None) -> Iterator[Any]:
    """Yield the base of `load_quantized`.

    Its memory is free after the body, if the body's own names go too.
    """
    import torch

    yield load_quantized(base, settings, device)
    gc.collect()
    give_back_holes()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def run_settings(adapter: Path) -> Training:
    """Return training's settings from the adapter's own record. Raises `DataError` if it has none."""
    try:
        return Training.model_validate(
            json.loads((adapter / "run.json").read_text(encoding="utf-8"))["settings"]
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            "Q-METRICS-003",
            f"{adapter}/run.json doesn't say how the adapter was trained ({type(error).__name__}): run "
            "`snakemake --force train`",
        ) from error


@contextmanager
def plain_model(folder: Path, adapter: Path | None = None) -> Iterator["TorchSpeaker"]:
    """Yield the 16-bit model in `folder`, with the adapter if one is given, on the CPU in float32 arithmetic;
    freed after the body.

    The weights stay in the 16 bits of the file: see `in_float32`.
    """
    from pipeline.models.loading import load_model

    model = load_model(folder, dtype="auto")
    speaker = TorchSpeaker(in_float32(with_adapter(model, adapter) if adapter else model))
    yield speaker
    speaker.forget()
    del model
    gc.collect()
    give_back_holes()


class TorchSpeaker:
    """Model that returns a prompt's logits at its positions, in evaluation mode and without a cache."""

    def __init__(self, model: Any) -> None:
        self._model = model.eval()

    def __call__(self, prompt: Prompt) -> Any:
        """Return float32 logits (len(positions), V)."""
        import torch

        device = self._model.device
        with torch.no_grad():
            # The head runs only on the wanted positions: a row of 1,024 tokens × 152k tokens would be 0.6 GB.
            out = self._model(
                input_ids=torch.tensor([prompt.ids], device=device),
                use_cache=False,
                logits_to_keep=torch.tensor(prompt.positions, device=device),
            )
            return out.logits[0].float().cpu().numpy()

    def forget(self) -> None:
        """Drop the model, even if this object is still referenced."""
        del self._model

    def in_float32(self) -> "TorchSpeaker":
        """Return this model, which computes in float32 from now on: see `in_float32`."""
        in_float32(self._model)
        return self


def in_float32(model: Any) -> Any:
    """Let a model of 16-bit weights compute in float32. Its vectors and convolutions are cast once, each
    module's own matrices only for its forward; rows looked up in an embedding are cast afterwards.

    So the peak is the stored weights and the largest other tensor in float32, not the entire model twice. NF4
    weights are dequantized by their own linear, to the type that it computes in. Returns the model.
    """
    import torch

    # Flat memory that no forward uses now: new pages cost ten times as much as the cast.
    rooms: list[Any] = []

    def widen(module: Any, _inputs: Any) -> None:
        module.stored = {
            name: (value.data, _room(rooms, value))
            for name, value in module.named_parameters(recurse=False)
            if value.dtype in (torch.float16, torch.bfloat16)
        }
        for name, (value, room) in module.stored.items():
            getattr(module, name).data = room[: value.numel()].view(value.shape).copy_(value)

    def restore(module: Any, _inputs: Any, _output: Any) -> None:
        for name, (value, room) in module.stored.items():
            getattr(module, name).data = value
            rooms.append(room)

    def widen_output(_module: Any, _inputs: Any, output: Any) -> Any:
        return output.float()

    for module in model.modules():
        # These are small, and code outside of a module's forward reads them: a Nemotron-H casts its states to
        # the type of a norm's weight, and computes with that of a convolution.
        is_convolution = isinstance(module, torch.nn.Conv1d)
        for parameter in module.parameters(recurse=False):
            is_small = is_convolution or parameter.dim() < 2
            if is_small and parameter.dtype in (torch.float16, torch.bfloat16):
                parameter.data = parameter.data.float()
        # a bitsandbytes linear, or embeddings that were trained entirely
        if hasattr(module, "compute_dtype"):
            module.compute_dtype = torch.float32
        if type(module) is torch.nn.Embedding:
            module.register_forward_hook(widen_output)
        elif next(module.parameters(recurse=False), None) is not None:
            module.register_forward_pre_hook(widen)
            module.register_forward_hook(restore, always_call=True)
    return model


def _room(rooms: list[Any], value: Any) -> Any:
    """Return flat float32 memory for a tensor, taken from `rooms` if one is large enough; smaller ones are
    freed before a new one is allocated.
    """
    import torch

    for place, room in enumerate(rooms):
        if room.numel() >= value.numel() and room.device == value.device:
            return rooms.pop(place)
    rooms.clear()
    return torch.empty(value.numel(), dtype=torch.float32, device=value.device)

"""Models in PyTorch as parity asks them: the merged one, the 16-bit base with its adapter, and the model that
training had.
"""

import gc
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from pipeline.config.sections import Training
from pipeline.core.errors import DataError
from pipeline.gguf.base_files import is_scales
from pipeline.metrics.divergence import Prompt, Reference, Speaker, kept_logits
from pipeline.models.qlora import ON_ONE_DEVICE, load_quantized
from pipeline.models.runtime import silence_libraries
from pipeline.models.saved import with_adapter
from pipeline.models.tuners import load_scales


def trained_logits(
    *, base: Path, adapter: Path, prompts: list[Prompt], scratch: Path
) -> AbstractContextManager[Reference]:
    """The logits of the model that training had, in a file below `scratch`; the model itself is freed before
    the body.
    """
    return kept_logits(prompts, trained_model(base, adapter), scratch)


@contextmanager
def trained_model(
    base: Path, adapter: Path | None, *, float32: bool = False, settings_of: Path | None = None
) -> Iterator[Speaker]:
    """The base as training held it (`run.json` says how), with the trained adapter or scales, on the GPU if
    there is one.

    Without an adapter it is the base alone, held as the run of `settings_of` did. It computes in training's
    own type, or with `float32` in float32 on the same weights: the difference is the rounding of training's
    arithmetic. Raises `DataError` if the adapter has no record of its run.
    """
    silence_libraries()
    trained_in = adapter or settings_of
    assert trained_in, "a base alone needs the settings of a run"
    settings = run_settings(trained_in).model_copy(update=ON_ONE_DEVICE)
    bare = load_quantized(base, settings)
    if adapter and is_scales(adapter):
        load_scales(model := bare, adapter)
    else:
        model = with_adapter(bare, adapter) if adapter else bare
    yield speaker_of(in_float32(model) if float32 else model)
    del model
    gc.collect()


def run_settings(adapter: Path) -> Training:
    """Training's settings as the adapter's own record has them. Raises `DataError` if it has none."""
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
def plain_model(folder: Path, adapter: Path | None = None) -> Iterator[Speaker]:
    """The 16-bit model in `folder`, with the adapter on it if one is given, on the CPU in float32 arithmetic;
    freed after the body.

    The weights stay in the 16 bits of the file: see `in_float32`.
    """
    silence_libraries()
    from pipeline.models.experts.separate import load_model

    model = load_model(folder, dtype="auto")
    yield speaker_of(in_float32(with_adapter(model, adapter) if adapter else model))
    del model
    gc.collect()


def speaker_of(model: Any) -> Speaker:
    """A model that gives a prompt's logits at its positions, in evaluation mode and without a cache."""
    import torch

    model.eval()

    def logits(prompt: Prompt) -> Any:
        with torch.no_grad():
            # the head runs on the wanted positions alone: a row of 1,024 tokens × 152k tokens would be 0.6 GB
            wanted = torch.tensor(prompt.positions, device=model.device)
            out = model(
                input_ids=torch.tensor([prompt.ids], device=model.device),
                use_cache=False,
                logits_to_keep=wanted,
            )
            return out.logits[0].float().cpu().numpy()

    return logits


def in_float32(model: Any) -> Any:
    """Let a model of 16-bit weights compute in float32: each module's own weights are cast for its forward
    alone.

    So the peak is the stored weights and the largest tensor in float32, not the entire model twice. NF4
    weights are dequantized by their own linear, to the type it is told to compute in. Gives the model back.
    """
    import torch

    def widen(module: Any, _inputs: Any) -> None:
        module.stored = {
            name: value.data
            for name, value in module.named_parameters(recurse=False)
            if value.dtype in (torch.float16, torch.bfloat16)
        }
        for name, value in module.stored.items():
            getattr(module, name).data = value.float()

    def restore(module: Any, _inputs: Any, _output: Any) -> None:
        for name, value in module.stored.items():
            getattr(module, name).data = value

    for module in model.modules():
        if hasattr(module, "compute_dtype"):  # a bitsandbytes linear
            module.compute_dtype = torch.float32
        if next(module.parameters(recurse=False), None) is not None:
            module.register_forward_pre_hook(widen)
            module.register_forward_hook(restore, always_call=True)
    return model

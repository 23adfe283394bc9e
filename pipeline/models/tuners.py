"""The trained scales of a GGUF's blocks, as stage `train` publishes them (scales.safetensors): put into a
model for its forward, or made a file's.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.tensors import gguf_tensors

if TYPE_CHECKING:
    from torch import Tensor

SCALES_FILE = "scales.safetensors"


def is_scales(adapter: Path) -> bool:
    """Whether the folder holds trained scales instead of a LoRA adapter."""
    return (adapter / SCALES_FILE).is_file()


def load_scales(model: Any, adapter: Path) -> None:
    """Put linears with the trained scales of `adapter` into `model`, one of `load_gguf`; its other parameters
    stay.
    """
    from safetensors.torch import load_file

    from pipeline.models.scaled_linear import put_scales

    changes = load_file(adapter / SCALES_FILE)
    made = put_scales(model, sorted({path.rpartition(".")[2] for path in changes}))
    for path, linear in made.items():
        linear.change.data.copy_(changes[path])
        linear.requires_grad_(False)


def file_scales(base: Path, adapter: Path) -> Iterator[tuple[str, "Tensor"]]:
    """(tensor of the GGUF in the folder `base`, its scales as the tuned file holds them: float16 (scales of a
    block, rows in the file's order, blocks of a row)) of every trained linear.
    """
    import torch
    from safetensors import safe_open
    from transformers import AutoConfig

    from pipeline.gguf.scales import changed_scales, stored_scales
    from pipeline.models.quantized_model import tensor_names

    header, tensors = gguf_tensors(base / MODEL_FILE)
    config = AutoConfig.from_pretrained(base, local_files_only=True, trust_remote_code=False)
    names = tensor_names(config, header, base / MODEL_FILE)
    with safe_open(adapter / SCALES_FILE, framework="pt") as changes:
        for path in changes.keys():  # noqa: SIM118 (safe_open is no mapping)
            tensor, heads = tensors[names.of(f"{path}.weight")], names.reordered(f"{path}.weight")
            change = changes.get_tensor(path)
            if heads:  # the inverse of `in_order`: the two halves of a head side by side
                halves = change.unflatten(1, (heads, 2, -1))
                change = halves.transpose(2, 3).reshape(change.shape)
            rows = torch.from_numpy(tensor.stored(0, tensor.rows))
            yield tensor.name, changed_scales(stored_scales(rows, tensor.ggml_type), change)

"""Models with a quantized head, random blocks, and a model of one layer."""

from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import torch
from dense import dense
from gguf import GGMLQuantizationType as GgmlType
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from pipeline.models.quantized_linear import QuantizedLinear

# byte offsets of the float16 scales in a block; a type without is of floats
SCALES = {
    GgmlType.Q8_0: (0,),
    GgmlType.Q6_K: (208,),
    GgmlType.Q5_K: (0, 2),
    GgmlType.Q4_K: (0, 2),
    GgmlType.Q5_0: (0,),
    GgmlType.Q5_1: (0, 2),
    GgmlType.Q4_0: (0,),
    GgmlType.Q4_1: (0, 2),
    GgmlType.F32: (),
    GgmlType.F16: (),
    GgmlType.BF16: (),
}
# of models whose logits are scaled or bounded
LOGIT_RULES = [
    {"final_logit_softcapping": 3.0},
    {"logits_scaling": 8.0},
    {"logit_scale": 0.25, "final_logit_softcapping": 2.0},
]
INPUTS, OUTPUTS = 512, 96


def random_rows(ggml_type: GgmlType, rows: int = OUTPUTS, columns: int = INPUTS) -> torch.Tensor:
    """Random packed rows (rows, row_bytes) of about ±0.05."""
    random = np.random.default_rng(int(ggml_type))
    values = random.normal(0, 0.05, (rows, columns)).astype(np.float32)
    if not SCALES[ggml_type]:
        return torch.from_numpy(gguf.quantize(values, ggml_type).view(np.uint8).reshape(rows, -1).copy())
    block, size = gguf.GGML_QUANT_SIZES[ggml_type]
    quantized = random.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    for place in SCALES[ggml_type]:
        quantized[..., place : place + 2] = (
            random.normal(0, 4e-4, (*quantized.shape[:2], 1)).astype(np.float16).view(np.uint8)
        )
    return torch.from_numpy(quantized.reshape(rows, -1))


HIDDEN, VOCABULARY = 256, 96


def models(
    ggml_type: GgmlType = GgmlType.Q4_K,
    dtype: torch.dtype = torch.float32,
    bias: bool = False,
    scale: float = 1.0,
    **config: Any,
) -> tuple[Any, Any]:
    """A model with a quantized head and its twin with the same head dense; what they answer is a leaf
    `states` (2, 12, H) of `dtype`.
    """
    quantized = QuantizedLinear(
        random_rows(ggml_type, VOCABULARY, HIDDEN),
        int(ggml_type),
        torch.linspace(-1, 1, VOCABULARY) if bias else None,
        compute_dtype=dtype,
    )
    generator = torch.Generator().manual_seed(0)
    values = (torch.randn(2, 12, HIDDEN, generator=generator) * scale).to(dtype)
    made = []
    for lm_head in (quantized, dense(quantized)):
        states = values.clone().requires_grad_()
        shape = SimpleNamespace(vocab_size=VOCABULARY, **config)
        made.append(
            SimpleNamespace(
                model=lambda states=states, **inputs: (states,), lm_head=lm_head, states=states, config=shape
            )
        )
    return made[0], made[1]


class Sizes(TorchDispatchMode):
    """The elements of each tensor that any operation gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), more: Any = None) -> Any:
        made = function(*arguments, **(more or {}))
        several = made if isinstance(made, tuple | list) else (made,)
        self.sizes += [one.numel() for one in several if isinstance(one, torch.Tensor)]
        return made


def all_trained() -> torch.Tensor:
    """Labels (2, 12) of different tokens over the entire vocabulary."""
    return torch.arange(24).reshape(2, 12) * 7 % VOCABULARY


SHAPE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny(model_type: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(model_type, **SHAPE | changes), dtype=torch.float32
    )
    model.lm_head.weight.data *= 20  # logits large enough for a softcap to bite
    model.lm_head.requires_grad_(False)
    return model.eval()

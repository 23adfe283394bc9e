"""What rounding each tensor costs, from one pass: the gradient of the divergence at a low-bit model.

At the 16-bit weights W the divergence KL(W ‖ W + e) is 0 and so is its gradient; near them it is ½ eᵀHe with
the Hessian H. At a model whose every tensor t is rounded, with errors e_t, the gradient is g = He, so that

    KL = ½ Σ over t of ⟨g_t, e_t⟩:

the terms divide the damage among the tensors, and what they do to each other with it. That is mlx-lm's
dynamic quantization (mlx_lm/quant/dynamic_quant.py: ⟨gradient, low − high⟩ by tensor), which asks for two
types. For more, ⟨g_t, W_T − W_low⟩ says too little: the error of another type T points elsewhere, so that the
product is the same for all. Its own curvature is what it has (HAWQ, Dong et al., arXiv:1905.03696: the Hessian
decides), here

    damage(t, T) = ½ ⟨g_t, e_t⟩ · E(t, T) ÷ E(t, low),   E(t, T) = Σ over i, j of r_i · c_j · e_ij²,

where r and c are the row sums and column sums of squared gradients of single rows of data: Adafactor's
second moment of rank one (Shazeer and Stern, arXiv:1804.04235).
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.chat.tokens import Encoded, trained_positions
from pipeline.core.errors import DataError
from pipeline.core.progress import progress
from pipeline.gguf.dequantize import FLOATS
from pipeline.gguf.sources import KNOWN, name_map, reordered_heads
from pipeline.gguf.tensors import GgufTensor, gguf_tensors
from pipeline.metrics.divergence import thinned
from pipeline.models.quantized_model import Names
from pipeline.models.row_order import in_file_order, in_order

TOP = 64  # likeliest tokens that are kept of the 16-bit model's distribution, and all others as one


@dataclass(frozen=True)
class Sensitivity:
    """One tensor: ⟨gradient, error⟩ of each row of data (N,), and the sums of squared gradients by the
    tensor's rows (R,) and columns (C,), in the GGUF's order.
    """

    products: np.ndarray[Any, np.dtype[np.float64]]
    rows: np.ndarray[Any, np.dtype[np.float64]]
    columns: np.ndarray[Any, np.dtype[np.float64]]


def sensitivities(
    merged: Path, low: Path, source: Path, wanted: Sequence[str], rows: Sequence[Encoded]
) -> tuple[dict[str, Sensitivity], float]:
    """({tensor of `wanted`: its sensitivity}, mean KL divergence of `low` in nats) on `rows`.

    `merged` is the Hugging Face folder that the GGUF `source` was made from, `low` the GGUF with the low-bit
    weights. Memory: the model once in float32 (on a GPU with room for it in bfloat16), the gradient of one
    tensor, and the activations of one row; a 7B needs 30 GB on a CPU. Raises `DataError` if the model is none
    whose tensors are known.
    """
    device, dtype = device_for(merged)
    model, names = load(merged, source, device, dtype)
    parameters = {name: found for name, found in matrices(model, names).items() if name in wanted}
    if missing := set(wanted) - parameters.keys():
        raise DataError(
            "Q-BUDGET-006",
            f"{source.name} has {min(missing)}, which no parameter of {merged} is: take quantize.budgets out "
            "for this model",
        )
    targets = [teach(model, row) for row in rows]
    (_, before), (_, after) = gguf_tensors(source), gguf_tensors(low)
    for name, (parameter, heads) in parameters.items():
        with torch.no_grad():
            parameter.copy_(values(after[name], heads).view_as(parameter))
    sums = {
        name: (
            np.zeros(len(rows)),
            torch.zeros(parameter.shape[0], dtype=torch.float64, device=device),
            torch.zeros(parameter.shape[1], dtype=torch.float64, device=device),
        )
        for name, (parameter, _) in parameters.items()
    }
    at = 0

    def take(name: str, parameter: Any, heads: int) -> None:
        gradient, products = parameter.grad, sums[name]
        error = parameter.detach().float() - values(before[name], heads).to(device)
        products[0][at] = float((gradient * error).sum(1).sum(dtype=torch.float64))
        squared = gradient.float().square_()
        products[1].add_(squared.sum(1))
        products[2].add_(squared.sum(0))
        parameter.grad = None

    for name, (parameter, heads) in parameters.items():
        parameter.requires_grad_(True)
        parameter.register_post_accumulate_grad_hook(
            lambda found, name=name, heads=heads: take(name, found, heads)
        )
    klds = []
    with progress("budget: the divergence's gradient", len(rows)) as advance:
        for at, (row, target) in enumerate(zip(rows, targets, strict=True)):
            loss = divergence(model, row, target)
            loss.backward()
            klds.append(float(loss.detach()))
            advance(1)
    found = {
        name: Sensitivity(
            products,
            in_file_order(by_row.cpu()[:, None], parameters[name][1])[:, 0].numpy(),
            by_column.cpu().numpy(),
        )
        for name, (products, by_row, by_column) in sums.items()
    }
    del model, parameters
    gc.collect()
    return found, float(np.mean(klds))


def device_for(merged: Path) -> tuple[str, torch.dtype]:
    """Where the pass runs, and in which type: a GPU if the model and a third of it again fit, in bfloat16."""
    size = sum(file.stat().st_size for file in merged.glob("*.safetensors"))
    if torch.cuda.is_available() and torch.cuda.mem_get_info(0)[0] > size * 4 / 3 + (2 << 30):
        return "cuda:0", torch.bfloat16
    return "cpu", torch.float32


def load(merged: Path, source: Path, device: str, dtype: torch.dtype) -> tuple[Any, Names]:
    """The 16-bit model, frozen, and how its parameters are called in a GGUF. Raises `DataError` for an
    architecture whose tensors are not known one by one.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(merged, local_files_only=True, trust_remote_code=False)
    found = (getattr(config, "architectures", None) or ["model without architectures"])[0]
    if "moe" in KNOWN.get(found, "moe"):
        can = ", ".join(name for name, architecture in KNOWN.items() if "moe" not in architecture)
        raise DataError(
            "Q-BUDGET-006",
            f"{merged} is a {found}, and only of {can} is known what each tensor costs: take quantize.budgets "
            "out for this model",
        )
    architecture = KNOWN[found]
    model = AutoModelForCausalLM.from_pretrained(
        merged, local_files_only=True, trust_remote_code=False, dtype=dtype, device_map=None
    ).to(device)
    model.config.use_cache = False
    heads = reordered_heads(architecture, config.to_dict())
    names = Names(source, name_map(architecture, config.num_hidden_layers), heads)
    return model.requires_grad_(False).eval(), names


def matrices(model: Any, names: Names) -> dict[str, tuple[Any, int]]:
    """{tensor of the GGUF: (parameter, heads whose rows are reordered)}; a tied embedding is there once."""
    return {
        names.of(name): (parameter, names.reordered(name))
        for name, parameter in model.named_parameters()
        if parameter.dim() == 2
    }


def values(tensor: GgufTensor, heads: int) -> Any:
    """A tensor of a GGUF as float32 in transformers' order, (rows, columns)."""
    if tensor.ggml_type in FLOATS:  # the source, which is read at every step: at once, for speed
        stored = torch.from_numpy(tensor.stored(0, tensor.rows))
        return in_order(stored.view(FLOATS[tensor.ggml_type]).float(), heads)
    found = torch.empty(tensor.rows, tensor.columns)
    for first, last in tensor.blocks():
        found[first:last] = torch.from_numpy(tensor.values(first, last))
    return in_order(found, heads)


def asked(model: Any, row: Encoded) -> Any:
    """Log-probabilities of the next token at the row's trained positions, at most 64 of them: (P, V),
    float32.
    """
    positions = torch.tensor(thinned(trained_positions(row)), device=model.device)
    ids = torch.tensor([row.ids], device=model.device)
    hidden = model.model(input_ids=ids, use_cache=False)[0][0, positions]
    return model.lm_head(hidden).float().log_softmax(-1)


@torch.no_grad()
def teach(model: Any, row: Encoded) -> tuple[Any, Any]:
    """The 16-bit model's likeliest tokens (P, k) and the log-probabilities of these and of all others
    together (P, k + 1).
    """
    logs = asked(model, row)
    best, ids = logs.topk(min(TOP, logs.shape[1] - 1), 1)
    others = logs.scatter_(1, ids, -torch.inf).logsumexp(1)
    return ids, torch.cat([best, others[:, None]], 1)


def divergence(model: Any, row: Encoded, target: tuple[Any, Any]) -> Any:
    """The row's mean KL divergence from `target` in nats, over k + 1 outcomes
    (`pipeline.models.distill_loss`), with a gradient by all weights, the head's too.
    """
    ids, wanted = target
    logs = asked(model, row)
    others = logs.scatter(1, ids, -torch.inf).logsumexp(1)
    ours = torch.cat([logs.gather(1, ids), others[:, None]], 1)
    return (wanted.exp() * (wanted - ours)).sum(1).mean()

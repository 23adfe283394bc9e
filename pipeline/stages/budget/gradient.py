"""What rounding each tensor costs, from two passes over a few dozen rows: how curved the divergence is along
each tensor, and its gradient at a low-bit model.

At the 16-bit weights the divergence KL(p ‖ q) is 0 and so is its gradient: with errors e it is ½ eᵀHe. Of
rounding errors, which know nothing of each other, only the diagonal is left on average: ½ Σ H_ii · e_i². The
Hessian there is the Gauss-Newton matrix JᵀSJ, S = diag(p) − ppᵀ over the vocabulary (Martens,
arXiv:1412.1193), and E[(Jᵀu)²] is its diagonal for a random u with E[uuᵀ] = S: one backward pass a row. It is
kept as row sums and column sums, H_ij = r_i · c_j ÷ Σ r: Adafactor's second moment of rank one (Shazeer and
Stern, arXiv:1804.04235). That is what HAWQ ranks layers by (Dong et al., arXiv:1905.03696).

At a model whose every tensor t is rounded, the gradient is g = He, so that KL = ½ Σ over t of ⟨g_t, e_t⟩: the
terms divide the damage as it is among the tensors. mlx-lm's dynamic quantization goes by these
(mlx_lm/quant/dynamic_quant.py: ⟨gradient, low − high⟩), which is enough for two types. For more it says too
little, for the error of a third type points elsewhere, and a single tensor's product is noisy. So it sets the
scale of each kind of tensor (`pipeline.stages.budget.damage`), and the curvature divides it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
from pipeline.models.gguf_names import Names
from pipeline.models.row_order import in_file_order, in_order

TOP = 64  # likeliest tokens that are kept of the 16-bit model's distribution, and all others as one


@dataclass(frozen=True)
class Sensitivity:
    """One tensor: ⟨gradient, error⟩ of each row of data (N,), and the curvature's sums over the columns (R,)
    and over the rows (C,), in the GGUF's order, in nats by squared weight.
    """

    products: np.ndarray[Any, np.dtype[np.float64]]
    rows: np.ndarray[Any, np.dtype[np.float64]]
    columns: np.ndarray[Any, np.dtype[np.float64]]


def sensitivities(
    merged: Path, low: Path, source: Path, wanted: Sequence[str], rows: Sequence[Encoded], seed: int
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
    (_, before), (_, after) = gguf_tensors(source), gguf_tensors(low)
    sums = {
        name: (torch.zeros(parameter.shape[0], device=device), torch.zeros(parameter.shape[1], device=device))
        for name, (parameter, _) in parameters.items()
    }
    products = {name: np.zeros(len(rows)) for name in parameters}

    def square(name: str, gradient: Any, at: int) -> None:
        squared = gradient.float().square_()
        sums[name][0].add_(squared.sum(1) / len(rows))
        sums[name][1].add_(squared.sum(0) / len(rows))

    def multiply(name: str, gradient: Any, at: int) -> None:
        parameter, heads = parameters[name]
        error = parameter.detach().float() - values(before[name], heads).to(device)
        products[name][at] = float((gradient * error).sum(1).sum(dtype=torch.float64))

    seeds = torch.Generator().manual_seed(seed)
    targets = [teach(model, row) for row in rows]
    backward(parameters, "budget: the curvature", rows, lambda at: probe(model, rows[at], seeds), square)
    with torch.no_grad():
        for name, (parameter, heads) in parameters.items():
            parameter.copy_(values(after[name], heads))
    klds = backward(
        parameters,
        "budget: the divergence's gradient",
        rows,
        lambda at: divergence(model, rows[at], targets[at]),
        multiply,
    )
    found = {
        name: Sensitivity(
            products[name],
            in_file_order(by_row.cpu()[:, None], parameters[name][1])[:, 0].numpy(),
            by_column.cpu().numpy(),
        )
        for name, (by_row, by_column) in sums.items()
    }
    return found, float(np.mean(klds))


def backward(
    parameters: dict[str, tuple[Any, int]],
    label: str,
    rows: Sequence[Encoded],
    loss: Callable[[int], Any],
    take: Callable[[str, Any, int], None],
) -> list[float]:
    """Give `take` the gradient of each parameter by the loss of each row, one at a time, as it is made; the
    losses.
    """
    at = 0

    def hook(name: str, parameter: Any) -> None:
        take(name, parameter.grad, at)
        parameter.grad = None

    hooks = [
        parameter.requires_grad_(True).register_post_accumulate_grad_hook(partial(hook, name))
        for name, (parameter, _) in parameters.items()
    ]
    losses = []
    with progress(label, len(rows)) as advance:
        for at in range(len(rows)):
            value = loss(at)
            value.backward()
            losses.append(float(value.detach()))
            advance(1)
    for one in hooks:
        one.remove()
    for parameter, _ in parameters.values():
        parameter.requires_grad_(False)
    return losses


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

    from pipeline.models.experts.separate import has_experts

    config = AutoConfig.from_pretrained(merged, local_files_only=True, trust_remote_code=False)
    found = (getattr(config, "architectures", None) or ["model without architectures"])[0]
    if found not in KNOWN or has_experts(config):
        can = ", ".join(name for name in KNOWN if "Moe" not in name and name != "MixtralForCausalLM")
        raise DataError(
            "Q-BUDGET-006",
            f"{merged} is a {found}, and only of {can} is known what each tensor costs: take "
            "quantize.budgets out for this model",
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


def probe(model: Any, row: Encoded, seeds: Any) -> Any:
    """A scalar whose gradient's square is on average the diagonal of the row's Gauss-Newton matrix: the sum
    of logits times u = √p·ξ − p(√p·ξ), by position, ξ of random signs, and 1 ÷ √P.
    """
    logits = asked(model, row)
    chances = logits.detach().softmax(-1)
    signs = (torch.randint(0, 2, chances.shape, generator=seeds) * 2 - 1).to(logits.device)
    half = chances.sqrt() * signs
    return (logits * (half - chances * half.sum(1, keepdim=True))).sum() / len(logits) ** 0.5


def asked(model: Any, row: Encoded) -> Any:
    """Logits of the next token at the row's trained positions, at most 64 of them: (P, V), float32."""
    positions = torch.tensor(thinned(trained_positions(row)), device=model.device)
    ids = torch.tensor([row.ids], device=model.device)
    hidden = model.model(input_ids=ids, use_cache=False)[0][0, positions]
    return model.lm_head(hidden).float()


@torch.no_grad()
def teach(model: Any, row: Encoded) -> tuple[Any, Any]:
    """The 16-bit model's likeliest tokens (P, k) and the log-probabilities of these and of all others
    together (P, k + 1).
    """
    logs = asked(model, row).log_softmax(-1)
    best, ids = logs.topk(min(TOP, logs.shape[1] - 1), 1)
    others = logs.scatter_(1, ids, -torch.inf).logsumexp(1)
    return ids, torch.cat([best, others[:, None]], 1)


def divergence(model: Any, row: Encoded, target: tuple[Any, Any]) -> Any:
    """The row's mean KL divergence from `target` in nats, over k + 1 outcomes
    (`pipeline.models.distill_loss`), with a gradient by all weights, the head's too.
    """
    ids, wanted = target
    logs = asked(model, row).log_softmax(-1)
    others = logs.scatter(1, ids, -torch.inf).logsumexp(1)
    ours = torch.cat([logs.gather(1, ids), others[:, None]], 1)
    return (wanted.exp() * (wanted - ours)).sum(1).mean()

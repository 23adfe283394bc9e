"""A mixture whose routed experts are separate ordinary linears, as in its files.

transformers keeps all experts of a layer in two parameters of three dimensions. bitsandbytes leaves these in
16 bit, and LoRA on linears does not reach them. Here an expert has its own `gate_proj`, `up_proj` and
`down_proj`, named as in the checkpoint (`mlp.experts.7.up_proj`). So whatever quantizes, loads, adapts and
checks linears treats them too.
"""

from functools import cache
from typing import Any

import torch

from pipeline.config.targets import PARTS
from pipeline.models.experts.recognize import TRAINABLE

# A model_type of no library: with a known one, a library would put the experts together again.
APART = "experts_apart"


class Experts(torch.nn.Module):
    """Routed experts of a layer. Only those to which a token was sent are computed."""

    def __init__(self, fused: Any) -> None:
        """Make as many experts of the same sizes as transformers' `fused` module has, without its numbers."""
        super().__init__()
        experts, both, hidden = fused.gate_up_proj.shape
        self.act_fn = fused.act_fn
        shapes = ((hidden, both // 2), (hidden, both // 2), (both // 2, hidden))
        like = {"device": "meta", "dtype": fused.gate_up_proj.dtype}
        for number in range(experts):
            linears = {
                part: torch.nn.Linear(*shape, bias=False, **like)
                for part, shape in zip(PARTS, shapes, strict=True)
            }
            self.add_module(str(number), torch.nn.ModuleDict(linears))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return (T, hidden) for x (T, hidden), tokens' `chosen` experts (T, k) and their weights (T, k)."""
        out = torch.zeros_like(x)
        for number in torch.unique(chosen).tolist():
            tokens, places = torch.where(chosen == number)
            expert: Any = self.get_submodule(str(number))
            rows = x[tokens]
            rows = expert["down_proj"](self.act_fn(expert["gate_proj"](rows)) * expert["up_proj"](rows))
            out.index_add_(0, tokens, (rows * weights[tokens, places, None]).to(out.dtype))
        return out


class Router(torch.nn.Linear):
    """Router that scores a layer's experts.

    It is a class of its own so that bitsandbytes leaves it in 16 bit.
    """


class Mixture(torch.nn.Module):
    """MLP of a layer: the router, the routed experts and, if there is one, the shared expert."""

    def __init__(self, mlp: Any) -> None:
        """Make the parts with the sizes of transformers' `mlp`, without its numbers."""
        super().__init__()
        experts, hidden = mlp.gate.weight.shape
        self.chosen = mlp.gate.top_k
        self.norm = getattr(mlp.gate, "norm_topk_prob", True)
        self.gate = Router(hidden, experts, bias=False, device="meta", dtype=mlp.gate.weight.dtype)
        self.experts = Experts(mlp.experts)
        if hasattr(mlp, "shared_expert"):
            self.shared_expert = mlp.shared_expert
            self.shared_expert_gate = mlp.shared_expert_gate

    def forward(self, x: torch.Tensor) -> Any:
        """Return (B, T, hidden) for x of that shape."""
        rows = x.reshape(-1, x.shape[-1])
        scores = self.gate(rows)
        likely = torch.nn.functional.softmax(scores, dim=-1, dtype=torch.float32)
        weights, chosen = torch.topk(likely, self.chosen, dim=-1)
        if self.norm:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        out = self.experts(rows, chosen, weights.to(scores.dtype))
        if hasattr(self, "shared_expert"):
            out = out + torch.sigmoid(self.shared_expert_gate(rows)) * self.shared_expert(rows)
        return out.view_as(x)


def has_experts(config: Any) -> bool:
    """Return True if a model of this configuration has experts that can be separated."""
    return config.model_type in TRAINABLE


@cache
def separated(kind: Any) -> Any:
    """Return the class of causal language models `kind`, with separate experts."""

    class Separated(kind):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            for name, module in list(self.named_modules()):
                if hasattr(getattr(module, "experts", None), "gate_up_proj"):
                    self.set_submodule(name, Mixture(module))
            config.model_type = APART
            config.output_router_logits = False  # Only the method's own loss trains.

    return Separated

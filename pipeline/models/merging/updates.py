"""What an adapter adds to a weight, as two thin matrices from which any run of rows is computed."""

from dataclasses import dataclass
from typing import Any

from pipeline.gguf.safetensors_rows import read_rows
from pipeline.models.merging.adapter import Module


@dataclass(frozen=True)
class Update:
    """scale · left · right, one pair of matrices an expert: left (E, O, r), right (E, r, I), for a weight of
    E·O rows and I columns.

    `magnitude` is DoRA's (arXiv:2402.09353): the sum's rows (`by_column`: columns) are brought to these
    lengths.
    """

    left: Any
    right: Any
    scale: float
    magnitude: Any = None
    by_column: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the weight it belongs to."""
        return self.left.shape[0] * self.left.shape[1], self.right.shape[2]

    def rows(self, first: int, last: int) -> Any:
        """Rows [first, last) of scale · left · right in float64."""
        import torch

        high = self.left.shape[1]
        parts = []
        for expert in range(first // high, (last - 1) // high + 1):
            start, stop = max(first - expert * high, 0), min(last - expert * high, high)
            parts.append(self.left[expert, start:stop].double() @ (self.right[expert].double() * self.scale))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def expert(self, number: int, first: int, last: int) -> "Update":
        """The update of rows [first, last) of one expert."""
        return Update(self.left[number : number + 1, first:last], self.right[number : number + 1], self.scale)


def low_rank(module: Module, scale: float, *, transposed: bool, experts: int = 1) -> Update:
    """The update of a linear's or a parameter's weight; `transposed` for weights stored (in, out).

    With experts PEFT flattens A to (E·r, in) and B to (out, r·E), the expert being the slow index of A's rows
    and the fast one of B's columns.
    """
    a, b = read_rows(module.parts["lora_A.weight"]), read_rows(module.parts["lora_B.weight"])
    a, b = a.view(experts, -1, a.shape[1]), b.view(b.shape[0], -1, experts).permute(2, 0, 1)
    left, right = (a.transpose(1, 2), b.transpose(1, 2)) if transposed else (b, a)
    return Update(left, right, scale, _magnitude(module), by_column=transposed)


def lookup(module: Module, scale: float) -> Update:
    """The update of an embedding's weight (V, H): PEFT keeps A as (r, V) and B as (H, r), and DoRA's lengths
    by column.
    """
    a, b = read_rows(module.parts["lora_embedding_A"]), read_rows(module.parts["lora_embedding_B"])
    return Update(a.T[None], b.T[None], scale, _magnitude(module), by_column=True)


def bias(module: Module, scale: float) -> Update:
    """The update of a linear's bias where B has one."""
    import torch

    return Update(read_rows(module.parts["lora_B.bias"])[None], torch.ones(1, 1, 1), scale)


def _magnitude(module: Module) -> Any:
    entry = module.parts.get("lora_magnitude_vector")
    return None if entry is None else read_rows(entry).double().view(-1)

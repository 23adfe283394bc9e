"""How much an adapter changes each weight, measured while it is merged."""

from collections.abc import Mapping, Sequence
from math import gcd, sqrt
from typing import Any

from pipeline.gguf.safetensors_rows import Entry, read_rows
from pipeline.metrics.adapter_norms import place_of
from pipeline.models.merging.compute import Update
from pipeline.models.merging.nf4 import Nf4, round_trip, tensor_scales

SAMPLE = 1 << 18  # numbers of a tensor from which what NF4 costs is measured


class ChangeStats:
    """Sums over the rows of one adapted tensor, as they pass."""

    def __init__(self) -> None:
        self.count = 0
        self.start_squares = self.start_sum = self.change_squares = self.change_sum = 0.0

    def add(self, start: Any, total: Any) -> None:
        """Count rows of the weight before and after (float64): with DoRA's lengths more than B·A changed."""
        import torch

        change = total - start
        self.count += start.numel()
        self.start_squares += float(torch.linalg.vector_norm(start)) ** 2
        self.start_sum += float(start.abs().sum())
        self.change_squares += float(torch.linalg.vector_norm(change)) ** 2
        self.change_sum += float(change.abs().sum())

    def __iadd__(self, other: "ChangeStats") -> "ChangeStats":
        """Count another's rows too."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def figures(name: str, update: Update, change_stats: ChangeStats, lost: float | None) -> dict[str, Any]:
    """One tensor's record: rank, scale, Frobenius norms, mean |Δ| ÷ mean |W|, what NF4 cost it ÷ ‖ΔW‖,
    spectral norm of Δ.

    `rows` and `columns` are one expert's, as is the spectral norm (the largest of all), which DoRA's change,
    being of full rank, has none of.
    """
    layer, module = place_of(name)
    change, weight = sqrt(change_stats.change_squares), sqrt(change_stats.start_squares)
    return {
        "tensor": name,
        "layer": layer,
        "module": module,
        "rank": update.right.shape[1],
        "scale": update.scale,
        "norm_a": _norm(update.right),
        "norm_b": _norm(update.left),
        "norm_update": change,
        "norm_weight": weight,
        "spectral_update": _spectral(update) if update.magnitude is None else None,
        "rms_weight": weight / sqrt(change_stats.count),
        "rows": update.left.shape[1],
        "columns": update.right.shape[2],
        "relative_change": change_stats.change_sum / change_stats.start_sum
        if change_stats.start_sum
        else None,
        "nf4_error_to_update": lost * weight / change if lost is not None and change else None,
    }


def _norm(values: Any) -> float:
    import torch

    return float(torch.linalg.vector_norm(values.double()))


def _spectral(update: Update) -> float:
    """Largest singular value of any expert's scaled update: that of R_left · R_rightᵀ of two QRs."""
    import torch

    left = torch.linalg.qr(update.left.double(), mode="r").R
    right = torch.linalg.qr(update.right.double().transpose(1, 2), mode="r").R
    return float(torch.linalg.svdvals(left @ right.transpose(1, 2)).max()) * abs(update.scale)


def nf4_error(entry: Entry, nf4: Nf4) -> float:
    """‖16-BIT − NF4‖ ÷ ‖16-BIT‖ from at most SAMPLE numbers, rows evenly spread over the tensor."""
    import torch

    whole = nf4.block // gcd(nf4.block, entry.columns)  # rows that end where a block does
    count = max(1, SAMPLE // (entry.columns * whole))
    places = sorted({int(place) // whole * whole for place in torch.linspace(0, entry.rows - 1, count)})
    values = torch.cat([read_rows(entry, place, min(place + whole, entry.rows)).view(-1) for place in places])
    maxima, used = tensor_scales([values], nf4)
    exact = values.double()
    lost = round_trip(values, maxima, used, nf4).double() - exact
    size = float(torch.linalg.vector_norm(exact))
    return float(torch.linalg.vector_norm(lost)) / size if size else 0.0


def idle_adapters(adapters: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence on adapters that changed no weight, if any did; `adapters` are records of `figures`."""
    idle = [one["tensor"] for one in adapters if one["norm_update"] == 0.0]
    return (
        [
            f"{len(idle)} of {len(adapters)} adapters learned nothing (no weight changes), first {idle[0]}: "
            "train longer or with a higher rate"
        ]
        if idle
        else []
    )

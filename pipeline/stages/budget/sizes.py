"""Which types each tensor may have, what each takes in bytes and which do least damage within a budget; and
the proof that a file has those asked for.

A file's bytes are its header and its tensors, each padded to the alignment; types have a fixed size in the
header, so that all allocations of one model have the same header. One type for each tensor, so that the
damage is least and the bytes fit, is a multiple-choice knapsack (Kellerer, Pferschy and Pisinger, Knapsack
Problems, 2004, chapter 11), solved by HiGHS.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from pipeline.core.errors import DataError
from pipeline.gguf.file import check_gguf
from pipeline.gguf.header import Header, tensor_bytes
from pipeline.planning.budget import MENU, need_room

FLOATS = ("F32", "F16", "BF16")
Sizes = Mapping[str, Mapping[str, int]]  # {tensor: {type: padded bytes}}
Allocation = Mapping[str, str]  # {tensor: type}, of the tensors that have a choice
Damages = Mapping[str, Mapping[str, float]]  # {tensor: {type: damage}}, of the tensors that have a choice
GAP = 1e-6  # of the optimum, within which the solver stops
SLIPS = 20


def bits(ggml_type: str) -> float:
    """Bits per weight of a type."""
    weights, size = GGML_QUANT_SIZES[GGMLQuantizationType[ggml_type]]
    return 8 * int(size) / int(weights)


def offered(header: Header) -> dict[str, dict[str, int]]:
    """The types that each tensor of the 16-bit GGUF can be given and the padded bytes of each, in the order
    of `MENU`; its own type is the last. Of vectors, norms and short rows it is the only one.

    A type whose block doesn't divide the row is not offered: llama-quantize would take another, larger one
    and only warn.
    """
    sizes = {}
    for name, (shape, type_id) in header.tensors.items():
        own_type = GGMLQuantizationType(type_id).name
        types = [kind for kind in MENU if shape[0] % GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0] == 0]
        sizes[name] = {
            kind: padded(header, name, shape, kind)
            for kind in [*(types if is_quantized(name, shape) else []), own_type]
        }
    return sizes


def is_quantized(name: str, shape: tuple[int, ...]) -> bool:
    """Whether llama-quantize quantizes a tensor of a dense model (its `tensor_allows_quantization`)."""
    return len(shape) > 1 and shape[1] > 1 and name.endswith("weight") and "_norm.weight" not in name


def padded(header: Header, name: str, shape: tuple[int, ...], ggml_type: str) -> int:
    """Bytes of a tensor and what fills it up to the alignment."""
    stored = tensor_bytes(name, shape, int(GGMLQuantizationType[ggml_type]))
    return -(-stored // header.alignment) * header.alignment


def total(sizes: Sizes, allocation: Allocation) -> int:
    """Bytes of all tensors; those that `allocation` doesn't name have no choice."""
    return sum(each[allocation.get(name, next(iter(each)))] for name, each in sizes.items())


def choices(sizes: Sizes) -> dict[str, dict[str, int]]:
    """The tensors that have a choice, with their types."""
    return {name: dict(each) for name, each in sizes.items() if len(each) > 1}


def extremes(sizes: Sizes) -> tuple[int, int]:
    """The fewest and the most bytes that the tensors can have."""
    return (
        sum(min(each.values()) for each in sizes.values()),
        sum(max(each.values()) for each in sizes.values()),
    )


def smallest(sizes: Sizes) -> dict[str, str]:
    """Every tensor that has a choice in its smallest type."""
    return {name: min(each, key=lambda kind: each[kind]) for name, each in choices(sizes).items()}


def check_room(text: str, most: int, header: int, sizes: Sizes) -> None:
    """Raise `ConfigError` unless a file of at most `most` bytes can be made, and isn't the 16-bit one.
    `header` is the bytes before the tensors.
    """
    least, largest = (header + size for size in extremes(sizes))
    # of the tensors that have a choice, at their smallest
    stored = [(sizes[name][kind], bits(kind)) for name, kind in smallest(sizes).items()]
    per_weight = 8 * sum(size for size, _ in stored) / sum(8 * size / each for size, each in stored)
    need_room(text, most, least=least, largest=largest, bits=per_weight)


def patterns(allocation: Allocation) -> dict[str, str]:
    """`allocation` as llama-quantize takes types: a pattern is searched in names, so each is anchored."""
    return {f"^{re.escape(name)}$": kind for name, kind in allocation.items()}


def prove(file: Path, allocation: Allocation, most: int | None = None) -> None:
    """Raise `DataError` unless each tensor of `file` has its type, and the file at most `most` bytes."""
    types = {name: GGMLQuantizationType(kind).name for name, (_, kind) in check_gguf(file).tensors.items()}
    for name, kind in allocation.items():
        if types.get(name) != kind:
            raise DataError(
                "Q-BUDGET-005",
                f"{file.name}: {name} was to be {kind} and is {types.get(name, 'missing')}: the build of "
                "llama.cpp chooses types in another way, so run `make setup` again",
            )
    if most is not None and (size := file.stat().st_size) > most:
        raise DataError(
            "Q-BUDGET-005",
            f"{file.name} has {size:,} bytes, more than the {most:,} that were planned: the build of "
            "llama.cpp writes files in another way, so run `make setup` again",
        )


def allocate(damages: Damages, sizes: Sizes, most: int) -> dict[str, str]:
    """{tensor: type} of the least total damage with at most `most` bytes in all tensors of `sizes`.

    The same for the same input. The solver keeps to the bytes within a tolerance; where it oversteps them,
    it is given less until the sum fits. The caller has checked that the smallest types fit.
    """
    free = {name: undominated(damages[name], each) for name, each in choices(sizes).items()}
    fixed = total({name: each for name, each in sizes.items() if name not in free}, {})
    room, slip = most - fixed, 0
    for _ in range(SLIPS):
        allocation = _solve(free, damages, room - slip)
        # the solver's tolerances are absolute: small differences count once the sum is about 1
        again = _solve(free, damages, room - slip, scale=abs(_sum(damages, allocation)))
        allocation = min(
            (allocation, again),
            key=lambda candidate: (total(sizes, candidate) > most, _sum(damages, candidate)),
        )
        over = total(sizes, allocation) - most
        if over <= 0:
            return allocation
        slip += over
    raise AssertionError("the solver oversteps the budget whatever it is given")


def undominated(damages: Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, int]:
    """The types with less damage than every smaller one, by size: no other is in any best solution."""
    kept: dict[str, int] = {}
    least = np.inf
    for kind in sorted(sizes, key=lambda kind: (sizes[kind], damages[kind])):
        if damages[kind] < least:
            kept[kind], least = sizes[kind], damages[kind]
    return kept


def _sum(damages: Damages, allocation: Mapping[str, str]) -> float:
    return sum(damages[name][kind] for name, kind in allocation.items())


def _solve(free: Sizes, damages: Damages, room: int, scale: float = 0.0) -> dict[str, str]:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    pairs = [(name, kind) for name, each in free.items() for kind in each]
    rows = {name: row for row, name in enumerate(free)}
    cost = np.array([damages[name][kind] for name, kind in pairs])
    weight = np.array([free[name][kind] for name, kind in pairs], dtype=np.float64)
    places = ([rows[name] for name, _ in pairs], range(len(pairs)))
    one_each = csr_array((np.ones(len(pairs)), places), shape=(len(rows), len(pairs)))
    scale = max(scale or float(np.abs(cost).max()), 1e-300)
    solution = milp(
        cost / scale,
        integrality=np.ones(len(pairs)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(weight[None] / max(room, 1), -np.inf, 1),
        ],
        options={"mip_rel_gap": GAP},
    )
    assert solution.x is not None, f"no allocation has at most {room} bytes: {solution.message}"
    best: dict[str, tuple[float, str]] = {}
    for (name, kind), share in zip(pairs, solution.x, strict=True):
        best[name] = max(best.get(name, (-1.0, "")), (float(share), kind))
    return {name: kind for name, (_, kind) in best.items()}

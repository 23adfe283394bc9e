"""One type for each tensor, so that the damage is least and the bytes fit: a multiple-choice knapsack
(Kellerer, Pferschy and Pisinger, Knapsack Problems, 2004, chapter 11), solved by HiGHS.
"""

from collections.abc import Mapping

import numpy as np

from pipeline.stages.budget.sizes import Sizes, choices, total

Damages = Mapping[str, Mapping[str, float]]  # {tensor: {type: damage}}, of the tensors that have a choice
GAP = 1e-6  # of the optimum, within which the solver stops
SLIPS = 20


def allocate(damages: Damages, sizes: Sizes, most: int) -> dict[str, str]:
    """{tensor: type} of the least total damage with at most `most` bytes in all tensors of `sizes`.

    The same for the same input. The solver keeps to the bytes within a tolerance; where it oversteps them,
    it is given less until the sum fits. The caller has checked that the smallest types fit.
    """
    free = {name: undominated(damages[name], each) for name, each in choices(sizes).items()}
    fixed = total({name: each for name, each in sizes.items() if name not in free}, {})
    room, slip = most - fixed, 0
    for _ in range(SLIPS):
        found = _solve(free, damages, room - slip)
        # the solver's tolerances are absolute: small differences count once the sum is about 1
        again = _solve(free, damages, room - slip, scale=abs(_sum(damages, found)))
        found = min((found, again), key=lambda one: (total(sizes, one) > most, _sum(damages, one)))
        over = total(sizes, found) - most
        if over <= 0:
            return found
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
    found = milp(
        cost / scale,
        integrality=np.ones(len(pairs)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(weight[None] / max(room, 1), -np.inf, 1),
        ],
        options={"mip_rel_gap": GAP},
    )
    assert found.x is not None, f"no allocation has at most {room} bytes: {found.message}"
    best: dict[str, tuple[float, str]] = {}
    for (name, kind), share in zip(pairs, found.x, strict=True):
        best[name] = max(best.get(name, (-1.0, "")), (float(share), kind))
    return {name: kind for name, (_, kind) in best.items()}

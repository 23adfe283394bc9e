"""The report's section on levels made to measure: the types that were chosen, and the fixed level they
were held against, by `reports/budget/BUDGET.json`.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pipeline.core.text import count
from pipeline.pages.formats import probability, size

Found = Mapping[str, Any]


def budget_values(found: Found, evaluations: Mapping[str, Found]) -> dict[str, Any]:
    """What the section's template needs of one budget: its sentence, and a row for each kind of tensor with
    the types of its tensors ("Q4_0 × 20, Q5_1 × 10").
    """
    kinds: dict[str, Counter[str]] = {}
    for tensor, ggml_type in found["types"].items():
        kind = ".".join(part for part in tensor.split(".")[:-1] if part != "blk" and not part.isdigit())
        kinds.setdefault(kind, Counter())[ggml_type] += 1
    measured = evaluations.get(found["budget"], {}).get("kld_mean")
    return {
        "budget": found["budget"],
        "own": found["chosen"] == "own",
        "sentence": sentence(found),
        "most_bytes": found["most_bytes"],
        "kld": found["kld"],
        "test_kld": measured,
        "rows": found["rows"],
        "kinds": [
            {
                "kind": kind,
                "types": ", ".join(f"{name} × {count(times)}" for name, times in types.most_common()),
            }
            for kind, types in sorted(kinds.items())
        ],
    }


def sentence(found: Found) -> str:
    """Which file ships, and why."""
    rival = found["rival"]
    own = f"the chosen types diverge {found['kld']:.4f} nats from 16 bit"
    if rival is None:
        return f"No fixed level is as small, so nothing was held against them: {own}."
    theirs = f"{rival['level']}, the best fixed level that fits ({size(rival['bytes'])}), {rival['kld']:.4f}"
    chance = f"p {probability(rival['p_value'])}, paired over rows"
    if found["chosen"] == "own":
        return f"The chosen types ship: {own[4:]}, {theirs} ({chance})."
    return (
        f"{rival['level']} ships, for the chosen types are not better beyond noise: {own}, {theirs} "
        f"({chance})."
    )

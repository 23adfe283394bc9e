"""From a budget to a file: sensitivities, damages, knapsack, swaps, and the competition with the fixed level
of that size.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.chat.tokens import Encoded, trained_positions
from pipeline.config.levels import SUFFIX
from pipeline.core.progress import progress
from pipeline.metrics.divergence import Prompt
from pipeline.metrics.level_limits import PUBLISHED_KLD
from pipeline.planning.budget import MENU
from pipeline.planning.level_bytes import level_bytes
from pipeline.planning.shape import Shape
from pipeline.stages.budget.files import Judge, Maker, judging
from pipeline.stages.budget.knapsack import allocate
from pipeline.stages.budget.scratch import name_of
from pipeline.stages.budget.sizes import Allocation, Sizes
from pipeline.stages.budget.swaps import MOST, paired, predicted, swapped

POSITIONS = 32  # of a validation row that are compared
LARGEST = 3  # fixed levels that compete: the largest that fit
PLANNED = 1.02  # a level is tried if it is planned to be at most this part of the budget
# fixed levels that compete, with an importance matrix or without
RIVALS = (
    "Q8_0",
    "Q6_K",
    "Q5_K_M",
    "Q5_K_S",
    "Q5_1",
    "Q5_0",
    "Q4_K_M",
    "Q4_K_S",
    "IQ4_NL",
    "IQ4_XS",
    "Q4_1",
    "Q4_0",
    "Q3_K_L",
    "Q3_K_M",
    "Q3_K_S",
    "Q2_K",
)


@dataclass(frozen=True)
class Data:
    """Sequences that damages are measured on (of the training split), that swaps are tried on and that decide
    (of the validation split, different ones).
    """

    damage: Sequence[Encoded]
    swaps: Sequence[Encoded]
    decision: Sequence[Encoded]


@dataclass(frozen=True)
class Task:
    """The search's input: what each tensor may be, how many bytes all may have together, the bytes before
    them in the file, the 16-bit model's folder and its shape.
    """

    sizes: Sizes
    most: int
    header: int
    merged: Path
    shape: Shape
    data: Data
    threads: int
    seed: int

    @property
    def file(self) -> int:
        """The most bytes that the file may have."""
        return self.header + self.most


def damages_of(maker: Maker, task: Task, low: Allocation) -> tuple[dict[str, dict[str, float]], float]:
    """({tensor: {type: damage}}, the KL divergence of the even allocation `low` on the same rows)."""
    from pipeline.stages.budget.damage import curved_errors, damages
    from pipeline.stages.budget.gradient import Sensitivity, sensitivities

    names, scratch = sorted(low), maker.scratch

    def measure() -> dict[str, Any]:
        with maker.passing(low, task.sizes) as file:
            found, kld = sensitivities(task.merged, file, maker.source, names, task.data.damage, task.seed)
        return {"kld": np.array(kld)} | {
            f"{part}:{name}": getattr(each, part)
            for name, each in found.items()
            for part in ("products", "rows", "columns")
        }

    kept = scratch.arrays_once("gradient", measure)
    gc.collect()  # the model is gone before files are made
    found = {
        name: Sensitivity(*(kept[f"{part}:{name}"] for part in ("products", "rows", "columns")))
        for name in names
    }
    errors: dict[str, dict[str, float]] = {name: {} for name in names}
    with progress("budget: the errors of each type", len(MENU)) as advance:
        for kind in MENU:
            mine = {name: found[name] for name in names if kind in task.sizes[name]}
            if mine:
                # the others stay in 16 bit, which takes no time
                rounded = {name: kind if name in mine else list(task.sizes[name])[-1] for name in names}

                def weigh(rounded: Allocation = rounded, mine: Any = mine) -> dict[str, float]:
                    with maker.passing(rounded, task.sizes) as file:
                        return curved_errors(maker.source, file, mine)

                for name, error in scratch.once(f"errors-{kind}", weigh).items():
                    errors[name][kind] = error
            advance(1)
    for name in names:
        errors[name] |= {kind: 0.0 for kind in task.sizes[name] if kind not in MENU}  # as it is in the source
    return damages(found, low, errors), float(kept["kld"])


def search(maker: Maker, task: Task, low: Allocation) -> tuple[Path, dict[str, Any]]:
    """Find the types and hold their file against the best fixed level that fits; (the better file, in the
    scratch folder, the record).

    Types that were chosen win only beyond noise: else the file is the fixed level.
    """
    scratch = maker.scratch
    by_type, low_kld = damages_of(maker, task, low)
    planned = allocate(by_type, task.sizes, task.most)
    print(f"budget: {predicted(by_type, planned):.4f} nats are predicted; swaps are tried", flush=True)

    def try_swaps() -> dict[str, Any]:
        with (
            judging(maker, prompts(task.data.swaps), task.threads) as judge,
            progress("budget: files of swaps", MOST + 1) as advance,  # the first without any
        ):

            def tried_file(one: Allocation) -> list[float]:
                rows: list[float] = scratch.once(
                    f"rows-{name_of(one)}", lambda: measured(maker, task, judge, one)
                )
                advance(1)
                return rows

            types, tried = swapped(planned, by_type, task.sizes, task.most, tried_file, task.seed)
        return {"types": types, "tried": tried}

    swaps = scratch.once("swaps", try_swaps)
    types = swaps["types"]
    own = maker.make(scratch.folder / "own.gguf", types, task.sizes, task.file)
    contest = scratch.once("contest", lambda: compete(maker, task, own))
    file = own
    if contest["chosen"] == "level":
        file = maker.make_level(scratch.folder / "rival.gguf", contest["rival"]["level"])
    return file, {
        "even_kld": low_kld,
        "predicted_even_kld": predicted(by_type, low),
        "predicted_kld": predicted(by_type, types),
        "swaps": swaps["tried"],
        "types": types,
        **contest,
    }


def measured(maker: Maker, task: Task, judge: Judge, allocation: Allocation) -> list[float]:
    """KL divergence of an allocation, a row each."""
    with maker.passing(allocation, task.sizes) as file:
        return judge.rows(file)


def prompts(rows: Sequence[Encoded]) -> list[Prompt]:
    """The rows' prompts, with up to `POSITIONS` of their trained positions, evenly."""
    found = []
    for row in rows:
        positions = trained_positions(row)
        found.append(Prompt(row.ids, positions[:: -(-len(positions) // POSITIONS)]))
    return found


def compete(maker: Maker, task: Task, own: Path) -> dict[str, Any]:
    """Which of the file `own` and the best fixed level of at most its budget is closer to 16 bit, on rows
    that no swap was tried on; {"chosen": "own" or "level", figures}.

    Of the `LARGEST` largest levels that fit, the best is that which diverges least on these rows: at 7B Q4_1
    is larger than Q4_K_M, and worse.
    """
    with judging(maker, prompts(task.data.decision), task.threads) as judge:
        rows = judge.rows(own)
        measured: list[tuple[float, str, int, list[float]]] = []
        file = maker.scratch.folder / "rival.gguf"
        for level in rivals(task.shape, task.file, maker.imatrix is not None):
            size = maker.make_level(file, level).stat().st_size
            if size <= task.file:
                theirs = judge.rows(file)
                measured.append((float(np.mean(theirs)), level, size, theirs))
            if len(measured) == LARGEST:
                break
    found: dict[str, Any] = {"kld": float(np.mean(rows)), "rival": None, "chosen": "own"}
    if measured:
        kld, level, size, theirs = min(measured)
        verdict = paired(theirs, rows, task.seed)
        found["rival"] = {"level": level, "bytes": size, "kld": kld, **verdict.record()}
        found["others"] = {other: one for one, other, *_ in measured if other != level}
        found["chosen"] = "own" if verdict.better() else "level"
    return found


def rivals(shape: Shape, most: int, with_imatrix: bool) -> list[str]:
    """Fixed levels of about `most` bytes or less, the largest first; of equal ones, that which is published
    to lose least.
    """
    suffix = SUFFIX if with_imatrix else ""
    planned = {level: level_bytes(shape, level + suffix) for level in RIVALS}
    fitting = [level for level in RIVALS if planned[level] <= most * PLANNED]
    return sorted(fitting, key=lambda level: (-planned[level], PUBLISHED_KLD[level]))

"""From a budget to a file: the cost of each type for each tensor, the knapsack, the fixed level as rival."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.chat.tokens import Encoded, trained_positions
from pipeline.config.levels import SUFFIX
from pipeline.core.progress import progress
from pipeline.gguf.tensors import gguf_tensors
from pipeline.metrics.divergence import Prompt
from pipeline.metrics.level_limits import PUBLISHED_KLD
from pipeline.metrics.paired import CHANCE, compare_scores
from pipeline.planning.budget import MENU
from pipeline.planning.level_bytes import level_bytes
from pipeline.planning.shape import Shape
from pipeline.stages.budget.files import Maker, divergence_meter
from pipeline.stages.budget.sizes import Sizes, allocate, choices

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
class Task:
    """The search's input: what each tensor may be, how many bytes all may have together, the bytes before
    them in the file, the model's shape, and the sequences that decide.
    """

    sizes: Sizes
    most: int
    header: int
    shape: Shape
    rows: Sequence[Encoded]

    @property
    def file(self) -> int:
        """The most bytes that the file may have."""
        return self.header + self.most


def weight_errors(maker: Maker, sizes: Sizes) -> dict[str, dict[str, float]]:
    """{tensor that has a choice: {type: Σ (rounded − 16 bit)²}}, as llama-quantize rounds."""
    free = choices(sizes)
    errors: dict[str, dict[str, float]] = {name: {} for name in sorted(free)}
    with progress("budget: the errors of each type", len(MENU)) as advance:
        for kind in MENU:
            names = [name for name in errors if kind in free[name]]
            if names:
                # the others stay in 16 bit, which takes no time
                rounded = {name: kind if kind in each else list(each)[-1] for name, each in free.items()}
                with maker.temporary_gguf(rounded, sizes) as file:
                    for name, error in squared_errors(maker.source, file, names).items():
                        errors[name][kind] = error
            advance(1)
    for name, each in errors.items():
        each |= {kind: 0.0 for kind in free[name] if kind not in MENU}  # as it is in the source
    return errors


def squared_errors(source: Path, rounded: Path, names: Sequence[str]) -> dict[str, float]:
    """{tensor: Σ (difference)²} of a GGUF `rounded` from the 16-bit `source`, block by block."""
    (_, before), (_, after) = gguf_tensors(source), gguf_tensors(rounded)
    return {
        name: sum(
            float(np.square(after[name].values(*block) - before[name].values(*block)).sum(dtype=np.float64))
            for block in before[name].blocks()
        )
        for name in names
    }


def search(maker: Maker, task: Task) -> tuple[Path, dict[str, Any]]:
    """Find the types and hold their file against the best fixed level that fits; (the better file, in the
    scratch folder, the record).

    Types that were chosen win only beyond noise: else the file is the fixed level.
    """
    types = allocate(weight_errors(maker, task.sizes), task.sizes, task.most)
    file = maker.make(maker.scratch / "own.gguf", types, task.sizes, task.file)
    contest = compare_with_fixed_level(maker, task, file)
    if contest["chosen"] == "level":
        file = maker.make_level(maker.scratch / "rival.gguf", contest["rival"]["level"])
    return file, {"types": types, **contest}


def prompts(rows: Sequence[Encoded]) -> list[Prompt]:
    """The rows' prompts, with up to `POSITIONS` of their trained positions, evenly."""
    sequences = []
    for row in rows:
        positions = trained_positions(row)
        sequences.append(Prompt(row.ids, positions[:: -(-len(positions) // POSITIONS)]))
    return sequences


def compare_with_fixed_level(maker: Maker, task: Task, made_file: Path) -> dict[str, Any]:
    """Which of `made_file` and the best fixed level of at most its budget is closer to 16 bit; {"chosen":
    "own" or "level", figures}.

    Of the `LARGEST` largest levels that fit, the best is that which diverges least on these rows: at 7B Q4_1
    is larger than Q4_K_M, and worse.
    """
    with divergence_meter(maker, prompts(task.rows)) as divergence:
        rows = divergence(made_file)
        measured: list[tuple[float, str, int, list[float]]] = []
        file = maker.scratch / "rival.gguf"
        for level in candidate_levels(task.shape, task.file, maker.imatrix is not None):
            size = maker.make_level(file, level).stat().st_size
            if size <= task.file:
                rival_rows = divergence(file)
                measured.append((float(np.mean(rival_rows)), level, size, rival_rows))
            if len(measured) == LARGEST:
                break
    outcome: dict[str, Any] = {"kld": float(np.mean(rows)), "rival": None, "chosen": "own"}
    if measured:
        kld, level, size, rival_rows = min(measured)
        difference = paired(rival_rows, rows)
        outcome["rival"] = {"level": level, "bytes": size, "kld": kld, **difference}
        outcome["others"] = {other: kld for kld, other, *_ in measured if other != level}
        outcome["chosen"] = "own" if is_closer(difference) else "level"
    return outcome


def paired(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """A second model's mean KL divergence less the first's on the same rows, in nats, its 95 % interval, and
    the two-sided p of no difference (`pipeline.metrics.paired`).
    """
    difference = compare_scores(first, second)
    nats = {"difference": difference.points / 100, "low": difference.low / 100, "high": difference.high / 100}
    return nats | {"p_value": difference.p_value}


def is_closer(difference: Mapping[str, float]) -> bool:
    """Whether the second is closer, beyond noise."""
    return difference["difference"] < 0 and difference["p_value"] < CHANCE


def candidate_levels(shape: Shape, most: int, with_imatrix: bool) -> list[str]:
    """Fixed levels of at most about `most` bytes, largest first; of equals, the least loss as published."""
    suffix = SUFFIX if with_imatrix else ""
    planned = {level: level_bytes(shape, level + suffix) for level in RIVALS}
    fitting = [level for level in RIVALS if planned[level] <= most * PLANNED]
    return sorted(fitting, key=lambda level: (-planned[level], PUBLISHED_KLD[level]))

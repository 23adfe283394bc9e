"""Rounds of rollouts on the disk: the completions, their source and their rewards.

A round is `models/checkpoints/rounds/STEP.jsonl`, named by the optimizer step that it was drawn before: a
line for the round (`Round.head`), then one for each completion. It is published whole. So a killed run trains
on the same rollouts after a restart, and a run that was killed while drawing draws them again.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.config.methods import ROUNDS
from pipeline.core.errors import DataError
from pipeline.core.jsonl import parse_object, to_line
from pipeline.core.publish import publishing
from pipeline.stages.train.run import RESTART


@dataclass(frozen=True)
class Completion:
    """One completion: ids with the end of turn, if it has one; log-probabilities by its source (None: not
    known), by training's own model before the round, and by its reference.
    """

    row: int
    member: int
    seed: int
    ids: list[int]
    logps: list[float | None]
    stopped: bool
    text: str = ""
    reward: float = 0.0
    advantage: float = 0.0
    points: dict[str, float] = field(default_factory=dict)
    old: list[float] | None = None  # None: none of it is trained.
    reference: list[float] | None = None


@dataclass(frozen=True)
class Round:
    """A round: `completions` group by group for `rows`, the numbers of the prompts in order. `head`
    identifies it: step, rows, adapter_sha256, drawn_by, run.
    """

    head: dict[str, Any]
    completions: list[Completion]

    def groups(self) -> list[list[Completion]]:
        """Return the completions of each prompt."""
        return in_groups(self.completions, len(self.completions) // max(len(self.head["rows"]), 1))


def in_groups(completions: list[Completion], size: int) -> list[list[Completion]]:
    """Return the completions cut into groups of `size`."""
    return [completions[start : start + size] for start in range(0, len(completions), size)]


def round_file(checkpoints: Path, step: int) -> Path:
    """Return the path of the round that is drawn before optimizer step `step` + 1."""
    return checkpoints / ROUNDS / f"{step:08}.jsonl"


def write_round(file: Path, rollouts: Round) -> None:
    """Publish a round, with the hash of its completions in its first line."""
    body = "".join(to_line(asdict(completion)) for completion in rollouts.completions)
    with publishing(file) as aside:
        head = to_line(rollouts.head | {"sha256": hashlib.sha256(body.encode()).hexdigest()})
        aside.write_text(head + body, encoding="utf-8")


def read_round(file: Path) -> Round | None:
    """Return the round in `file`, or None if it is missing. Raises `DataError` if it is damaged."""
    if not file.is_file():
        return None
    try:
        first, body = file.read_bytes().split(b"\n", 1)
        head = parse_object(first)
        if head.pop("sha256") != hashlib.sha256(body).hexdigest():
            raise ValueError("its completions are not what was written")
        lines = body.split(b"\n")[:-1]
        return Round(head, [Completion(**parse_object(line)) for line in lines])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            "Q-GRPO-004", f"{file} is damaged ({error}): delete it, and it is drawn again, or {RESTART}"
        ) from error


def differences(saved: Round, wanted: dict[str, Any]) -> list[str]:
    """Return the keys of `wanted` that differ in a round's head."""
    return [name for name, value in wanted.items() if json.loads(json.dumps(value)) != saved.head.get(name)]

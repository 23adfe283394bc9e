"""The whole plan of a run: does it fit, what would fit, disk and time. `quench plan` and the preflight check share it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, DataError
from pipeline.params import Params
from pipeline.planning.card import Card, loss_on
from pipeline.planning.disk import plan_disk
from pipeline.planning.duration import Work, assumed_tflops, flops_per_token
from pipeline.planning.ladder import Rung, Setup, ladder, longest_rows
from pipeline.planning.memory import MemoryPlan
from pipeline.planning.published import published_shape
from pipeline.planning.shape import Shape, load_shape
from pipeline.sections import Train


@dataclass(frozen=True)
class Plan:
    """What a run needs; None says that it was not measured."""

    shape: Shape
    memory: MemoryPlan
    card: Card | None
    longest_row: int | None  # tokens
    rungs: tuple[Rung, ...]
    disk: dict[str, int]
    work: Work | None
    flops_per_token: float
    tflops: float | None
    tflops_assumed: bool

    @property
    def fits(self) -> bool | None:
        """Whether the memory plan fits the card."""
        return None if self.card is None else self.memory.total <= self.card.memory

    @property
    def seconds(self) -> float | None:
        """How long the steps take."""
        return None if self.work is None or self.tflops is None else self.work.tokens * self.flops_per_token / (self.tflops * 1e12)

    @property
    def remedy(self) -> str:
        """What to change where the plan doesn't fit, in half a sentence."""
        changes = ", ".join(rung.change for rung in self.rungs)
        if self.rungs and self.rungs[-1].enough:
            return f"set {changes}"
        return f"even with {changes} it would not fit, so take a smaller base" if changes else "take a smaller base"

    def as_json(self) -> dict[str, Any]:
        """The plan as plain values; bytes, tokens, seconds."""
        memory = {part.name: {"bytes": part.bytes, "at_peak": part.at_peak, "source": part.source} for part in self.memory.parts}
        return {
            "parameters": self.shape.parameters, "device": self.memory.device, "loss": self.memory.loss, "tokens_per_forward": self.memory.tokens,
            "memory": memory, "allocated_bytes": self.memory.allocated, "total_bytes": self.memory.total,
            "card": asdict(self.card) if self.card else None, "fits": self.fits, "longest_row": self.longest_row,
            "ladder": [asdict(rung) for rung in self.rungs], "disk": self.disk, "work": asdict(self.work) if self.work else None,
            "flops_per_token": self.flops_per_token, "tflops": self.tflops, "tflops_assumed": self.tflops_assumed, "seconds": self.seconds,
        }  # fmt: skip


def make_plan(
    shape: Shape, train: Train, max_length: int, levels: Sequence[str], card: Card | None, work: Work | None = None, tflops: float | None = None
) -> Plan:
    """The plan of training on `card`; without one, for a GPU whose memory isn't known. `tflops` is what the card reaches.

    Raises `ConfigError` for targets or an optimizer that can't be planned.
    """
    device = card.device if card else "cuda"
    setup = Setup(shape, train, max_length, device, loss_on(device, train))
    assumed = assumed_tflops(card.name) if card and tflops is None else None
    return Plan(
        shape, setup.plan(), card, longest_rows(setup, card.memory) if card else None, tuple(ladder(setup, card.memory)) if card else (),
        plan_disk(shape, train, levels), work, flops_per_token(shape, train, max_length), tflops or assumed, assumed is not None,
    )  # fmt: skip


def find_shape(params: Params, root: Path) -> Shape:
    """The shape of the base that `params` names: from its config.json where it is here, else a published one.

    Raises `ConfigError` where neither is known, `DataError` for a config.json that can't be read.
    """
    base = params.base
    if base.source == "path":
        return load_shape(root / Path(base.model).expanduser() / "config.json")
    if _base_here(root) == (base.model, base.revision):
        return load_shape(root / "models" / "base" / "config.json")
    shape = published_shape(base.model, base.file)
    if shape is None:
        raise ConfigError(
            f"the base {base.model} is not here and its shape is not known: run `snakemake base`, or name its config.json with --config"
        )
    return shape


def _base_here(root: Path) -> tuple[str, str | None] | None:
    """(model, revision) of models/base; None where there is none."""
    import json

    record = root / "models" / "base.json"
    if not (record.is_file() and (root / "models" / "base" / "config.json").is_file()):
        return None
    try:
        facts = json.loads(record.read_text(encoding="utf-8"))
        return facts["model"], facts["revision"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{record} is not what stage base wrote: run `snakemake --force base`") from error

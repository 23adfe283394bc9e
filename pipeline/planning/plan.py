"""The entire plan of a run: does it fit, what would fit, disk and time. `quench config plan` and the
preflight check share it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.config.sections import LoraType, Quantization, Training
from pipeline.planning.card import Card, loss_on
from pipeline.planning.disk import plan_disk
from pipeline.planning.duration import Work, assumed_tflops, flops_per_token, forwards
from pipeline.planning.memory import MemoryPlan
from pipeline.planning.memory_reductions import Reduction, Setup, longest_rows, memory_reductions
from pipeline.planning.offload import PCIE, copied_bytes
from pipeline.planning.quantized import QuantizedBase
from pipeline.planning.shape import Shape


@dataclass(frozen=True)
class Plan:
    """What a run needs; None says that it was not measured."""

    shape: Shape
    memory: MemoryPlan
    card: Card | None
    longest_row: int | None  # tokens
    reductions: tuple[Reduction, ...]
    disk: dict[str, int]
    work: Work | None
    flops_per_token: float
    tflops: float | None
    tflops_assumed: bool
    quantization: Quantization
    copied_per_token: float = 0.0  # bytes to the GPU

    @property
    def fits(self) -> bool | None:
        """Whether the memory plan fits the card."""
        return None if self.card is None else self.memory.total <= self.card.memory

    @property
    def seconds(self) -> float | None:
        """How long the steps take, without GRPO's rollouts."""
        rate = self.tokens_per_second
        return None if self.work is None or rate is None else self.work.tokens / rate

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens trained a second: operations at the card's throughput, then the copies of offloaded
        weights.
        """
        if self.tflops is None:
            return None
        return 1 / (self.flops_per_token / (self.tflops * 1e12) + self.copied_per_token / PCIE)

    @property
    def remedy(self) -> str:
        """What to change where the plan doesn't fit, in half a sentence."""
        changes = ", ".join(reduction.change for reduction in self.reductions)
        smaller = "a smaller level, or base" if self.quantization == "gguf" else "a smaller base"
        if self.reductions and self.reductions[-1].enough:
            return f"set {changes}"
        return f"even with {changes} it would not fit, so take {smaller}" if changes else f"take {smaller}"

    def as_json(self) -> dict[str, Any]:
        """The plan as plain values; bytes, tokens, seconds."""
        return {
            "parameters": self.shape.parameters,
            "device": self.memory.device,
            "loss": self.memory.loss,
            "tokens_per_forward": self.memory.tokens,
            "memory": {
                part.name: {"bytes": part.bytes, "at_peak": part.at_peak, "source": part.source}
                for part in self.memory.parts
            },
            "allocated_bytes": self.memory.allocated,
            "total_bytes": self.memory.total,
            "card": asdict(self.card) if self.card else None,
            "fits": self.fits,
            "longest_row": self.longest_row,
            "memory_reductions": [asdict(reduction) for reduction in self.reductions],
            "disk": self.disk,
            "work": asdict(self.work) if self.work else None,
            "flops_per_token": self.flops_per_token,
            "tflops": self.tflops,
            "tflops_assumed": self.tflops_assumed,
            "seconds": self.seconds,
            "copied_bytes_per_token": self.copied_per_token,
            "quantization": self.quantization,
        }


def make_plan(
    shape: Shape,
    train: Training,
    max_length: int,
    levels: Sequence[str],
    card: Card | None,
    work: Work | None = None,
    tflops: float | None = None,
    quantized: QuantizedBase | None = None,
    lora: LoraType = "F16",
    untuned: bool = True,
    processes: int = 1,
) -> Plan:
    """The plan of training on `card`; without one, for a GPU whose memory isn't known. `tflops` is what the
    card reaches. Of several `processes` it is the memory of one; the time is as of one alone.

    `levels` are `quantize.levels`. Where the base is trained on as a GGUF, `quantized` is what that takes
    and `lora` the adapter's type in its own. `untuned` is `convert.base`. Raises
    `ConfigError` for targets or an optimizer that can't be planned.
    """
    device = card.device if card else "cuda"
    setup = Setup(
        shape,
        train,
        max_length,
        device,
        loss_on(device, train, mixture=bool(shape.experts)),
        quantized,
        processes,
    )
    assumed = assumed_tflops(card.name, card.device) if card and tflops is None else None
    memory = setup.plan()
    copied = copied_bytes(shape, train, quantized, forwards=forwards(train))
    return Plan(
        shape,
        memory,
        card,
        longest_rows(setup, card.memory) if card else None,
        tuple(memory_reductions(setup, card.memory)) if card else (),
        plan_disk(
            shape,
            train,
            levels,
            lora,
            untuned=untuned,
            base=quantized.file + quantized.made_from if quantized else None,
            quantized=quantized,
        ),
        work,
        flops_per_token(shape, train, max_length),
        tflops or assumed,
        assumed is not None,
        train.quantization,
        copied / memory.tokens,
    )

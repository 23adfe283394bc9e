"""What fits: the longest rows, and what to change, in which order, where a plan doesn't fit."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config.sections import Training
from pipeline.core.cpu import Device
from pipeline.planning.activations import Loss
from pipeline.planning.memory import MemoryPlan, plan_memory
from pipeline.planning.quantized import QuantizedBase
from pipeline.planning.shape import Shape

STEP = 64  # rows are shortened to a multiple of this
SHORTEST = 512  # no advice below: chats would hardly fit
SMALL_RANK = 8


@dataclass(frozen=True)
class Setup:
    """What a plan is made for."""

    shape: Shape
    train: Training
    max_length: int
    device: Device
    loss: Loss
    quantized: QuantizedBase | None = None  # of a base that stays in its GGUF's blocks
    processes: int = 1

    def plan(self) -> MemoryPlan:
        """Its memory plan."""
        return plan_memory(
            self.shape,
            self.train,
            self.max_length,
            self.device,
            self.loss,
            self.quantized,
            self.processes,
        )

    def at(self, max_length: int, **changes: Any) -> "Setup":
        """The same with rows of `max_length` tokens and other values for keys of `train`."""
        return replace(self, train=self.train.model_copy(update=changes), max_length=max_length)


@dataclass(frozen=True)
class Reduction:
    """One change on top of those before it: the bytes it saves, the total with it, and whether that is
    enough.
    """

    change: str
    saves: int
    total: int
    enough: bool


def longest_rows(setup: Setup, room: int) -> int:
    """The most tokens in a training row for which the plan needs at most `room` bytes, up to the model's
    positions; 0 for none. A plan never shrinks when rows grow.
    """
    return bisect_right(
        range(1, setup.shape.positions + 1), room, key=lambda length: setup.at(length).plan().total
    )


def memory_reductions(setup: Setup, room: int) -> list[Reduction]:
    """The changes that help, cheapest first, down to the first that is enough or to the end; none where the
    plan fits already.

    Micro batch 1 (with accumulation for it, so that the run learns the same), checkpointing, a GGUF's linears
    left quantized, shorter rows where that is enough, embeddings in main memory, else shorter rows, a smaller
    rank; last, for it costs most time, the base shared out among the processes, or of one process layers in
    main memory.
    """
    reductions: list[Reduction] = []
    total = setup.plan().total
    for change, changed in _changes(setup, room):
        if total <= room:
            break
        after = changed.plan().total
        if after < total:
            reductions.append(Reduction(change, total - after, after, after <= room))
            total = after
    return reductions


def _changes(setup: Setup, room: int) -> Iterator[tuple[str, Setup]]:
    """(what to change, the set-up with this change and all before it)."""
    train = setup.train
    if train.per_device_train_batch_size > 1:
        accumulation = train.gradient_accumulation_steps * train.per_device_train_batch_size
        setup = setup.at(
            setup.max_length, per_device_train_batch_size=1, gradient_accumulation_steps=accumulation
        )
        yield f"train.per_device_train_batch_size: 1 and gradient_accumulation_steps: {accumulation}", setup
    if not train.gradient_checkpointing:
        setup = setup.at(setup.max_length, gradient_checkpointing=True)
        yield "train.gradient_checkpointing: true", setup
    if train.quantization == "gguf" and not train.keep_quantized:
        setup = setup.at(setup.max_length, keep_quantized=True)
        yield "train.keep_quantized: true", setup
    shortening = _shortened(setup, room)
    if shortening.max_length > SHORTEST:
        setup = shortening
        yield f"preprocess.max_length: {setup.max_length}", setup
    if not train.embeddings_on_cpu and train.quantization != "gguf":
        setup = setup.at(setup.max_length, embeddings_on_cpu=True)
        yield "train.embeddings_on_cpu: true", setup
    setup = _shortened(setup, room)
    yield f"preprocess.max_length: {setup.max_length}", setup
    if train.r > SMALL_RANK:
        setup = setup.at(setup.max_length, r=SMALL_RANK)
        yield f"train.r: {SMALL_RANK}", setup
    if setup.processes > 1 and not train.use_dora and not train.offload_layers:
        setup = setup.at(setup.max_length, shard_base=True)
        yield "train.shard_base: true", setup
    elif setup.device == "cuda" and not train.use_dora and not train.shard_base:
        setup = _offloaded(setup, room)
        yield f"train.offload_layers: {setup.train.offload_layers}", setup


def _offloaded(setup: Setup, room: int) -> Setup:
    """The same with the fewest layers offloaded with which it fits, or all."""
    numbers = range(setup.train.offload_layers, setup.shape.layers)
    fewest = bisect_left(
        numbers, -room, key=lambda count: -setup.at(setup.max_length, offload_layers=count).plan().total
    )
    return setup.at(setup.max_length, offload_layers=setup.train.offload_layers + fewest)


def _shortened(setup: Setup, room: int) -> Setup:
    """The same with the longest rows that fit, not below `SHORTEST`."""
    fitting = longest_rows(setup, room)
    return (
        setup
        if fitting >= setup.max_length
        else setup.at(min(setup.max_length, max(SHORTEST, fitting // STEP * STEP)))
    )

"""The entire plan of a run: if it fits, what to change if it doesn't, disk and time.

`quench config plan` and the preflight check share it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.config.levels import UNTUNED
from pipeline.config.params import Params
from pipeline.config.products import PRODUCTS
from pipeline.core.hardware import Card
from pipeline.planning.duration import PCIE, Work, copied_bytes, flops_per_token, reached_tflops, work_in
from pipeline.planning.machine_rate import Rate, read_rate
from pipeline.planning.memory.parts import MemoryPlan, made_file, plan_memory
from pipeline.planning.memory.weights import adapter_bytes, lora_bytes, optimizer_bytes
from pipeline.planning.model.base import find_quantized
from pipeline.planning.model.level_bytes import level_bytes
from pipeline.planning.model.shape import Shape
from pipeline.planning.setup import Setup, base_kind, setup_of

STEP = 64  # Rows are shortened to a multiple of this.
SHORTEST = 512  # tokens; shorter rows are not advised, because chats would hardly fit
SMALL_RANK = 8
CACHE = "copies in DVC's cache"
BASE = "base"
TOKENIZER = 20_000_000  # bytes of tokenizer, template and settings next to weights, generously
STATE = 100_000  # bytes in a checkpoint: schedule, progress, marker


@dataclass(frozen=True)
class Reduction:
    """One change in addition to those before.

    It has the bytes that it saves, the new total, and True if that is enough.
    """

    change: str
    saves: int
    total: int
    enough: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The needs of a run in bytes, tokens and seconds. None means that it was not measured."""

    setup: Setup
    memory: MemoryPlan
    card: Card | None
    fits: bool | None  # True if it fits the card
    longest_row: int | None  # tokens
    memory_reductions: tuple[Reduction, ...]
    disk: dict[str, int]
    work: Work | None
    flops_per_token: float
    tflops: float | None
    tflops_assumed: bool
    tflops_measured: bool  # True if they follow from `rate`
    rate: Rate | None  # This is set if this machine was measured and the plan is for its CPU.
    seconds: float | None  # seconds of the steps, without GRPO's rollouts
    copied_bytes_per_token: float  # bytes copied to the GPU

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens trained a second: operations at the card's throughput, then copies of offloaded weights."""
        return trained_per_second(self.flops_per_token, self.tflops, self.copied_bytes_per_token)

    @property
    def remedy(self) -> str:
        """The changes for a plan that doesn't fit, in half a sentence."""
        last = {reduction.change.partition(":")[0]: reduction.change for reduction in self.memory_reductions}
        changes = ", ".join(last.values())
        smaller = "a smaller level, or base" if base_kind(self.setup).is_file else "a smaller base"
        if self.memory_reductions and self.memory_reductions[-1].enough:
            return f"set {changes}"
        return f"even with {changes} it would not fit, so take {smaller}" if changes else f"take {smaller}"

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        setup = self.setup
        memory = self.memory
        return {
            "parameters": setup.shape.parameters,
            "device": setup.device,
            "loss": setup.loss,
            "tokens_per_forward": setup.tokens,
            "memory": {
                part.name: {"bytes": part.bytes, "at_peak": part.at_peak, "source": part.source}
                for part in memory.parts
            },
            "allocated_bytes": memory.allocated,
            "total_bytes": memory.total,
            **{name: value for name, value in asdict(self).items() if name not in ("setup", "memory")},
            "quantization": setup.train.quantization,
        }


def make_plan(
    setup: Setup, work: Work | None = None, tflops: float | None = None, rate: Rate | None = None
) -> Plan:
    """Return the plan of a training that does `work`.

    `tflops` are those that training reaches; if they are not given, they follow from this machine's `rate`.
    For several processes the time is that of one. Raises `ConfigError` for targets or an optimizer that can't
    be planned.
    """
    card = setup.card
    memory = plan_memory(setup)
    if setup.device != "cpu":
        rate = None
    measured = tflops is None and rate is not None and rate.tflops is not None
    assumed = reached_tflops(card, rate) if card and tflops is None else None
    flops = flops_per_token(setup, work)
    copied = copied_bytes(setup) / setup.tokens
    per_second = trained_per_second(flops, tflops or assumed, copied)
    return Plan(
        setup=setup,
        memory=memory,
        card=card,
        fits=memory.total <= card.memory if card else None,
        longest_row=longest_rows(setup, card.memory) if card else None,
        memory_reductions=tuple(memory_reductions(setup, card.memory)) if card else (),
        disk=plan_disk(setup),
        work=work,
        flops_per_token=flops,
        tflops=tflops or assumed,
        tflops_assumed=assumed is not None and not measured,
        tflops_measured=measured,
        rate=rate,
        seconds=work.tokens / per_second if work and per_second else None,
        copied_bytes_per_token=copied,
    )


def plan_run(
    params: Params,
    shape: Shape,
    root: Path,
    card: Card | None,
    *,
    speed: float | Rate | None = None,
    processes: int = 1,
) -> Plan:
    """Return `make_plan` for the settings of `params` and the local files of its base and rows.

    `speed` is the TFLOP/s that training reaches, or this machine's rate; without a rate the one that was kept
    below `root` counts. Raises `ConfigError` or `DataError` as that and `find_quantized` do.
    """
    quantized = find_quantized(params, shape, root)
    setup = setup_of(params, shape, card, quantized, processes)
    work = work_in(root, params.train)
    if isinstance(speed, Rate):
        return make_plan(setup, work, rate=speed)
    return make_plan(setup, work, speed, read_rate(root, shape))


def trained_per_second(flops_per_token: float, tflops: float | None, copied_per_token: float) -> float | None:
    """Return the tokens a second, if each costs operations and copies to the GPU; None without `tflops`."""
    if tflops is None:
        return None
    return 1 / (flops_per_token / (tflops * 1e12) + copied_per_token / PCIE)


# --- what fits


def longest_rows(setup: Setup, room: int) -> int:
    """Return the most tokens in a training row for which the plan needs at most `room` bytes; 0 if none fit.

    It is at most the model's positions. A plan never shrinks when rows grow.
    """
    return bisect_right(
        range(1, setup.shape.positions + 1), room, key=lambda length: plan_memory(setup.at(length)).total
    )


def memory_reductions(setup: Setup, room: int) -> list[Reduction]:
    """Return the changes that help, cheapest first, down to the first that is enough or to the end.

    It is empty if the plan fits already. The changes are: micro batch 1 (with accumulation for it, so that
    the run learns the same), checkpointing, a GGUF's linears left quantized, shorter rows if that is enough,
    embeddings in main memory, otherwise shorter rows, and a smaller rank. Last, because it costs most time,
    the base is shared out among the processes, or for one process layers move to main memory.
    """
    reductions: list[Reduction] = []
    total = plan_memory(setup).total
    for change, changed in _changes(setup, room):
        if total <= room:
            break
        after = plan_memory(changed).total
        if after < total:
            reductions.append(Reduction(change, total - after, after, after <= room))
            total = after
    return reductions


def _changes(setup: Setup, room: int) -> Iterator[tuple[str, Setup]]:
    """Yield (what to change, the set-up with this change and all before it)."""
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
    shortening = _shortened(setup, room)
    if shortening.max_length > SHORTEST:
        setup = shortening
        yield f"preprocess.max_length: {setup.max_length}", setup
    if not train.embeddings_in_ram and not base_kind(setup).is_file:
        setup = setup.at(setup.max_length, offload="embeddings")
        yield "train.offload: embeddings", setup
    setup = _shortened(setup, room)
    yield f"preprocess.max_length: {setup.max_length}", setup
    if train.r > SMALL_RANK:
        setup = setup.at(setup.max_length, r=SMALL_RANK)
        yield f"train.r: {SMALL_RANK}", setup
    left = setup.offload_left
    if left == "layers":
        setup = _offloaded(setup, room)
    elif left:
        setup = setup.at(setup.max_length, offload="shared")
    if left:
        yield f"train.offload: {setup.train.offload}", setup


def _offloaded(setup: Setup, room: int) -> Setup:
    """Return the set-up with the fewest layers offloaded with which it fits, or all."""
    numbers = range(max(1, setup.train.offloaded_layers), setup.shape.layers)
    fewest = bisect_left(
        numbers, -room, key=lambda count: -plan_memory(setup.at(setup.max_length, offload=count)).total
    )
    return setup.at(setup.max_length, offload=numbers.start + fewest)


def _shortened(setup: Setup, room: int) -> Setup:
    """Return the set-up with the longest rows that fit, not below `SHORTEST`."""
    fitting = longest_rows(setup, room)
    if fitting >= setup.max_length:
        return setup
    return setup.at(min(setup.max_length, max(SHORTEST, fitting // STEP * STEP)))


# --- disk


def plan_disk(setup: Setup) -> dict[str, int]:
    """Return the bytes on disk by artifact: checkpoints, adapter, merged model, GGUFs.

    There is one checkpoint above `save_total_limit` while it is written. Nothing is merged after training on
    a GGUF: the products are the adapter, in its folder and as a GGUF, or the base's file with trained scales.
    `BASE` is what exists before. `CACHE` is the content of DVC's cache: one more copy of each but the
    checkpoints, and of the base, even if it is `uncached`, because DVC caches runs with all their outputs.
    The copies need no space if the file system shares blocks (Btrfs, XFS).
    """
    shape = setup.shape
    quantized = setup.quantized
    adapter = adapter_bytes(setup)
    checkpoint = adapter + optimizer_bytes(setup) + STATE
    sizes = {
        "checkpoints": checkpoint * (setup.train.save_total_limit + 1),
        "adapter": adapter + TOKENIZER,
    }
    if quantized and not PRODUCTS[setup.train.gguf_graph].with_lora:
        sizes["tuned GGUF"] = quantized.file
    else:
        sizes["LoRA GGUF"] = lora_bytes(setup)
    if not base_kind(setup).is_file:
        sizes["merged model"] = 2 * shape.parameters + TOKENIZER
        sixteen = ["F16", f"{UNTUNED}F16"] if setup.untuned else ["F16"]
        for level in (*sixteen, *setup.levels):
            sizes[f"{level} GGUF"] = level_bytes(shape, level)
    if quantized:
        before = quantized.file + quantized.made_from
        base_copy = quantized.file
    else:
        before = 2 * shape.parameters
        base_copy = before
    copies = sum(sizes.values()) - sizes["checkpoints"] + base_copy
    rollouts = made_file(setup)
    if rollouts:
        sizes["GGUF for rollouts"] = rollouts  # stored among the checkpoints
    return sizes | {BASE: before, CACHE: copies}


def own_bytes(sizes: Mapping[str, int]) -> int:
    """Return the bytes that training and later stages write, out of the result of `plan_disk`.

    It counts neither the base nor DVC's copies.
    """
    return sum(size for name, size in sizes.items() if name not in (BASE, CACHE))

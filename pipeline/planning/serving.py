"""What serving a level takes: weights + KV cache + buffers, the longest context that fits, and the best level that fits. Pure arithmetic.

quench plan --serve --vram 8
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.planning.disk import plan_disk
from pipeline.planning.shape import Shape
from pipeline.sections import Train

BUFFERS = 0.1  # assumed where it was not measured: a tenth on top of weights and KV cache, for compute buffers and the process itself
CACHE_BYTES = 2  # of a number in a float16 KV cache
GB = 1e9


@dataclass(frozen=True)
class ServingMemory:
    """What serving a model takes, in bytes. None: not measured. `peak` is the server's own, at this very context."""

    weights: int
    kv_cache: int | None
    context: int | None = None  # tokens that the cache is for, all slots together
    peak: int | None = None

    @property
    def buffers(self) -> int:
        """Compute buffers and the process: what the measured peak has on top of weights and cache, else a tenth of them."""
        known = self.weights + (self.kv_cache or 0)
        return round(known * (1 + BUFFERS)) - known if self.peak is None else max(0, self.peak - known)

    @property
    def total(self) -> int:
        """Weights, KV cache and buffers, in bytes."""
        return self.weights + (self.kv_cache or 0) + self.buffers

    def __str__(self) -> str:
        tokens = "" if self.context is None else f" of {self.context:,} tokens"
        cache = "KV cache not measured" if self.kv_cache is None else f"{self.kv_cache / GB:.2f} GB KV cache{tokens}"
        buffers = f"{BUFFERS:.0%}".replace("%", " %") if self.peak is None else f"{self.buffers / GB:.2f} GB buffers (measured)"
        return f"{self.weights / GB:.2f} GB weights + {cache} + {buffers} = {self.total / GB:.2f} GB"


@dataclass(frozen=True)
class LevelPlan:
    """One level at the wanted context. `longest` is the largest context per slot that fits `room` bytes, in tokens; None where that is not known."""

    name: str
    memory: ServingMemory
    made: bool  # weights are a file's bytes, not computed
    longest: int | None
    fits: bool | None


def plan_level(
    name: str, weights: int, per_token: int | None, *, context: int, parallel: int, positions: int, room: int | None,
    made: bool = False, peak: int | None = None,
) -> LevelPlan:  # fmt: skip
    """Plan `parallel` slots of `context` tokens each.

    `weights` in bytes; `per_token` is the KV cache's bytes of a token; `positions` is the longest context that the model knows; `room` is the card's
    memory in bytes (None: not known); `peak` is what llama-server was measured to take at this context.
    """
    memory = ServingMemory(weights, None if per_token is None else per_token * context * parallel, context * parallel, peak)
    if room is None:
        return LevelPlan(name, memory, made, None, None)
    longest = None
    if per_token:
        spare = room / (1 + BUFFERS) - weights if peak is None else room - weights - memory.buffers
        longest = max(0, min(positions, int(spare // (per_token * parallel))))
    return LevelPlan(name, memory, made, longest, memory.total <= room)


def cache_per_token(shape: Shape) -> int:
    """Bytes of a float16 KV cache per token: layers × (keys + values) × 2."""
    return shape.layers * 2 * shape.keys * CACHE_BYTES


def computed_weights(shape: Shape, train: Train, levels: Sequence[str]) -> dict[str, int]:
    """Bytes of each level's GGUF (16-bit ones by their type's name) before any is made, as the disk plan has them."""
    sizes = plan_disk(shape, train, levels)
    return {level: sizes.get(f"{level} GGUF", 2 * shape.parameters) for level in levels} | {"F16": sizes["F16 GGUF"], "BF16": sizes["F16 GGUF"]}


def best_that_fits(plans: Mapping[str, LevelPlan]) -> str | None:
    """The level with the most bits that fits: before anything is measured, more bits are the better guess."""
    fitting = [plan for plan in plans.values() if plan.fits]
    return max(fitting, key=lambda plan: (plan.memory.weights, plan.name)).name if fitting else None

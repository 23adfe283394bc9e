"""The memory for serving a level: weights + KV cache + buffers, the longest context that fits, and the best
level that fits. Pure arithmetic.

quench config plan --serve --vram 8
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config.sections import Serve
from pipeline.core.units import MEMORY_GB, memory_gb
from pipeline.llamacpp.server_command import PROMPT_CACHE_MIB
from pipeline.planning.model.shape import Shape

# Assumed if it was not measured: a tenth on top of weights and KV cache, for compute buffers and the process
# itself.
BUFFERS = 0.1
CACHE_BYTES = 2  # bytes of a number in a float16 KV cache
GB = MEMORY_GB


@dataclass(frozen=True)
class ServingMemory:
    """The memory for serving a model, in bytes. None means that it was not measured.

    `peak` is the server's own, at this very context, with one conversation. `prompt_cache` is what it may
    keep of earlier ones in addition.
    """

    weights: int
    kv_cache: int | None
    context: int | None = None  # tokens that the cache is for, all slots together
    peak: int | None = None
    prompt_cache: int = 0

    @property
    def is_complete(self) -> bool:
        """True if `total` counts the KV cache, by itself or in the peak; otherwise more is needed."""
        return self.kv_cache is not None or self.peak is not None

    @property
    def buffers(self) -> int:
        """Compute buffers and the process, in bytes.

        It is the measured peak less weights and cache, or a tenth of them if the peak was not measured.
        """
        sizes = self.weights + (self.kv_cache or 0)
        if self.peak is None:
            return round(sizes * (1 + BUFFERS)) - sizes
        return max(0, self.peak - sizes)

    @property
    def total(self) -> int:
        """Weights, KV cache, buffers and prompt cache, in bytes."""
        return self.weights + (self.kv_cache or 0) + self.buffers + self.prompt_cache

    def __str__(self) -> str:
        tokens = "" if self.context is None else f" of {self.context:,} tokens"
        if self.kv_cache is not None:
            cache = f"{memory_gb(self.kv_cache)} KV cache{tokens}"
        elif self.peak is None:
            cache = "KV cache not measured"
        else:
            cache = ""  # The peak includes it.
        if self.peak is None:
            buffers = f"{BUFFERS * 100:.0f} %"
        elif self.kv_cache is None:
            buffers = f"{memory_gb(self.buffers)} KV cache{tokens} and buffers (measured)"
        else:
            buffers = f"{memory_gb(self.buffers)} buffers (measured)"
        kept = f"{memory_gb(self.prompt_cache)} prompt cache" if self.prompt_cache else ""
        parts = " + ".join(filter(None, (f"{memory_gb(self.weights)} weights", cache, buffers, kept)))
        return f"{parts} = {'' if self.is_complete else 'at least '}{memory_gb(self.total)}"


@dataclass(frozen=True)
class LevelPlan:
    """One level at the wanted context.

    `longest` is the largest context per slot that fits `room` bytes, in tokens; None if that is not known.
    """

    name: str
    memory: ServingMemory
    from_file: bool  # True if weights are a file's bytes, not computed
    longest: int | None
    fits: bool | None


@dataclass(frozen=True)
class PlannedModel:
    """The properties of a model that decide how much memory serving needs.

    `weights` are in bytes, a file's if `from_file`. `per_token` is the KV cache's bytes of a token.
    `positions` is the longest context of the model. `peak` is the measured memory of llama-server at the
    context that is planned.
    """

    name: str
    weights: int
    per_token: int | None
    positions: int
    from_file: bool = False
    peak: int | None = None


def plan_level(model: PlannedModel, serve: Serve, room: int | None) -> LevelPlan:
    """Return the plan for the slots of section serve in `room` bytes, the card's memory (None: not known).

    A context beyond the model's positions fits nowhere. Without `per_token` and `peak` a level may be too
    large, but can't be known to fit.
    """
    context = serve.ctx_size
    parallel = serve.parallel
    kept = prompt_cache(serve)
    per_token = model.per_token
    cache = None if per_token is None else per_token * context * parallel
    memory = ServingMemory(model.weights, cache, context * parallel, model.peak, kept)
    too_long = context > model.positions
    if room is None:
        return LevelPlan(model.name, memory, model.from_file, None, False if too_long else None)
    longest = None
    if per_token:
        if model.peak is None:
            spare = (room - kept) / (1 + BUFFERS) - model.weights
        else:
            spare = room - kept - model.weights - memory.buffers
        longest = max(0, min(model.positions, int(spare // (per_token * parallel))))
    fits = None
    if too_long or memory.total > room:
        fits = False
    elif memory.is_complete:
        fits = True
    return LevelPlan(model.name, memory, model.from_file, longest, fits)


def prompt_cache(serve: Serve) -> int:
    """Return the bytes of earlier chats that llama-server may keep.

    They are in main memory, and count if the model is there.
    """
    return 0 if serve.on_gpu else PROMPT_CACHE_MIB << 20


def cache_per_token(shape: Shape) -> int:
    """Return the bytes of a float16 KV cache per token. Layers with a window need less for long contexts."""
    return shape.keys_and_values * CACHE_BYTES


def best_that_fits(plans: Mapping[str, LevelPlan]) -> str | None:
    """Return the level with the most bits that fits; None if none does.

    Before anything is measured, more bits are the better guess.
    """
    fitting = [plan for plan in plans.values() if plan.fits]
    return max(fitting, key=lambda plan: (plan.memory.weights, plan.name)).name if fitting else None

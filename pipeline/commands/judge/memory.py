"""What a file takes where it is served, and whether that fits."""

import re
from typing import Any

from pipeline.commands.judge.files import Candidate
from pipeline.commands.judge.served import Load, Served
from pipeline.config.sections import Serve
from pipeline.config.sections.values import ALL_LAYERS
from pipeline.core.errors import ConfigError
from pipeline.core.text import quoted
from pipeline.core.units import MEMORY_GB, memory_gb
from pipeline.planning.card import Card, first_gpu, main_memory
from pipeline.planning.serving import LevelPlan, plan_level, prompt_cache

UNITS = {"MB": 1 << 20, "GB": MEMORY_GB, "": MEMORY_GB, "MIB": 1 << 20, "GIB": MEMORY_GB}
NO_LIMIT = 1 << 40  # positions, where a header names none


def parse_memory(text: str) -> int:
    """ "8 GB", "512 MB" or "8" in bytes, as cards are sold (8 GB are 8 × 2³⁰ bytes). Raises `ConfigError`."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    size = round(float(match[1]) * UNITS.get(match[2].upper(), 0)) if match else 0
    if not size:
        raise ConfigError(
            "Q-JUDGE-008",
            f"--memory is {quoted(text)}: give what the model may take, such as '8 GB' or '512 MB'",
        )
    return size


def room_of(asked: str | None, load: Load) -> tuple[int, str]:
    """(bytes, words) of the memory that files are to fit in: what was asked for, else the card's or, with
    no layers on it, the machine's.
    """
    if asked is not None:
        size = parse_memory(asked)
        return size, memory_gb(size)
    card: Card = (first_gpu() if load.n_gpu_layers else None) or main_memory()
    return card.memory, card.words


def plan_of(one: Candidate, load: Load, room: int, served: Served | None = None) -> LevelPlan:
    """The memory that a file takes at `load.ctx_size`: by its header, and with what was measured where it
    was.
    """
    peak = None
    if served:
        peak = served.gpu_memory if load.n_gpu_layers else served.peak_memory
    serve = Serve().model_copy(update={"n_gpu_layers": ALL_LAYERS if load.n_gpu_layers else 0})
    return plan_level(
        one.name,
        one.bytes,
        one.per_token,
        context=load.ctx_size,
        parallel=1,
        positions=one.positions or NO_LIMIT,
        room=room,
        made=True,
        peak=peak,
        kept=prompt_cache(serve),
    )


def memory_values(one: Candidate, load: Load, room: int, served: Served) -> dict[str, Any]:
    """The same as JSON, in bytes; `predicted` is None where the header doesn't say what a token's cache
    takes.
    """
    predicted, plan = plan_of(one, load, room), plan_of(one, load, room, served)
    return {
        "predicted_bytes": predicted.memory.total if predicted.memory.known else None,
        "total_bytes": plan.memory.total,
        "kv_cache_bytes": plan.memory.kv_cache,
        "prompt_cache_bytes": plan.memory.prompt_cache,
        "arithmetic": str(plan.memory),
        "longest_context": plan.longest,
        "fits": plan.fits,
    }

"""Measure how fast llama-server reads a prompt and writes an answer, by its own timings, and how much of the
machine's CPU time others used meanwhile. A speed that was measured next to another busy process tells nothing
about the model.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

import psutil

from pipeline.llamacpp.server import Server

# Share of the machine's CPU time. 4 to 7 % were measured here, of unknown origin, while no other job should
# have run.
DISTURBING = 0.1
IDLE = ("idle", "iowait")
COUNTED_TWICE = ("guest", "guest_nice")  # Linux counts them as user time too.


@dataclass(frozen=True)
class Speed:
    """Speeds of one answer, in tokens per second."""

    prompt: float
    generation: float


def answer_speed(server: Server, prompt: int, tokens: int) -> Speed:
    """Return the speeds of an answer of exactly `tokens` to a prompt of `prompt` tokens, nothing cached."""
    ids = server.post("/tokenize", {"content": "Hello! " * prompt})["tokens"][:prompt]
    body = {"prompt": ids, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    timings = server.post("/completion", body)["timings"]
    return Speed(float(timings["prompt_per_second"]), float(timings["predicted_per_second"]))


def runs_of(values: Sequence[float]) -> dict[str, float]:
    """Return median, lowest and highest of the runs."""
    return {"median": round(median(values), 2), "low": round(min(values), 2), "high": round(max(values), 2)}


def is_disturbed(evaluation: Mapping[str, Any]) -> bool:
    """Return True if other load kept the machine busy in a speed measurement, which then means nothing."""
    return bool((evaluation.get("speed") or {}).get("disturbed"))


def measure_again(models: Iterable[str]) -> str:
    """Return the command that measures these models again and makes the report again."""
    return f"snakemake --forcerun {' '.join(f'reports/eval/{model}.json' for model in models)}"


@dataclass(frozen=True)
class CpuTime:
    """CPU seconds so far, over all cores: `idle`, `own` (this process and its children) and `total`."""

    own: float
    idle: float
    total: float


@dataclass(frozen=True)
class OtherLoad:
    """Shares of the machine's CPU time between two moments (0 to 1): that of others, and idle."""

    share: float
    idle: float

    @property
    def disturbs(self) -> bool:
        """True if others used more than a little and there were no cores to spare for them."""
        return self.share > DISTURBING and self.idle < self.share

    def as_values(self) -> dict[str, float | bool]:
        """Return the same as JSON, for the record of the figures that were measured meanwhile."""
        return {"other_load": round(self.share, 3), "disturbed": self.disturbs}


def cpu_time() -> CpuTime:
    """Return the CPU time so far. Children that have exited and were waited for count as own."""
    machine = psutil.cpu_times()._asdict()
    process_seconds = 0.0
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            # user, system, and those of exited children
            process_seconds += sum(process.cpu_times()[:4])
    return CpuTime(
        process_seconds,
        sum(machine.get(name, 0.0) for name in IDLE),
        sum(seconds for name, seconds in machine.items() if name not in COUNTED_TWICE),
    )


def other_load(before: CpuTime, after: CpuTime) -> OtherLoad:
    """Return the load of others between two moments, with steal, the time of other guests of the host."""
    total, idle = after.total - before.total, after.idle - before.idle
    if total <= 0:
        return OtherLoad(0.0, 0.0)
    others = total - idle - (after.own - before.own)
    return OtherLoad(min(max(others / total, 0.0), 1.0), idle / total)

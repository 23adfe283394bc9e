"""Each file in llama-server as it would be served: does it load, how fast is it, what memory does it take.

The files take turns, and every other turn goes backwards, so that a machine that slows down slows all of
them.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from pipeline.commands.judge.files import Candidate
from pipeline.core.errors import ToolError
from pipeline.core.other_load import OtherLoad, cpu_time, other_load
from pipeline.core.progress import progress
from pipeline.core.usage import peak_memory
from pipeline.llamacpp.server import Server, serving
from pipeline.llamacpp.server_command import BATCH_TOKENS
from pipeline.llamacpp.tools import Toolchain
from pipeline.metrics.answer_speed import Speed, answer_speed
from pipeline.stages.evaluate.speed import gpu_memory

TURNS = 3  # how often each file is loaded and an answer is timed
TOKENS = 64  # of each answer; its prompt is a batch long, which touches the buffers that memory counts
WHY = ("error loading model", "unknown model architecture", "error:", "failed", "what():")


@dataclass(frozen=True)
class Load:
    """How every file is loaded: one conversation of `ctx_size` tokens."""

    ctx_size: int
    threads: int
    n_gpu_layers: int | Literal["auto"]  # 0: none, or none to be had
    flash_attn: str


@dataclass
class Served:
    """What was measured of one file; memory in bytes, None where the system doesn't say."""

    load_seconds: list[float] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    peak_memory: int | None = None
    gpu_memory: int | None = None
    others: list[OtherLoad] = field(default_factory=list)  # while each speed was measured

    def as_values(self) -> dict[str, Any]:
        """The same as JSON."""
        worst = max(self.others, key=lambda one: (one.disturbs, one.share), default=OtherLoad(0.0, 0.0))
        return {
            "load_seconds": round(median(self.load_seconds), 2),
            "prompt_tok_s": runs([one.prompt for one in self.speeds]),
            "generation_tok_s": runs([one.generation for one in self.speeds]),
            "peak_memory_bytes": self.peak_memory,
            "gpu_memory_bytes": self.gpu_memory,
            **worst.as_values(),
        }


def runs(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {
        "median": round(median(values), 2),
        "low": round(min(values), 2),
        "high": round(max(values), 2),
    }


def measure_served(
    files: Sequence[Candidate], load: Load, tools: Toolchain, check: Callable[[Candidate, Server], None]
) -> dict[str, Served]:
    """Load every file in turn and time its answers; `check` is called with each server once, the first thing
    of all.

    Raises `ToolError` for a file that llama-server can't load.
    """
    found = {one.name: Served() for one in files}
    with progress("judge: loading, speed, memory", TURNS * len(files)) as advance:
        for turn in range(TURNS):
            for one in files if turn % 2 == 0 else reversed(files):
                _take_turn(one, load, tools, found[one.name], check if turn == 0 else None)
                advance(1)
    return found


def _take_turn(
    one: Candidate,
    load: Load,
    tools: Toolchain,
    into: Served,
    check: Callable[[Candidate, Server], None] | None,
) -> None:
    begin = time.perf_counter()
    with loaded(one, load, tools) as server:
        into.load_seconds.append(time.perf_counter() - begin)
        if check:
            check(one, server)
        room = min(load.ctx_size, one.positions or load.ctx_size)
        tokens = min(TOKENS, room // 2)
        before = cpu_time()
        into.speeds.append(answer_speed(server, min(BATCH_TOKENS, room - tokens - 1), tokens))
        into.others.append(other_load(before, cpu_time()))
        if check is None:  # a turn that asked nothing else: the peak is an answer's
            into.peak_memory = into.peak_memory or peak_memory(server.process.pid)
            if load.n_gpu_layers:
                into.gpu_memory = into.gpu_memory or gpu_memory(server.process.pid)


@contextmanager
def loaded(one: Candidate, load: Load, tools: Toolchain) -> Iterator[Server]:
    """`llama-server` with the file. Raises `ToolError` with the reason that its log gives if it can't load
    it.
    """
    with ExitStack() as up:
        try:
            server = up.enter_context(
                serving(
                    tools,
                    one.path,
                    ctx_size=load.ctx_size,
                    threads=load.threads,
                    n_gpu_layers=load.n_gpu_layers,
                    flash_attn=load.flash_attn,
                )
            )
        except ToolError as error:
            if error.id != "Q-LLAMACPP-014":
                raise
            raise ToolError(
                "Q-JUDGE-010",
                f"llama-server can't load {one.path} ({reason(error.sentence)}): leave it out, or fetch the "
                "file again",
            ) from error
        yield server


def reason(log: str) -> str:
    """The line of a server's log that says why it ended, without its prefix."""
    lines = [line.strip() for line in log.splitlines()[1:] if line.strip()]
    told = [line for word in WHY for line in lines if word in line.lower()]
    return (told or lines[-1:] or ["its log is empty"])[0][-300:]

"""Measure each file in llama-server as it would be served: whether it loads, its speed, the memory it needs,
whether that fits, and its answers.

The files are loaded in turn, and every other round goes backwards, so that a machine that slows down slows
all of them. Rows are asked in one order on one slot, as stage evaluate does. One file gives the same answers
in every run. They are kept as they arrive:

    reports/judge/SHA256-SETTINGS.answers.jsonl

Only the server's rounding of a common beginning depends on the row before. So after an interruption a few
answers may differ.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.chat.selection import SEED
from pipeline.chat.tokens import Row
from pipeline.config.products import ModelFiles
from pipeline.config.sections import Evaluate, Serve
from pipeline.config.sections.values import ALL_LAYERS
from pipeline.core.errors import ConfigError, ToolError
from pipeline.core.hardware import Card, first_gpu, main_memory
from pipeline.core.hashing import json_hash
from pipeline.core.progress import progress
from pipeline.core.text import quoted
from pipeline.core.units import MEMORY_GB, memory_gb
from pipeline.core.usage import peak_memory
from pipeline.extras.judge.files import Candidate
from pipeline.llamacpp.server import Server, serving
from pipeline.llamacpp.server_command import BATCH_TOKENS
from pipeline.llamacpp.tools import Toolchain, llama_of
from pipeline.metrics.answer_speed import OtherLoad, Speed, answer_speed, cpu_time, other_load, runs_of
from pipeline.metrics.asking import answer_row, kept_answers
from pipeline.planning.serving import PlannedModel, plan_level
from pipeline.stages.evaluate.speed import gpu_memory

FOLDER = Path("reports/judge")
TURNS = 3  # number of times that each file is loaded and an answer is timed
# tokens of each answer; its prompt is one batch long, which touches the buffers that memory counts
TOKENS = 64
WHY = ("error loading model", "unknown model architecture", "error:", "failed", "what():")
# settings for loading every file; without layers on the card: 0
LOADED = ("ctx_size", "threads", "n_gpu_layers")
UNITS = {"MB": 1 << 20, "GB": MEMORY_GB, "": MEMORY_GB, "MIB": 1 << 20, "GIB": MEMORY_GB}
NO_LIMIT = 1 << 40  # positions, if the header contains no limit


def load_values(load: Serve) -> dict[str, Any]:
    """Return `LOADED` of section serve: the settings that every file is loaded with, for one conversation."""
    return {name: getattr(load, name) for name in LOADED}


@dataclass
class Served:
    """Measurements of one file. Memory is in bytes, or None if the system does not report it."""

    load_seconds: list[float] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    peak_memory: int | None = None
    gpu_memory: int | None = None
    others: list[OtherLoad] = field(default_factory=list)  # other load while each speed was measured

    def as_values(self) -> dict[str, Any]:
        """Return the measurements as JSON."""
        worst = max(self.others, key=lambda load: (load.disturbs, load.share), default=OtherLoad(0.0, 0.0))
        return {
            "load_seconds": round(median(self.load_seconds), 2),
            "prompt_tok_s": runs_of([speed.prompt for speed in self.speeds]),
            "generation_tok_s": runs_of([speed.generation for speed in self.speeds]),
            "peak_memory_bytes": self.peak_memory,
            "gpu_memory_bytes": self.gpu_memory,
            **worst.as_values(),
        }


def measure_served(
    files: Sequence[Candidate], load: Serve, tools: Toolchain, check: Callable[[Candidate, Server], None]
) -> dict[str, Served]:
    """Load every file in turn and time its answers.

    `check` is called once with each server, before anything else. Raises `ToolError` for a file that
    llama-server can't load.
    """
    served = {file.name: Served() for file in files}
    with progress("judge: loading, speed, memory", TURNS * len(files)) as advance:
        for turn in range(TURNS):
            for file in files if turn % 2 == 0 else reversed(files):
                _take_turn(file, load, tools, served[file.name], check if turn == 0 else None)
                advance(1)
    return served


def _take_turn(
    file: Candidate,
    load: Serve,
    tools: Toolchain,
    into: Served,
    check: Callable[[Candidate, Server], None] | None,
) -> None:
    begin = time.perf_counter()
    with loaded(file, load, tools) as server:
        into.load_seconds.append(time.perf_counter() - begin)
        if check:
            check(file, server)
        room = min(load.ctx_size, file.positions or load.ctx_size)
        tokens = min(TOKENS, room // 2)
        before = cpu_time()
        into.speeds.append(answer_speed(server, min(BATCH_TOKENS, room - tokens - 1), tokens))
        into.others.append(other_load(before, cpu_time()))
        if check is None:  # This turn asked nothing else, so the peak belongs to an answer.
            into.peak_memory = into.peak_memory or peak_memory(server.process.pid)
            if load.n_gpu_layers:
                into.gpu_memory = into.gpu_memory or gpu_memory(server.process.pid)


@contextmanager
def loaded(file: Candidate, load: Serve, tools: Toolchain) -> Iterator[Server]:
    """Run `llama-server` with the file.

    Raises `ToolError` with the log's reason if it can't load the file.
    """
    with ExitStack() as up:
        try:
            server = up.enter_context(
                serving(
                    llama_of(tools, load),
                    ModelFiles(file.path),
                    ctx_size=load.ctx_size,
                    parallel=load.parallel,
                )
            )
        except ToolError as error:
            if error.id != "Q-LLAMACPP-014":
                raise
            raise ToolError(
                "Q-JUDGE-010",
                f"llama-server can't load {file.path} ({reason(error.sentence)}): leave it out, or fetch the "
                "file again",
            ) from error
        yield server


def reason(log: str) -> str:
    """Return the line of a server's log that gives the reason for its exit, without its prefix."""
    lines = [line.strip() for line in log.splitlines()[1:] if line.strip()]
    reasons = [line for word in WHY for line in lines if word in line.lower()]
    return (reasons or lines[-1:] or ["its log is empty"])[0][-300:]


def parse_memory(text: str) -> int:
    """Return "8 GB", "512 MB" or "8" in bytes, as cards are sold (8 GB are 8 × 2³⁰ bytes).

    Raises `ConfigError` otherwise.
    """
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    size = 0
    if match:
        size = round(float(match[1]) * UNITS.get(match[2].upper(), 0))
    if not size:
        raise ConfigError(
            "Q-JUDGE-008",
            f"--memory is {quoted(text)}: give what the model may take, such as '8 GB' or '512 MB'",
        )
    return size


def room_of(memory: str | None, load: Serve) -> tuple[int, str]:
    """Return (bytes, words) of the memory that files must fit in: the requested one, otherwise the card's, or
    the machine's if no layers are on the card.
    """
    if memory is not None:
        size = parse_memory(memory)
        return size, memory_gb(size)
    card: Card = (first_gpu() if load.n_gpu_layers else None) or main_memory()
    return card.memory, card.words


def memory_values(file: Candidate, load: Serve, room: int, served: Served) -> dict[str, Any]:
    """Return the memory that a file needs at `load.ctx_size` as JSON, in bytes. It is predicted from the
    header (None if that lacks the cache of a token) and computed with the measurements.
    """
    layers = ALL_LAYERS if load.n_gpu_layers else 0
    serve = load.model_copy(update={"n_gpu_layers": layers, "parallel": 1})
    model = PlannedModel(file.name, file.bytes, file.per_token, file.positions or NO_LIMIT, from_file=True)
    measured = replace(model, peak=served.gpu_memory if layers else served.peak_memory)
    predicted = plan_level(model, serve, room)
    plan = plan_level(measured, serve, room)
    return {
        "predicted_bytes": predicted.memory.total if predicted.memory.is_complete else None,
        "total_bytes": plan.memory.total,
        "kv_cache_bytes": plan.memory.kv_cache,
        "prompt_cache_bytes": plan.memory.prompt_cache,
        "arithmetic": str(plan.memory),
        "longest_context": plan.longest,
        "fits": plan.fits,
    }


def answers_of(
    file: Candidate, rows: Sequence[Row], load: Serve, settings: Evaluate, tools: Toolchain, root: Path
) -> list[dict[str, Any]]:
    """Return the file's answers to the rows: greedy, one at a time, with those kept from an earlier run."""

    @contextmanager
    def asking() -> Iterator[Callable[[Row], dict[str, Any]]]:
        with loaded(file, load, tools) as server:
            yield lambda row: answer_row(server, row, settings)

    answers_file = kept_file(root, file, load, settings, tools.version)
    return kept_answers(answers_file, rows, asking(), f"judge: {file.name}: answers")


def kept_file(root: Path, file: Candidate, load: Serve, settings: Evaluate, tools_version: str) -> Path:
    """Return the path of a file's answers. The second of two files with the same bytes has its own."""
    answering = {"max_new_tokens": settings.max_new_tokens, "seed": SEED}
    key = json_hash(load_values(load) | answering | {"llama_cpp": tools_version})
    again = f"-{file.copy + 1}" if file.copy else ""
    return root / FOLDER / f"{file.sha256[:16]}{again}-{key[:8]}.answers.jsonl"

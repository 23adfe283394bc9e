"""Several answers to each request, sampled from the model's own distribution and kept as they come: a run
that goes on, and further rows, ask only what nobody has answered yet. `kill -9` loses the answers of the last
ten seconds.

    reports/pairs/SETTINGS.answers.jsonl

Each answer has a seed of its own, from the run's seed and the row. With `evaluate.parallel` 1 a row's first
answer starts from an empty cache, so answers don't depend on the rows before: the same run gives the same.
"""

import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.chat.tokens import Row, chat_request
from pipeline.commands.judge.answering import KEEP_SECONDS, read_kept, write_kept
from pipeline.config.sections import Evaluate
from pipeline.core.hashing import file_hash, json_hash
from pipeline.core.progress import progress
from pipeline.llamacpp.server import Server
from pipeline.llamacpp.tools import Toolchain
from pipeline.metrics.answers import evaluated_server
from pipeline.stages.evaluate.files import ModelFiles

FOLDER = Path("reports/pairs")
# T alone: whatever cuts the tail off would sample from another distribution
SAMPLER = {"samplers": ["temperature"], "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@dataclass(frozen=True)
class Sampling:
    """How many answers, and how they are drawn."""

    answers: int
    temperature: float
    seed: int


def sampled_answers(
    files: ModelFiles,
    rows: Sequence[Row],
    sampling: Sampling,
    settings: Evaluate,
    tools: Toolchain,
    root: Path,
) -> list[list[dict[str, Any]]]:
    """For each row its answers: `turn` (the assistant's message), `stopped` (it ended by itself), `calls` (it
    calls a tool).
    """
    file = root / FOLDER / f"{_settings_key(files, sampling, settings, tools)}.answers.jsonl"
    kept = read_kept(file)
    missing = [row for row in rows if json_hash(row) not in kept]
    if missing:
        written = time.monotonic()
        up = evaluated_server(files.gguf, settings, tools, files.lora)
        bar = progress("pairs: answers", len(missing))
        with up as server, ThreadPoolExecutor(server.parallel) as pool, bar as advance:
            try:
                for row in missing:
                    kept[json_hash(row)] = {"answers": _ask(server, pool, row, sampling, settings)}
                    advance(1)
                    if time.monotonic() - written > KEEP_SECONDS:
                        write_kept(file, kept)
                        written = time.monotonic()
            finally:
                write_kept(file, kept)
    return [kept[json_hash(row)]["answers"] for row in rows]


def _ask(
    server: Server, pool: ThreadPoolExecutor, row: Row, sampling: Sampling, settings: Evaluate
) -> list[dict[str, Any]]:
    request = chat_request(row["messages"][:-1], row.get("tools")) | SAMPLER
    request |= {"temperature": sampling.temperature, "max_tokens": settings.max_new_tokens}

    def answer(number: int) -> dict[str, Any]:
        own = {
            "seed": _seed(sampling.seed, row, number),
            "cache_prompt": server.parallel == 1 and number > 0,
        }
        choice = server.post("/v1/chat/completions", request | own)["choices"][0]
        said = choice["message"]
        reasoning = {"reasoning_content": said["reasoning_content"]} if said.get("reasoning_content") else {}
        return {
            "turn": {"role": "assistant", "content": said.get("content") or ""} | reasoning,
            "stopped": choice["finish_reason"] != "length",
            "calls": bool(said.get("tool_calls")),
        }

    return list(pool.map(answer, range(sampling.answers)))


def _seed(seed: int, row: Row, number: int) -> int:
    """32 bits, but not all ones: llama-server takes that for none."""
    digest = hashlib.sha256(f"{seed}:{row['id']}:{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % 0xFFFFFFFF


def _settings_key(files: ModelFiles, sampling: Sampling, settings: Evaluate, tools: Toolchain) -> str:
    """All that answers depend on, but the row."""
    named = ("max_new_tokens", "ctx_size", "threads", "n_gpu_layers", "parallel")
    return json_hash(
        {
            "files": hashes(files),
            "llama_cpp": tools.version,
            **asdict(sampling),
            **{name: getattr(settings, name) for name in named},
        }
    )[:16]


def hashes(files: ModelFiles) -> dict[str, str]:
    """The sha256 of each of a model's files, by its name."""
    return {file.name: file_hash(file) for file in files if file}

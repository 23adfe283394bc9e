"""Sample several answers of the model to each training request, from its own distribution, and keep them as
they arrive. Held-out rows are never used:

    reports/pairs/SETTINGS.answers.jsonl

Each answer has its own seed, derived from the run's seed and the row. With `evaluate.parallel` 1, a row's
first answer starts from an empty cache. So answers do not depend on the rows before, and a second run gives
the same.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.chat.completions import answer_of
from pipeline.chat.rows import completed, untrained_turns
from pipeline.chat.selection import drawn, is_answerable
from pipeline.chat.tokens import Row, chat_request
from pipeline.config.products import ModelFiles
from pipeline.config.sections import Evaluate
from pipeline.core.errors import DataError
from pipeline.core.hashing import file_hash, json_hash
from pipeline.core.jsonl import read_rows
from pipeline.llamacpp.server import Server, Unparsed
from pipeline.llamacpp.tools import Toolchain
from pipeline.metrics.asking import evaluated_server, kept_answers

TRAINING = Path("data/final/train.jsonl")
FOLDER = Path("reports/pairs")
# Only the temperature: a sampler that cuts off the tail would sample from another distribution.
SAMPLER = {"samplers": ["temperature"], "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@dataclass(frozen=True)
class Sampling:
    """Number of answers and how they are sampled."""

    answers: int
    temperature: float
    seed: int


def training_requests(root: Path, count: int, seed: int) -> list[Row]:
    """Draw `count` rows of data/final/train.jsonl as chats that end in the reference answer. These are chats,
    and prompts with their `answer`. Of chats with the same request only the one with the highest reward is
    kept.

    Raises `DataError` if the file is missing or has no such row.
    """
    file = root / TRAINING
    if not file.is_file():
        raise DataError("Q-PAIRS-003", f"{file} is missing: stage curate makes it, so run `snakemake curate`")
    best: dict[str, tuple[float, str]] = {}  # request → (reward, id)
    for row in _answerable(file):
        key = _request(row)
        reward = row.get("reward", -math.inf)
        if key not in best or reward > best[key][0]:
            best[key] = reward, row["id"]
    ids = {id for _, id in best.values()}
    rows = {
        row["id"]: row for row in drawn((row for row in _answerable(file) if row["id"] in ids), count, seed)
    }
    if not rows:
        raise DataError(
            "Q-PAIRS-003",
            f"{file} has no chat that ends in an answer in words and no prompt, so there is nothing to ask",
        )
    return list(rows.values())


def _answerable(file: Path) -> Iterator[Row]:
    for row in read_rows(file):
        kind = row.get("kind", "chat")
        if kind == "prompt":
            yield row | {"messages": completed(row)}
        elif kind == "chat" and len(row["messages"]) > 1 and is_answerable(row):
            yield row


def _request(row: Row) -> str:
    return json_hash([untrained_turns(row["messages"][:-1]), row.get("tools")])


def sampled_answers(
    files: ModelFiles,
    rows: Sequence[Row],
    sampling: Sampling,
    settings: Evaluate,
    tools: Toolchain,
    root: Path,
) -> list[list[dict[str, Any]]]:
    """Return each row's answers as {`turn`: the assistant message, `stopped`: it ended by itself, `calls`: it
    calls a tool}.
    """
    file = root / FOLDER / f"{_settings_key(files, sampling, settings, tools)}.answers.jsonl"

    @contextmanager
    def asking() -> Iterator[Callable[[Row], dict[str, Any]]]:
        up = evaluated_server(files.gguf, settings, tools, files.lora)
        with up as server, ThreadPoolExecutor(server.parallel) as pool:
            yield lambda row: {"answers": _ask(server, pool, row, sampling, settings)}

    return [kept["answers"] for kept in kept_answers(file, rows, asking(), "pairs: answers")]


def _ask(
    server: Server, pool: ThreadPoolExecutor, row: Row, sampling: Sampling, settings: Evaluate
) -> list[dict[str, Any]]:
    request = chat_request(row["messages"][:-1], row.get("tools")) | SAMPLER
    request |= {"temperature": sampling.temperature, "max_tokens": settings.max_new_tokens}

    def answer(number: int) -> dict[str, Any]:
        options = {
            "seed": _seed(sampling.seed, row, number),
            "cache_prompt": server.parallel == 1 and number > 0,
        }
        try:
            choice = server.post("/v1/chat/completions", request | options)["choices"][0]
        except Unparsed:
            return {"turn": {"role": "assistant", "content": ""}, "stopped": False, "calls": False}
        return answer_of(choice)

    return list(pool.map(answer, range(sampling.answers)))


def _seed(seed: int, row: Row, number: int) -> int:
    """Return a seed of 32 bits, but never all ones: llama-server reads that as "no seed"."""
    digest = hashlib.sha256(f"{seed}:{row['id']}:{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % 0xFFFFFFFF


def _settings_key(files: ModelFiles, sampling: Sampling, settings: Evaluate, tools: Toolchain) -> str:
    """Return a hash of everything that answers depend on, except the row."""
    keys = ("max_new_tokens", "ctx_size", "threads", "n_gpu_layers", "parallel")
    return json_hash(
        {
            "files": hashes(files),
            "llama_cpp": tools.version,
            **asdict(sampling),
            **{name: getattr(settings, name) for name in keys},
        }
    )[:16]


def hashes(files: ModelFiles) -> dict[str, str]:
    """Return the SHA-256 of each of a model's files by its name."""
    return {file.name: file_hash(file) for file in files if file}

"""Every file's answers to the held-out rows, kept as they come: a run that goes on, or a further file, asks
only what nobody has answered yet. `kill -9` loses the answers of the last ten seconds.

    reports/judge/SHA256-SETTINGS.answers.jsonl

Rows are asked in one order on one slot, as stage evaluate does: one file gives the same answers in every run.
Only how the server rounds what rows begin with alike depends on the row before, so that after an interruption
a few answers may come out differently.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.chat.tokens import Row
from pipeline.commands.judge.files import Candidate
from pipeline.commands.judge.served import Load, loaded
from pipeline.config.sections import Evaluate
from pipeline.core.hashing import json_hash
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.core.progress import progress
from pipeline.llamacpp.tools import Toolchain
from pipeline.metrics.answers import answer_row

FOLDER = Path("reports/judge")
KEEP_SECONDS = 10.0  # answers are written this often
Answers = dict[str, dict[str, Any]]  # by the hash of their row


def kept_file(root: Path, one: Candidate, load: Load, settings: Evaluate, tools_version: str) -> Path:
    """Where a file's answers are kept; the second of two files with the same bytes has answers of its own."""
    key = json_hash(
        {
            "ctx_size": load.ctx_size,
            "threads": load.threads,
            "n_gpu_layers": load.n_gpu_layers,
            "flash_attn": load.flash_attn,
            "max_new_tokens": settings.max_new_tokens,
            "seed": settings.seed,
            "llama_cpp": tools_version,
        }
    )
    again = f"-{one.copy + 1}" if one.copy else ""
    return root / FOLDER / f"{one.sha256[:16]}{again}-{key[:8]}.answers.jsonl"


def answers_of(
    one: Candidate, rows: Sequence[Row], load: Load, settings: Evaluate, tools: Toolchain, file: Path
) -> list[dict[str, Any]]:
    """The file's answer to each row, greedy, one at a time; those in `file` are taken from there, and new
    ones are put in.
    """
    kept = read_kept(file)
    missing = [row for row in rows if json_hash(row) not in kept]
    if missing:
        _ask(one, missing, load, settings, tools, kept, file)
    return [dict(kept[json_hash(row)]) for row in rows]


def _ask(
    one: Candidate,
    rows: Sequence[Row],
    load: Load,
    settings: Evaluate,
    tools: Toolchain,
    kept: Answers,
    file: Path,
) -> None:
    written = time.monotonic()
    with loaded(one, load, tools) as server, progress(f"judge: {one.name}: answers", len(rows)) as advance:
        try:
            for row in rows:
                kept[json_hash(row)] = answer_row(server, row, settings)
                advance(1)
                if time.monotonic() - written > KEEP_SECONDS:
                    write_kept(file, kept)
                    written = time.monotonic()
        finally:
            write_kept(file, kept)


def read_kept(file: Path) -> Answers:
    """The answers in `file`, none if it isn't there. Raises `DataError` for a line that is no JSON object."""
    if not file.exists():
        return {}
    return {row.pop("row"): row for row in read_rows(file)}


def write_kept(file: Path, kept: Answers) -> None:
    """Publish all answers."""
    write_rows(file, ({"row": key, **answer} for key, answer in kept.items()))

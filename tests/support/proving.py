"""Rows that are encoded, written and proven against their own text."""

from pathlib import Path
from typing import Any

from tiny import WORDS
from tokenizer_folders import qwen3_folder, smollm_folder, with_config

from pipeline.chat.prompts import with_prompts
from pipeline.chat.rendering import Unrenderable
from pipeline.chat.tokens import Encoded, encode, load_tokenizer
from pipeline.config.sections import Train
from pipeline.core.jsonl import write_rows
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.preprocess.proof import load_base, prove
from pipeline.stages.preprocess.stretches import Base
from pipeline.stages.preprocess.tables import sequence, to_table, write_rows_of


def load_bases(place: Path, tools: Toolchain) -> dict[str, Base]:
    """SmolLM2's and Qwen3's tokenizers, in folders below `place`."""
    folders = {
        "smollm": with_config(smollm_folder(place / "smollm")),
        "qwen3": with_config(qwen3_folder(place / "qwen3", tools, WORDS)),
    }
    return {name: load_base(folder, load_tokenizer(folder)) for name, folder in folders.items()}


def chat(*output: str) -> dict[str, Any]:
    """A row of these turns, the user's first."""
    turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(output)]
    return {"id": f"{abs(hash(output)):016x}"[:16], "kind": "chat", "messages": turns}


def proven(
    folder: Path, base: Base, rows: list[Any], change: Any = None, *, prompts: bool = False
) -> tuple[list[tuple[str, Encoded]], dict[str, int]]:
    """Encode (with `prompts` learned too), write and prove `rows`: the sequences (name, ids and labels)
    that were written, and what the proof counts; `change` maps them before they are written.
    """
    encoded = encode(base.tokenizer, rows)
    encoded = list(with_prompts(base.tokenizer, encoded) if prompts else encoded)
    found = [
        (one.name_in(row["id"]), one)
        for row, each in encoded
        if not isinstance(each, Unrenderable)
        for one in each
    ]
    found = change(found) if change else found
    rejected = sum(isinstance(each, Unrenderable) for _, each in encoded)
    write_rows(folder / "train.jsonl", rows)
    table = to_table(sequence(*pair, unit) for unit, pair in enumerate(found))
    file, train = folder / "train.parquet", Train(train_on_prompt=prompts)
    write_rows_of(file, table, [[number] for number in range(len(found))])
    return found, prove(file, [folder / "train.jsonl"], base, 4096, train, rejected)

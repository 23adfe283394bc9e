"""Chats and settings for tests that learn from judged answers."""

from pathlib import Path
from typing import Any

import train_runs

from pipeline.config.sections import Training
from pipeline.core.jsonl import write_rows
from pipeline.stages.preprocess.stage import preprocess

ANSWERS = ["Yes.", "It is four, of course.", "No, never", "The sea is blue", "Ask me again later", "Paris"]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def settings(method: str, **changes: Any) -> Training:
    exact = {
        "method": method,
        "quantization": "none",
        "bnb_4bit_compute_dtype": "float32",
        "r": 4,
        "lora_dropout": 0.0,
        "sample_rows": 0,
        "max_steps": 4,
        "eval_steps": 4,
        "save_steps": 2,
        "gradient_accumulation_steps": 1,
        "warmup_ratio": 0.0,
    }
    return train_runs.settings(**exact | changes)


def tokens_of(
    prepared: Path,
    root: Path,
    train: list[dict[str, Any]],
    val: list[dict[str, Any]] | None = None,
    settings: Training | None = None,
    *,
    length: int = 128,
    packing: bool = False,
) -> Path:
    """`data/tokens` below `root` of these rows, which are held out too without others, for the base of the
    project `prepared`.
    """
    for split, rows in (("train", train), ("val", val or train)):
        write_rows(root / f"data/final/{split}.jsonl", rows)
    preprocess(
        rows_folder=root / "data/final",
        base=prepared / "models/base",
        tokens_folder=root / "data/tokens",
        max_length=length,
        packing=packing,
        train=settings,
    )
    return root / "data/tokens"

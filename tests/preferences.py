"""Chats and settings for tests that learn from judged answers."""

from typing import Any

import train_runs

from pipeline.config.sections import Training

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

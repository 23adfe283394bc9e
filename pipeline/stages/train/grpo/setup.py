"""What a run of GRPO needs beside the trainer: who draws, who scores, and what scorers get to know."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.chat.prompts import QUESTIONS
from pipeline.config.sections import Training
from pipeline.core.jsonl import read_rows
from pipeline.llamacpp.tools import find_toolchain
from pipeline.stages.train.grpo.drawing import Rounds
from pipeline.stages.train.grpo.own_rollouts import OwnSource
from pipeline.stages.train.grpo.rewards import open_rewards
from pipeline.stages.train.grpo.rollouts import Source
from pipeline.stages.train.grpo.server_rollouts import ServerSource
from pipeline.stages.train.record import run_id


@contextmanager
def open_rounds(
    tokens: Path,
    base: Path,
    tokenizer: Any,
    checkpoints: Path,
    settings: Training,
    record: dict[str, Any],
    *,
    home: str | None,
    replay: bool,
) -> Iterator[Rounds | None]:
    """The rounds of a run of GRPO, None of another method; a scorer's program runs as long as the body.

    `record` is the run's, `home` is llamacpp.home. With `replay` nothing is drawn. Raises `ConfigError` for a
    scorer that can't be made, `ToolError` without llama.cpp.
    """
    if settings.method != "grpo":
        yield None
        return
    questions = {split: list(read_rows(tokens / f"{QUESTIONS}-{split}.jsonl")) for split in ("train", "val")}
    with open_rewards(settings.grpo, tokens) as rewards:
        source = open_source(base, tokenizer, checkpoints, settings, record, home)
        run = run_id(record)
        yield Rounds(settings, source, rewards, questions, tokenizer, checkpoints, run, replay)


def open_source(
    base: Path,
    tokenizer: Any,
    checkpoints: Path,
    settings: Training,
    record: dict[str, Any],
    home: str | None,
) -> Source:
    """Who draws, by `train.grpo.rollouts`."""
    if settings.grpo.rollouts == "llama-server":
        weights = record["base"]["weights_sha256"]
        return ServerSource(find_toolchain(home), base, checkpoints, settings, weights)
    return OwnSource([tokenizer.eos_token_id], settings.grpo.max_new_tokens)

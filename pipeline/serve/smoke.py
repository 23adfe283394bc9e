"""The smoke test: a served model answers prompts of its own test rows, and must end its answers by itself."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.chat.selection import chats_in
from pipeline.chat.tokens import Row, chat_request
from pipeline.core.errors import DataError, GateError
from pipeline.llamacpp.server import Server

ALPHA = 0.05  # chance that the smoke test refuses a model that is just at the gate's limit


@dataclass(frozen=True)
class Reply:
    """Answer to a prompt: finish reason ("stop": by itself, "length": cut off), tokens, tokens per second."""

    text: str
    finish_reason: str
    tokens: int
    tokens_per_second: float


@dataclass(frozen=True)
class Summary:
    """Figures of all replies. `cut` and `empty` are the numbers of answers, from 1, that were cut off or are
    empty; the speed is the average of the answers'.
    """

    answers: int
    stopped: int
    tokens: int
    tokens_per_second: float
    cut: list[int]
    empty: list[int]


def summary(replies: Sequence[Reply]) -> Summary:
    """Return the figures of one or more replies."""
    cut = [number for number, reply in enumerate(replies, 1) if reply.finish_reason == "length"]
    return Summary(
        answers=len(replies),
        stopped=len(replies) - len(cut),
        tokens=sum(reply.tokens for reply in replies),
        tokens_per_second=sum(reply.tokens_per_second for reply in replies) / len(replies),
        cut=cut,
        empty=[number for number, reply in enumerate(replies, 1) if not reply.text.strip()],
    )


def smoke(server: Server, prompts: Sequence[dict[str, Any]]) -> list[Reply]:
    """Send every prompt (messages, and tools if it has them) through the OpenAI protocol, greedily, and
    return the replies in order.
    """
    return [_reply(server.post("/v1/chat/completions", prompt | {"temperature": 0})) for prompt in prompts]


def _reply(answer: dict[str, Any]) -> Reply:
    choice = answer["choices"][0]
    calls = answer["choices"][0]["message"].get("tool_calls")
    return Reply(
        text=choice["message"].get("content") or (json.dumps(calls) if calls else ""),
        finish_reason=choice["finish_reason"],
        tokens=answer["usage"]["completion_tokens"],
        tokens_per_second=float(answer.get("timings", {}).get("predicted_per_second", 0.0)),
    )


def judge(replies: Sequence[Reply], min_stopped: float | None) -> str:
    """Return one line of figures. Raises `GateError` if an answer is empty, if none stopped by itself, or if
    too few did.

    `min_stopped` is the gate's share (None: no limit). Too few is what a model at that limit would show in
    less than one test of twenty (binomial). So a few answers refuse no model that passed the gate on many.
    """
    seen = summary(replies)
    figures = f"{seen.stopped} of {seen.answers} answers stopped by themselves, {seen.tokens} tokens"
    if seen.cut and (not seen.stopped or _too_few(seen.stopped, seen.answers, min_stopped)):
        raise GateError(
            "Q-SERVE-005",
            f"{figures}; cut off: answer {_numbers(seen.cut)}: the model has not learned to end its turn, or "
            "serve.n_predict is too small",
        )
    if seen.empty:
        raise GateError(
            "Q-SERVE-005",
            f"{figures}; empty: answer {_numbers(seen.empty)}: train it longer on rows like these",
        )
    allowed = ""
    if seen.cut:
        allowed = f"; cut off: answer {_numbers(seen.cut)}, as report.gate.min_stopped allows"
    return f"{figures}, {seen.tokens_per_second:.1f} tokens/s on average{allowed}"


def _too_few(stopped: int, answers: int, min_stopped: float | None) -> bool:
    from scipy.stats import binom

    return min_stopped is not None and bool(binom.cdf(stopped, answers, min_stopped) < ALPHA)


def held_out_prompts(path: Path, count: int) -> list[dict[str, Any]]:
    """Return the first `count` chats of the test split, each up to its last assistant turn, as requests.
    Raises `DataError` if there are none.
    """
    if not path.exists():
        raise DataError("Q-SERVE-006", f"{path} is missing: stage curate makes it, so run `snakemake curate`")
    prompts = [
        prompt
        for row in itertools.islice(chats_in(path), count)
        if (prompt := _before_answer(row))["messages"]
    ]
    if not prompts:
        raise DataError(
            "Q-SERVE-006",
            f"{path} has no conversation to ask: raise curate.test_fraction and run `snakemake` again",
        )
    return prompts


def _before_answer(row: Row) -> dict[str, Any]:
    last = max(
        (turn for turn, message in enumerate(row["messages"]) if message["role"] == "assistant"), default=0
    )
    return chat_request(row["messages"][:last], row.get("tools"))


def _numbers(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))

"""A load test: many clients at once, each with one streamed answer at a time; latency and speed as they see
them.

Bounded in requests, clients and time, and on 127.0.0.1 only. A client sends its next request at once ("closed
loop"), so latencies are those of a server that is always busy.
"""

import asyncio
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from pipeline.serve.stream import Piece, parse_line, reason

SHARES = (50, 90, 99)  # percentiles


@dataclass(frozen=True)
class Timed:
    """One request: seconds to its first token and to its end, tokens of the answer; `error` if there was
    none."""

    first_token: float | None
    seconds: float
    tokens: int
    error: str = ""


@dataclass(frozen=True)
class Load:
    """What a load test measured. Latencies in seconds by percentile ("p50" …), None if nothing was answered;
    speeds in tokens per second."""

    clients: int
    requests: int
    answered: int
    errors: dict[str, int]
    seconds: float
    tokens: int
    first_token: dict[str, float] | None
    whole: dict[str, float] | None
    tokens_per_second_each: float | None
    tokens_per_second: float


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """The smallest values that at least 50, 90 and 99 % of `values` don't exceed (nearest rank); None for no
    values."""
    if not values:
        return None
    found = np.percentile(values, SHARES, method="inverted_cdf").tolist()
    return {f"p{share}": value for share, value in zip(SHARES, found, strict=True)}


def summarize(timed: Sequence[Timed], clients: int, seconds: float) -> Load:
    """The figures of a test's requests, which took `seconds` in all.

    A client's speed is the number of tokens after the first over the time after the first (median).
    """
    good = [one for one in timed if not one.error]
    streamed = [
        (one.tokens - 1, one.seconds - one.first_token) for one in good if one.first_token is not None
    ]
    each = [after_first / duration for after_first, duration in streamed if after_first > 0 and duration > 0]
    tokens = sum(one.tokens for one in good)
    return Load(
        clients=clients,
        requests=len(timed),
        answered=len(good),
        errors=dict(Counter(one.error for one in timed if one.error)),
        seconds=seconds,
        tokens=tokens,
        first_token=percentiles([one.first_token for one in good if one.first_token is not None]),
        whole=percentiles([one.seconds for one in good]),
        tokens_per_second_each=statistics.median(each) if each else None,
        tokens_per_second=tokens / seconds if seconds > 0 else 0.0,
    )


async def put_under_load(
    port: int, key: str, prompts: Sequence[dict[str, Any]], *, clients: int, requests: int, seconds: float
) -> Load:
    """Ask the server on `port` of 127.0.0.1 `requests` times, `clients` at once, `prompts` in turn; after
    `seconds` the rest is broken off."""
    queue = iter(itertools.islice(itertools.cycle(prompts), requests))
    timed: list[Timed] = []
    started = time.perf_counter()
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}",
        headers={"Authorization": f"Bearer {key}"},
        # llama-server closes a connection after a stream
        limits=httpx.Limits(max_connections=clients, max_keepalive_connections=0),
        timeout=seconds,
        trust_env=False,
    ) as client:
        await asyncio.gather(
            *(_one_client(client, queue, timed, started + seconds) for _ in range(min(clients, requests)))
        )
    return summarize(timed, clients, time.perf_counter() - started)


async def _one_client(
    client: httpx.AsyncClient, queue: Iterator[dict[str, Any]], timed: list[Timed], end: float
) -> None:
    for prompt in queue:
        left = end - time.perf_counter()
        if left <= 0:
            return
        timed.append(await _ask(client, prompt, left))


async def _ask(client: httpx.AsyncClient, prompt: dict[str, Any], seconds: float) -> Timed:
    """Stream one answer. A refusal or a broken connection is this request's result, not the test's end."""
    began = time.perf_counter()
    first, tokens = None, 0
    body = prompt | {"stream": True, "stream_options": {"include_usage": True}}

    def ended(error: str = "") -> Timed:
        return Timed(first, time.perf_counter() - began, tokens, error)

    try:
        async with (
            asyncio.timeout(seconds),
            client.stream("POST", "/v1/chat/completions", json=body) as answer,
        ):
            if answer.status_code != 200:
                return ended(f"HTTP {answer.status_code}: {reason(await answer.aread())}")
            async for line in answer.aiter_lines():
                piece = parse_line(line) or Piece()
                if piece.error:
                    return ended(piece.error)
                if first is None and piece.says_something:
                    first = time.perf_counter() - began
                tokens = int(piece.usage.get("completion_tokens", tokens))
    except TimeoutError:
        return ended("not answered when the test's time was over")
    except httpx.RequestError as error:
        return ended(type(error).__name__)
    return ended()

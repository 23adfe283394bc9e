"""Put the running server (`quench serve` in another terminal) under load and print latencies, speed and
errors.

Reads `.quench/api-key`, section `serve` and, for its prompts, `data/final/test.jsonl` if it exists. Asks
127.0.0.1 only.

    quench load [--clients N] [--requests N] [--seconds S] [--json]
"""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.commands.chat import served_model
from pipeline.commands.terminal import plain_table, wide_console
from pipeline.config.params import Params
from pipeline.core.errors import DataError, GateError
from pipeline.llamacpp.server import connect
from pipeline.serve.key import KEY_FILE, read_key
from pipeline.serve.load import SHARES, Load, put_under_load
from pipeline.serve.smoke import held_out_prompts

OWN = (
    "What is a checksum good for?",
    "Name three uses of a hash table.",
    "Explain the difference between a process and a thread.",
    "Write a haiku about a slow computer.",
)
PROMPTS = 64  # of the test split, asked in turn


def prompts(root: Path) -> list[dict[str, Any]]:
    """Held-out prompts of this project, or a few of our own if it has none."""
    try:
        return held_out_prompts(root / "data" / "final" / "test.jsonl", PROMPTS)
    except DataError:
        return [{"messages": [{"role": "user", "content": text}]} for text in OWN]


def main(params: Params, root: Path, *, clients: int, requests: int, seconds: float, as_json: bool) -> None:
    """Run the test and print its figures; `ToolError` if no server of this project answers, `GateError` if a
    request was not answered."""
    key = read_key(root / KEY_FILE)
    with connect(f"http://127.0.0.1:{params.serve.port}", key) as client:
        served = served_model(client)
    found = asyncio.run(
        put_under_load(
            params.serve.port, key, prompts(root), clients=clients, requests=requests, seconds=seconds
        )
    )
    if as_json:
        print(json.dumps({"model": served} | asdict(found), indent=2))
    else:
        show(served, params.serve.parallel, found)
    if found.errors:
        worst = max(found.errors, key=lambda error: found.errors[error])
        raise GateError(
            "Q-SERVE-021",
            f"{found.requests - found.answered} of {found.requests} requests were not answered, most of "
            f"them so: {worst}",
        )


def show(model: str, parallel: int, found: Load) -> None:
    """Print the figures as a table."""
    console = wide_console(None)
    console.print(
        f"{model}: {found.answered} answers to {found.clients} clients at once ({parallel} slots) in "
        f"{found.seconds:.1f} s",
        markup=False,
    )
    table = plain_table("seconds to", *(f"p{share}" for share in SHARES), numbers=(1, 2, 3), unwrapped=(0,))
    for what, values in (("first token", found.first_token), ("end of the answer", found.whole)):
        table.add_row(what, *(f"{values[f'p{share}']:.3f}" if values else "not measured" for share in SHARES))
    console.print(table)
    each = "not measured" if found.tokens_per_second_each is None else f"{found.tokens_per_second_each:.1f}"
    console.print(
        f"tokens/s: {each} for each client (median), {found.tokens_per_second:.1f} in sum", markup=False
    )
    for error, count in found.errors.items():
        console.print(f"{count} times: {error}", markup=False)

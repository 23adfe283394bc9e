"""What hardening costs: first token and tokens/s of the hardened server beside a bare llama-server with equal
flags, asked in turn.

    python benchmarks/serve.py models/gguf/demo-Q4_K_M.gguf [--rounds 30] [--threads 1]

Both run at the same time and only one is asked at a time, so that whatever else the machine does meets both.
Exit code 1 where the hardened one is more than 2 % slower in either median.
"""

import argparse
import contextlib
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.commands.chat import connect
from pipeline.llamacpp.server import Server, free_port, serving, wait_for_health
from pipeline.llamacpp.tools import Toolchain, find_toolchain
from pipeline.serve.client import parse_line
from pipeline.serve.restarts import watch

CTX_SIZE, WORDS, TOKENS = 2048, 200, 64
MOST = 1.02


@contextlib.contextmanager
def bare(tools: Toolchain, model: Path, threads: int) -> Iterator[httpx.Client]:
    """A llama-server as it comes, with the same context, slots, threads and no key."""
    port = free_port()
    command = [
        str(tools.tool("llama-server")),
        "--model",
        str(model),
        "--port",
        str(port),
        "--ctx-size",
        str(CTX_SIZE),
        "--parallel",
        "1",
        "--threads",
        str(threads),
        "--n-gpu-layers",
        "0",
        "--flash-attn",
        "auto",
        "--batch-size",
        "512",
    ]
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for_health(process, f"http://127.0.0.1:{port}", Path(folder) / "log")
            with connect(f"http://127.0.0.1:{port}", "none") as client:
                yield client
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def hardened(tools: Toolchain, model: Path, threads: int) -> Iterator[httpx.Client]:
    """The server of `quench serve`, watched as there."""
    with serving(tools, model, ctx_size=CTX_SIZE, threads=threads) as server:
        watched(server)
        with connect(server.url, server.client.headers["Authorization"].removeprefix("Bearer ")) as client:
            yield client


def watched(server: Server) -> None:
    """Let the watch of `quench serve` run beside it, in a client of its own."""
    client = httpx.Client(base_url=server.url, headers=server.client.headers, trust_env=False)
    threading.Thread(
        target=watch, args=(Server(server.process, server.url, server.log, client),), daemon=True
    ).start()


def ask(client: httpx.Client, number: int) -> tuple[float, float]:
    """Seconds to the first token, and tokens per second after it, of a prompt that no cache holds."""
    words = f"{secrets.token_hex(8)} " + " ".join(f"word{(number * 31 + word) % 97}" for word in range(WORDS))
    fixed = {
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        "stream": True,
    }
    body = {"messages": [{"role": "user", "content": words}], **fixed}
    began = time.perf_counter()
    first = 0.0
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            piece = parse_line(line)
            if piece is not None and piece.says_something and not first:
                first = time.perf_counter()
    return first - began, (TOKENS - 1) / (time.perf_counter() - first)


def main(arguments: Sequence[str]) -> int:
    """Measure and print; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    tools = find_toolchain()
    figures: dict[str, list[tuple[float, float]]] = {"bare": [], "hardened": []}
    with bare(tools, given.model, given.threads) as one, hardened(tools, given.model, given.threads) as other:
        sides = {"bare": one, "hardened": other}
        for number in range(-2, given.rounds):
            for side in sorted(sides, reverse=bool(number % 2)):
                found = ask(sides[side], number)
                if number >= 0:
                    figures[side].append(found)
    medians = {
        side: [statistics.median(values) for values in zip(*found, strict=True)]
        for side, found in figures.items()
    }
    slower = {
        "first_token": medians["hardened"][0] / medians["bare"][0],
        "tokens_per_second": medians["bare"][1] / medians["hardened"][1],
    }
    report = {
        side: {"first_token_seconds": round(first, 5), "tokens_per_second": round(speed, 2)}
        for side, (first, speed) in medians.items()
    }
    print(
        json.dumps(
            report
            | {
                "rounds": given.rounds,
                "hardened_takes": {name: round(value, 4) for name, value in slower.items()},
            },
            indent=2,
        )
    )
    return int(max(slower.values()) > MOST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

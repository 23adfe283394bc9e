"""What is measured of one way, level and seed: answers and their scores, divergence from its own training forward, speed."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.config.sections import Evaluate
from pipeline.core.errors import GateError
from pipeline.core.hardware import machine
from pipeline.llamacpp.server import Server, serving
from pipeline.llamacpp.tools import Toolchain
from pipeline.metrics.answers import answer_rows, score_answers
from pipeline.metrics.divergence import compare, gguf_speaker
from pipeline.stages.compare.reference import load_reference

TIMED = 5  # answers whose speed is measured, after one that isn't
PROMPT, TOKENS = 128, 64  # tokens in front of them, and in each


def measure(gguf: Path, lora: Path | None, *, trained: Path, rows: Sequence[dict[str, Any]], settings: Evaluate, tools: Toolchain, root: Path,
            disk: Mapping[str, int]) -> dict[str, Any]:  # fmt: skip
    """Everything of one way: `gguf` with the adapter's GGUF `lora` on it, trained in the sub-project `trained`, answers `rows`.

    `disk` are the bytes that had to lie there at once, by name; `root` is the project. Raises `ToolError` where llama.cpp can't serve it,
    `GateError` where its logits can't be compared.
    """
    answers = answer_rows(gguf, list(rows), settings, tools, lora=lora)
    scored = score_answers(answers, settings.scorers, settings.seed, judge=settings.judge, root=root)
    return {
        "points": {answer["id"]: answer["score"] for answer in answers}, "valid": scored["valid"], "stopped": scored["stopped"],
        "shipped": {"GGUF": gguf.stat().st_size} | ({"LoRA GGUF": lora.stat().st_size} if lora else {}), "disk": dict(disk),
        "speed": generation_speed(gguf, lora, settings, tools), "machine": machine(), **divergence(gguf, lora, trained, settings, tools),
    }  # fmt: skip


def divergence(gguf: Path, lora: Path | None, trained: Path, settings: Evaluate, tools: Toolchain) -> dict[str, float | int]:
    """Mean KL divergence (nats) of what is shipped from the model that training had, and how often both choose the same token first."""
    reference = load_reference(trained)
    with gguf_speaker(gguf, reference.prompts, threads=settings.threads, tools=tools, lora=lora) as speaker:
        found = compare(reference, (speaker(prompt) for prompt in reference.prompts))
    if not found.comparable:
        raise GateError(f"{gguf.name} can't be compared with what {trained.name} trained ({found.fault}): remove models/.compare, run again")
    return {"kld": found.kld, "same_top": found.same_top, "kld_rows": len(found.kld_rows), "positions": found.positions}


def generation_speed(gguf: Path, lora: Path | None, settings: Evaluate, tools: Toolchain) -> dict[str, dict[str, float]]:
    """Tokens per second of generation by llama-server's own timings: "shipped", and "bare" without the adapter where there is one.

    The same prompt, one answer at a time, with and without in turn, so that a machine that slows down slows both. Both servers map one file.
    """
    load: dict[str, Any] = {"ctx_size": PROMPT + TOKENS + 64, "threads": settings.threads, "n_gpu_layers": settings.n_gpu_layers}
    with ExitStack() as up:
        servers = {"shipped": up.enter_context(serving(tools, gguf, **load, lora=lora))}
        if lora:
            servers["bare"] = up.enter_context(serving(tools, gguf, **load))
        taken: dict[str, list[float]] = {name: [] for name in servers}
        for turn in range(TIMED + 1):
            for name, server in servers.items():
                speed = answer_speed(server)
                if turn:
                    taken[name].append(speed)
    return {name: {"median": round(median(one), 2), "low": round(min(one), 2), "high": round(max(one), 2)} for name, one in taken.items()}


def answer_speed(server: Server) -> float:
    """Tokens per second in which one answer of `TOKENS` tokens comes."""
    ids = server.post("/tokenize", {"content": "Hello! " * PROMPT})["tokens"][:PROMPT]
    asked = {"prompt": ids, "n_predict": TOKENS, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    return float(server.post("/completion", asked)["timings"]["predicted_per_second"])

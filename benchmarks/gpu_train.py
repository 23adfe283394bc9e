"""Measures training on one GPU under a memory cap: our trainer against plain HF + PEFT + TRL, on a random Qwen2.5-7B in NF4.

    python benchmarks/gpu_train.py [--rounds 2] [--steps 8] [--cap 8] [--tokens 1024] [--tflops 790] [--only speed longest planner]
    python benchmarks/gpu_train.py --smoke     # the same code on a tiny shape, on the CPU too

Both sides do the same steps of the recipe qwen2.5-7b-8gb on the same rows, alternately (A B A B), each in a process of its own. Prints tokens per
second and their ratio, utilisation (42.5 GFLOP a token with checkpointing), peak memory, the longest row that trains under the cap, and the
planner's error over 12 configurations (without the cap). Needs 16 GB of disk for the base and takes about 15 minutes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.random_base import write_base, write_rows
from pipeline.params import load_params
from pipeline.sections import Training

PROJECT = Path(__file__).resolve().parents[1]
FLOPS_PER_TOKEN = 42.5e9  # Qwen2.5-7B with checkpointing
GIB = 2**30
GOALS = {"ratio": 1.3, "peak": 7.0, "longest": 2_972, "planner": 0.05}


def side(name: str, work: Path, settings: Training, gib: float | None, **asked: Any) -> dict[str, Any]:
    """What one side in a process of its own found; exits with its error where it fails."""
    out = Path(tempfile.mkdtemp(dir=work))
    job = {"settings": settings.model_dump(mode="json"), "base": str(work / "base"), "rows": str(work / "rows"), "out": str(out), "cap": gib, **asked}
    command = [sys.executable, str(PROJECT / "benchmarks/gpu_sides.py"), name, json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    if done.returncode:
        sys.exit(f"{name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def speed(work: Path, settings: Training, gib: float | None, tokens: int, rounds: int, tflops: float | None) -> None:
    """Print both sides' speed, utilisation and peak, and the ratio."""
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "plain": []}
    for _ in range(rounds):
        for name, runs in found.items():
            runs.append(side(name, work, settings, gib, tokens=tokens))
    print(f"{'side':<8}{'tokens/s':>12}{'utilisation':>14}{'peak GiB':>14}")
    speeds = {name: median(run["tokens_per_second"] for run in runs) for name, runs in found.items()}
    for name, runs in found.items():
        used = f"{speeds[name] * FLOPS_PER_TOKEN / (tflops * 1e12):.1%}" if tflops else "not measured"
        peak = f"{max(run['peak_bytes'] for run in runs) / GIB:.2f}" if runs[0]["peak_bytes"] else "not measured"
        print(f"{name:<8}{speeds[name]:>12,.1f}{used:>14}{peak:>14}")
    print(f"ratio   {speeds['ours'] / speeds['plain']:>12.2f}   (goal ≥ {GOALS['ratio']}; peak ≤ {GOALS['peak']} GiB at 1,024 tokens)")


def longest_row(work: Path, settings: Training, gib: float | None) -> None:
    """Print the longest row that trains under the cap."""
    found = side("longest", work, settings, gib)["longest"]
    print(f"longest row: {f'{found:,} tokens' if found is not None else 'not measured, for want of a GPU'}   (goal ≥ {GOALS['longest']:,})")


def planner(work: Path, settings: Training, lengths: list[int], losses: list[str]) -> None:
    """Print the planner's error for each length, with and without checkpointing, by each loss."""
    print(f"{'loss':<9}{'tokens':>8}{'checkpointing':>15}{'measured GB':>14}{'planned GB':>12}{'error':>9}")
    errors = []
    for loss in losses:
        for tokens, checkpointing, measured, planned in side("sweep", work, settings.model_copy(update={"loss": loss}), None, lengths=lengths)[
            "sweep"
        ]:
            error = (planned - measured) / measured if measured else None
            errors.append(error)
            figures = (f"{measured / 1e9:.3f}", f"{error:+.1%}") if measured and error is not None else ("not measured", "–")
            print(f"{loss:<9}{tokens:>8,}{'on' if checkpointing else 'off':>15}{figures[0]:>14}{planned / 1e9:>12.3f}{figures[1]:>9}")
    known = [abs(error) for error in errors if error is not None]
    print(f"largest error: {f'{max(known):.1%}' if known else 'not measured'} of {len(errors)} configurations   (goal ≤ {GOALS['planner']:.0%})")


def main() -> None:
    """Write the base and the rows, then print each part that was asked for."""
    parts = ("speed", "longest", "planner")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a tiny shape, few steps")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps, the first two of which don't count")
    parser.add_argument("--cap", type=float, default=8.0, help="GiB of GPU memory that a side may allocate")
    parser.add_argument("--tokens", type=int, default=1_024)
    parser.add_argument("--tflops", type=float, help="the card's bf16 TFLOP/s, for the utilisation (H200: 790)")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    asked = parser.parse_args()

    import torch

    cuda = torch.cuda.is_available()
    if not (cuda or asked.smoke):
        sys.exit("there is no GPU here: take --smoke to run the same code on a tiny shape")
    tokens = 64 if asked.smoke else asked.tokens
    changes: dict[str, Any] = {"max_steps": 4 if asked.smoke else asked.steps, "save_steps": 1_000, "sample_rows": 0, "loss": "auto"}
    if not cuda:
        changes["optim"] = "adamw_torch"
    plain_recipe = load_params(PROJECT / "recipes/qwen2.5-7b-8gb.yaml").training
    settings = Training.model_validate(plain_recipe.model_dump() | changes)
    lengths = [32, 64, 128] if asked.smoke else [512, 1_024, 2_048]
    with tempfile.TemporaryDirectory(prefix="quench-bench-") as folder:
        work = Path(folder)
        write_base(work / "base", "tiny" if asked.smoke else "7b")
        write_rows(work / "rows", work / "base", tokens)
        device, shape = torch.cuda.get_device_name(0) if cuda else "CPU", "tiny" if asked.smoke else "Qwen2.5-7B"
        print(f"{device}, {shape} shape, rows of {tokens:,} tokens, cap {asked.cap} GiB")
        if "speed" in asked.only:
            speed(work, settings, asked.cap, tokens, 1 if asked.smoke else asked.rounds, asked.tflops)
        if "longest" in asked.only:
            longest_row(work, settings, asked.cap)
        if "planner" in asked.only:
            planner(work, settings, lengths, ["liger", "chunked"] if cuda else ["chunked"])


if __name__ == "__main__":
    main()

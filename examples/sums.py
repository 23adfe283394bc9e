"""Write the data of recipe demo-grpo: sums of two numbers up to 20, and no text to imitate.

A small model knows some of them. Its reward is whether the last number that it says is right, in whatever
form: no one answer is right more than once in twenty times, so form alone earns next to nothing. Same seed,
same bytes. No network.

    python examples/sums.py [--out data/raw/sums.jsonl]
"""

import argparse
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from pipeline.core.jsonl import write_rows

LARGEST, SEED = 20, 7


def rows() -> Iterator[dict[str, Any]]:
    """A prompt for each pair of numbers, in a drawn order."""
    pairs = list(product(range(1, LARGEST + 1), repeat=2))
    random.Random(SEED).shuffle(pairs)  # noqa: S311 (nothing is kept secret by it)
    for one, other in pairs:
        question = f"What is {one} + {other}?"
        yield {"messages": [{"role": "user", "content": question}], "answer": str(one + other)}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("data/raw/sums.jsonl"))
    out = parser.parse_args().out
    print(f"{write_rows(out, rows())} prompts in {out}")


if __name__ == "__main__":
    main()

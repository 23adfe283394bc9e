"""Write the data of recipe demo-grpo: questions whose answers can be checked, and no text to imitate.

Each row is a prompt with the one answer that is right. A small model knows what to say of some of them and
says it in its own way; a reward for the bare answer, and the right one, is what it can learn from. Same seed,
same bytes. No network.

    python examples/yes_no.py [--out data/raw/yes_no.jsonl]
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.core.jsonl import write_rows

ROWS, LARGEST, SEED = 600, 100, 7


def rows() -> Iterator[dict[str, Any]]:
    """Prompts, half of them to be answered with Yes."""
    draw = random.Random(SEED)  # noqa: S311 (nothing is kept secret by it)
    seen = set[tuple[int, int]]()
    while len(seen) < ROWS:
        small, large = sorted(draw.sample(range(LARGEST), 2))
        answer = "Yes" if len(seen) % 2 == 0 else "No"
        pair = (large, small) if answer == "Yes" else (small, large)
        if pair not in seen:
            seen.add(pair)
            question = f"Is {pair[0]} larger than {pair[1]}? Answer with Yes or No."
            yield {"messages": [{"role": "user", "content": question}], "answer": answer}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("data/raw/yes_no.jsonl"))
    out = parser.parse_args().out
    print(f"{write_rows(out, rows())} prompts in {out}")


if __name__ == "__main__":
    main()

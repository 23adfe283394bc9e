"""Reads, validates and writes 20,000 generated chats of about 1 KB, as curation does and with `json` +
`jsonschema`.

    python benchmarks/read.py [--rows 20000]

Ours: `raw_lines`, `parse_line`, `formats.to_row`, `dump_line`. Theirs: `json.loads`, `Draft202012Validator`
(compiled once, on
the schema of a chat alone, which spares it trying the other kinds), `json.dumps`. Same file, same machine, in
turn, the best of three runs each.
"""

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from chats import originals, vocabulary
from jsonschema import Draft202012Validator

from pipeline.chat.rows import json_schema
from pipeline.core.jsonl import MAX_LINE_BYTES, BadLine, dump_line, parse_line
from pipeline.stages.curate.reading.containers import raw_lines
from pipeline.stages.curate.reading.formats import to_row

GOAL = 3  # times the rows per second of json + jsonschema
RUNS = 3


def write_chats(path: Path, rows: int) -> None:
    """`rows` lines of {"messages": […]}."""
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for chat in islice(originals(rng, vocabulary(rng), rows), rows):
            file.write(
                dump_line(
                    {
                        "messages": [
                            {"role": ("user", "assistant")[i % 2], "content": text}
                            for i, text in enumerate(chat)
                        ]
                    }
                )
            )


def ours(path: Path) -> Iterator[bytes]:
    for number, _, raw in raw_lines(path, path.name, max_line_bytes=MAX_LINE_BYTES, notes=Counter()):
        if isinstance(raw, BadLine):
            raise raw
        yield dump_line(to_row(parse_line(raw), source=f"chats.jsonl:{number}", domain="chats"))


def theirs(path: Path) -> Iterator[bytes]:
    schema = json_schema()
    chat = Draft202012Validator({"$ref": "#/$defs/Chat", "$defs": schema["$defs"]})
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            row = {
                "id": "0" * 16,
                "source": f"chats.jsonl:{number}",
                "kind": "chat",
                "domain": "chats",
                **json.loads(line),
            }
            chat.validate(row)
            yield json.dumps(row, ensure_ascii=False).encode() + b"\n"


def seconds(run: Callable[[Path], Iterator[bytes]], path: Path, rows: int) -> float:
    start = time.perf_counter()
    with path.with_suffix(".out").open("wb") as out:
        out.writelines(run(path))
    taken = time.perf_counter() - start
    written = path.with_suffix(".out").read_bytes().count(b"\n")
    assert written == rows, f"{run.__name__} wrote {written} of {rows} rows"
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "chats.jsonl")
        write_chats(path, rows)
        size = path.stat().st_size / rows
        best: dict[str, float] = {}
        for _ in range(RUNS):
            for run in (ours, theirs):
                best[run.__name__] = min(best.get(run.__name__, float("inf")), seconds(run, path, rows))
    figures: dict[str, Any] = {"rows": rows, "bytes_per_row": round(size), "cpus": os.cpu_count()}
    figures |= {f"{name}_us_per_row": round(taken / rows * 1e6, 1) for name, taken in best.items()}
    figures |= {"ratio": round(best["theirs"] / best["ours"], 1), "goal": GOAL}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

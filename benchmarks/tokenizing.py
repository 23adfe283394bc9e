"""Measures tokenizing: rows a second of stage preprocess against TRL's own `map`, with equal ids and masks.

    python benchmarks/tokenizing.py BASE [FILE.jsonl] [--rows 2000] [--rounds 3]

BASE is a model folder whose template is ChatML (models/base of the demo). Without FILE.jsonl (lines with
`messages`) the chats are those of benchmarks/chats.py. Both sides run alternately (A B A B) in one process,
and make the same Arrow columns of the same rows; TRL is given the template with its generation marks, which
it needs for masks. A second line adds what TRL has no part for: packing, writing and the proof of what was
written, that is the whole of preprocess. `--processes 2` lets TRL have two.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread for both
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

MARKED = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' and SYSTEM %}"
    "{{ '<|im_start|>system\\n' + SYSTEM + '<|im_end|>\\n' }}{% endif %}{{ '<|im_start|>' + message['role'] "
    "+ '\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% "
    "endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
)


def generated(rows: int) -> list[dict[str, Any]]:
    """Short chats of benchmarks/chats.py."""
    from chats import chats

    turns = ("user", "assistant")
    return [
        {"messages": [{"role": turns[i % 2], "content": text} for i, text in enumerate(chat)]}
        for _, chat in chats(rows, seed=0)
    ]


def trl_side(
    tokenizer: Any, rows: list[dict[str, Any]], system: str | None, processes: int
) -> Callable[[], Any]:
    """SFTTrainer's preparation of a data set of `messages`, without truncation and packing."""
    from datasets import Dataset, disable_caching, disable_progress_bars
    from trl import SFTTrainer

    disable_progress_bars()
    disable_caching()
    arguments = SimpleNamespace(
        dataset_num_proc=processes if processes > 1 else None,
        assistant_only_loss=True,
        max_length=None,
        dataset_text_field="text",
        shuffle_dataset=False,
    )
    template = f"{{% set SYSTEM = {json.dumps(system or '')} %}}{MARKED}"
    trainer = SimpleNamespace(_tokenizer=tokenizer, chat_template=template, completion_only_loss=False)
    dataset = Dataset.from_list(rows)
    return lambda: SFTTrainer._prepare_dataset(trainer, dataset, tokenizer, arguments, False, None, "train")


def our_side(tokenizer: Any, rows: list[dict[str, Any]]) -> Callable[[], Any]:
    """Rendering, ids and labels as an Arrow table."""
    from pipeline.chat.rendering import Unrenderable
    from pipeline.chat.tokens import encode
    from pipeline.stages.preprocess.tables import to_table

    def run() -> Any:
        found = (
            (one.name_in(row["id"]), one)
            for row, each in encode(tokenizer, rows)
            if not isinstance(each, Unrenderable)
            for one in each
        )
        return to_table(found)

    return run


def stage_side(base: Any, rows: list[dict[str, Any]], folder: Path) -> Callable[[], Any]:
    """All of one split: reading, rendering, ids, labels, packing, writing, proof."""
    from pipeline.core.jsonl import write_rows
    from pipeline.stages.preprocess.stage import write_split
    from pipeline.stages.preprocess.stats import SplitStats

    rows_file, table = folder / "train.jsonl", folder / "train.parquet"
    write_rows(rows_file, rows)
    longest = 1 << 16  # nothing is too long here: TRL's side leaves out nothing either
    return lambda: write_split(rows_file, table, base, longest, True, SplitStats())


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result."""
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", type=Path)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    from pipeline.chat.rendering import own_system_prompt
    from pipeline.chat.tokens import load_tokenizer
    from pipeline.stages.preprocess.proof import load_base

    tokenizer = load_tokenizer(options.base)
    if options.file:
        with options.file.open(encoding="utf-8") as lines:
            rows = [
                {"messages": json.loads(line)["messages"]}
                for line, _ in zip(lines, range(options.rows), strict=False)
            ]
    else:
        rows = generated(options.rows)
    named = [{"id": f"{number:016x}", "kind": "chat", **row} for number, row in enumerate(rows)]
    with tempfile.TemporaryDirectory() as folder:
        sides = {
            "TRL's map": trl_side(tokenizer, rows, own_system_prompt(tokenizer), options.processes),
            "ids and labels": our_side(tokenizer, named),
            "whole stage, proven": stage_side(load_base(options.base, tokenizer), named, Path(folder)),
        }
        # the first run of each warms its caches and is not counted
        results = {name: run() for name, run in sides.items()}
        theirs, ours = results["TRL's map"], results["ids and labels"]
        same = sum(
            a == b.as_py() and c == d.as_py()
            for a, b, c, d in zip(
                theirs["input_ids"], ours["input_ids"], theirs["labels"], ours["labels"], strict=True
            )
        )
        spent: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(options.rounds):
            for name, run in sides.items():
                spent[name].append(timed(run)[0])
    tokens = sum(map(len, theirs["input_ids"]))
    print(
        f"{len(rows):,} rows, {tokens:,} tokens, {options.processes} process(es) for TRL, 1 for ours; ids "
        f"and masks equal in {same:,}"
    )
    reference = median(spent["TRL's map"])
    for name, seconds in spent.items():
        middle = median(seconds)
        print(
            f"  {name:22} {middle:6.2f} s  {len(rows) / middle:8,.0f} rows/s  {tokens / middle / 1e6:5.2f} "
            f"M tokens/s  {reference / middle:5.2f} ×"
        )


if __name__ == "__main__":
    main()

"""Make a level to measure: choose the type of every tensor so that the file has at most a given size and
diverges least from the 16-bit model.

Reads `models/gguf/NAME-F16.gguf` (or BF16), `models/merged/`, `models/adapter/` (tokenizer),
`models/imatrix/` (used if there is a matrix), `data/final/train.jsonl` (what each tensor costs) and
`data/final/val.jsonl` (what was predicted, tried out). Writes `models/gguf/NAME-BUDGET.gguf` and
`reports/budget/BUDGET.json`. Command: `python -m pipeline budget@4.2GB`
"""

import re
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.chat.held_out import SPARE, drawn
from pipeline.chat.tokens import Encoded, encodable, load_tokenizer
from pipeline.chat.wanted import chats_in
from pipeline.config.budgets import FOLDER, parse_budget
from pipeline.config.params import Params
from pipeline.config.sections import Serve
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hashing import file_hash
from pipeline.core.publish import need_disk, publishing, write_json
from pipeline.gguf.file import check_gguf, describe, kv_cache_bytes
from pipeline.llamacpp.tools import Toolchain, find_toolchain
from pipeline.planning.budget import most_bytes
from pipeline.planning.shape import load_shape
from pipeline.stages.budget.files import Maker
from pipeline.stages.budget.scratch import close_scratch, open_scratch
from pipeline.stages.budget.search import Data, Task, search
from pipeline.stages.budget.sizes import check_room, extremes, offered, uniform

ROWS = 32  # of the training split, on which damages are measured
TRIED = 128  # of the validation split: every other one for swaps, the others for the decision
PART = re.compile(r"#\d+$")  # of a row's source: a part of a long conversation
VERSION = 2  # of what is in the scratch folder
NEW_FIELDS = 1 << 10  # bytes that llama-quantize adds to the header, generously


def budget(
    *,
    text: str,
    source: Path,
    merged: Path,
    tokenizer: Path,
    imatrix: Path | None,
    train: Path,
    val: Path,
    target: Path,
    scratch_folder: Path,
    serve: Serve,
    longest: int,
    nthreads: int,
    threads: int,
    seed: int,
    tools: Toolchain,
) -> dict[str, Any]:
    """Write the file of the budget `text` (checked by the settings) to `target`; its record.

    The same bytes for the same input, also after a kill: `scratch_folder` holds what was measured. Raises
    `ConfigError` if no file of that size can be made, `DataError` if there are no rows to measure on or the
    model's tensors are not known, `MachineError` if the disk is too small, `ToolError` if llama.cpp fails.
    """
    wanted = parse_budget(text)
    assert wanted is not None, f"{text} is no budget"
    header, size = check_gguf(source), source.stat().st_size
    sizes, cache = offered(header), kv_cache_bytes(source, 1)
    if cache is None and wanted.kind == "fits":
        raise ConfigError(
            "Q-BUDGET-001",
            f"quantize.budgets: {text} needs the KV cache's size, which the header of {source.name} doesn't "
            "say: name the file's size instead",
        )

    def most(start: int) -> int:
        weights = header.parameters
        return most_bytes(wanted, weights=weights, header=start, cache=cache or 0, serve=serve)

    check_room(text, most(header.start), header.start, sizes)
    data = read_data(tokenizer, train, val, longest, seed)
    need_disk(target.parent, 3 * size)  # a file that is tried, the level that competes, and logits
    matrix = file_hash(imatrix) if imatrix else None
    scratch = open_scratch(
        scratch_folder,
        {
            "version": VERSION,
            "budget": text,
            "most": most(header.start),
            "source": file_hash(source),
            "imatrix": matrix,
            "train": file_hash(train),
            "val": file_hash(val),
            "longest": longest,
            "seed": seed,
            "llama_cpp": tools.commit,
        },
    )
    maker = Maker(source, imatrix, text, scratch, nthreads, tools)
    room = max(most(header.start) - header.start - NEW_FIELDS, extremes(sizes)[0])
    low = uniform(sizes, room)
    with maker.passing(low, sizes) as file:
        start = check_gguf(file).start
    check_room(text, most(start), start, sizes)
    task = Task(
        sizes, most(start) - start, start, merged, load_shape(merged / "config.json"), data, threads, seed
    )
    file, found = search(maker, task, low)
    with publishing(target, check_gguf) as aside:
        file.rename(aside)
    record = {
        "budget": text,
        "most_bytes": task.file,
        **found,
        **describe(target),
        "imatrix_sha256": matrix,
        "rows": {"train": len(data.damage), "swaps": len(data.swaps), "decision": len(data.decision)},
    }
    close_scratch(scratch)
    return record


def read_data(tokenizer: Path, train: Path, val: Path, longest: int, seed: int) -> Data:
    """The rows, drawn by `seed`: `ROWS` of the training split, and up to `TRIED` of the validation split, of
    which every other conversation decides. Raises `DataError` if a part has none.
    """
    loaded = load_tokenizer(tokenizer)
    damage = [one for _, one in encoded(loaded, train, longest, ROWS, seed)]
    tried = encoded(loaded, val, longest, TRIED, seed)
    # parts of one long conversation go to one side
    side = {source: number % 2 for number, source in enumerate(dict.fromkeys(source for source, _ in tried))}
    swaps, decision = ([one for source, one in tried if side[source] == number] for number in (0, 1))
    data = Data(damage, swaps, decision)
    if not damage or not data.decision:
        short = train if not damage else val
        raise DataError(
            "Q-BUDGET-007",
            f"{short} has too few chats of at most {longest} tokens to choose types on: add data, or raise "
            "curate.val_fraction",
        )
    return data


def encoded(tokenizer: Any, rows: Path, longest: int, most: int, seed: int) -> list[tuple[str, Encoded]]:
    """(the conversation that it is of, a sequence) for `most` drawn chats of at most `longest` tokens, one
    sequence of each.
    """
    found: list[tuple[str, Encoded]] = []
    for row in drawn(chats_in(rows), SPARE * most, seed):
        for one in islice(encodable(tokenizer, [row], longest), 1):
            found.append((PART.sub("", str(row["source"])), one))
        if len(found) == most:
            break
    return found


def main(params: Params, root: Path, text: str) -> None:
    """Run the stage for one budget on the files below `root`."""
    if text not in params.quantize.budgets:
        raise ConfigError(
            "Q-BUDGET-008",
            f"{text} is not in quantize.budgets ({', '.join(params.quantize.budgets) or 'which is empty'}): "
            "add it there, spelled the same",
        )
    folder, name = root / "models/gguf", params.convert.name
    matrix = root / "models/imatrix/imatrix.gguf"
    record = budget(
        text=text,
        source=folder / f"{name}-{params.convert.type}.gguf",
        merged=root / "models/merged",
        tokenizer=root / "models/adapter",
        imatrix=matrix if params.imatrix.tokens and matrix.is_file() else None,
        train=root / "data/final/train.jsonl",
        val=root / "data/final/val.jsonl",
        target=folder / f"{name}-{text}.gguf",
        scratch_folder=root / FOLDER / text,
        serve=params.serve,
        longest=params.evaluate.ctx_size,
        nthreads=params.quantize.nthreads,
        threads=params.evaluate.threads,
        seed=params.evaluate.seed,
        tools=find_toolchain(params.llamacpp.home),
    )
    write_json(root / "reports/budget" / f"{text}.json", record)
    print(f"budget: {name}-{text}.gguf {record['bytes'] / 1e6:.0f} MB, {sentence(record)}")


def sentence(record: dict[str, Any]) -> str:
    """What came out, in one sentence without its end."""
    own = f"chosen types diverge {record['kld']:.4f} nats from 16 bit"
    rival = record["rival"]
    if rival is None:
        return f"{own}; no fixed level is as small"
    against = f"{rival['level']} ({rival['bytes'] / 1e6:.0f} MB) {rival['kld']:.4f}"
    if record["chosen"] == "own":
        return f"{own}, {against}"
    return f"which is {rival['level']}: {own}, {against}, and the difference is within noise or in its favor"

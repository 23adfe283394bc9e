"""Make a level to measure: choose the type of every tensor so that the file has at most a given size and
diverges least from the 16-bit model.

Reads `models/gguf/NAME-F16.gguf` (or BF16), `models/merged/`, `models/adapter/` (tokenizer),
`models/imatrix/` (used if there is a matrix) and `data/final/val.jsonl` (which file is closer). Writes
`models/gguf/NAME-BUDGET.gguf` and `reports/budget/BUDGET.json`. Command: `python -m pipeline budget@4.2GB`
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.chat.selection import SPARE, drawn, measured_in
from pipeline.chat.tokens import Encoded, encodable, load_tokenizer
from pipeline.config.budgets import parse_budget
from pipeline.config.params import Params
from pipeline.config.sections import Serve
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hashing import file_hash
from pipeline.core.places import scratch
from pipeline.core.publish import need_disk, publishing, write_json
from pipeline.gguf.file import check_gguf, describe, kv_cache_bytes
from pipeline.llamacpp.tools import Llama, find_llama
from pipeline.planning.budget import most_bytes
from pipeline.planning.config_file import load_shape
from pipeline.stages.budget.files import Maker, emptied
from pipeline.stages.budget.search import Task, search
from pipeline.stages.budget.sizes import check_room, offered, smallest

ROWS = 64  # of the validation split, which decide


@dataclass(frozen=True)
class Files:
    """What a budget's file is made from (the 16-bit GGUF, the model that it was converted from, the
    tokenizer, an importance matrix or None, the rows that decide), where it goes, and the folder of temporary
    files, which is removed.
    """

    source: Path
    merged: Path
    tokenizer: Path
    imatrix: Path | None
    val: Path
    target: Path
    scratch: Path


def budget(text: str, files: Files, llama: Llama, *, serve: Serve, longest: int) -> dict[str, Any]:
    """Write the file of the budget `text` (checked by the settings), chosen on rows of at most `longest`
    tokens; its record.

    The same bytes for the same input. Raises `ConfigError` if no file of that size can be made, `DataError`
    if there are no rows to measure on, `MachineError` if the disk is too small, `ToolError` if llama.cpp
    fails.
    """
    source, imatrix, target = files.source, files.imatrix, files.target
    limit = parse_budget(text)
    assert limit is not None, f"{text} is not a budget"
    header, size = check_gguf(source), source.stat().st_size
    sizes, cache = offered(header), kv_cache_bytes(source, 1)
    if cache is None and limit.kind == "fits":
        raise ConfigError(
            "Q-BUDGET-001",
            f"quantize.budgets: {text} needs the KV cache's size, which the header of {source.name} doesn't "
            "say: name the file's size instead",
        )

    def most(start: int) -> int:
        weights = header.parameters
        return most_bytes(limit, weights=weights, header=start, cache=cache or 0, serve=serve)

    check_room(text, most(header.start), header.start, sizes)
    rows = deciding_rows(files.tokenizer, files.val, longest)
    need_disk(target.parent, 3 * size)  # a file that is tried, the level that competes, and logits
    with emptied(files.scratch) as folder:
        maker = Maker(source, imatrix, text, folder, llama)
        with maker.temporary_gguf(smallest(sizes), sizes) as file:
            start = check_gguf(file).start  # the same for all types
        check_room(text, most(start), start, sizes)
        shape = load_shape(files.merged / "config.json")
        task = Task(sizes, most(start) - start, start, shape, rows)
        file, contest = search(maker, task)
        with publishing(target, check_gguf) as aside:
            file.rename(aside)
    return {
        "budget": text,
        "most_bytes": task.file,
        **contest,
        **describe(target),
        "imatrix_sha256": file_hash(imatrix) if imatrix else None,
        "rows": len(rows),
    }


def deciding_rows(tokenizer: Path, val: Path, longest: int) -> list[Encoded]:
    """`ROWS` chats (or texts) of the validation split that have at most `longest` tokens, one sequence
    of each. Raises `DataError` if there is none.
    """
    loaded = load_tokenizer(tokenizer)
    sequences: list[Encoded] = []
    for row in drawn(measured_in(val), SPARE * ROWS):
        sequences += islice(encodable(loaded, [row], longest), 1)
        if len(sequences) == ROWS:
            return sequences
    if not sequences:
        raise DataError(
            "Q-BUDGET-007",
            f"{val} has no chats or texts of at most {longest} tokens to choose a file by: add data, or "
            "raise curate.val_fraction",
        )
    return sequences


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
    files = Files(
        source=folder / f"{name}-{params.convert.type}.gguf",
        merged=root / "models/merged",
        tokenizer=root / "models/adapter",
        imatrix=matrix if params.quantize.imatrix_tokens and matrix.is_file() else None,
        val=root / "data/final/val.jsonl",
        target=folder / f"{name}-{text}.gguf",
        scratch=root / scratch("budget") / text,
    )
    record = budget(
        text,
        files,
        find_llama(params.machine),
        serve=params.serving,
        longest=params.preprocess.max_length,
    )
    write_json(root / "reports/budget" / f"{text}.json", record)
    outcome = sentence(record["kld"], record["rival"], chosen=record["chosen"] == "own")
    print(f"budget: {name}-{text}.gguf {record['bytes'] / 1e6:.0f} MB, {outcome}")


def sentence(kld: float, rival: Mapping[str, Any] | None, *, chosen: bool) -> str:
    """What came out, in one sentence without its end: the divergence by chosen types, the fixed level that
    competed, and whether the chosen types won.
    """
    cost = f"chosen types diverge {kld:.4f} nats from 16 bit"
    if rival is None:
        return f"{cost}; no fixed level is as small"
    against = f"{rival['level']} ({rival['bytes'] / 1e6:.0f} MB) {rival['kld']:.4f}"
    if chosen:
        return f"{cost}, {against}"
    return f"which is {rival['level']}: {cost}, {against}, and the difference is within noise or in its favor"

"""Turn chats and texts into what the trainer sees: token ids, labels on what is to be learnt only, packed rows.

Reads `data/final/{train,val}.jsonl` and the tokenizer in `models/base/`.
Writes `data/tokens/{train,val}.parquet` (input_ids, labels, seq_lengths) and `reports/labels.json`.
Command: `python -m pipeline preprocess`
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.chat import IGNORED, Encoded, Unrenderable, encode, load_tokenizer
from pipeline.errors import DataError
from pipeline.jsonl import read_rows
from pipeline.params import Params
from pipeline.publish import publishing, write_json

SPLITS = ("train", "val")


def preprocess(*, rows_folder: Path, base: Path, tokens_folder: Path, max_length: int, packing: bool) -> dict[str, Any]:
    """Tokenise and pack both splits; publish the folder of Parquet files and return the account of it.

    A row longer than `max_length` tokens, one that the template can't render whole and with exact labels, and one of a
    kind that supervised training has no use for is left out and counted by reason; nothing is cut. Raises `DataError` where no training row is left.
    """
    tokenizer = load_tokenizer(base)
    account: dict[str, Any] = {"max_length": max_length, "packing": packing, "splits": {}}
    with publishing(tokens_folder) as aside:
        aside.mkdir()
        for split in SPLITS:
            rejected: Counter[str] = Counter()
            rows = list(encoded_rows(tokenizer, rows_folder / f"{split}.jsonl", max_length, rejected))
            if split == "train" and not rows:
                raise DataError(
                    f"no row of {rows_folder / 'train.jsonl'} can be trained ({_reasons(rejected)}): mend the rows or raise preprocess.max_length"
                )
            account["splits"][split] = count_tokens(rows) | {"rejected": dict(sorted(rejected.items()))}
            account["splits"][split] |= write_tokens(aside / f"{split}.parquet", rows, max_length, packing)
    trained = account["splits"]["train"]
    account["trained_share"] = round(trained["trained_tokens"] / trained["tokens"], 4)
    return account


def encoded_rows(tokenizer: Any, path: Path, max_length: int, rejected: Counter[str]) -> Iterator[Encoded]:
    """Yield the rows of `path` that can be trained as they are; count the others in `rejected` by reason."""
    for row in read_rows(path):
        try:
            encoded = encode(tokenizer, row)
        except Unrenderable as reason:
            rejected[reason.code] += 1
            continue
        if len(encoded.ids) > max_length:
            rejected["too_long"] += 1
            continue
        yield encoded


def count_tokens(rows: list[Encoded]) -> dict[str, int]:
    """How many rows, tokens and trained tokens there are."""
    return {
        "rows": len(rows),
        "tokens": sum(len(row.ids) for row in rows),
        "trained_tokens": sum(label != IGNORED for row in rows for label in row.labels),
    }


def write_tokens(path: Path, rows: list[Encoded], max_length: int, packing: bool) -> dict[str, Any]:
    """Write rows as Parquet, packed by best-fit decreasing (TRL's, arXiv:2404.10830) where `packing` is on.

    `seq_lengths` holds the lengths of the rows inside a packed row: the trainer restarts positions there.
    """
    from datasets import Dataset, Features, List, Value, disable_progress_bars
    from trl import pack_dataset

    disable_progress_bars()  # packing takes a blink
    ints = List(Value("int32"))
    columns = {"input_ids": [row.ids for row in rows], "labels": [row.labels for row in rows]}
    dataset = Dataset.from_dict(columns, features=Features(input_ids=ints, labels=ints))
    if packing and rows:
        dataset = pack_dataset(dataset, max_length, strategy="bfd")
    else:
        dataset = dataset.add_column("seq_lengths", [[len(row.ids)] for row in rows])
    dataset.to_parquet(path)
    tokens = sum(len(row.ids) for row in rows)
    if sum(sum(lengths) for lengths in dataset["seq_lengths"]) != tokens:
        raise AssertionError(f"packing changed the number of tokens from {tokens}")  # a bug, never the user's fault
    return {"packed_rows": len(dataset), "packing_density": round(tokens / (len(dataset) * max_length), 4) if rows else 0.0}


def _reasons(rejected: Counter[str]) -> str:
    return ", ".join(f"{code}: {count}" for code, count in rejected.most_common()) or "there is none"


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`."""
    account = preprocess(
        rows_folder=root / "data/final",
        base=root / "models/base",
        tokens_folder=root / "data/tokens",
        max_length=params.preprocess.max_length,
        packing=params.preprocess.packing,
    )
    write_json(root / "reports/labels.json", account)
    train = account["splits"]["train"]
    print(
        f"preprocess: {train['rows']} training rows, {train['tokens']} tokens, {account['trained_share']:.0%} of them trained, "
        f"{train['packed_rows']} rows of up to {account['max_length']} after packing"
    )

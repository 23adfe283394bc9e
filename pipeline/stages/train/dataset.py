"""Tokenized rows as the trainer's batches: without padding, each with the numbers and ids of its rows."""

from collections.abc import Mapping
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from pipeline.chat.sequences import REJECTED
from pipeline.chat.tokens import IGNORED

Labelled = tuple[list[int], list[int]]  # ids and labels of a sequence
OTHERS = "others"  # key of a batch: the same prompts with other answers
PARTS = ("input_ids", "labels", "position_ids")  # keys of a batch that its log-probabilities depend on
# Keys of a batch about itself. `items` is the number that its loss is a mean over: tokens, positions, pairs
# or answers.
NOT_FOR_THE_MODEL = (
    *("rows", "row_ids", "trained_tokens", "items", "weights"),
    *("row_answers", "row_tokens", "roles", OTHERS),  # keys of judged answers
)


def load_rows(tokens: Path, split: str) -> Any:
    """Return the packed rows of a split as a `datasets.Dataset`, numbered from 0 in the column `row`."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Dataset

    # Dataset.from_parquet refuses a split without rows.
    table = pq.read_table(tokens / f"{split}.parquet")
    return Dataset(table.append_column("row", pa.array(range(table.num_rows), pa.int64())))


class Collator:
    """Collator that flattens packed rows into one sequence (1, T), without padding."""

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return input_ids, labels and position_ids (1, T), the rows' numbers and ids, the number of trained
        tokens, and, unless all are 1, the weights (1, T) of the tokens' losses.
        """
        batch = flattened(examples)
        batch["rows"] = [example["row"] for example in examples]
        batch["row_ids"] = [name for example in examples for name in example["row_ids"]]
        trained_tokens = int((batch["labels"][:, 1:] != IGNORED).sum())
        batch["trained_tokens"] = trained_tokens
        batch["items"] = trained_tokens
        if any(weight != 1 for example in examples for weight in example.get("weights", ())):
            batch["weights"] = token_weights(examples)
        return batch


def flattened(examples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return input_ids, labels and position_ids (1, T) of packed rows behind each other.

    Positions restart with each sequence. Its first token is predicted by nothing, so it has no label. Several
    sequences come with their borders, in the form that transformers' attention and recurrent layers accept.
    Recurrent layers and convolutions without a kernel for packed rows refuse any row with borders, so a
    single sequence has none.
    """
    import torch

    ids = torch.tensor([token for example in examples for token in example["input_ids"]])
    labels = torch.tensor([label for example in examples for label in example["labels"]])
    lengths = torch.tensor([length for example in examples for length in example["seq_lengths"]])
    positions = torch.cat([torch.arange(length) for length in lengths.tolist()])
    labels[positions == 0] = IGNORED
    batch: dict[str, Any] = {"input_ids": ids[None], "labels": labels[None], "position_ids": positions[None]}
    if len(lengths) > 1:
        ends = lengths.cumsum(0).to(torch.int32)
        borders = torch.cat([torch.zeros(1, dtype=torch.int32), ends])
        numbers = torch.arange(len(lengths), dtype=torch.int32)
        longest = int(lengths.max())
        batch |= {
            "cu_seq_lens_q": borders,
            "cu_seq_lens_k": borders,
            "max_length_q": longest,
            "max_length_k": longest,
            "seq_idx": numbers.repeat_interleave(lengths)[None],
        }
    return batch


def for_the_model(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for the method's forward: the model's own, labels, and a teacher's answers."""
    return {name: value for name, value in batch.items() if name not in NOT_FOR_THE_MODEL}


def forward_parts(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the forward's arguments and the labels."""
    return {part: batch[part] for part in PARTS}


def token_weights(examples: list[dict[str, Any]]) -> Any:
    """Return the weight (1, T), float32, of each token of flattened packed rows: that of its sequence."""
    import torch

    weights = torch.tensor([weight for example in examples for weight in example["weights"]])
    lengths = torch.tensor([length for example in examples for length in example["seq_lengths"]])
    return weights.float().repeat_interleave(lengths)[None]


def sequences(rows: Any, count: int, *, wanted: bool = False) -> list[Labelled]:
    """Return the first `count` conversations in packed rows. `wanted` leaves out rejected ones."""
    pairs = (pair for row in rows for pair in zip(unpacked(row), row["roles"], strict=True))
    conversations = (sequence for sequence, role in pairs if role != REJECTED or not wanted)
    return list(islice(conversations, count))


def unpacked(row: Mapping[str, Any]) -> list[Labelled]:
    """Return the sequences of a packed row."""
    return [
        (row["input_ids"][end - length : end], row["labels"][end - length : end])
        for length, end in zip(row["seq_lengths"], accumulate(row["seq_lengths"]), strict=True)
    ]


def packed(sequences: list[Labelled], number: int = 0) -> dict[str, Any]:
    """Return a packed row of these sequences, as the collator expects it."""
    return {
        "input_ids": [token for ids, _ in sequences for token in ids],
        "labels": [label for _, labels in sequences for label in labels],
        "seq_lengths": [len(ids) for ids, _ in sequences],
        "row": number,
        "row_ids": [],
    }

"""Batches of judged answers: packed rows with the role of each sequence.

KTO needs answers that don't belong to their prompts. Each prompt gets the answer of the next sequence with
another prompt, from the packed row if there is one, otherwise from those after it (TRL: the next of the
batch). If that makes a packed row longer than the split's longest, the ends of borrowed answers are left out,
so that what fits in memory fits here too.
"""

from typing import Any

import torch

from pipeline.chat.tokens import IGNORED
from pipeline.config.methods import METHODS, Method
from pipeline.stages.train.dataset import OTHERS, Collator, Labelled, forward_parts, packed, unpacked
from pipeline.stages.train.step_stats import Batch

PackedRow = dict[str, Any]


class PreferenceCollator:
    """Collator that adds to `plain`'s batches of packed rows the `roles` (n,) of their n sequences and the
    number of `items` (pairs, or answers under KTO).

    `rows` are all packed rows of the split. KTO takes the other answers from them.
    """

    def __init__(self, plain: Collator, method: Method, rows: Any) -> None:
        self.plain = plain
        self.rows = rows
        self.pairs = METHODS[method].pairs
        self.others = METHODS[method].others
        self.longest = max(map(sum, rows["seq_lengths"]), default=0) if self.others else 0  # tokens

    def __call__(self, examples: list[PackedRow]) -> Batch:
        """Return `plain`'s batch with `roles` and, under KTO, `others`."""
        batch: Batch = self.plain(examples)
        batch.pop("weights", None)  # Rewards are weights of chats.
        batch["roles"] = torch.tensor([role for example in examples for role in example["roles"]])
        batch["items"] = len(batch["roles"]) // (2 if self.pairs else 1)
        batch.update(_shapes(examples))
        if self.others:
            batch[OTHERS] = self.other_batch(batch["rows"])
        return batch

    def other_batch(self, numbers: list[int]) -> Batch:
        """Return the prompts of these packed rows with other answers: ids, labels and positions (1, T)."""
        rows = [self.with_others(number) for number in numbers]
        return forward_parts(self.plain(rows)) | _shapes(rows)

    def with_others(self, number: int) -> PackedRow:
        """Return a packed row, no longer than the longest, whose sequences have the answers behind them."""
        originals = unpacked(self.rows[number])
        sequences = []
        for place, sequence in enumerate(originals):
            near = [*originals[place + 1 :], *originals[:place]]
            sequences.append(_with_answer(sequence, self.other(number, sequence, near)))
        return packed(_shortened(sequences, originals, self.longest), number)

    def other(self, number: int, sequence: Labelled, near: list[Labelled]) -> Labelled:
        """Return the nearest sequence with another prompt: from `near`, those of the packed row `number`,
        otherwise from the rows after it. Return the sequence itself if there is no other prompt.
        """
        prompt = _prompt(sequence)
        nearest = next((other for other in near if _prompt(other) != prompt), None)
        if nearest:
            return nearest
        for step in range(1, len(self.rows)):
            follower = unpacked(self.rows[(number + step) % len(self.rows)])
            nearest = next((other for other in follower if _prompt(other) != prompt), None)
            if nearest:
                return nearest
        return sequence


def _shapes(rows: list[PackedRow]) -> Batch:
    """Return the number of answers and tokens of each packed row of a batch."""
    return {
        "row_answers": [len(row["seq_lengths"]) for row in rows],
        "row_tokens": [len(row["input_ids"]) for row in rows],
    }


def _prompt(sequence: Labelled) -> list[int]:
    return sequence[0][: _answer_start(sequence[1])]


def _with_answer(sequence: Labelled, other: Labelled) -> Labelled:
    """Return the prompt of one sequence with the answer of another."""
    ids, labels = sequence
    other_ids, other_labels = other
    start = _answer_start(labels)
    begin = _answer_start(other_labels)
    return ids[:start] + other_ids[begin:], [IGNORED] * start + other_labels[begin:]


def _shortened(sequences: list[Labelled], originals: list[Labelled], longest: int) -> list[Labelled]:
    """Return the sequences with `longest` tokens together at most, like the `originals`. The excess is cut
    off the ends of those that are longer than their own original.
    """
    excess = sum(len(ids) for ids, _ in sequences) - longest
    shortened = []
    for (ids, labels), (before, _) in zip(sequences, originals, strict=True):
        cut = max(0, min(excess, len(ids) - len(before)))
        excess -= cut
        end = len(ids) - cut
        shortened.append((ids[:end], labels[:end]))
    return shortened


def _answer_start(labels: list[int]) -> int:
    return next(place for place, label in enumerate(labels) if label != IGNORED)

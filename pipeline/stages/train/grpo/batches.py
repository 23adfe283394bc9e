"""Prompts as the trainer takes them, and a round's completions as a batch that is trained."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch

from pipeline.chat.prompts import prompt_ids
from pipeline.chat.tokens import IGNORED
from pipeline.config.sections.grpo import Grpo
from pipeline.stages.train.dataset import Collator
from pipeline.stages.train.grpo.advantages import teaches
from pipeline.stages.train.grpo.rounds import Completion
from pipeline.stages.train.step_stats import Batch

# what a batch has besides the forward's own arguments, all (N,) over its labelled tokens
PER_TOKEN = ("advantages", "old", "rollout", "reference")
Group = Sequence[Completion]


class PromptCollator:
    """Batches of prompts, which are not trained themselves; `plain` collates sequences."""

    def __init__(self, plain: Collator) -> None:
        self.plain = plain

    def __call__(self, examples: list[dict[str, Any]]) -> Batch:
        """The rows' numbers and ids, and each one's prompt."""
        return {
            "rows": [example["row"] for example in examples],
            "row_ids": [name for example in examples for name in example["row_ids"]],
            "prompts": [prompt_ids(example["input_ids"], example["labels"]) for example in examples],
        }


def trained(group: Group, settings: Grpo) -> list[Completion]:
    """The completions of a group that are in the loss: none of a group of equal rewards, unless the
    divergence is in the loss too, and none that was cut off, if these are masked.
    """
    if not settings.kl_beta and not teaches([one.reward for one in group]):
        return []
    return unmasked(group, settings)


def unmasked(group: Group, settings: Grpo) -> list[Completion]:
    """The completions whose tokens the loss is divided by, so a group of equal rewards counts although it is
    skipped: the update is the same as if it were not.
    """
    return [one for one in group if one.stopped or not settings.mask_truncated]


def training_batch(prompts: Batch, groups: Sequence[Group], settings: Grpo) -> Batch:
    """The completions to train of the groups to a batch's prompts, as one sequence (1, T) whose positions
    restart with each, with `PER_TOKEN` where it is known.
    """
    pairs = [
        (prompt, one)
        for prompt, group in zip(prompts["prompts"], groups, strict=True)
        for one in trained(group, settings)
    ]
    flat = {
        "input_ids": [prompt + one.ids for prompt, one in pairs],
        "labels": [[IGNORED] * len(prompt) + one.ids for prompt, one in pairs],
        "position_ids": [list(range(len(prompt) + len(one.ids))) for prompt, one in pairs],
    }
    tokens = {
        "advantages": [[one.advantage] * len(one.ids) for _, one in pairs],
        "old": [one.old or [] for _, one in pairs],
        "rollout": [[float("nan") if log is None else log for log in one.logps] for _, one in pairs],
        "reference": [one.reference or [] for _, one in pairs],
    }
    counted = [one for group in groups for one in unmasked(group, settings)]
    tokens_counted = sum(len(one.ids) for one in counted)
    return {
        **{name: torch.tensor([list(chain(*rows))], dtype=torch.long) for name, rows in flat.items()},
        **{name: torch.tensor(list(chain(*rows)), dtype=torch.float32) for name, rows in tokens.items()},
        "rows": prompts["rows"],
        "row_ids": prompts["row_ids"],
        "trained_tokens": tokens_counted,
        "items": items(settings, tokens_counted, sum(map(len, groups))),
        "groups": groups,
    }


def items(settings: Grpo, tokens: int, completions: int) -> int:
    """A batch's share of what the sum over an optimizer step's tokens is divided by.

    `dapo`: the tokens, so each counts alike. `dr_grpo`: as many as there could have been, so a step of short
    completions is no larger than one of long ones.
    """
    return tokens if settings.loss == "dapo" else completions * settings.max_new_tokens


def for_the_model(batch: Batch) -> Batch:
    """The forward's arguments and the labels."""
    return {name: batch[name] for name in ("input_ids", "labels", "position_ids")}

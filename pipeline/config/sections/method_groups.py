"""The groups of section `train` that only some methods read: `train.preference` for the losses of
preferences, `train.grpo` for GRPO.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.scorers import TOOL_CALLS, scorer_problems
from pipeline.config.sections.measuring import External
from pipeline.config.sections.values import Count, Section, Slots, key

EXTERNAL = "external"  # name in `rewards` of the program of `external`
JUDGE = "judge"  # a scorer of evaluate.scorers that gives no rewards
Weight = Annotated[float, Field(ge=-1000, le=1000)]


class Preference(Section):
    beta: Annotated[float, Field(gt=0, le=1000)] | None = key(
        None,
        "how strongly answers are held to the reference's (dpo, ipo, kto), how much the pairs count beside "
        "the chosen answers (orpo), or how much a difference in log-probability counts (simpo, whose margin "
        "is half of it); null: 0.1, simpo 2.0",
    )


class Grpo(Section):
    rewards: Annotated[dict[str, Weight], Field(min_length=1, max_length=20)] = key(
        {"exact_match": 1.0},
        "scorers of an answer with their weights, spelled as in evaluate.scorers (the prompt's answer, or "
        "the chat's last turn, is the reference), or external; a reward is the weighted sum of their points",
    )
    external: External | None = key(
        None,
        "the program that external asks (docs/rewards.md): {command: [data/evaluation/scorer, ARGUMENT], "
        "seconds: 60, start_seconds: 120}; null: none",
    )
    group_size: Annotated[int, Field(ge=2, le=1024)] = key(8, "completions drawn per prompt, 4 to 16")
    max_new_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = key(256, "longest completion, in tokens")
    steps_per_round: Count = key(
        1, "optimizer steps on one round of rollouts, 1 to 8; more save time and are further off the policy"
    )
    rollouts: Literal["llama-server", "in-process"] = key(
        "llama-server",
        "who completes the prompts: llama-server (with the current adapter, as it will be served) | "
        "in-process (the model in training: no gap, slower)",
    )
    parallel: Slots = key(
        1, "prompts completed at the same time; with 1 a round is the same each time, more are faster"
    )
    loss: Literal["dapo", "dr_grpo"] = key(
        "dapo",
        "dapo (advantages are divided by their group's standard deviation, the sum over a step's tokens by "
        "their number) | dr_grpo (advantages only lose their group's mean, the sum is divided by the step's "
        "completions times max_new_tokens)",
    )
    clip_low: Annotated[float, Field(gt=0, lt=1)] = key(
        0.2, "how far below 1 the ratio of new to old probability may move an update"
    )
    clip_high: Annotated[float, Field(gt=0, le=10)] = key(
        0.28, "how far above 1 the ratio of new to old probability may move an update"
    )
    kl_beta: Annotated[float, Field(ge=0, le=10)] = key(
        0.0, "weight of the KL divergence from the base, 0.001 to 0.1; 0: none, and a forward less"
    )

    def problems(self) -> Iterator[str]:
        """Yield sentences on rewards that are missing or invalid, and on a program that is never called."""
        if JUDGE in self.rewards:
            yield (
                "grpo.rewards names judge, a model that is asked for each answer, in evaluate alone: leave "
                "it out, or have a program of yours ask it (external)"
            )
        if TOOL_CALLS in self.rewards:
            yield (
                "grpo.rewards names tool_calls, which scores the calls that llama-server reads of an answer, "
                "in evaluate alone: leave it out, or have a program of yours read the text (external)"
            )
        plain = [name for name in self.rewards if name not in (EXTERNAL, JUDGE)]
        yield from (f"grpo.rewards: {problem}" for problem in scorer_problems(plain, has_judge=False))
        if EXTERNAL in self.rewards and self.external is None:
            yield "grpo.rewards names external, but grpo.external is null: give its command"
        if EXTERNAL not in self.rewards and self.external is not None:
            yield "grpo.external is a command, but grpo.rewards doesn't name external: weigh it there"
        if not any(self.rewards.values()):
            yield "all weights in grpo.rewards are 0, so every reward would be 0: give one a weight"

"""Rounds of rollouts from beginning to end: drawn, scored, measured by training's own model, published."""

import hashlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from pipeline.core.errors import DataError, GateError
from pipeline.models.tuners import tuner_on
from pipeline.stages.train.grpo.losses import Group, trained
from pipeline.stages.train.grpo.rewards import Answer, Question, Rewards, advantages, seed_of
from pipeline.stages.train.grpo.rollouts import OwnSource, Request, ServerSource
from pipeline.stages.train.grpo.rounds import (
    Completion,
    Round,
    differences,
    in_groups,
    read_round,
    round_file,
    write_round,
)
from pipeline.stages.train.run import RESTART, Run, run_id
from pipeline.stages.train.step_stats import Batch

# (batch of prompts, their groups, with the adapter off) → log-probabilities of the trained completions
Measure = Callable[[Batch, Sequence[Group], bool], list[list[float]]]


class Rounds:
    """Source of each step's round: the one on the disk if it is that step's, otherwise one drawn now."""

    def __init__(
        self,
        run: Run,
        source: OwnSource | ServerSource,
        rewards: Rewards,
        questions: Mapping[str, Sequence[Question]],
        *,
        replay: bool = False,
    ) -> None:
        self.run = run
        self.id = run_id(run.record)
        self.replay = replay
        self.settings = run.settings
        self.grpo = run.settings.grpo
        self.source = source
        self.rewards = rewards
        self.questions = questions  # questions by split and row

    def begun(self, step: int, rows: list[int]) -> Round:
        """Return the round before `step` + 1, whose last rows are `rows`, for a run that resumes inside it.
        Raises `DataError` if it is missing or belongs to another run.
        """
        file = round_file(self.run.checkpoints, step)
        saved = read_round(file)
        if saved is None or saved.head["run"] != self.id or saved.head["rows"][-len(rows) :] != rows:
            state = "missing" if saved is None else "of another run"
            raise DataError(
                "Q-GRPO-007",
                f"{file}, the rollouts that the run was on, is {state}: put it back, or {RESTART}",
            )
        return saved

    def at(
        self,
        model: Any,
        step: int,
        prompts: Sequence[Batch],
        measure: Measure,
        check_signal: Callable[[], None],
        resumed: bool,
    ) -> Round:
        """Return the round before `step` + 1 for batches of prompts. `resumed`: a run resumes in this round.
        Raises `DataError` if a replay needs a round that is missing or belongs to another run.
        """
        file = round_file(self.run.checkpoints, step)
        rows = list(chain(*(batch["rows"] for batch in prompts)))
        head = {
            "step": step,
            "rows": rows,
            "adapter_sha256": sha_of(model),
            "drawn_by": self.source.name,
            "run": self.id,
        }
        saved = read_round(file)
        changed = differences(saved, head) if saved else ["file"]
        if saved and not changed:
            return saved
        if self.replay:
            state = f"of another run ({', '.join(changed)})" if saved else "missing"
            raise DataError(
                "Q-GRPO-010",
                f"the run can't be replayed from step {step + 1} on: {file} is {state}: leave --replay out "
                "to draw again",
            )
        if saved:
            print(
                f"train: {file.name} is of another run ({', '.join(changed)} differ): drawn again",
                file=sys.stderr,
            )
        if resumed and not self.source.same_again:
            print(
                f"train: the rollouts before step {step + 1} were cut off and are drawn again; "
                f"llama-server with train.grpo.parallel {self.grpo.parallel} and machine.n_gpu_layers "
                f"{self.settings.rollout_layers} may draw others: the run resumes, but not to the very bytes "
                "of an unbroken one",
                file=sys.stderr,
            )
        drawn = self._drawn(model, step, prompts, check_signal)
        scored = self._scored(drawn)
        rollouts = Round(head, self._measured(prompts, scored, measure))
        write_round(file, rollouts)
        return rollouts

    def _drawn(
        self, model: Any, step: int, prompts: Sequence[Batch], check_signal: Callable[[], None]
    ) -> list[Completion]:
        requests = []
        for batch in prompts:
            for row, prompt in zip(batch["rows"], batch["prompts"], strict=True):
                for member in range(self.grpo.group_size):
                    seed = seed_of(self.settings.seed, step, row, member)
                    requests.append((row, member, Request(prompt, seed)))
        drawn = self.source.draw(model, [request for *_, request in requests], check_signal)
        completions = [
            Completion(row, member, request.seed, draw.ids, draw.logps, draw.stopped, self.text(draw.ids))
            for (row, member, request), draw in zip(requests, drawn, strict=True)
        ]
        if not any(completion.text.strip() for completion in completions):
            raise GateError(
                "Q-GRPO-008",
                f"all {len(completions)} completions of the round before step {step + 1} are empty, so there "
                "is nothing to reward: lower train.learning_rate, or tune the base on answers first "
                "(train.method sft)",
            )
        return completions

    def _scored(self, drawn: list[Completion]) -> list[Completion]:
        scored: list[Completion] = []
        for group in in_groups(drawn, self.grpo.group_size):
            answers = [Answer(completion.text, completion.stopped) for completion in group]
            rewards, points = self.rewards.of(self.questions["train"][group[0].row], answers)
            group_advantages = advantages(rewards, scaled=self.grpo.loss == "dapo")
            scored += [
                replace(
                    completion,
                    reward=rewards[n],
                    advantage=group_advantages[n],
                    points={name: values[n] for name, values in points.items()},
                )
                for n, completion in enumerate(group)
            ]
        return scored

    def _measured(
        self, prompts: Sequence[Batch], scored: list[Completion], measure: Measure
    ) -> list[Completion]:
        """Return the completions with training's own log-probabilities, computed in the batches trained
        later, so that the first ratio is 1.
        """
        measured: list[Completion] = []
        groups = iter(in_groups(scored, self.grpo.group_size))
        for batch in prompts:
            batch_groups = [list(next(groups)) for _ in batch["rows"]]
            old = iter(measure(batch, batch_groups, False))
            reference = iter(measure(batch, batch_groups, True) if self.grpo.kl_beta else [])
            for group in batch_groups:
                chosen = {completion.member for completion in trained(group, self.grpo)}
                for completion in group:
                    if completion.member in chosen:
                        measured.append(replace(completion, old=next(old), reference=next(reference, None)))
                    else:
                        measured.append(completion)
        return measured

    def watched(self, model: Any, prompts: Sequence[Batch]) -> float:
        """Return the mean reward of one completion for each held-out prompt, with seeds that no round has."""
        rows = list(chain(*(zip(batch["rows"], batch["prompts"], strict=True) for batch in prompts)))
        requests = [Request(prompt, seed_of(self.settings.seed, -1, row, 0)) for row, prompt in rows]
        drawn = self.source.draw(model, requests, lambda: None)
        rewards = []
        for (row, _), draw in zip(rows, drawn, strict=True):
            answer = Answer(self.text(draw.ids), draw.stopped)
            group_rewards, _ = self.rewards.of(self.questions["val"][row], [answer])
            rewards.append(group_rewards[0])
        return math.fsum(rewards) / len(rows)

    def text(self, ids: list[int]) -> str:
        """Return the text of a completion, without control tokens."""
        return str(self.run.tokenizer.decode(ids, skip_special_tokens=True))


def sha_of(model: Any) -> str:
    """Return the SHA-256 of all trained parameters of `model`, as they are now."""
    digest = hashlib.sha256()
    for name, weight, _ in tuner_on(model).numbers(model):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()

"""GRPO as a method of training: learning from rewards of the model's own answers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

from pipeline.chat.prompts import QUESTIONS
from pipeline.core.jsonl import read_rows
from pipeline.stages.train.grpo.rules import GRPO_EVAL, GRPO_STEP
from pipeline.stages.train.method import Learner, TrainerParts
from pipeline.stages.train.monitoring.monitor import RuleSets
from pipeline.stages.train.run import Run


class GrpoLearner(Learner):
    """Method that draws rounds of completions and trains on them."""

    rules: ClassVar[RuleSets] = RuleSets(GRPO_STEP, GRPO_EVAL, {})
    rounds: Any = None  # None in a worker process

    @contextmanager
    def ready(self, *, replay: bool = False) -> Iterator[None]:
        """Open the rounds. A scorer's program runs as long as the body. Raises `ConfigError` for a scorer
        that can't be made, `ToolError` without llama.cpp.
        """
        from pipeline.stages.train.grpo.drawing import Rounds
        from pipeline.stages.train.grpo.rewards import open_rewards

        tokens = self.run.tokens
        questions = {
            split: list(read_rows(tokens / f"{QUESTIONS}-{split}.jsonl")) for split in ("train", "val")
        }
        with open_rewards(self.run.settings.grpo, tokens) as rewards:
            self.rounds = Rounds(self.run, open_source(self.run), rewards, questions, replay=replay)
            yield

    def trainer_parts(self, collate: Any, rows: Any, held_out: Any) -> TrainerParts:
        """Return the collator of prompts, and the trainer of rounds."""
        from pipeline.stages.train.grpo.losses import PromptCollator
        from pipeline.stages.train.grpo.trainer import GrpoTrainer

        prompts = PromptCollator(collate)
        return TrainerParts(prompts, prompts, partial(GrpoTrainer, rounds=self.rounds))

    def figures(self, rows: list[dict[str, Any]], evaluation: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rewards at the start and at the end."""
        from pipeline.stages.train.grpo.losses import rewards_of

        return rewards_of(rows)


def open_source(run: Run) -> Any:
    """Return the source of rollouts that `train.grpo.rollouts` names."""
    settings = run.settings
    if settings.grpo.rollouts == "llama-server":
        from pipeline.llamacpp.tools import find_toolchain
        from pipeline.stages.train.grpo.rollouts import ServerSource

        return ServerSource(find_toolchain(settings.machine.llama_cpp), run)
    from pipeline.stages.train.grpo.rollouts import OwnSource

    return OwnSource([run.tokenizer.eos_token_id], settings.grpo.max_new_tokens)


LEARNER = GrpoLearner

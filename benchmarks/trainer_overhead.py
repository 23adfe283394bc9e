"""What the trainer costs beside the training: time per optimizer step of `QuenchTrainer`, watched and all,
against a bare loop.

    python benchmarks/trainer_overhead.py [--steps 60] [--rounds 3] [--tokens 512]

Both sides have the same random two-layer model in NF4 with an adapter, the same packed rows, loss, optimizer
and schedule, in one process, alternately (A B A B). A step is the median wall time from one step's end to the
next: metrics log, TensorBoard, monitoring rules, random states and logging are in it, evaluation and
checkpoints are not.
"""

import argparse
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.random_base import write_base, write_rows
from pipeline.config.params import load_params
from pipeline.config.sections import Training

RECIPE = Path(__file__).parents[1] / "recipes" / "demo.yaml"
WARM_UP = 10


def bare(base: Path, rows: Path, settings: Training) -> list[float]:
    """Wall time at every step's end of the loop that one would write by hand."""
    import torch
    from peft import get_peft_model
    from transformers import get_cosine_schedule_with_warmup

    from pipeline.models.chunked_loss import chunked_loss
    from pipeline.models.lora import lora_config
    from pipeline.models.qlora import load_quantized
    from pipeline.planning.duration import warmup_steps
    from pipeline.stages.train.dataset import NOT_FOR_THE_MODEL, Collator, load_rows

    torch.manual_seed(settings.seed)
    model = get_peft_model(load_quantized(base, settings), lora_config(settings)).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    data, collate = load_rows(rows, "train"), Collator(0)
    schedule = get_cosine_schedule_with_warmup(
        optimizer, warmup_steps(settings, len(data)), settings.max_steps
    )
    ends = []
    for step in range(settings.max_steps):
        batch = collate([data[step % len(data)]])
        tokens = batch["trained_tokens"]
        inputs = {name: value for name, value in batch.items() if name not in NOT_FOR_THE_MODEL}
        chunked_loss(model.get_base_model(), inputs, tokens).backward()
        torch.nn.utils.clip_grad_norm_(trained, settings.max_grad_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        ends.append(time.perf_counter())
    return ends


def ours(base: Path, rows: Path, settings: Training, folder: Path) -> list[float]:
    """Wall time at every step's end of the trainer that stage train makes."""
    from transformers import TrainerCallback

    from pipeline.chat.tokens import load_tokenizer
    from pipeline.core.interruption import Interruption
    from pipeline.core.metrics_log import MetricsLog
    from pipeline.stages.train.assembly import make_trainer
    from pipeline.stages.train.learner import learner_of
    from pipeline.stages.train.record import describe

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *arguments: Any, **rest: Any) -> None:
            ends.append(time.perf_counter())

    metrics_log = MetricsLog(folder / "checkpoints/steps.jsonl")
    with Interruption() as interruption:
        learner = learner_of(settings.method)
        trainer, _ = make_trainer(
            learner(settings, folder / "checkpoints", describe(rows, base, settings)),
            rows,
            base,
            load_tokenizer(base),
            folder / "tensorboard",
            metrics_log,
            None,
            interruption,
        )
        trainer.add_callback(Clock())
        trainer.train()
    return ends


def step_seconds(ends: list[float]) -> float:
    """The median time from one step's end to the next, after the warm-up."""
    return median(after - before for before, after in pairwise(ends[WARM_UP:]))


def main() -> None:
    """Print both sides' milliseconds a step and the overhead."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=512, help="length of a packed row")
    options = parser.parse_args()
    from pipeline.models.runtime import silence_libraries, use_all_cores

    silence_libraries()
    use_all_cores()
    recipe = load_params(RECIPE).training.model_dump()
    quiet = {"max_steps": options.steps, "save_steps": 10**6, "eval_steps": 10**6, "sample_rows": 0}
    settings = Training.model_validate(recipe | quiet)
    with tempfile.TemporaryDirectory() as place:
        base = write_base(Path(place) / "base", "tiny")
        rows = write_rows(Path(place) / "rows", base, options.tokens)
        ratios = []
        for number in range(options.rounds):
            by_hand = step_seconds(bare(base, rows, settings))
            whole = step_seconds(ours(base, rows, settings, Path(place) / f"run-{number}"))
            ratios.append(whole / by_hand)
            print(
                f"bare loop {by_hand * 1e3:7.1f} ms/step   trainer {whole * 1e3:7.1f} ms/step   overhead "
                f"{whole / by_hand - 1:+.1%}",
                flush=True,
            )
        print(
            f"median overhead {median(ratios) - 1:+.1%} over {options.rounds} rounds of {options.steps} "
            f"steps of {options.tokens} tokens"
        )


if __name__ == "__main__":
    main()

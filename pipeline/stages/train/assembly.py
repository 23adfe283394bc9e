"""The trainer put together: rows, arguments, the quantized base with its adapter, what watches it."""

from pathlib import Path
from random import Random
from typing import Any

from transformers import EarlyStoppingCallback, PrinterCallback, set_seed

from pipeline.chat.tokens import IGNORED
from pipeline.config.methods import METHODS, Method
from pipeline.config.sections import Training
from pipeline.core.interruption import Interruption
from pipeline.core.metrics_log import MetricsLog
from pipeline.core.text import plural
from pipeline.core.units import memory_gb
from pipeline.models.chunked_loss import check_head
from pipeline.models.experts.separate import is_mixture
from pipeline.models.experts.targets import check_mixture
from pipeline.models.liger_loss import apply_liger, check_liger, choose_loss
from pipeline.models.qlora import load_quantized
from pipeline.models.tuners import causal_model, put_tuner, without_tuner
from pipeline.planning.steps import total_steps
from pipeline.stages.train.arguments import training_arguments
from pipeline.stages.train.callbacks import MetricsCallback, StepCallback
from pipeline.stages.train.checkpoints import step_of
from pipeline.stages.train.dataset import PARTS, Collator, load_rows, sequences
from pipeline.stages.train.learner import Learner, monitor_of
from pipeline.stages.train.monitoring.monitor import Monitor
from pipeline.stages.train.monitoring.samples import sample, undisturbed
from pipeline.stages.train.monitoring.tensorboard import Board
from pipeline.stages.train.several.group import Group
from pipeline.stages.train.step_stats import Batch


def load_model(
    base: Path, settings: Training, interruption: Interruption, group: Group | None
) -> tuple[Any, str]:
    """The quantized base with what trains on it, an adapter drawn from the seed, and the loss that it is
    trained with. With `train.shard_base` the processes of `group` keep a part each.
    """
    mixture = is_mixture(base)
    check_mixture(settings, mixture=mixture)
    loss = choose_loss(settings.loss, mixture=mixture, norms=bool(settings.modules_to_save))
    if loss == "liger":
        apply_liger(base)  # before the model is loaded
    set_seed(settings.seed)  # the trainer does so too, but the adapter's start is drawn before there is one
    if settings.shard_base and group is not None:
        model = shared_out(base, settings, interruption, group)
    else:
        model = put_tuner(load_quantized(base, settings), settings)
    if loss == "liger":
        check_liger(causal_model(model))
    check_head(causal_model(model))
    return model, loss


def shared_out(base: Path, settings: Training, interruption: Interruption, group: Group) -> Any:
    """The same with the base's layers shared out; one process at a time has all of it in main memory.

    From then on all run its layers together, until they agree to stop.
    """
    import torch

    from pipeline.models.sharded import shard

    group.connect()
    with group.turn():
        model = put_tuner(load_quantized(base, settings, "cpu"), settings)
        device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
        part = shard(causal_model(model), device)
    interruption.defer()
    group.wait_for_all("shared out")  # one machine may be minutes ahead of another
    print(f"train: of the base's layers {memory_gb(part)} are in this process, of {group.count}")
    return model


def shown(batch: Batch, method: Method) -> Batch:
    """The ids, labels and positions (1, T) of a collated row; of a method that gives its own answers only
    what stands before the row's.
    """
    end = int((batch["labels"] != IGNORED).nonzero()[0, 1]) if METHODS[method].prompts else None
    return {part: batch[part][:, :end] for part in PARTS}


def start_by_data(model: Any, rows: Any, collate: Collator, settings: Training) -> None:
    """Where `train.init_lora_weights` is eva, take A's start from rows drawn by the seed, and say from how
    much. Raises `ConfigError` if they are too few.
    """
    if settings.tuner != "lora" or settings.init_lora_weights != "eva":
        return
    from pipeline.models.eva import start_by_eva

    random = Random(settings.seed)  # noqa: S311 (no secret)
    drawn = random.sample(range(len(rows)), min(settings.eva_rows, len(rows)))
    batches = (shown(collate([rows[row]]), settings.method) for row in drawn)
    with undisturbed(model), without_tuner(model):
        count = start_by_eva(
            model, ({part: values.to(model.device) for part, values in batch.items()} for batch in batches)
        )
    print(f"train: A starts from the inputs at {count} positions of {plural(len(drawn), 'row')} (EVA)")


def make_trainer(
    learner: Learner,
    tokens: Path,
    base: Path,
    tokenizer: Any,
    tensorboard: Path,
    metrics_log: MetricsLog,
    start: Path | None,
    interruption: Interruption,
    group: Group | None = None,
) -> tuple[Any, Monitor]:
    """The trainer over the quantized base with its adapter, by which `learner` learns, and the monitor that
    judges its steps.
    """
    settings = learner.settings
    rows, held_out = load_rows(tokens, "train"), load_rows(tokens, "val")
    arguments = training_arguments(settings, learner.checkpoints, rows=len(rows), held_out=len(held_out))
    leads = group is None or group.leads
    arguments.disable_tqdm |= not leads
    model, loss = load_model(base, settings, interruption, group)
    padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    collate = Collator(padding)
    if start is None:  # else A is what it has become
        start_by_data(model, rows, collate, settings)
    learning = learner.learning(collate, rows, held_out, leads=leads)
    questions = sequences(held_out, settings.sample_rows, wanted=True)
    monitor = monitor_of(total_steps(settings, len(rows)), settings)
    monitor.restore(metrics_log.rows())
    callback = StepCallback()
    if leads:
        board = Board(tensorboard, step_of(start) + 1 if start else None)
        callback = MetricsCallback(metrics_log, board, monitor)
    trainer = learning.trainer(
        model=model,
        args=arguments,
        processing_class=tokenizer,
        train_dataset=rows,
        eval_dataset=held_out if len(held_out) else None,
        data_collator=learning.collate,
        callbacks=[callback],
        settings=settings,
        loss=loss,
        keep=settings.save_total_limit,
        held_out=[learning.collate_held_out([row]) for row in held_out],
        answer=lambda model: sample(model, tokenizer, questions, settings.sample_tokens),
        interruption=interruption,
        start=start,
        metrics_log=metrics_log,
        group=group,
        sharded=settings.shard_base,
    )
    callback.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    if settings.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(settings.early_stopping_patience))
    return trainer, monitor

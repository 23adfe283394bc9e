"""The trainer put together: rows, arguments, the quantized base with its adapter, what watches it."""

import sys
from pathlib import Path
from typing import Any

from transformers import EarlyStoppingCallback, PrinterCallback, set_seed

from pipeline.config.sections import Train
from pipeline.core.errors import ConfigError, DataError, ToolError
from pipeline.core.units import memory_gb
from pipeline.models.chunked_loss import check_head
from pipeline.models.experts.separate import is_mixture
from pipeline.models.experts.targets import check_mixture
from pipeline.models.liger_loss import apply_liger, check_liger, choose_loss
from pipeline.models.qlora import load_quantized
from pipeline.models.tuners import causal_model, put_tuner
from pipeline.planning.duration import total_steps, warmup_steps
from pipeline.planning.setup import check_offload, needs_gpu
from pipeline.stages.train.callbacks import Board, MetricsCallback, StepCallback
from pipeline.stages.train.checkpoints import step_of
from pipeline.stages.train.dataset import Collator, load_rows, sequences
from pipeline.stages.train.learner import Learner, monitor_of
from pipeline.stages.train.monitoring.monitor import Monitor
from pipeline.stages.train.monitoring.samples import sample
from pipeline.stages.train.run import Run
from pipeline.stages.train.several.group import Group

# of a sample, at most: how an answer begins shows what is being learned; stage evaluate has whole ones
SAMPLE_TOKENS = 32


def load_model(run: Run) -> tuple[Any, str]:
    """The quantized base with what trains on it, an adapter drawn from the seed, and the loss that it is
    trained with. With `train.offload: shared` the processes keep a part each.
    """
    base, settings = run.base, run.settings
    mixture = is_mixture(base)
    check_mixture(settings, mixture=mixture)
    loss = choose_loss(settings.loss, mixture=mixture, norms=bool(settings.modules_to_save))
    if loss == "liger":
        apply_liger(base)  # before the model is loaded
    set_seed(settings.seed)  # the trainer does so too, but the adapter's start is drawn before there is one
    if settings.shares_base and run.group is not None:
        model = shared_out(run)
    else:
        model = put_tuner(load_quantized(base, settings), settings)
    if loss == "liger":
        check_liger(causal_model(model))
    check_head(causal_model(model))
    return model, loss


def shared_out(run: Run) -> Any:
    """The same with the base's layers shared out; one process at a time has all of it in main memory.

    From then on all run its layers together, until they agree to stop.
    """
    import torch

    from pipeline.models.sharded import shard

    group: Group = run.group
    group.connect()
    with group.turn():
        model = put_tuner(load_quantized(run.base, run.settings, "cpu"), run.settings)
        device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
        part = shard(causal_model(model), device)
    run.interruption.defer()
    group.wait_for_all("shared out")  # one machine may be minutes ahead of another
    print(f"train: of the base's layers {memory_gb(part)} are in this process, of {group.count}")
    return model


def make_trainer(learner: Learner) -> tuple[Any, Monitor]:
    """The trainer by which `learner` learns over the quantized base, and the monitor of its steps."""
    run, settings, tokenizer = learner.run, learner.run.settings, learner.run.tokenizer
    rows, held_out = load_rows(run.tokens, "train"), load_rows(run.tokens, "val")
    arguments = training_arguments(settings, run.checkpoints, rows=len(rows), held_out=len(held_out))
    arguments.disable_tqdm |= not run.leads
    model, loss = load_model(run)
    padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    learning = learner.learning(Collator(padding), rows, held_out)
    questions = sequences(held_out, settings.sample_rows, wanted=True)
    monitor = monitor_of(total_steps(settings, len(rows)), settings)
    monitor.restore(run.metrics_log.rows())
    callback = StepCallback()
    if run.leads:
        board = Board(run.tensorboard, step_of(run.start) + 1 if run.start else None)
        callback = MetricsCallback(run.metrics_log, board, monitor)
    trainer = learning.trainer(
        model=model,
        args=arguments,
        processing_class=tokenizer,
        train_dataset=rows,
        eval_dataset=held_out if len(held_out) else None,
        data_collator=learning.collate,
        callbacks=[callback],
        run=run,
        loss=loss,
        held_out=[learning.collate_held_out([row]) for row in held_out],
        answer=lambda model: sample(model, tokenizer, questions, SAMPLE_TOKENS),
    )
    callback.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    if settings.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(settings.early_stopping_patience))
    return trainer, monitor


def training_arguments(settings: Train, checkpoints: Path, *, rows: int, held_out: int) -> Any:
    """`TrainingArguments` for `rows` (packed) training rows and `held_out` rows to evaluate on.

    transformers 5 has no `warmup_ratio` any more: it becomes steps here. Every step is logged, or a
    checkpoint between two lines of the log would lose part of a mean. Raises what `check_settings` does, and
    `ConfigError` for settings that transformers refuses.
    """
    import torch
    from transformers import TrainingArguments

    layers = int(settings.gradient_checkpointing)
    every = {"every_n_layers": layers} if layers > 1 else {}
    cuda, stops_early = torch.cuda.is_available(), settings.early_stopping_patience is not None
    check_settings(settings, rows=rows, held_out=held_out, cuda=cuda)
    try:
        arguments = TrainingArguments(
            output_dir=str(checkpoints),
            num_train_epochs=settings.num_train_epochs,
            max_steps=settings.max_steps,
            seed=settings.seed,
            data_seed=settings.seed,
            per_device_train_batch_size=settings.per_device_train_batch_size,
            per_device_eval_batch_size=1,
            gradient_accumulation_steps=settings.gradient_accumulation_steps,
            gradient_checkpointing=layers > 0,
            gradient_checkpointing_kwargs={"use_reentrant": False} | every,
            learning_rate=settings.learning_rate,
            lr_scheduler_type=settings.lr_scheduler_type,
            warmup_steps=warmup_steps(settings, rows),
            weight_decay=settings.weight_decay,
            max_grad_norm=settings.max_grad_norm,
            neftune_noise_alpha=settings.neftune_noise_alpha,
            optim=settings.optim,
            logging_steps=1,
            logging_nan_inf_filter=False,
            save_strategy="steps",
            save_steps=settings.save_steps,
            eval_strategy="steps" if held_out else "no",
            eval_steps=settings.eval_steps,
            load_best_model_at_end=stops_early,
            metric_for_best_model="eval_loss" if stops_early else None,
            greater_is_better=False if stops_early else None,
            bf16=cuda and settings.bnb_4bit_compute_dtype == "bfloat16",
            fp16=cuda and settings.bnb_4bit_compute_dtype == "float16",
            restore_callback_states_from_checkpoint=True,
            report_to="none",
            remove_unused_columns=False,
            disable_tqdm=not sys.stderr.isatty(),
            dataloader_pin_memory=cuda,
        )
    except ValueError as error:
        raise ConfigError(
            "Q-TRAIN-017", f"train: the trainer refuses these settings: {' '.join(str(error).split())[:300]}"
        ) from error
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # else transformers splits each batch among all; the first one trains
    return arguments


def check_settings(settings: Train, *, rows: int, held_out: int, cuda: bool) -> None:
    """Raise `ToolError` for an optimizer that needs a GPU if there is none, `DataError` for early stopping
    without rows to watch, `ConfigError` where every step would be warm-up, and as `check_offload`.
    """
    check_offload(settings, "cuda" if cuda else "cpu")
    if needs_gpu(settings.optim) and not cuda:
        raise ToolError(
            "Q-TRAIN-014",
            f"train.optim is {settings.optim}, which needs a GPU, and this machine has none: set it to "
            "adamw_torch",
        )
    if settings.early_stopping_patience is not None and not held_out:
        raise DataError(
            "Q-TRAIN-015",
            "train.early_stopping_patience is set, but no rows are kept for monitoring: raise "
            "curate.val_fraction, or set it to null",
        )
    if total_steps(settings, rows) <= warmup_steps(settings, rows):
        raise ConfigError(
            "Q-TRAIN-016",
            f"{total_steps(settings, rows)} optimizer steps are all warm-up, in which nothing is learned: "
            "give it more rows or passes, or set train.warmup_ratio to 0",
        )

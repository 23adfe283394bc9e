"""The settings under transformers' own names."""

import sys
from pathlib import Path
from typing import Any

from pipeline.config.sections import Train
from pipeline.core.errors import ConfigError, DataError, ToolError
from pipeline.planning.duration import total_steps, warmup_steps
from pipeline.planning.setup import check_offload, needs_gpu


def training_arguments(settings: Train, checkpoints: Path, *, rows: int, held_out: int) -> Any:
    """`TrainingArguments` for `rows` (packed) training rows and `held_out` rows to evaluate on.

    transformers 5 has no `warmup_ratio` any more: it becomes steps here. Every step is logged, or a
    checkpoint between two lines of the log would lose part of a mean. Raises what `check_settings` does, and
    `ConfigError` for settings that transformers refuses.
    """
    import torch
    from transformers import TrainingArguments

    every = {} if settings.checkpoint_every == 1 else {"every_n_layers": settings.checkpoint_every}
    cuda, stops_early = torch.cuda.is_available(), settings.early_stopping_patience is not None
    check_settings(settings, rows=rows, held_out=held_out, cuda=cuda)
    try:
        arguments = TrainingArguments(
            output_dir=str(checkpoints),
            num_train_epochs=settings.num_train_epochs,
            max_steps=settings.max_steps,
            seed=settings.seed,
            data_seed=settings.seed,
            train_sampling_strategy="random" if settings.shuffle else "sequential",
            per_device_train_batch_size=settings.per_device_train_batch_size,
            per_device_eval_batch_size=1,
            gradient_accumulation_steps=settings.gradient_accumulation_steps,
            gradient_checkpointing=settings.gradient_checkpointing,
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

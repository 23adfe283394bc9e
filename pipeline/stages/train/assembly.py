"""Assemble the trainer: rows, the quantized base with its adapter, and the monitor."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import set_seed

from pipeline.config.sections import Train
from pipeline.config.trackers import TENSORBOARD
from pipeline.core.errors import ConfigError, DataError, ToolError
from pipeline.core.units import memory_gb
from pipeline.models.chunked_loss import check_head
from pipeline.models.compiled_layers import compile_layers
from pipeline.models.experts.separate import has_experts
from pipeline.models.experts.targets import check_mixture
from pipeline.models.liger_loss import apply_liger, check_liger, choose_loss, try_liger
from pipeline.models.loading import read_config
from pipeline.models.qlora import load_quantized
from pipeline.models.row_attention import attend_by_row
from pipeline.models.tuners import causal_model, put_tuner, tuner_on
from pipeline.planning.duration import total_steps, warmup_steps
from pipeline.planning.setup import check_offload, needs_gpu
from pipeline.stages.train.checkpoints import step_of
from pipeline.stages.train.dataset import Collator, load_rows, sequences
from pipeline.stages.train.journal import Board, Journal
from pipeline.stages.train.method import Learner, monitor_of
from pipeline.stages.train.monitoring.monitor import Monitor
from pipeline.stages.train.monitoring.samples import sample
from pipeline.stages.train.reducer import Alone, Reducer
from pipeline.stages.train.run import Run

if TYPE_CHECKING:
    from pipeline.stages.train.distributed.group import Group

# Maximum tokens of a sample. The beginning of an answer shows what is being learned; stage evaluate has whole
# ones.
SAMPLE_TOKENS = 32


class Loss(NamedTuple):
    """The loss that a run is trained with, and why `train.loss: auto` did not choose liger, if it can't."""

    name: str
    reason: str = ""


def prepare_loss(base: Path, settings: Train, *, mixture: bool) -> Loss:
    """Return the loss that `train.loss` means here. Liger replaces the model's kernels, so call this before
    the model is loaded.
    """
    name = choose_loss(settings.loss, mixture=mixture, norms=bool(settings.modules_to_save))
    if name != "liger":
        return Loss(name)
    if settings.loss == "liger":
        apply_liger(base)
        return Loss(name)
    lacking = try_liger(base)
    if not lacking:
        return Loss(name)
    print(f"train: {lacking}, so the loss is chunked, not liger")
    return Loss("chunked", lacking)


def load_model(run: Run) -> tuple[Any, Loss]:
    """Return the quantized base with its trainable part, an adapter drawn from the seed or the one that
    training goes on from, and the loss that it is trained with. With `train.offload: shared` each process
    keeps a part of the base.
    """
    base = run.base
    settings = run.settings
    mixture = has_experts(read_config(base))
    check_mixture(settings, mixture=mixture)
    loss = prepare_loss(base, settings, mixture=mixture)
    set_seed(settings.seed)  # The adapter's initial weights depend on it.
    if settings.shares_base and run.group is not None:
        model = shared_out(run)
    else:
        model = put_tuner(load_quantized(base, settings), settings)
    if run.previous is not None:
        tuner_on(model).load(model, run.previous)
        print(f"train: going on from {run.previous}")
    if loss.name == "liger":
        check_liger(causal_model(model))
    check_head(causal_model(model))
    attend_by_row(causal_model(model))
    if settings.compiled:
        compile_layers(causal_model(model))
    return model, loss


def shared_out(run: Run) -> Any:
    """Return the model with the base's layers sharded over the processes. One process at a time has all of
    it in main memory.

    From then on all processes run its layers together, until they agree to stop.
    """
    import torch

    from pipeline.models.sharded import shard

    group: Group = run.group
    group.connect()
    with group.one_at_a_time():
        model = put_tuner(load_quantized(run.base, run.settings, "cpu"), run.settings)
        device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
        part = shard(causal_model(model), device)
    run.interruption.defer()
    group.wait_for_all("shared out")  # One machine may be minutes ahead of another.
    print(f"train: of the base's layers {memory_gb(part)} are in this process, of {group.count}")
    return model


def reducer_of(run: Run, model: Any) -> Reducer:
    """Return the reducer of a run that trains the parameters of `model` that require a gradient."""
    if run.group is None:
        return Alone()
    # A run alone needs nothing of it.
    from pipeline.stages.train.distributed.reducer import GroupReducer

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return GroupReducer(run.group, trained, sharded=run.settings.shares_base)


def make_trainer(learner: Learner) -> tuple[Any, Monitor]:
    """Return the trainer by which `learner` learns over the quantized base, and the monitor of its steps."""
    import torch

    run = learner.run
    settings = run.settings
    tokenizer = run.tokenizer
    rows = load_rows(run.tokens, "train")
    held_out = load_rows(run.tokens, "val")
    check_settings(settings, rows=len(rows), held_out=len(held_out), cuda=torch.cuda.is_available())
    model, loss = load_model(run)
    parts = learner.trainer_parts(Collator(), rows, held_out)
    questions = sequences(held_out, settings.sample_rows, wanted=True)
    steps = total_steps(settings, len(rows))
    journal = None
    monitor = monitor_of(steps, settings)
    monitor.restore(run.metrics_log.rows())
    if run.leads:
        board = None
        if TENSORBOARD in settings.report_to:
            board = Board(run.tensorboard, step_of(run.start) + 1 if run.start else None)
        of_run = {"processes": run.group.count} if run.group else {}
        journal = Journal(run.metrics_log, board, monitor, max_steps=steps, of_run=of_run)
    trainer = parts.trainer(
        run=run,
        reducer=reducer_of(run, model),
        model=model,
        rows=rows,
        collate=parts.collate,
        loss=loss.name,
        loss_reason=loss.reason,
        held_out=[parts.collate_held_out([row]) for row in held_out],
        answer=lambda model: sample(model, tokenizer, questions, SAMPLE_TOKENS),
        journal=journal,
    )
    return trainer, monitor


def check_settings(settings: Train, *, rows: int, held_out: int, cuda: bool) -> None:
    """Check the settings against the machine and the rows. Raises `ToolError` for an optimizer that needs a
    GPU if there is none, `DataError` for early stopping without rows to watch, `ConfigError` if every
    step would be warm-up or the GPU lacks bfloat16, and the errors of `check_offload`.
    """
    import torch

    check_offload(settings, "cuda" if cuda else "cpu")
    if needs_gpu(settings.optim) and not cuda:
        raise ToolError(
            "Q-TRAIN-014",
            f"train.optim is {settings.optim}, which needs a GPU, and this machine has none: set it to "
            "adamw_torch",
        )
    if cuda and settings.bnb_4bit_compute_dtype == "bfloat16" and not torch.cuda.is_bf16_supported():
        raise ConfigError(
            "Q-TRAIN-017",
            "train.bnb_4bit_compute_dtype is bfloat16, which this GPU doesn't have: set it to float16",
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

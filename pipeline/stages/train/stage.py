"""Train a QLoRA adapter on the base, with checkpoints that a killed run goes on from to the same bytes.

Reads `data/tokens/` and `models/base/`. With `train.method` distill what is learned is how the file that the
level was made from answers (`pipeline.stages.train.distill`), not what the rows' assistant says. Writes
`models/adapter/` (PEFT folder, tokenizer, run.json), `reports/train.json`, `reports/train.csv` (the curves)
and `reports/train.jsonl` (every step); TensorBoard events in `reports/tensorboard/` and checkpoints in
`models/checkpoints/` on the way. Command: `python -m pipeline train`
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.chat.manifest import check_manifest
from pipeline.chat.tokens import load_tokenizer
from pipeline.config.params import Params
from pipeline.config.sections import Training
from pipeline.core.checks import refuse
from pipeline.core.errors import DataError
from pipeline.core.hashing import tree_hash
from pipeline.core.interruption import Interruption
from pipeline.core.metrics_log import MetricsLog, write_rows
from pipeline.core.publish import publishing, remove, write_json
from pipeline.models.runtime import silence_libraries, use_all_cores
from pipeline.stages.train.checkpoints import METRICS_LOG, TEACHER, read_notes, step_of
from pipeline.stages.train.figures import curve, summary, write_curve
from pipeline.stages.train.monitoring.monitor import Monitor
from pipeline.stages.train.monitoring.run_record import run_record
from pipeline.stages.train.run import describe, find_start, finish


def train(
    *,
    tokens: Path,
    base: Path,
    adapter: Path,
    checkpoints: Path,
    tensorboard: Path,
    settings: Training,
    resume: bool | Path,
) -> dict[str, Any]:
    """Train, publish the adapter folder, return the report; `metrics_log` in it are the rows of every step
    and evaluation.

    With `resume`, goes on from the newest verified checkpoint of the same run, or from the one that it names;
    otherwise starts again. Raises `GateError` where a monitoring rule fails or the adapter learned nothing,
    `ConfigError` where an unfinished run of other inputs is in the way, `Stopped` after a signal.
    """
    silence_libraries()
    use_all_cores()
    tokenizer = load_tokenizer(base)
    check_manifest(tokens, base, tokenizer)
    with Interruption() as interruption:
        record = describe(tokens, base, settings)
        start = find_start(checkpoints, record, resume=resume)
        metrics_log = MetricsLog(checkpoints / METRICS_LOG)
        pending = start is not None and read_notes(start).get("pending_evaluation", False)
        metrics_log.truncate(after_step=step_of(start) if start else 0, evaluated=not pending)
        if start is None:
            remove(tensorboard)
        else:
            print(f"train: going on from {start}", file=sys.stderr)
        teacher = find_teacher(tokens, base, checkpoints, settings, record)
        trainer, monitor = make_trainer(
            tokens,
            base,
            tokenizer,
            checkpoints,
            tensorboard,
            settings,
            metrics_log,
            start,
            interruption,
            teacher,
        )
        proven = prove_beforehand(trainer, settings)
        trainer.train(resume_from_checkpoint=str(start) if start else None)
        rows = metrics_log.rows()
        prove_afterwards(trainer, rows)
        publish_adapter(trainer.model, trainer.processing_class, record, adapter)
        finish(checkpoints, record)
        remove(checkpoints / TEACHER)
    return summary(trainer, rows) | {
        "method": settings.method,
        **({"teacher": teacher.figures} if teacher else {}),
        "proven": proven,
        "inputs": record,
        "resumed_from": start.name if start else None,
        "monitoring": monitor.records(),
        "metrics_log": rows,
    }


def find_teacher(
    tokens: Path, base: Path, checkpoints: Path, settings: Training, record: dict[str, Any]
) -> Any:
    """`train.method` distill: the original's answers to every row, a
    `pipeline.stages.train.distill.cache.Teacher`; None for sft.
    """
    if settings.method != "distill":
        return None
    from pipeline.stages.train.distill.teacher import ask_teacher

    return ask_teacher(tokens, base, checkpoints, settings, record)


def make_trainer(
    tokens: Path,
    base: Path,
    tokenizer: Any,
    checkpoints: Path,
    tensorboard: Path,
    settings: Training,
    metrics_log: MetricsLog,
    start: Path | None,
    interruption: Interruption,
    teacher: Any = None,
) -> tuple[Any, Monitor]:
    """The trainer over the quantized base with its adapter, and the monitor that judges its steps; with a
    `teacher`, the level is distilled.
    """
    from peft import get_peft_model
    from transformers import EarlyStoppingCallback, PrinterCallback, set_seed

    from pipeline.models.chunked_loss import check_head
    from pipeline.models.liger_loss import apply_liger, check_liger, choose_loss
    from pipeline.models.qlora import load_quantized, lora_config
    from pipeline.planning.steps import total_steps
    from pipeline.stages.train.arguments import training_arguments
    from pipeline.stages.train.callbacks import MetricsCallback
    from pipeline.stages.train.dataset import Collator, load_rows, sequences
    from pipeline.stages.train.distill.trainer import DistillCollator, DistillTrainer
    from pipeline.stages.train.monitoring.samples import sample
    from pipeline.stages.train.monitoring.tensorboard import Board
    from pipeline.stages.train.trainer import QuenchTrainer

    loss = choose_loss(settings.loss)
    if loss == "liger":
        apply_liger(base)  # before the model is loaded
    rows, held_out = load_rows(tokens, "train"), load_rows(tokens, "val")
    arguments = training_arguments(settings, checkpoints, rows=len(rows), held_out=len(held_out))
    set_seed(settings.seed)  # the trainer does so too, but the adapter's start is drawn before there is one
    # the adapter is float32: in 16 bit it would lose small updates, and a resumed run would differ from its
    # first step on
    model = get_peft_model(load_quantized(base, settings), lora_config(settings), autocast_adapter_dtype=True)
    if loss == "liger":
        check_liger(model.get_base_model())
    check_head(model.get_base_model())
    collate = Collator(
        tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    )
    learning, monitoring = (
        (DistillCollator(collate, teacher.train), DistillCollator(collate, teacher.val))
        if teacher
        else (collate, collate)
    )
    kind = partial(DistillTrainer, sft_weight=settings.distill_sft_weight) if teacher else QuenchTrainer
    questions = sequences(held_out, settings.sample_rows)
    monitor = Monitor(total_steps(settings, len(rows)), settings)
    monitor.restore(metrics_log.rows())
    callback = MetricsCallback(
        metrics_log, Board(tensorboard, step_of(start) + 1 if start else None), monitor
    )
    trainer = kind(
        model=model,
        args=arguments,
        processing_class=tokenizer,
        train_dataset=rows,
        eval_dataset=held_out if len(held_out) else None,
        data_collator=learning,
        callbacks=[callback],
        loss=loss,
        keep=settings.save_total_limit,
        held_out=[monitoring([row]) for row in held_out],
        answer=lambda model: sample(model, tokenizer, questions, settings.sample_tokens),
        interruption=interruption,
        start=start,
        metrics_log=metrics_log,
    )
    callback.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    if settings.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(settings.early_stopping_patience))
    return trainer, monitor


def prove_beforehand(trainer: Any, settings: Training) -> dict[str, Any]:
    """What is proven of the model before its first step, with figures: targets, trainable parameters, finite
    weights, packing.
    """
    from pipeline.models.finite import finite_record
    from pipeline.models.qlora import check_adapter, float32_cast_bytes
    from pipeline.stages.train.dataset import sequences
    from pipeline.stages.train.proofs import check_no_leaks

    trainable = check_adapter(trainer.model, settings)
    # what is packed here has no teacher's answers
    plain = getattr(trainer.data_collator, "plain", trainer.data_collator)
    leak = check_no_leaks(trainer.model, plain, sequences(trainer.train_dataset, 2))
    saved = float32_cast_bytes(trainer.model.get_base_model())
    return {
        "trainable_parameters": trainable,
        "packing_nmse": leak,
        "float32_cast_bytes_saved": saved,
        **finite_record(trainer.model),
    }


def prove_afterwards(trainer: Any, rows: list[dict[str, Any]]) -> None:
    """Raise `GateError` unless every row was trained as planned and every matrix of the adapter has
    changed.
    """
    from pipeline.stages.train.proofs import check_learned, check_rows

    check_rows(rows, len(trainer.train_dataset))
    check_learned(trainer.model, rows)


def publish_adapter(model: Any, tokenizer: Any, record: dict[str, Any], adapter: Path) -> None:
    """Publish the PEFT folder with tokenizer, template and run record; bytes depend on the run alone, not on
    its place.
    """

    def check(folder: Path) -> None:
        if not (folder / "adapter_model.safetensors").stat().st_size:
            raise DataError("Q-TRAIN-034", f"{folder} holds no adapter")

    for config in model.peft_config.values():
        config.base_model_name_or_path = "models/base"
    with publishing(adapter, check) as aside:
        # embeddings are frozen; without this, PEFT would look for the base on the hub
        model.save_pretrained(aside, save_embedding_layers=False)
        tokenizer.save_pretrained(aside)
        config_file = aside / "adapter_config.json"
        settings = json.loads(config_file.read_text(encoding="utf-8"))
        # PEFT has a set, whose order changes from run to run
        settings["target_modules"] = sorted(settings["target_modules"])
        write_json(config_file, settings)
        # PEFT's empty model card; `quench ship` writes a real one
        (aside / "README.md").unlink(missing_ok=True)
        write_json(aside / "run.json", record)


def check_beforehand(root: Path, params: Params) -> None:
    """Print what must hold before the first weight is loaded. Raises what failed, as its own kind of
    error.
    """
    from pipeline.stages.train.preflight import preflight

    checks = preflight(
        tokens=root / "data/tokens",
        base=root / "models/base",
        disk=root,
        settings=params.training,
        max_length=params.preprocess.max_length,
        levels=params.quantize.levels,
        lora=params.lora.type,
        untuned=params.convert.base,
    )
    print("train: before it starts", *(f"  {check}" for check in checks), sep="\n", flush=True)
    refuse(checks)


def main(params: Params, root: Path, resume: bool | Path = True) -> None:
    """Run the stage on the files below `root`."""
    silence_libraries()
    check_beforehand(root, params)
    report = train(
        tokens=root / "data/tokens",
        base=root / "models/base",
        adapter=root / "models/adapter",
        checkpoints=root / "models/checkpoints",
        tensorboard=root / "reports/tensorboard",
        settings=params.training,
        resume=resume,
    )
    rows, inputs = report.pop("metrics_log"), report.pop("inputs")
    hashes = {
        "tokens": inputs["tokens_sha256"],
        **inputs["base"],
        "adapter": tree_hash(root / "models/adapter"),
    }
    report["run"] = run_record(root, argv=sys.argv, seeds={"train.seed": params.train.seed}, hashes=hashes)
    write_curve(root / "reports/train.csv", curve(rows))
    write_rows(root / "reports/train.jsonl", rows)
    write_json(root / "reports/train.json", report)
    shown = ".3g" if params.train.method == "distill" else ".2f"  # a divergence is small from the start
    print(
        f"train: {report['steps']} steps, loss {report['loss_first']:{shown}} → "
        f"{report['loss_last']:{shown}}, {report['seconds']:.0f} s"
    )

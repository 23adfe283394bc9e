"""Train a QLoRA adapter or a GGUF's scales; a killed run resumes from checkpoints to the same bytes.

Reads `data/tokens/` and `models/base/`. With `train.method` distill the model learns to answer like the
original, the file that the base's GGUF was quantized from (`pipeline.stages.train.distill`), not the
assistant's text in the rows. Writes `models/adapter/` (PEFT folder or scales, tokenizer, run.json),
`reports/train.json`, `reports/train.csv` (the curves) and `reports/train.jsonl` (every step). On the way it
writes TensorBoard events in `reports/tensorboard/` and checkpoints in `models/checkpoints/`. Command:
`python -m pipeline train`
"""

import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from pipeline.chat.manifest import check_manifest
from pipeline.chat.tokens import load_tokenizer, save_tokenizer
from pipeline.config.methods import METHODS, ROLLOUTS, TEACHER, Method
from pipeline.config.params import Params
from pipeline.config.tuners import trained_file
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hashing import tree_hash
from pipeline.core.interruption import Interruption
from pipeline.core.metrics_log import MetricsLog, write_rows
from pipeline.core.publish import publishing, remove, write_json
from pipeline.core.text import plural
from pipeline.models.runtime import use_all_cores
from pipeline.models.tuners import tuner_on
from pipeline.stages.train.checkpoints import METRICS_LOG, REFERENCE, read_notes, step_of
from pipeline.stages.train.figures import curve, last_evaluation, summary, write_curve
from pipeline.stages.train.invariants import check_learned, check_rows, prove_beforehand
from pipeline.stages.train.method import learner_of
from pipeline.stages.train.options import Options
from pipeline.stages.train.run import Job, Run, check_shared, describe, find_start, finish, run_record
from pipeline.stages.train.worker import same_in_all


def train(job: Job, *, resume: bool | Path, replay: bool = False) -> dict[str, Any]:
    """Train as the first of the job's processes, publish the adapter folder, return the report. Its
    `metrics_log` contains the rows of every step and evaluation.

    With `resume`, continues from the newest verified checkpoint of the same run, or from the one that it
    names; otherwise starts again. With `replay`, starts again on the rounds that a run of GRPO left, and
    draws none. Raises `GateError` if a monitoring rule fails or the adapter learned nothing, `ConfigError` if
    an unfinished run of other inputs is in the way, `Stopped` after a signal.
    """
    from pipeline.stages.train.assembly import make_trainer

    settings = job.settings
    checkpoints = job.checkpoints
    group = job.group
    if replay and not METHODS[settings.method].prompts:
        raise ConfigError(
            "Q-GRPO-014",
            f"--replay is about rollouts, and train.method {settings.method} has none: leave it out",
        )
    use_all_cores()
    check_shared(settings, group.count if group else 1)
    if group:
        group.share_cores()
    tokenizer = load_tokenizer(job.base)
    prepared = check_manifest(job.tokens, job.base, tokenizer)
    check_method(prepared.get("method", "sft"), settings.method)
    print(f"train: {_rows_sentence(prepared['splits']['train'])}", flush=True)
    with ExitStack() as opened:
        interruption = opened.enter_context(Interruption())
        metrics_log = opened.enter_context(closing(MetricsLog(checkpoints / METRICS_LOG)))
        record = describe(job.tokens, job.base, settings, job.previous)
        start = find_start(checkpoints, record, resume=False if replay else resume, replay=replay)
        pending = start is not None and read_notes(start).get("pending_evaluation", False)
        metrics_log.truncate(after_step=step_of(start) if start else 0, evaluated=not pending)
        if start is None:
            remove(job.tensorboard)
        else:
            print(f"train: resuming from {start}", file=sys.stderr)
        run = Run(
            **vars(job),
            record=record,
            start=start,
            tokenizer=tokenizer,
            interruption=interruption,
            metrics_log=metrics_log,
        )
        learner = learner_of(settings.method)(run)
        opened.enter_context(learner.ready(replay=replay))
        if group:
            alike = same_in_all(record, settings)
            group.begin({"record": record, "alike": alike, "start": start.name if start else None})
        print("train: loading the base", flush=True)
        trainer, monitor = make_trainer(learner)
        if group:
            group.connect()
        print("train: checking the loaded model and the packed rows", flush=True)
        proven = prove_beforehand(trainer)
        learner.measure_before(trainer)
        print("train: the first step begins", flush=True)
        trainer.train()
        log = metrics_log.rows()
        check_rows(log, len(trainer.rows))
        learned = check_learned(trainer.model, log, job.previous)
        publish_adapter(trainer.model, tokenizer, record, job.adapter)
        finish(checkpoints, record)
        for name in (TEACHER, REFERENCE, ROLLOUTS):
            remove(checkpoints / name)
    evaluation = last_evaluation(trainer, log)
    return summary(trainer, log) | {
        "method": settings.method,
        "eval_loss": evaluation.get("eval_loss"),
        **learned,
        **learner.figures(log, evaluation),
        "proven": proven,
        "inputs": record,
        "resumed_from": start.name if start else None,
        "monitoring": monitor.records(),
        "metrics_log": log,
    }


def _rows_sentence(counts: Mapping[str, int]) -> str:
    """Return how many of the rows of data/final stage preprocess made tokens of, by the manifest's counts."""
    read = counts.get("rows_read", counts["rows"])  # Manifests of earlier versions don't say it.
    left_out = read - counts["rows"]
    why = f": reports/labels.html says why {left_out:,} can't" if left_out else ""
    return f"{counts['rows']:,} of {plural(read, 'training row')} can be trained{why}"


def check_method(prepared_for: Method, method: Method) -> None:
    """Raise `DataError` if data/tokens is prepared for a method that learns from other kinds of rows."""
    if METHODS[prepared_for].rows != METHODS[method].rows:
        raise DataError(
            "Q-TRAIN-001",
            f"data/tokens was made for train.method {prepared_for}, which learns from other rows than "
            f"{method}: run `snakemake preprocess`",
        )


def publish_adapter(model: Any, tokenizer: Any, record: dict[str, Any], adapter: Path) -> None:
    """Publish the trained parameters with tokenizer, template, record. Their bytes depend only on the run."""

    def check(folder: Path) -> None:
        if not trained_file(folder).stat().st_size:
            raise DataError("Q-TRAIN-034", f"{folder} holds nothing that was trained")

    with publishing(adapter, check) as aside:
        tuner_on(model).save(model, aside)
        save_tokenizer(tokenizer, aside)
        write_json(aside / "run.json", record)


def main(params: Params, root: Path, options: Options) -> None:
    """Run the stage on the files below `root`, together with the other processes of `options.group`."""
    group = options.group
    job = Job.below(root, params.training, group)
    report = train(job, resume=options.resume, replay=options.replay)
    rows = report.pop("metrics_log")
    inputs = report.pop("inputs")
    hashes = {"tokens": inputs["tokens_sha256"], **inputs["base"], "adapter": tree_hash(job.adapter)}
    if job.previous:
        hashes["previous"] = inputs["previous_sha256"]
    report["run"] = run_record(root, argv=sys.argv, seeds={"train.seed": params.train.seed}, hashes=hashes)
    report["run"]["processes"] = group.count if group else 1
    write_curve(root / "reports/train.csv", curve(rows))
    write_rows(root / "reports/train.jsonl", rows)
    write_json(root / "reports/train.json", report)
    # A divergence is small from the start.
    shown = ".3g" if METHODS[params.train.method].teacher else ".2f"
    print(
        f"train: {report['steps']} steps, loss {report['loss_first']:{shown}} → "
        f"{report['loss_last']:{shown}}, {report['seconds']:.0f} s"
    )
    rewards = report.get("rewards")
    if rewards:
        print(
            f"train: mean reward {rewards['first']:.3f} in the first steps, {rewards['last']:.3f} in the "
            f"last; rollouts {rewards.get('gap', 0):.2g} nats a token from training"
        )

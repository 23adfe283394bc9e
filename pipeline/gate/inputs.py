"""Read and check the inputs of the report: other stages' reports. Errors name the stage to run again."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from pipeline.config.params import Params
from pipeline.config.products import product_of
from pipeline.config.sections.shipping import Acceptance
from pipeline.core.errors import DataError
from pipeline.core.jsonl import BadLine, parse_record, read_rows
from pipeline.core.locks import absent
from pipeline.core.metrics_log import MetricsLog
from pipeline.core.text import safe
from pipeline.gate.deciding_scorer import with_deciding_scorer
from pipeline.gate.evaluations import ANSWERS, Answer, Answers, Evaluation, Evaluations
from pipeline.gate.records import Base, Data, Labels, Merge, Parity, Shape, Strategies, Train
from pipeline.workflow.state.lockfile import in_force

SHOWN = 3  # faults named in one sentence
Record = TypeVar("Record", bound=Shape)


@dataclass(frozen=True)
class Inputs:
    """Reports of the other stages, `log` as rows of train.csv, `metrics_log` as those of train.jsonl.

    Evaluations and answers are by model. Without a merge there is no report of it: `merge` is None.
    `strategies` is None if the strategies to ship are not compared.
    """

    data: Data
    labels: Labels
    train: Train
    log: Sequence[Mapping[str, Any]]
    metrics_log: Sequence[Mapping[str, Any]]
    merge: Merge | None
    strategies: Strategies | None
    parity: Parity
    base: Base
    evaluations: Evaluations
    answers: Answers = field(default_factory=dict)
    # The measurement of this very base by `quench model nf4`, which is not a stage.
    # {job: a change of its settings or code that was declared to be without effect}
    accepted: Mapping[str, Acceptance] = field(default_factory=dict)

    @property
    def passes(self) -> float | None:
        """Passes over the training rows; None if no step says it."""
        rows = (row for row in reversed(self.metrics_log) if row["kind"] == "step")
        last = next(rows, None)
        epoch = last.get("epoch") if last else None
        return float(epoch) if isinstance(epoch, int | float) else None


def load_inputs(root: Path, params: Params) -> Inputs:
    """Return every input below `root`. Raises `DataError` with the file and the stage that makes it if one is
    missing or damaged.
    """
    models = params.evaluate.models
    merged = product_of(models).served is None
    compared = merged and bool(params.compare.seeds)
    read = partial(read_record, root)
    inputs = Inputs(
        data=read("reports/data.json", Data, "curate"),
        labels=read("reports/labels.json", Labels, "preprocess"),
        train=read("reports/train.json", Train, "train"),
        merge=read("reports/merge.json", Merge, "merge") if merged else None,
        strategies=read("reports/strategies.json", Strategies, "compare") if compared else None,
        parity=read("reports/parity.json", Parity, "parity"),
        base=read("models/base.json", Base, "base"),
        evaluations={model: read_evaluation(root, model) for model in models},
        log=read_curve(root),
        metrics_log=MetricsLog(root / "reports/train.jsonl").rows(),
    )
    scored = [model for model, evaluation in inputs.evaluations.items() if evaluation.task]
    answers = {model: read_answers(root, model) for model in scored}
    for model in scored:
        if [row.id for row in answers[model]] != [row.id for row in answers[scored[0]]]:
            raise DataError(
                "Q-GATE-002",
                f"reports/eval/{model}.answers.jsonl answers other rows than {scored[0]}.answers.jsonl: run "
                f"`python -m pipeline evaluate@{model}` again",
            )
    evaluations, decided_answers = with_deciding_scorer(inputs.evaluations, answers)
    return replace(
        inputs,
        evaluations=evaluations,
        answers=decided_answers,
        accepted=in_force(root, params),
    )


@contextmanager
def readable(path: Path, root: Path, stage: str) -> Iterator[None]:
    """Turn errors of the body into a `DataError` about `path` that names `stage`, which makes it. A missing
    file is reported as `absent` does.
    """
    remedy = f"run `python -m pipeline {stage}` again"
    try:
        yield
    except FileNotFoundError:
        raise absent(path, root, stage) from None
    except ValidationError as error:
        raise DataError("Q-GATE-001", f"{path}{faults(error)}: {remedy}") from None
    except (OSError, BadLine, UnicodeDecodeError, csv.Error) as error:
        raise DataError("Q-GATE-001", f"{path} can't be read ({error}): {remedy}") from error


def read_record(root: Path, file: str, shape: type[Record], stage: str) -> Record:
    """Return one JSON object of this shape, which `stage` makes. Raises what `readable` does."""
    with readable(root / file, root, stage):
        return shape.model_validate(parse_record((root / file).read_bytes()))


def faults(error: ValidationError) -> str:
    """Return the first faults, half a sentence: the row of a list, the missing keys, the fault of other
    keys.
    """
    listed = error.errors(include_url=False, include_input=False, include_context=False)
    row = next((place for place in listed[0]["loc"][:1] if isinstance(place, int)), None)
    start = 0 if row is None else 1
    faults = []
    for fault in listed:
        place = ".".join(map(str, fault["loc"][start:]))
        faults.append((safe(place, 80) or "it", fault))
    lacking = [place for place, fault in faults if fault["type"] == "missing"]
    wrong = [
        f"{place}: {fault['msg'][:1].lower()}{fault['msg'][1:]}"
        for place, fault in faults
        if fault["type"] != "missing"
    ]
    more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    parts = []
    if lacking:
        parts.append(f"lacks {', '.join(lacking)}")
    if wrong:
        parts.append(f"is damaged ({'; '.join(wrong[:SHOWN])}{more})")
    return f"{'' if row is None else f', row {row + 1}'} {' and '.join(parts)}"


def read_evaluation(root: Path, model: str) -> Evaluation:
    """Return the figures of `model`. Raises `DataError` if they are missing, damaged or of another model."""
    file = f"reports/eval/{model}.json"
    stage = f"evaluate@{model}"
    evaluation = read_record(root, file, Evaluation, stage)
    if evaluation.model != model:
        raise DataError(
            "Q-GATE-002",
            f"{root / file} holds the figures of {evaluation.model[:80]!a}: run `python -m pipeline "
            f"{stage}` again",
        )
    return evaluation


def read_answers(root: Path, model: str) -> list[Answer]:
    """Return one model's answers. Raises what `readable` does."""
    path = root / f"reports/eval/{model}.answers.jsonl"
    with readable(path, root, f"evaluate@{model}"):
        return ANSWERS.validate_python(list(read_rows(path)))


def read_curve(root: Path) -> list[dict[str, Any]]:
    """Return the rows of train.csv. Raises what `readable` does."""
    path = root / "reports/train.csv"
    with readable(path, root, "train"), path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))

"""What the report is made from: the other stages' reports, read and checked. Each error names the stage to
run again."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.config.budgets import is_budget
from pipeline.config.sections import served_of
from pipeline.core.errors import DataError
from pipeline.core.hashing import json_hash
from pipeline.core.jsonl import BadLine, parse_record, read_rows
from pipeline.core.locks import absent
from pipeline.core.metrics_log import MetricsLog
from pipeline.core.text import safe
from pipeline.gate import shapes, train_shapes

SHOWN = 3  # faults named in one sentence
# each input: the stage that makes it, and its shape
NEEDED: dict[str, tuple[str, type[shapes.Shape]]] = {
    "reports/data.json": ("curate", shapes.Data),
    "reports/labels.json": ("preprocess", shapes.Labels),
    "reports/train.json": ("train", train_shapes.Train),
    "reports/merge.json": ("merge", shapes.Merge),
    "reports/strategies.json": ("compare", shapes.Strategies),
    "reports/parity.json": ("parity", shapes.Parity),
    "models/base.json": ("base", shapes.Base),
}
ONLY_MERGED = ("merge", "compare")  # stages of the graph of merged models


@dataclass(frozen=True)
class Inputs:
    """What the other stages found: their reports as decoded JSON, `log` as rows of train.csv, `metrics_log`
    as those of train.jsonl.

    Evaluations and answers are by model. Without a merge there is no report of it, nor of the strategies to
    ship: `merge` and `strategies` are None.
    """

    data: Mapping[str, Any]
    labels: Mapping[str, Any]
    train: Mapping[str, Any]
    log: Sequence[Mapping[str, Any]]
    metrics_log: Sequence[Mapping[str, Any]]
    merge: Mapping[str, Any] | None
    strategies: Mapping[str, Any] | None
    parity: Mapping[str, Any]
    base: Mapping[str, Any]
    evaluations: Mapping[str, Mapping[str, Any]]
    answers: Mapping[str, Sequence[Mapping[str, Any]]]
    # what `quench model nf4`, which is not a stage, measured of this very base
    quantization_check: Mapping[str, Any] | None = None
    # how the types of each level made to measure were chosen
    budgets: Sequence[Mapping[str, Any]] = ()


def load_inputs(root: Path, models: Sequence[str]) -> Inputs:
    """Every input below `root`. Raises `DataError` with the file and the stage that makes it if one is
    missing or damaged."""
    merged = served_of(models) is None
    found = {
        Path(file).stem: read_record(root, file, shape, stage)
        for file, (stage, shape) in NEEDED.items()
        if merged or stage not in ONLY_MERGED
    }
    evaluations = {model: read_evaluation(root, model) for model in models}
    scored = [model for model, result in evaluations.items() if result.get("task")]
    answers = {model: read_answers(root, model) for model in scored}
    for model in scored:
        if [row["id"] for row in answers[model]] != [row["id"] for row in answers[scored[0]]]:
            raise DataError(
                "Q-GATE-002",
                f"reports/eval/{model}.answers.jsonl answers other rows than {scored[0]}.answers.jsonl: run "
                f"`python -m pipeline evaluate@{model}` again",
            )
    return Inputs(
        merge=found.pop("merge", None),
        strategies=found.pop("strategies", None),
        log=read_curve(root),
        metrics_log=MetricsLog(root / "reports/train.jsonl").rows(),
        evaluations=evaluations,
        answers=answers,
        budgets=[
            read_record(root, f"reports/budget/{model}.json", shapes.Budget, f"budget@{model}")
            for model in models
            if is_budget(model)
        ],
        quantization_check=read_quantization_check(
            root / "reports/quantization-check.json", found["base"]["files"]
        ),
        **found,
    )


@contextmanager
def readable(path: Path, root: Path, stage: str) -> Iterator[None]:
    """Raise what is wrong with `path` as `DataError` that names `stage`, which makes it, and what `absent`
    gives if it is missing."""
    remedy = f"run `python -m pipeline {stage}` again"
    try:
        yield
    except FileNotFoundError:
        raise absent(path, root, stage) from None
    except ValidationError as error:
        raise DataError("Q-GATE-001", f"{path}{faults(error)}: {remedy}") from None
    except (OSError, BadLine, UnicodeDecodeError, csv.Error) as error:
        raise DataError("Q-GATE-001", f"{path} can't be read ({error}): {remedy}") from error


def read_record(root: Path, file: str, shape: type[shapes.Shape], stage: str) -> dict[str, Any]:
    """One JSON object of this shape, which `stage` makes. Raises as `readable` does."""
    with readable(root / file, root, stage):
        value = parse_record((root / file).read_bytes())
        shape.model_validate(value)
    return value


def faults(error: ValidationError) -> str:
    """The first faults, half a sentence: the row of a list, which keys are missing, what is wrong with
    others."""
    listed = error.errors(include_url=False, include_input=False, include_context=False)
    row = next((place for place in listed[0]["loc"][:1] if isinstance(place, int)), None)
    start = 0 if row is None else 1
    found = [(safe(".".join(map(str, one["loc"][start:])), 80) or "it", one) for one in listed]
    lacking = [place for place, one in found if one["type"] == "missing"]
    wrong = [
        f"{place}: {one['msg'][:1].lower()}{one['msg'][1:]}"
        for place, one in found
        if one["type"] != "missing"
    ]
    more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    parts = [f"lacks {', '.join(lacking)}"] * bool(lacking) + [
        f"is damaged ({'; '.join(wrong[:SHOWN])}{more})"
    ] * bool(wrong)
    return f"{'' if row is None else f', row {row + 1}'} {' and '.join(parts)}"


def read_evaluation(root: Path, model: str) -> dict[str, Any]:
    """The figures of `model`. Raises `DataError` if they are missing, damaged or of another model."""
    file, stage = f"reports/eval/{model}.json", f"evaluate@{model}"
    found = read_record(root, file, shapes.Evaluation, stage)
    if found["model"] != model:
        raise DataError(
            "Q-GATE-002",
            f"{root / file} holds the figures of {str(found['model'])[:80]!a}: run `python -m pipeline "
            f"{stage}` again",
        )
    return found


def read_answers(root: Path, model: str) -> list[dict[str, Any]]:
    """One model's answers. Raises as `readable` does."""
    path = root / f"reports/eval/{model}.answers.jsonl"
    with readable(path, root, f"evaluate@{model}"):
        rows = list(read_rows(path))
        shapes.ANSWERS.validate_python(rows)
    return rows


def read_curve(root: Path) -> list[dict[str, Any]]:
    """The rows of train.csv. Raises as `readable` does."""
    path = root / "reports/train.csv"
    with readable(path, root, "train"), path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_quantization_check(path: Path, base_files: Mapping[str, str]) -> dict[str, Any] | None:
    """What `quench model nf4` measured, if it is there and of the base's weights; None for another
    base's.
    """
    if not path.is_file():
        return None
    try:
        found = parse_record(path.read_bytes())
        for line in found["lines"].values():
            itemgetter("title", "what", "figure", "limit", "verdict", "detail")(line)
    except (OSError, BadLine, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            "Q-GATE-003",
            f"{path} is not what `quench model nf4` wrote: run that again, or delete the file",
        ) from error
    weights = {name: digest for name, digest in base_files.items() if name.endswith(".safetensors")}
    return dict(found) if found.get("base_weights_sha256") == json_hash(weights) else None

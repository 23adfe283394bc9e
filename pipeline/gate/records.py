"""What the report is made from: the other stages' reports, read and checked. Each problem names the stage that mends it."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.config.sections import ADAPTED
from pipeline.core.errors import DataError
from pipeline.core.hashing import json_hash
from pipeline.core.jsonl import BadLine, parse_record, read_rows
from pipeline.core.locks import absent
from pipeline.core.metrics_log import Journal
from pipeline.gate import shapes as records
from pipeline.gate.shapes import read_record

# each input: the stage that makes it, and its shape
NEEDED: dict[str, tuple[str, type[records.Shape]]] = {
    "reports/data.json": ("curate", records.Data),
    "reports/labels.json": ("preprocess", records.Labels),
    "reports/train.json": ("train", records.Train),
    "reports/merge.json": ("merge", records.Merge),
    "reports/ways.json": ("compare", records.Ways),
    "reports/parity.json": ("parity", records.Parity),
    "models/base.json": ("base", records.Base),
}
ONLY_MERGED = ("merge", "compare")  # stages of the graph of merged models


@dataclass(frozen=True)
class Inputs:
    """What the other stages found: their reports as decoded JSON, `log` as rows of train.csv, `journal` as those of train.jsonl.

    Evaluations and answers are by model. Where nothing is merged there is no report of it, nor of the ways to ship: `merge` and `ways` are None.
    """

    data: Mapping[str, Any]
    labels: Mapping[str, Any]
    train: Mapping[str, Any]
    log: Sequence[Mapping[str, Any]]
    journal: Sequence[Mapping[str, Any]]
    merge: Mapping[str, Any] | None
    ways: Mapping[str, Any] | None
    parity: Mapping[str, Any]
    base: Mapping[str, Any]
    evaluations: Mapping[str, Mapping[str, Any]]
    answers: Mapping[str, Sequence[Mapping[str, Any]]]
    fidelity: Mapping[str, Any] | None = None  # what `quench fidelity`, which is no stage, said of this very base


def load_inputs(root: Path, models: Sequence[str]) -> Inputs:
    """Every input below `root`. Raises `DataError` with the file and the stage that makes it where one is missing or not whole."""
    needed = {file: what for file, what in NEEDED.items() if what[0] not in ONLY_MERGED or ADAPTED not in models}
    found = {Path(file).stem: read_record(root, file, shape, stage) for file, (stage, shape) in needed.items()}
    rows = read_curve(root)
    evaluations = {model: read_evaluation(root, model) for model in models}
    scored = [model for model, result in evaluations.items() if result.get("task")]
    answers = {model: read_answers(root, f"reports/eval/{model}.answers.jsonl", f"evaluate@{model}") for model in scored}
    for model in scored:
        if [row["id"] for row in answers[model]] != [row["id"] for row in answers[scored[0]]]:
            remedy = f"run `python -m pipeline evaluate@{model}` again"
            raise DataError(f"reports/eval/{model}.answers.jsonl answers other rows than {scored[0]}.answers.jsonl: {remedy}")
    journal = Journal(root / "reports" / "train.jsonl").rows()  # runs of older versions have none: what it holds is then not measured
    fidelity = read_fidelity(root / "reports" / "fidelity.json", found["base"]["files"])
    return Inputs(data=found["data"], labels=found["labels"], train=found["train"], log=rows, journal=journal, merge=found.get("merge"),
                  ways=found.get("ways"), parity=found["parity"], base=found["base"], evaluations=evaluations, answers=answers,
                  fidelity=fidelity)  # fmt: skip


def read_evaluation(root: Path, model: str) -> dict[str, Any]:
    """The figures of `model`. Raises `DataError` if they are not there, not whole or of another model."""
    file, stage = f"reports/eval/{model}.json", f"evaluate@{model}"
    found = read_record(root, file, records.Evaluation, stage)
    if found.get("model", model) != model:
        raise DataError(f"{root / file} holds the figures of {str(found['model'])[:80]!a}: run `python -m pipeline {stage}` again")
    return found


def read_answers(root: Path, file: str, stage: str) -> list[dict[str, Any]]:
    """One model's answers. Raises `DataError` that names `stage`, which makes them, and what `absent` gives if they are not there."""
    path = root / file
    if not path.is_file():
        raise absent(path, root, stage)
    rows = list(read_rows(path))
    try:
        records.ANSWERS.validate_python(rows)
    except ValidationError as error:
        number = int(error.errors()[0]["loc"][0]) + 1
        raise DataError(f"{path}, row {number} {records.faults(error, skip=1)}: run `python -m pipeline {stage}` again") from None
    return rows


def read_curve(root: Path) -> list[dict[str, Any]]:
    """The rows of train.csv. Raises `DataError`."""
    path = root / "reports" / "train.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        raise absent(path, root, "train") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} can't be read ({error}): run `python -m pipeline train` again") from error


def read_fidelity(path: Path, base_files: Mapping[str, str]) -> dict[str, Any] | None:
    """What `quench fidelity` measured, if it is there and of the base's weights; None for another base's, or an older version's."""
    if not path.is_file():
        return None
    try:
        found = parse_record(path.read_bytes())
        lines = found["lines"].values()
        whole = all({"title", "what", "figure", "limit", "verdict", "detail"} <= line.keys() for line in lines)
    except (OSError, BadLine, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise DataError(f"{path} is not what `quench fidelity` wrote: run that again, or delete the file")
    weights = {name: digest for name, digest in base_files.items() if name.endswith(".safetensors")}
    return dict(found) if found.get("base_weights_sha256") == json_hash(weights) else None

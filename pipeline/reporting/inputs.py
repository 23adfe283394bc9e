"""What the report is made from: the other stages' reports, read and checked. Each problem names the stage that mends it."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import DataError
from pipeline.hashing import json_hash
from pipeline.jsonl import read_rows
from pipeline.sections import ADAPTED
from pipeline.watching.journal import Journal
from pipeline.workflow.locks import absent

# each input: the stage that makes it, and what the report can't do without
NEEDED = {
    "reports/data.json": ("curate", ("rows_read", "rows_kept", "rejected", "splits")),
    "reports/labels.json": ("preprocess", ("splits",)),
    "reports/train.json": ("train", ("steps", "loss_first", "loss_last")),
    "reports/merge.json": ("merge", ("onto", "reason", "dtype", "tensors", "adapted")),
    "reports/ways.json": ("compare", ("seeds",)),
    "reports/parity.json": ("parity", ("verdict", "seams")),
    "models/base.json": ("base", ("source", "model", "architecture", "files")),
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
    found = {Path(file).stem: read_report(root, file, stage, keys) for file, (stage, keys) in needed.items()}
    log = root / "reports" / "train.csv"
    if not log.is_file():
        raise absent(log, root, "train")
    with log.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    evaluations = {model: read_report(root, f"reports/eval/{model}.json", f"evaluate@{model}", ("bytes", "task")) for model in models}
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


def read_report(root: Path, file: str, stage: str, keys: Sequence[str]) -> dict[str, Any]:
    """One JSON object that has `keys`. Raises `DataError` that names `stage`, which makes it; `MachineError` if that is at it."""
    path = root / file
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise absent(path, root, stage) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} can't be read ({error}): run `python -m pipeline {stage}` again") from error
    lacking = [key for key in keys if key not in value] if isinstance(value, dict) else list(keys)
    if lacking:
        raise DataError(f"{path} lacks {', '.join(lacking)}: run `python -m pipeline {stage}` again")
    return dict(value)


def read_fidelity(path: Path, base_files: Mapping[str, str]) -> dict[str, Any] | None:
    """What `quench fidelity` measured, if it is there and of the base's weights; None for another base's, or an older version's."""
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        lines = found["lines"].values()
        whole = all({"title", "what", "figure", "limit", "verdict", "detail"} <= line.keys() for line in lines)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise DataError(f"{path} is not what `quench fidelity` wrote: run that again, or delete the file")
    weights = {name: digest for name, digest in base_files.items() if name.endswith(".safetensors")}
    return dict(found) if found.get("base_weights_sha256") == json_hash(weights) else None


def read_answers(root: Path, file: str, stage: str) -> list[dict[str, Any]]:
    """One model's answers. Raises what `absent` gives if they are not there."""
    if not (root / file).is_file():
        raise absent(root / file, root, stage)
    return list(read_rows(root / file))

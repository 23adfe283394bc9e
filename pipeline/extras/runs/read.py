"""Read a run, a commit or branch of this project or a project's folder: settings, data, scores, answers.

The files of a commit come through DVC, from its cache or its remote. Nothing is checked out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from pipeline.commands.data.versions import Version, revision
from pipeline.config.params import with_defaults
from pipeline.core.changed_values import flat
from pipeline.core.errors import DataError
from pipeline.core.jsonl import BadLine, parse_record
from pipeline.gate.deciding_scorer import with_deciding_scorer
from pipeline.gate.evaluations import ANSWERS, Answers, Evaluation, Evaluations
from pipeline.gate.inputs import faults
from pipeline.workflow.keys.code_keys import LOCK

EVALUATIONS = "reports/eval"
OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
EVALUATION = TypeAdapter(Evaluation)
Value = TypeVar("Value")


@dataclass(frozen=True)
class Run:
    """What a run leaves behind. `lacks` has a sentence for each file that could not be read."""

    version: Version
    settings: Mapping[str, Any]  # by key: {"train.r": 16}
    data: Mapping[str, Any]  # reports/data.json
    figures: Mapping[str, Any]  # reports/metrics.json by key: {"score.Q4_K_M": 97.9}
    evaluations: Evaluations
    answers: Answers
    lacks: list[str]

    @property
    def name(self) -> str:
        """The user's name for it."""
        return self.version.name


def read_run(root: Path, name: str) -> Run:
    """Return the run that `name` is: a project's folder, seen from `root`, otherwise a commit or branch of
    the project `root`.

    Raises `ConfigError` if it is neither, `DataError` if it has no settings or no evaluation.
    """
    folder = root / name
    version = _folder(folder, name) if (folder / "reports").is_dir() else revision(root, name, EVALUATIONS)
    settings = _settings(version)
    models = _mapping(settings.get("evaluate")).get("models", [])
    lacks: list[str] = []
    evaluations: dict[str, Evaluation] = {}
    answers: dict[str, Any] = {}
    for model in models:
        try:
            evaluation = _checked(version, f"{EVALUATIONS}/{model}.json", EVALUATION)
            rows = _checked(version, f"{EVALUATIONS}/{model}.answers.jsonl", ANSWERS)
        except DataError as error:
            lacks.append(str(error))
            continue
        evaluations[model] = evaluation
        answers[model] = rows
    if not evaluations:
        raise DataError(
            "Q-RUNS-001", f"{name} has no evaluation of a model ({lacks[0] if lacks else 'none asked'})"
        )
    optional: dict[str, dict[str, Any]] = {}
    for path in ("reports/data.json", "reports/metrics.json"):
        try:
            optional[path] = _checked(version, path, OBJECT)
        except DataError as error:
            optional[path] = {}
            lacks.append(str(error))
    return Run(
        version,
        flat(settings),
        optional["reports/data.json"],
        flat(optional["reports/metrics.json"]),
        *with_deciding_scorer(evaluations, answers),
        lacks,
    )


def _folder(folder: Path, name: str) -> Version:
    """Return the version that is in a project's folder now."""

    def opened(path: str) -> BinaryIO:
        try:
            return (folder / path).open("rb")
        except OSError as error:
            raise DataError(
                "Q-CORE-001",
                f"{folder / path} can't be read ({error.strerror}): finish that run with `snakemake`",
            ) from None

    return Version("the folder" if name == "." else name, opened)


def _settings(version: Version) -> dict[str, Any]:
    """Return all settings in effect, sections of keys."""
    path = LOCK
    try:
        content = _content(version, path)
    except DataError:  # A folder in which nothing ran with this version of Quench has only the user's file.
        path = "params.yaml"
        content = _content(version, path)
    try:
        values = _mapping(yaml.safe_load(content))
    except yaml.YAMLError as error:
        raise DataError("Q-RUNS-002", f"{path} of {version.name} is not YAML: {_again(version)}") from error
    return values if path == LOCK else with_defaults(values)


def _content(version: Version, path: str) -> bytes:
    with version.open(path) as file:
        return file.read()


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _checked(version: Version, path: str, shape: TypeAdapter[Value]) -> Value:
    """Return one record, or a list of the records of a JSONL, of this shape. Raises `DataError`."""
    content = _content(version, path)
    try:
        if path.endswith(".jsonl"):
            return shape.validate_python([parse_record(line) for line in content.split(b"\n") if line])
        return shape.validate_python(parse_record(content))
    except ValidationError as error:
        raise DataError("Q-RUNS-002", f"{path} of {version.name}{faults(error)}: {_again(version)}") from None
    except (BadLine, UnicodeDecodeError) as error:
        raise DataError(
            "Q-RUNS-002", f"{path} of {version.name} can't be read ({error}): {_again(version)}"
        ) from None


def _again(version: Version) -> str:
    return f"run the stage that makes it again, or compare another run than {version.name}"

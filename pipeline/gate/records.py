"""What the report is made from: the other stages' reports by shape, read and checked. Each error names the
stage to run again.

A shape has the keys that something relies on, and their kinds. Further keys pass, since records grow, and are
attributes too, which the pages' templates read. A value that its stage does not write is refused.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from pipeline.config.budgets import is_budget
from pipeline.config.methods import Method
from pipeline.config.products import product_of
from pipeline.core.checks import Verdict
from pipeline.core.errors import DataError
from pipeline.core.hashing import json_hash
from pipeline.core.jsonl import BadLine, parse_record, read_rows
from pipeline.core.locks import absent
from pipeline.core.metrics_log import MetricsLog
from pipeline.core.text import safe

LARGEST = 10**18  # of any figure: what is above was never measured
SHOWN = 3  # faults named in one sentence


def _as_written(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """A number as it stands in the file, so that a bundle's evidence has its bytes: 1 stays 1, not 1.0."""
    check(value)
    return value


Count = Annotated[int, Field(ge=0, le=LARGEST)]
Size = Annotated[int, Field(gt=0, le=LARGEST)]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST), WrapValidator(_as_written)]
Share = Annotated[float, Field(ge=0, le=1), WrapValidator(_as_written)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(min_length=1)]
FileName = Annotated[str, Field(pattern=r"^[^/\\\x00]+$")]


class Shape(BaseModel):
    """Strict about the keys that it names, silent about others."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, hide_input_in_errors=True)

    def written(self) -> dict[str, Any]:
        """The record as it was read: no key more, and none less."""
        return self.model_dump(exclude_unset=True)


class Data(Shape):
    """reports/data.json."""

    rows_read: Count
    rows_kept: Count
    rejected: dict[str, Count]
    splits: dict[str, Count]


class Labels(Shape):
    """reports/labels.json."""

    splits: dict[str, dict[str, Any]]


class TrainRun(Shape):
    """Machine, versions and hashes of a run."""

    versions: dict[str, str | None] = {}
    hashes: dict[str, str] = {}


class TrainPreferences(Shape):
    """How held-out pairs or answers were told apart."""

    items: Count
    accuracy: Share
    low: Share
    high: Share


class TrainRewards(Shape):
    """What drawn answers earned: means of the first and of the last steps."""

    first: Number
    last: Number


class Train(Shape):
    """reports/train.json."""

    method: Method = "sft"
    preferences: TrainPreferences | None = None
    rewards: TrainRewards | None = None
    steps: Count
    loss_first: Number | None
    loss_last: Number | None
    eval_loss: Number | None = None
    run: TrainRun | None = None


class MergedTensor(Shape):
    """How far an adapter moved one tensor; DoRA's have no spectral norm."""

    tensor: str
    layer: int | None = None
    module: str
    relative_change: Number | None
    nf4_error_to_update: Number | None = None
    spectral_update: Number | None
    rms_weight: Number
    rows: Count
    columns: Count


class Merge(Shape):
    """reports/merge.json; PEFT's own merge tells nothing of its adapters."""

    merge_base: str
    reason: str
    dtype: str
    tensors: Count
    adapted: Count
    adapters: list[MergedTensor] = []
    candidates: dict[str, dict[str, dict[str, Any]]] = {}
    deciding_level: str | None = None
    warnings: list[str] = []


class Strategies(Shape):
    """reports/strategies.json."""

    seeds: list[Any]


class BudgetRival(Shape):
    """The fixed level that a budget's types were held against; differences are theirs less its, in nats."""

    level: str
    bytes: Count
    kld: Number
    difference: Number
    low: Number
    high: Number
    p_value: Number


class Budget(Shape):
    """reports/budget/BUDGET.json."""

    budget: str
    chosen: Literal["own", "level"]
    most_bytes: Count
    kld: Number
    rival: BudgetRival | None
    types: dict[str, str]
    rows: Count


class ParityCheck(Shape):
    """One parity check of parity's report."""

    title: str
    verdict: Verdict
    figure: Number | None
    limit: Number | None
    unit: str
    detail: str
    figures: dict[str, Number] = {}
    place: str | None = None


class Parity(Shape):
    """reports/parity.json; `files` are sha256 by name."""

    verdict: Literal["pass", "fail"]
    checks: Annotated[dict[str, ParityCheck], Field(min_length=1)]
    files: dict[str, Sha256]


class Architecture(Shape):
    """What the base is."""

    model_type: Name
    architectures: list[Name] | None = None


class Tied(Shape):
    """The two copies of one matrix that a GGUF held for head and embeddings."""

    kept: Name
    kept_type: Name
    dropped: Name
    dropped_type: Name
    farthest_row: Share


class Base(Shape):
    """models/base.json."""

    source: Literal["hub", "path", "gguf", "package"]
    model: Name
    architecture: Architecture
    files: Annotated[dict[FileName, Sha256], Field(min_length=1)]
    revision: str | None
    license: str | None
    eos_token: str | None
    tied: Tied | None = None


class Scored(Shape):
    """A score from 0 to 1 with its 95 % interval; None: nothing could be scored."""

    score: Share | None = None
    score_low: Share | None = None
    score_high: Share | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the interval; where there is none, the score itself."""
        score = self.score or 0.0
        low, high = self.score_low, self.score_high
        return score if low is None else low, score if high is None else high


class TaskScore(Scored):
    """One scorer's figures; `measured` are the rows that have a score."""

    measured: Count | None = None


class Task(Scored):
    """The task's figures."""

    rows: Count
    scorer: str
    score: Share | None
    score_low: Share | None
    score_high: Share | None
    stopped: Share | None
    refused: Share | None = None
    scores: dict[str, TaskScore] | None = None
    unscored: dict[str, str] | None = None
    domains: dict[str, dict[str, Any]] | None = None

    @model_validator(mode="after")
    def _has_interval(self) -> "Task":
        if self.score is not None and (self.score_low is None or self.score_high is None):
            raise ValueError("a score without its interval")
        return self

    @property
    def measured(self) -> int | None:
        """How many rows have a score; None where that was not noted."""
        own = (self.scores or {}).get(self.scorer)
        return None if own is None else own.measured

    @property
    def scored_rows(self) -> int:
        """How many rows have a score; all where that was not noted."""
        return self.rows if self.measured is None else self.measured


class General(Scored):
    """General ability: 1 or 0 for each question."""

    file: str
    sha256: str | None = None
    rows: Count | None = None
    right: Annotated[list[Share], Field(min_length=1)]
    subjects: dict[str, Any] | None = None


class Lora(Shape):
    """An adapter's GGUF."""

    file: FileName
    sha256: Sha256
    bytes: Count


class DivergenceFigures(Shape):
    """How far a model is from its reference."""

    kld_mean: Number | None = None
    same_top: Number | None = None


class RowSums(Shape):
    """The same row by row."""

    tokens: list[Count]
    kld: list[Number]
    same: list[Count]

    @model_validator(mode="after")
    def _have_one_length(self) -> "RowSums":
        if not len(self.tokens) == len(self.kld) == len(self.same):
            raise ValueError("lists of different lengths")
        return self


class Serving(Shape):
    """What serving took, and at which settings."""

    ctx_size: Count | None = None
    parallel: Count | None = None
    n_gpu_layers: int | None = None
    peak_memory_bytes: Count | None = None
    gpu_memory_bytes: Count | None = None


class SpeedAt(Shape):
    """Tokens per second for a prompt of `tokens`, or behind `depth` tokens."""

    tokens: Count | None = None
    depth: Count | None = None
    median: Number


class Speed(Shape):
    """What was measured by llama-server's own timings; `disturbed`: something else kept the machine busy."""

    prompt: list[SpeedAt] = []
    generation: list[SpeedAt] = []
    other_load: Number | None = None
    disturbed: bool | None = None


class Evaluation(Shape):
    """reports/eval/MODEL.json; not every model is measured by what has a default."""

    bytes: Size
    task: Task | None
    file: FileName
    sha256: Sha256
    reference: str
    tensors: Count
    fallback_tensors: Count
    bits_per_weight: Number
    perplexity: Number | None
    perplexity_error: Number | None = None
    kld_mean: Number | None
    kld_p999: Number | None = None
    same_top: Number | None
    rms_dp: Number | None = None
    all_tokens: DivergenceFigures
    by_row: dict[str, RowSums] | None = None
    ctx_size: Size
    kv_cache_bytes: Count | None = None
    serving: Serving | None = None
    speed: Speed | None = None
    prompt_tok_s: Number | None = None
    prompt_tok_s_spread: Number | None = None
    generation_tok_s: Number | None = None
    generation_tok_s_spread: Number | None = None
    general: General | None = None
    harness: dict[str, dict[str, Any]] | None = None
    lora: Lora | None = None
    model: str
    answers_sha256: Sha256 | None = None
    rows_sha256: Sha256 | None = None
    tensor_types: dict[str, Count] | None = None
    parameters: Count | None = None
    llama_cpp: str | None = None

    @property
    def score(self) -> float | None:
        """The task score from 0 to 1, None if none was measured."""
        return self.task.score if self.task else None

    @property
    def is_disturbed(self) -> bool:
        """Whether the speeds are no figures of the model, since something else kept the machine busy."""
        return bool(self.speed and self.speed.disturbed)


class Answer(Shape):
    """A row of reports/eval/MODEL.answers.jsonl."""

    id: Name
    domain: Any = None
    prompt: Any = None
    reference: Any = None
    answer: Any = None
    score: Share | None
    stopped: Any = None
    refused: Any = None


ANSWERS = TypeAdapter(list[Answer])
Evaluations = Mapping[str, Evaluation]  # by model
Answers = Mapping[str, Sequence[Answer]]
Record = TypeVar("Record", bound=Shape)


@dataclass(frozen=True)
class Inputs:
    """What the other stages found: their reports, `log` as rows of train.csv, `metrics_log` as those of
    train.jsonl.

    Evaluations and answers are by model. Without a merge there is no report of it, nor of the strategies to
    ship: `merge` and `strategies` are None.
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
    # what `quench model nf4`, which is not a stage, measured of this very base
    quantization_check: Mapping[str, Any] | None = None
    # how the types of each level made to measure were chosen
    budgets: Sequence[Budget] = ()


def load_inputs(root: Path, models: Sequence[str]) -> Inputs:
    """Every input below `root`. Raises `DataError` with the file and the stage that makes it if one is
    missing or damaged."""
    merged, read = product_of(models).served is None, partial(read_record, root)
    inputs = Inputs(
        data=read("reports/data.json", Data, "curate"),
        labels=read("reports/labels.json", Labels, "preprocess"),
        train=read("reports/train.json", Train, "train"),
        merge=read("reports/merge.json", Merge, "merge") if merged else None,
        strategies=read("reports/strategies.json", Strategies, "compare") if merged else None,
        parity=read("reports/parity.json", Parity, "parity"),
        base=read("models/base.json", Base, "base"),
        evaluations={model: read_evaluation(root, model) for model in models},
        log=read_curve(root),
        metrics_log=MetricsLog(root / "reports/train.jsonl").rows(),
        budgets=[
            read(f"reports/budget/{model}.json", Budget, f"budget@{model}")
            for model in models
            if is_budget(model)
        ],
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
    check = read_quantization_check(root / "reports/quantization-check.json", inputs.base.files)
    return replace(inputs, answers=answers, quantization_check=check)


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


def read_record(root: Path, file: str, shape: type[Record], stage: str) -> Record:
    """One JSON object of this shape, which `stage` makes. Raises as `readable` does."""
    with readable(root / file, root, stage):
        return shape.model_validate(parse_record((root / file).read_bytes()))


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


def read_evaluation(root: Path, model: str) -> Evaluation:
    """The figures of `model`. Raises `DataError` if they are missing, damaged or of another model."""
    file, stage = f"reports/eval/{model}.json", f"evaluate@{model}"
    evaluation = read_record(root, file, Evaluation, stage)
    if evaluation.model != model:
        raise DataError(
            "Q-GATE-002",
            f"{root / file} holds the figures of {evaluation.model[:80]!a}: run `python -m pipeline "
            f"{stage}` again",
        )
    return evaluation


def read_answers(root: Path, model: str) -> list[Answer]:
    """One model's answers. Raises as `readable` does."""
    path = root / f"reports/eval/{model}.answers.jsonl"
    with readable(path, root, f"evaluate@{model}"):
        return ANSWERS.validate_python(list(read_rows(path)))


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

"""The records that report, card, gate and bundle are made from, by shape: the keys that something relies on
and their kinds.

Further keys pass, since records grow. `pipeline.gate.records` reads them, and refuses a value that its stage
does not write.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from pipeline.core.checks import Verdict

LARGEST = 10**18  # of any figure: what is above was never measured

Count = Annotated[int, Field(ge=0, le=LARGEST)]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(min_length=1)]
FileName = Annotated[str, Field(pattern=r"^[^/\\\x00]+$")]


class Shape(BaseModel):
    """Strict about the keys that it names, silent about others."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class Data(Shape):
    """reports/data.json."""

    rows_read: Count
    rows_kept: Count
    rejected: dict[str, Count]
    splits: dict[str, Count]


class Labels(Shape):
    """reports/labels.json."""

    splits: dict[str, dict[str, Any]]


class Merge(Shape):
    """reports/merge.json."""

    merge_base: str
    reason: str
    dtype: str
    tensors: Count
    adapted: Count


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


class TaskScore(Shape):
    """One scorer's figures."""

    measured: Count = 0


class Task(Shape):
    """The task's figures."""

    rows: Count
    scorer: str
    score: Share | None
    score_low: Share | None
    score_high: Share | None
    stopped: Share | None
    scores: dict[str, TaskScore] | None = None

    @model_validator(mode="after")
    def _has_interval(self) -> "Task":
        if self.score is not None and (self.score_low is None or self.score_high is None):
            raise ValueError("a score without its interval")
        return self


class General(Shape):
    """General ability: 1 or 0 for each question."""

    file: str
    sha256: str | None = None
    right: Annotated[list[Share], Field(min_length=1)]


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


class Evaluation(Shape):
    """reports/eval/MODEL.json; not every model is measured by what has a default."""

    bytes: Annotated[int, Field(gt=0, le=LARGEST)]
    task: Task | None
    file: FileName
    sha256: Sha256
    reference: str
    tensors: Count
    fallback_tensors: Count
    bits_per_weight: Number
    perplexity: Number | None
    kld_mean: Number | None
    same_top: Number | None
    all_tokens: DivergenceFigures
    by_row: dict[str, RowSums] | None = None
    ctx_size: Annotated[int, Field(gt=0, le=LARGEST)]
    kv_cache_bytes: Count | None = None
    serving: Serving | None = None
    general: General | None = None
    lora: Lora | None = None
    model: str
    answers_sha256: Sha256 | None = None
    rows_sha256: Sha256 | None = None
    llama_cpp: str = ""


class Answer(Shape):
    """A row of reports/eval/MODEL.answers.jsonl."""

    id: Name
    score: Share | None


ANSWERS = TypeAdapter(list[Answer])

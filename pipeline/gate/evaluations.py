"""Records that stage evaluate writes for each model: the task's score, general ability, divergence, speed and
memory, and the answers.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, model_validator

from pipeline.core.text import one_line
from pipeline.gate.records import Count, FileName, Name, Number, Sha256, Shape, Share, Size

SHOWN = 40  # characters of an answer that a sentence quotes


class Scored(Shape):
    """Score from 0 to 1 with its 95 % interval; None if nothing could be scored."""

    score: Share | None = None
    score_low: Share | None = None
    score_high: Share | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the interval; without an interval the score itself."""
        score = self.score or 0.0
        low = score if self.score_low is None else self.score_low
        high = score if self.score_high is None else self.score_high
        return low, high


class TaskScore(Scored):
    """Figures of one scorer; `measured` is the number of rows with a score."""

    measured: Count | None = None
    valid: Share | None = None


class Commonest(Shape):
    """Commonest expected answer: how many held-out rows expect it, how many `distinct` ones there are, and
    the points of always giving it, by scorer and row.
    """

    answer: str
    rows: Count
    distinct: Count
    points: dict[str, list[Share | None]]

    @property
    def quoted(self) -> str:
        """The answer in quotation marks, as a sentence has it."""
        return quoted(self.answer)

    @property
    def words(self) -> str:
        """Name of a model that always gives it: always saying “technical”."""
        return f"always saying {self.quoted}"

    def score(self, scorer: str) -> float | None:
        """Return the mean points of all rows, from 0 to 1; None if `scorer` was not asked or scored none."""
        measured = [points for points in self.points.get(scorer, ()) if points is not None]
        return fmean(measured) if measured else None


class Task(Scored):
    """Figures of the task by the scorer that decides. `passed_over` are scorers before it that gave every
    answer of every model the same points (see `pipeline.gate.deciding_scorer`).
    """

    rows: Count
    scorer: str
    passed_over: list[str] = Field(default_factory=list)
    score: Share | None
    score_low: Share | None
    score_high: Share | None
    stopped: Share | None
    refused: Share | None = None
    scores: dict[str, TaskScore] | None = None
    unscored: dict[str, str] | None = None
    calls: dict[str, Count] | None = None
    domains: dict[str, dict[str, Any]] | None = None
    # None if the expected answers are hardly repeated.
    commonest: Commonest | None = None

    @model_validator(mode="after")
    def _has_interval(self) -> "Task":
        if self.score is not None and (self.score_low is None or self.score_high is None):
            raise ValueError("a score without its interval")
        return self

    @property
    def measured(self) -> int | None:
        """Number of rows with a score; None if it was not recorded."""
        score = (self.scores or {}).get(self.scorer)
        return None if score is None else score.measured

    @property
    def scored_rows(self) -> int:
        """Number of rows with a score; all rows if it was not recorded."""
        return self.rows if self.measured is None else self.measured

    @property
    def line(self) -> float | None:
        """Score of always giving the commonest answer, by the scorer that decides; None if there is none."""
        return self.commonest.score(self.scorer) if self.commonest else None


class TaskWithExamples(Task):
    """Figures of the task when `examples` training chats stand before each question."""

    examples: Count


class General(Scored):
    """General ability: 1 or 0 for each question."""

    file: str
    sha256: str | None = None
    rows: Count | None = None
    right: Annotated[list[Share], Field(min_length=1)]
    subjects: dict[str, Any] | None = None


class Lora(Shape):
    """GGUF of an adapter."""

    file: FileName
    sha256: Sha256
    bytes: Count


class DivergenceFigures(Shape):
    """Distance of a model from its reference."""

    kld_mean: Number | None = None
    same_top: Number | None = None


class RowSums(Shape):
    """Distance of a model from its reference, row by row."""

    tokens: list[Count]
    kld: list[Number]
    same: list[Count]

    @model_validator(mode="after")
    def _have_one_length(self) -> "RowSums":
        if not len(self.tokens) == len(self.kld) == len(self.same):
            raise ValueError("lists of different lengths")
        return self


class Serving(Shape):
    """Memory of serving, and the settings that it was measured at."""

    ctx_size: Count | None = None
    parallel: Count | None = None
    n_gpu_layers: int | None = None
    peak_memory_bytes: Count | None = None
    gpu_memory_bytes: Count | None = None


class SpeedAt(Shape):
    """Tokens per second for a prompt of `tokens`, or after `depth` tokens: median, lowest and highest run."""

    tokens: Count | None = None
    depth: Count | None = None
    median: Number
    low: Number | None = None
    high: Number | None = None


class Speed(Shape):
    """Speeds by llama-server's own timings; `disturbed` is set if something else kept the machine busy."""

    prompt: list[SpeedAt] = Field(default_factory=list)
    generation: list[SpeedAt] = Field(default_factory=list)
    other_load: Number | None = None
    disturbed: bool | None = None


class Evaluation(Shape):
    """reports/eval/MODEL.json. Fields with a default are not measured for every model."""

    bytes: Size
    task: Task | None
    task_with_examples: TaskWithExamples | None = None
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
    # {"task", "general" or "harness": reason why it was requested and not measured}
    not_measured: dict[str, str] = Field(default_factory=dict)
    lora: Lora | None = None
    model: str
    answers_sha256: Sha256 | None = None
    rows_sha256: Sha256 | None = None
    tensor_types: dict[str, Count] | None = None
    parameters: Count | None = None
    llama_cpp: str | None = None

    @property
    def score(self) -> float | None:
        """Task score from 0 to 1, None if none was measured."""
        return self.task.score if self.task else None

    @property
    def is_disturbed(self) -> bool:
        """True if something else kept the machine busy, so that the speeds tell nothing about the model."""
        return bool(self.speed and self.speed.disturbed)


class Answer(Shape):
    """Row of reports/eval/MODEL.answers.jsonl."""

    id: Name
    domain: Any = None
    prompt: Any = None
    reference: Any = None
    other_references: Any = None
    answer: Any = None
    score: Share | None
    scores: dict[str, Share | None] = Field(default_factory=dict)
    stopped: Any = None
    refused: Any = None
    calls: list[dict[str, Any]] | None = None
    expected_calls: list[dict[str, Any]] | None = None
    unparsed: bool | None = None


ANSWERS = TypeAdapter(list[Answer])
Evaluations = Mapping[str, Evaluation]  # {model: evaluation}
Answers = Mapping[str, Sequence[Answer]]


def quoted(answer: str) -> str:
    """Return an answer in quotation marks, as a sentence has it."""
    return f"“{one_line(answer, SHOWN)}”"


def commonest_line(evaluations: Evaluations) -> tuple[str, float] | None:
    """Return the name of a model that always gives the commonest expected answer, and its score from 0 to 1;
    None if no answer is common.
    """
    for evaluation in evaluations.values():
        task = evaluation.task
        if task and task.commonest and task.line is not None:
            return task.commonest.words, task.line
    return None

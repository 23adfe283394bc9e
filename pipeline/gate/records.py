"""Records of the other stages' reports; those of evaluate are in `pipeline.gate.evaluations`.

A record has the keys that something relies on, with their types. Further keys pass, because records grow.
They are attributes too, which the pages' templates read. A value that its stage does not write is refused.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidatorFunctionWrapHandler, WrapValidator

from pipeline.config.methods import Method
from pipeline.core.checks import Verdict

LARGEST = 10**18  # largest value of any figure; nothing above was ever measured


def _as_written(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Return a number as the file writes it (1, not 1.0), so that a bundle's evidence has its bytes."""
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
    """Base of all records: strict about the keys that it names; other keys pass."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, hide_input_in_errors=True)

    def written(self) -> dict[str, Any]:
        """Return the record as it was read, with exactly its keys."""
        return self.model_dump(exclude_unset=True)


class DataSource(Shape):
    """Source that a folder or file in data/raw was fetched from."""

    address: str
    revision: str | None
    config: str | None
    split: str | None
    license: str | None


class Data(Shape):
    """Record of reports/data.json."""

    rows_read: Count
    rows_kept: Count
    rejected: dict[str, Count]
    splits: dict[str, Count]
    sources: dict[str, DataSource] = {}

    def on_hub(self) -> list[str]:
        """Return the data sets of the hub that the rows come from."""
        return sorted({source.address for source in self.sources.values() if source.revision})


class SystemPrompt(Shape):
    """Commonest system prompt of a split, and the number of its rows that have it."""

    text: str
    rows: Count


class LabelsSplit(Shape):
    """Counts of a split: of `rows_read` these `rows` are trained, as `packed_rows`."""

    rows_read: Count = 0
    rows: Count = 0
    packed_rows: Count = 0
    system_prompt: SystemPrompt | None = None


class Labels(Shape):
    """Record of reports/labels.json."""

    splits: dict[str, LabelsSplit]
    packing: bool = False

    @property
    def system_prompt(self) -> str | None:
        """System prompt that more than half of the training rows have. The model is served and asked with it.

        None if there is none: then the base's own is right, which its chat template adds.
        """
        train = self.splits.get("train")
        prompt = train.system_prompt if train else None
        return prompt.text if train and prompt and 2 * prompt.rows > train.rows else None


class TrainRun(Shape):
    """Machine, versions and hashes of a run."""

    versions: dict[str, str | None] = {}
    hashes: dict[str, str] = {}


class TrainPreferences(Shape):
    """Number of held-out pairs or answers that were ranked correctly."""

    items: Count
    accuracy: Share
    low: Share
    high: Share


class TrainRewards(Shape):
    """Rewards of drawn answers: means of the first and of the last steps."""

    first: Number
    last: Number


class Train(Shape):
    """Record of reports/train.json."""

    method: Method = "sft"
    preferences: TrainPreferences | None = None
    rewards: TrainRewards | None = None
    steps: Count
    loss_first: Number | None
    loss_last: Number | None
    eval_loss: Number | None = None
    eval_loss_before: Number | None = None
    run: TrainRun | None = None


class MergedTensor(Shape):
    """Change of one tensor by an adapter; DoRA's have no spectral norm."""

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
    """Record of reports/merge.json; PEFT's own merge reports nothing about its adapters."""

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
    """Record of reports/strategies.json."""

    seeds: list[Any]


class ParityCheck(Shape):
    """Parity check of parity's report."""

    title: str
    verdict: Verdict
    figure: Number | None
    limit: Number | None
    unit: str
    detail: str
    figures: dict[str, Number] = {}
    place: str | None = None


class Parity(Shape):
    """Record of reports/parity.json; `files` are sha256 by name."""

    verdict: Literal["pass", "fail"]
    checks: Annotated[dict[str, ParityCheck], Field(min_length=1)]
    files: dict[str, Sha256]


class Architecture(Shape):
    """Architecture of the base."""

    model_type: Name
    architectures: list[Name] | None = None


class Tied(Shape):
    """The two copies of one matrix that a GGUF contained for head and embeddings."""

    kept: Name
    kept_type: Name
    dropped: Name
    dropped_type: Name
    farthest_row: Share


class Base(Shape):
    """Record of models/base.json."""

    source: Literal["hub", "path", "gguf", "package"]
    model: Name
    architecture: Architecture
    files: Annotated[dict[FileName, Sha256], Field(min_length=1)]
    revision: str | None
    license: str | None
    eos_token: str | None
    tied: Tied | None = None

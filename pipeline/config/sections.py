"""The sections of `params.yaml` as typed, frozen models, one per stage; `pipeline.config.params` reads the file."""

import math
import re
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, field_validator, model_validator

from pipeline.config.levels import level_problem, split_level, tensor_type_problem
from pipeline.core.cpu import ComputeDtype
from pipeline.core.strict_yaml import quoted


def _check_text(pattern: str, needed: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise ValueError(f"{quoted(text)} is not {needed}")
    return text


def _fits(pattern: str, needed: str) -> AfterValidator:
    """A check that a text fits `pattern`; the message says in words what is `needed`."""
    return AfterValidator(partial(_check_text, pattern, needed))


# bounds beyond which a number is a slip of the keyboard, or what it would make fits no machine
Fraction = Annotated[float, Field(ge=0, le=1)]
SplitFraction = Annotated[float, Field(ge=0, le=0.5)]
Count = Annotated[int, Field(ge=1, le=10**9)]  # rows, steps, tokens
Tokens = Annotated[int, Field(ge=16, le=1 << 24)]  # a context or a length; the longest models have some 2²³
Threads = Annotated[int, Field(ge=1, le=4096)]
Slots = Annotated[int, Field(ge=1, le=1024)]
Divergence = Annotated[float, Field(gt=0, le=1000)]  # nats
Points = Annotated[float, Field(ge=0, le=100)]
AUTO: Literal["auto"] = "auto"  # a limit that follows from the level and the model's size: `pipeline.metrics.level_limits`
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]
Layers = Annotated[int, Field(ge=0, le=10_000)]
Format = Literal[
    "auto",
    "messages",
    "sharegpt",
    "alpaca",
    "prompt_completion",
    "query_response",
    "input_output",
    "text",
    "preference",
    "kto",
    "prompt",
]
UNTUNED = "base-"  # what the names of the untuned base's models begin with
# models of the graph without a merge: the base's GGUF alone, the same with the adapter's GGUF on it, and the file that base.level was made from
BARE, ADAPTED, SOURCE = "base", "adapter", "source"
Graph = Literal["merged", "adapter"]
NAME_PART = r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]{0,199}"  # of a path, not hidden
INSIDE = rf"(?=.{{1,400}}\Z){NAME_PART}(/{NAME_PART})*"
# a file below data/guard or data/evaluation, which the graph watches; so it can't lead out of there
GuardFile = Annotated[
    str,
    _fits(
        INSIDE,
        "a file below data/guard or data/evaluation: name it from there on, without .. or a leading dot or slash, bench/mmlu.jsonl for example",
    ),
]
Location = Annotated[str, Field(min_length=1, max_length=500)]  # a path, or a name on the hub


def reference_of(model: str, sixteen: str) -> str:
    """The model that another is compared with: a level of the untuned base with the 16-bit base, any other with the tuned 16-bit model."""
    untuned = f"{UNTUNED}{sixteen}"
    return untuned if model.startswith(UNTUNED) and model != untuned else sixteen


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _kld_limit(value: Any) -> Any:
    if value == AUTO or (_is_number(value) and 0 < value <= 1000):
        return value
    raise ValueError(f"is {value!r}: give a number above 0 and up to 1000, or auto")


def _share_limit(value: Any) -> Any:
    if value == AUTO or (_is_number(value) and 0 <= value <= 1):
        return value
    raise ValueError(f"is {value!r}: give a number from 0 to 1, or auto")


# one validator for both kinds of value, so that a wrong one is one error
KldLimit = Annotated[float | Literal["auto"], PlainValidator(_kld_limit)]
ShareLimit = Annotated[float | Literal["auto"], PlainValidator(_share_limit)]


class Section(BaseModel):
    """One section of `params.yaml`: frozen, typed strictly, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Quantization = Literal["nf4", "gguf", "none"]
ModuleName = Annotated[str, _fits(r"[A-Za-z0-9_.-]{1,200}", "the name of a linear: q_proj for example")]


class Base(Section):
    source: Literal["hub", "path", "gguf", "package"]
    model: Location
    revision: str | None = None
    file: Annotated[str, _fits(INSIDE, "the name of a file in the package or repository: model.gguf or q4/model.gguf for example")] | None = None
    quantization: Quantization
    level: str | None
    compare_with: Location | None

    @model_validator(mode="before")
    @classmethod
    def _no_remote_code(cls, values: Any) -> Any:
        if isinstance(values, dict) and "trust_remote_code" in values:
            raise ValueError("trust_remote_code is never on in Quench (it runs the model author's code): remove the key")
        return values

    @model_validator(mode="after")
    def _source_has_what_it_needs(self) -> "Base":
        if self.source == "hub":
            if not re.fullmatch(r"[0-9a-f]{40}", self.revision or ""):
                raise ValueError(f"revision is {self.revision!r}: source hub needs a commit, 40 hexadecimal digits (a branch or tag can move)")
        elif self.revision is not None:
            raise ValueError(f"revision is {self.revision!r}, but only source hub has one: set it to null")
        if self.source == "package" and not self.file:
            raise ValueError("file is missing: source package needs the name of the GGUF inside the package")
        one_of_many = self.source == "package" or (self.source == "hub" and self.quantization == "gguf")
        if not one_of_many and self.file is not None:
            raise ValueError(f"file is {self.file!r}, but only source package, and a hub repository of GGUF files, have one: set it to null")
        return self

    @model_validator(mode="after")
    def _gguf_is_a_file(self) -> "Base":
        if self.quantization != "gguf":
            for key in ("level", "compare_with"):
                if (value := getattr(self, key)) is not None:
                    raise ValueError(f"{key} is {value!r}, but only quantization gguf has one: set it to null")
            return self
        if self.source == "path":
            raise ValueError("quantization is gguf and source is path, a Hugging Face folder: name a GGUF file with source gguf, or set it to nf4")
        if self.source == "hub" and not (self.file or "").endswith(".gguf"):
            raise ValueError(f"file is {self.file!r}: source hub with quantization gguf needs the name of one GGUF file in the repository")
        problem = level_problem(self.level) if self.level is not None else None
        if problem or (self.level is not None and split_level(self.level)[1]):
            raise ValueError(f"level is {self.level!r} ({problem or 'there is no importance matrix yet'}): name a plain one, Q4_K_M for example")
        return self


class Curate(Section):
    formats: dict[str, Format]
    max_line_bytes: Annotated[int, Field(ge=1024, le=1 << 28)]
    normalise: bool
    turns: Literal["mend", "reject"]
    refusals: Literal["reject", "keep"]
    languages: list[Annotated[str, _fits("[a-z]{2,3}", "a language: write its ISO 639 code in small letters, en for example")]]
    garbage: bool
    control_tokens: Literal["neutralise", "reject"]
    secrets: Literal["redact", "reject", "keep"]
    personal: list[Literal["email", "phone", "ip", "iban", "card"]]
    names: GuardFile | None
    max_tokens: Tokens
    overlong: Literal["split", "reject"]
    drop_duplicates: Literal["near", "exact", "none"]
    near_threshold: Annotated[float, Field(ge=0.5, le=1)]
    decontaminate: list[GuardFile]
    ngram: Annotated[int, Field(ge=8, le=50)]
    source_weights: dict[str, Fraction]
    max_rows_per_source: Count | None
    max_domain_share: Annotated[float, Field(gt=0, le=1)]
    temperature: Fraction
    val_fraction: SplitFraction
    test_fraction: SplitFraction
    seed: Seed


class Preprocess(Section):
    max_length: Tokens
    packing: bool


class Train(Section):
    method: Literal["sft", "heal"]
    heal_top_k: Annotated[int, Field(ge=1, le=1 << 20)]
    heal_sft_weight: Fraction
    bnb_4bit_use_double_quant: bool
    bnb_4bit_compute_dtype: ComputeDtype | Literal["auto"]
    packed: bool
    r: Annotated[int, Field(ge=1, le=4096)]
    lora_alpha: Annotated[int, Field(ge=1, le=1 << 16)]
    lora_dropout: Annotated[float, Field(ge=0, lt=1)]
    target_modules: Annotated[list[ModuleName], Field(min_length=1, max_length=1000)]
    num_train_epochs: Annotated[float, Field(gt=0, le=10_000)]
    max_steps: Annotated[int, Field(ge=-1, le=10**9)]
    per_device_train_batch_size: Annotated[int, Field(ge=1, le=1 << 16)]
    gradient_accumulation_steps: Annotated[int, Field(ge=1, le=1 << 16)]
    learning_rate: Annotated[float, Field(gt=0, lt=1)]
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)]
    lr_scheduler_type: Literal["cosine", "linear", "constant", "constant_with_warmup"]
    weight_decay: Annotated[float, Field(ge=0, lt=1)]
    max_grad_norm: Annotated[float, Field(gt=0, le=10**6)]
    neftune_noise_alpha: Annotated[float, Field(gt=0, le=1000)] | None
    optim: Literal[
        "adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit",
        "lion_8bit", "paged_lion_8bit", "lion_32bit", "paged_lion_32bit", "sgd",
    ]  # fmt: skip
    gradient_checkpointing: bool
    embeddings_on_cpu: bool
    loss: Literal["auto", "liger", "chunked"]
    save_steps: Count
    save_total_limit: Count
    eval_steps: Count
    early_stopping_patience: Count | None
    sample_rows: Annotated[int, Field(ge=0, le=10_000)]
    sample_tokens: Annotated[int, Field(ge=1, le=1 << 24)]
    seed: Seed

    @field_validator("max_steps")
    @classmethod
    def _some_steps(cls, value: int) -> int:
        if value == 0:
            raise ValueError("0 steps train nothing: give a number above 0, or -1 for num_train_epochs")
        return value

    @model_validator(mode="after")
    def _best_adapter_is_saved(self) -> "Train":
        if self.early_stopping_patience is not None and self.save_steps != self.eval_steps:
            raise ValueError(
                f"early_stopping_patience is set, so the best adapter has to be kept, but save_steps is {self.save_steps} and eval_steps is "
                f"{self.eval_steps}: make them equal"
            )
        return self


class Training(Train):
    """Section `train` with what it needs of section `base`, how its linears are held (`base.quantization`), and the type computed in decided."""

    bnb_4bit_compute_dtype: ComputeDtype
    quantization: Quantization


def _check_levels(levels: list[str]) -> list[str]:
    # kept as spelt: DVC and Snakemake make file names from the same text
    if problems := [problem for level in levels if (problem := level_problem(level))]:
        raise ValueError("; ".join(problems))
    if len({level.upper() for level in levels}) < len(levels):
        raise ValueError(f"{levels} names a level twice")
    return levels


def _check_model_levels(levels: list[str]) -> list[str]:
    untuned = [level.removeprefix(UNTUNED) for level in levels if level.startswith(UNTUNED)]
    if with_imatrix := [level for level in untuned if split_level(level)[1]]:
        raise ValueError(f"{', '.join(UNTUNED + level for level in with_imatrix)}: the importance matrix is the tuned model's: leave -imatrix out")
    tuned = _check_levels([level for level in levels if not level.startswith(UNTUNED)])
    if not tuned:
        raise ValueError(f"{levels} names only levels of the untuned base: add one of the tuned model, Q4_K_M for example")
    _check_levels(untuned)
    return levels


Levels = Annotated[list[str], Field(min_length=1), AfterValidator(_check_levels)]
ModelLevels = Annotated[list[str], Field(min_length=1), AfterValidator(_check_model_levels)]


class Merge(Section):
    dtype: Literal["float16", "bfloat16"]
    method: Literal["stream", "peft"]
    base: Literal["w16", "nf4", "auto"]
    levels: Levels
    rows: Count
    task_rows: Annotated[int, Field(ge=0, le=10**9)]

    @field_validator("levels")
    @classmethod
    def _plain_levels(cls, levels: list[str]) -> list[str]:
        # the matrix is measured on the merged model, so there is none yet
        if with_imatrix := [level for level in levels if split_level(level)[1]]:
            raise ValueError(f"{', '.join(with_imatrix)}: merge compares levels before an importance matrix is there: leave -imatrix out")
        return levels

    @model_validator(mode="after")
    def _peft_knows_one_base(self) -> "Merge":
        if self.method == "peft" and self.base != "w16":
            raise ValueError(f"method is peft and base is {self.base}: PEFT merges into the 16-bit weights, so set base to w16")
        return self


FILE_NAME = "a name for files: 1 to 64 letters, digits, dots, - and _, a letter or a digit first"


class Convert(Section):
    name: Annotated[str, _fits("[A-Za-z0-9][A-Za-z0-9._-]{0,63}", FILE_NAME)]
    base: bool
    type: Literal["F16", "BF16"]


LoraType = Literal["F16", "F32"]


class Lora(Section):
    type: LoraType


class Imatrix(Section):
    tokens: Annotated[int, Field(ge=0, le=10**9)]


class Quantize(Section):
    levels: ModelLevels
    nthreads: Threads
    tensor_types: dict[str, str]

    @field_validator("tensor_types")
    @classmethod
    def _types_are_known(cls, types: dict[str, str]) -> dict[str, str]:
        for pattern, kind in types.items():
            if problem := tensor_type_problem(pattern, kind):
                raise ValueError(problem)
        return types

    @property
    def tuned(self) -> list[str]:
        """The levels of the tuned model, in the order of `levels`."""
        return [level for level in self.levels if not level.startswith(UNTUNED)]

    @property
    def untuned(self) -> list[str]:
        """The levels of the untuned base (base-LEVEL), in the order of `levels`."""
        return [level for level in self.levels if level.startswith(UNTUNED)]


class Compare(Section):
    seeds: Annotated[list[Seed], Field(max_length=100)]
    levels: Levels
    rows: Count

    @field_validator("seeds")
    @classmethod
    def _each_once(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"{seeds} names a seed twice, which would measure nothing new: name each once")
        return seeds

    @field_validator("levels")
    @classmethod
    def _plain_levels(cls, levels: list[str]) -> list[str]:
        # an importance matrix is the tuned model's, and half of the ways have no tuned model to measure it on
        if with_imatrix := [level for level in levels if split_level(level)[1]]:
            raise ValueError(f"{', '.join(with_imatrix)}: the ways are compared without an importance matrix: leave -imatrix out")
        return levels


class Parity(Section):
    depth: Literal["quick", "standard", "full"]
    conversations: Count
    strings: Count
    rows: Count
    prompts: Count
    max_kld_exact: Divergence
    max_kld_trained: KldLimit
    max_kld_level: KldLimit
    max_kld_served: Divergence
    min_same_top_served: Fraction
    rmse_slack: Annotated[float, Field(ge=1, le=1000)]


KEY_FILE = "a file below the project's folder, .quench/judge-key for example"
KeyFile = Annotated[str, _fits(rf"(?=.{{1,400}}\Z)\.?{NAME_PART}(/{NAME_PART})*", KEY_FILE)]


class Judge(Section):
    """A model that gives marks, behind any OpenAI-compatible address; `key_file` holds its key, below the project's folder."""

    url: Annotated[str, _fits(r"https?://.{0,490}", "an address: it begins with http:// or https://")]
    model: Location
    key_file: KeyFile | None


TASK_NAME = "the name of a task: it is what the task's file gives under task, not a path"
TaskName = Annotated[str, _fits("[A-Za-z0-9_][A-Za-z0-9_.:+-]{0,199}", TASK_NAME)]


class Evaluate(Section):
    models: Annotated[list[str], Field(min_length=1, max_length=100)]
    perplexity_rows: Count
    task_rows: Count
    scorers: Annotated[list[str], Field(max_length=20)]
    judge: Judge | None
    max_new_tokens: Annotated[int, Field(ge=1, le=1 << 24)]
    general: GuardFile
    harness: Annotated[list[TaskName], Field(max_length=100)]
    prompt_lengths: Annotated[list[Annotated[int, Field(ge=1, le=1 << 24)]], Field(min_length=1, max_length=50)]
    generation_depths: Annotated[list[Annotated[int, Field(ge=0, le=1 << 24)]], Field(min_length=1, max_length=50)]
    repetitions: Annotated[int, Field(ge=1, le=10_000)]
    ctx_size: Tokens
    parallel: Slots
    threads: Threads
    n_gpu_layers: Layers
    seed: Seed

    @model_validator(mode="after")
    def _scorers_are_known(self) -> "Evaluate":
        from pipeline.metrics.scorers import check

        check(self.scorers, self.judge)
        return self

    @property
    def scorer(self) -> str:
        """The scorer that decides, "none" where nothing is scored."""
        return self.scorers[0] if self.scorers else "none"


class Gate(Section):
    max_kld: KldLimit | None
    min_same_top: ShareLimit | None
    max_task_drop: Points | None
    min_stopped: Fraction | None
    max_forgetting: Points | None


class Report(Section):
    memory_gb: Annotated[float, Field(gt=0, le=10**5)]
    max_task_drop: Points
    gate: Gate


class Serve(Section):
    port: Annotated[int, Field(ge=1024, le=65535)]
    ctx_size: Tokens
    parallel: Slots
    n_gpu_layers: Layers
    threads: Threads
    flash_attn: Literal["on", "off", "auto"]
    n_predict: Annotated[int, Field(ge=1, le=1 << 24)]
    max_restarts: Annotated[int, Field(ge=0, le=10_000)]


class LlamaCpp(Section):
    home: Location | None = None

"""`params.yaml` as typed, frozen models: one per stage, unknown keys forbidden, all errors reported at once."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pipeline.errors import ConfigError

# llama.cpp's quantisation types (tools/quantize/quantize.cpp, QUANT_OPTIONS), without those that need an importance matrix
LEVELS = frozenset({
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S",
    "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M", "IQ4_NL", "IQ4_XS",
    "TQ1_0", "TQ2_0",
})  # fmt: skip

Fraction = Annotated[float, Field(ge=0, le=1)]
SplitFraction = Annotated[float, Field(ge=0, le=0.5)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]
Layers = Annotated[int, Field(ge=0)]
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
# a file below data/guard, which the graph watches; so it can't lead out of there
GuardFile = Annotated[str, Field(pattern=r"^[^./\\][^/\\]*(/[^./\\][^/\\]*)*$")]


class Section(BaseModel):
    """One section of `params.yaml`: frozen, typed strictly, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Base(Section):
    source: Literal["hub", "path", "gguf", "package"]
    model: Annotated[str, Field(min_length=1)]
    revision: str | None = None
    file: str | None = None

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
        if self.source != "package" and self.file is not None:
            raise ValueError(f"file is {self.file!r}, but only source package has one: set it to null")
        return self


class Curate(Section):
    formats: dict[str, Format]
    max_line_bytes: Annotated[int, Field(ge=1024, le=1 << 28)]
    normalise: bool
    turns: Literal["mend", "reject"]
    refusals: Literal["reject", "keep"]
    languages: list[Annotated[str, Field(pattern=r"^[a-z]{2,3}$")]]
    garbage: bool
    control_tokens: Literal["neutralise", "reject"]
    secrets: Literal["redact", "reject", "keep"]
    personal: list[Literal["email", "phone", "ip", "iban", "card"]]
    names: GuardFile | None
    max_tokens: Annotated[int, Field(ge=16)]
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
    max_length: Annotated[int, Field(ge=16)]
    packing: bool


class Train(Section):
    load_in_4bit: bool
    bnb_4bit_use_double_quant: bool
    bnb_4bit_compute_dtype: Literal["bfloat16", "float16", "float32"]
    r: Count
    lora_alpha: Count
    lora_dropout: Annotated[float, Field(ge=0, lt=1)]
    target_modules: Annotated[list[str], Field(min_length=1)]
    num_train_epochs: Annotated[float, Field(gt=0)]
    max_steps: Annotated[int, Field(ge=-1)]
    per_device_train_batch_size: Count
    gradient_accumulation_steps: Count
    learning_rate: Annotated[float, Field(gt=0, lt=1)]
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)]
    lr_scheduler_type: Literal["cosine", "linear", "constant", "constant_with_warmup"]
    weight_decay: Annotated[float, Field(ge=0, lt=1)]
    max_grad_norm: Annotated[float, Field(gt=0)]
    neftune_noise_alpha: Annotated[float, Field(gt=0)] | None
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
    sample_rows: Annotated[int, Field(ge=0)]
    sample_tokens: Count
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


class Merge(Section):
    dtype: Literal["float16", "bfloat16"]


class Convert(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Quantize(Section):
    levels: Annotated[list[str], Field(min_length=1)]
    nthreads: Count

    @field_validator("levels")
    @classmethod
    def _known_levels(cls, levels: list[str]) -> list[str]:
        # kept as spelt: DVC and Snakemake make file names from the same text
        unknown = [level for level in levels if level.upper() not in LEVELS]
        if unknown:
            raise ValueError(f"unknown level {', '.join(unknown)}: llama.cpp has {', '.join(sorted(LEVELS))}")
        if len({level.upper() for level in levels}) < len(levels):
            raise ValueError(f"{levels} names a level twice")
        return levels


class Parity(Section):
    conversations: Count
    rows: Count
    max_nmse: Annotated[float, Field(gt=0)]
    min_same_top: Fraction


class Evaluate(Section):
    models: Annotated[list[str], Field(min_length=1)]
    perplexity_rows: Count
    task_rows: Count
    scorer: Literal["json_fields", "exact_match", "none"]
    max_new_tokens: Count
    ctx_size: Annotated[int, Field(ge=16)]
    parallel: Count
    threads: Count
    n_gpu_layers: Layers
    seed: Seed


class Report(Section):
    memory_gb: Annotated[float, Field(gt=0)]
    max_task_drop: Annotated[float, Field(ge=0, le=100)]


class Serve(Section):
    port: Annotated[int, Field(ge=1024, le=65535)]
    ctx_size: Annotated[int, Field(ge=16)]
    n_gpu_layers: Layers
    threads: Count
    flash_attn: Literal["on", "off", "auto"]
    n_predict: Count


class LlamaCpp(Section):
    home: str | None = None


class Params(Section):
    """The whole of `params.yaml`."""

    base: Base
    curate: Curate
    preprocess: Preprocess
    train: Train
    merge: Merge
    convert: Convert
    quantize: Quantize
    parity: Parity
    evaluate: Evaluate
    report: Report
    serve: Serve
    llamacpp: LlamaCpp

    @model_validator(mode="after")
    def _sections_agree(self) -> "Params":
        known = ["base-F16", "F16", *self.quantize.levels]
        unknown = [model for model in self.evaluate.models if model not in known]
        if unknown:
            raise ValueError(f"evaluate.models names {', '.join(unknown)}: it can name {', '.join(known)} (quantize.levels, spelt as there)")
        if "F16" not in self.evaluate.models:
            raise ValueError("evaluate.models lacks F16, which every level is compared with: add it")
        if self.curate.max_tokens > self.preprocess.max_length:
            raise ValueError(
                f"curate.max_tokens is {self.curate.max_tokens}, more than preprocess.max_length {self.preprocess.max_length}: "
                "lower it, or conversations that curate lets pass are rejected there"
            )
        if self.evaluate.ctx_size < self.preprocess.max_length:
            raise ValueError(
                f"evaluate.ctx_size is {self.evaluate.ctx_size}, less than preprocess.max_length {self.preprocess.max_length}: "
                "raise it, or rows don't fit"
            )
        return self


def load_params(path: Path) -> Params:
    """Read `params.yaml`; every error in it is named in one `ConfigError`, each with its key path."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} can't be read ({error.strerror}): run in the project's folder, or name the file with --params") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    try:
        values = yaml.load(text, Loader=_UniqueKeys)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        lines = [f"  {_line(item)}" for item in error.errors()]
        raise ConfigError("\n".join([f"{path} has {_count(len(lines), 'error')}:", *lines])) from None


def _line(item: Any) -> str:
    key = ".".join(str(part) for part in item["loc"]) or "params"
    match item["type"]:
        case "extra_forbidden":
            return f"{key}: unknown key (value {item['input']!r}): remove it or mend its spelling"
        case "missing":
            return f"{key}: missing: add it (recipes/demo.yaml shows every key)"
        case "value_error":
            return f"{key}: {item['ctx']['error']}"
    hint = " (YAML reads 2e-4 as text: write 2.0e-4)" if item["type"] == "float_type" and _looks_numeric(item["input"]) else ""
    return f"{key}: is {item['input']!r}, {item['msg'][0].lower()}{item['msg'][1:]}{hint}"


def _looks_numeric(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value) is not None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class _UniqueKeys(yaml.SafeLoader):
    """A SafeLoader to which a key written twice is an error, not the last one's win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {str(key) for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"key {', '.join(sorted(twice))} is written twice", node.start_mark)
        return super().construct_mapping(node, deep)

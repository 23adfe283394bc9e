"""Sections `compare`, `parity` and `evaluate`: the measurements of the models."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.scorers import WORDS, scorer_problems
from pipeline.config.sections.values import (
    AUTO,
    NAME_PART,
    ONCE,
    Count,
    Divergence,
    GpuLayers,
    GuardFile,
    KldLimit,
    Location,
    PlainLevels,
    Section,
    Seed,
    SlotsOrAuto,
    Threads,
    Tokens,
    fits,
    key,
)
from pipeline.config.strategies import StrategyName

KEY_FILE = "a file below the project's folder, .quench/judge-key for example"
KeyFile = Annotated[str, fits(rf"(?=.{{1,400}}\Z)\.?{NAME_PART}(/{NAME_PART})*", KEY_FILE)]
TASK_NAME = "the name of a task: it is what the task's file gives under task, not a path"
TaskName = Annotated[str, fits("[A-Za-z0-9_][A-Za-z0-9_.:+-]{0,199}", TASK_NAME)]


class Compare(Section):
    seeds: Annotated[list[Seed], Field(max_length=100), ONCE] = key(
        [],
        "seeds with which each strategy is trained, to see which is best on your data, e.g. [42, 43, "
        "44]; []: not measured (what a seed costs stands at compare.strategies; each strategy and level is "
        "measured besides)",
    )
    levels: PlainLevels = key(["Q4_K_M"], "levels at which the strategies are compared, in llama.cpp's names")
    strategies: Annotated[list[StrategyName], ONCE] = key(
        ["merged_16", "merged_nf4", "lora_nf4", "lora_level", "scales_level"],
        "strategies to compare: merged_16 (an adapter trained on NF4, merged into 16 bit, then quantized) | "
        "merged_nf4 (the same, merged into NF4) | lora_nf4 (the same on the base's level): one training a "
        "seed for all three | lora_level (an adapter trained on the level itself) | scales_level (the scales "
        "of the level's blocks trained; one GGUF ships): one training a seed and level | distilled_scales "
        "(the base's level distilled from its 16 bits, then its scales trained): a distillation and a "
        "training a seed and level | merged_distilled (the merged model's level distilled from its 16 bits): "
        "a distillation a seed and level",
    )


Depth = Literal["quick", "standard", "full"]  # amount of measurement, the least first


class Parity(Section):
    depth: Depth = key(
        "standard",
        "quick (text, tokens, weights) | standard (and what the models say and do) | full (and the "
        "adapter on the base's levels)",
    )
    conversations: Count = key(
        200,
        "conversations compared as text and as token ids, training's against llama-server's; for each, 500 "
        "strings are tokenized by training's tokenizer and by the GGUF's vocabulary",
    )
    rows: Count = key(
        4,
        "held-out rows whose logits are compared along the entire chain, and whose prompts each GGUF is "
        "asked in llama-server",
    )
    max_kld_level: KldLimit = key(
        "auto",
        "mean KL divergence of a level from F16 that is unusual: a warning if every weight is within the "
        "level's rounding, a failure if its weights can't be checked; auto: 4 times what is published for "
        "that level of an 8B model, more for a small one (figures: pipeline/metrics/level_limits.py)",
    )
    max_kld_served: Divergence = key(
        1.0e-3,
        "base.quantization gguf: largest mean KL divergence of what is served in llama.cpp from "
        "training's own forward; where llama.cpp's arithmetic on the bare base alone costs more than half "
        "of it, twice that; the first choice is the same at 99 % of positions, or as often as there",
    )

    @property
    def strings(self) -> int:
        """Number of strings that are tokenized twice: by default 100,000, all tokens and all of Unicode."""
        return 500 * self.conversations


class Judge(Section):
    """A grading model at any OpenAI-compatible address. Its key is in `key_file` below the project folder."""

    url: Annotated[str, fits(r"https?://.{0,490}", "an address: it begins with http:// or https://")]
    model: Location
    key_file: KeyFile | None = None


class External(Section):
    """A program that scores, in any language (docs/rewards.md).

    `command` contains its arguments, never a line for a shell. The times are in seconds: for an answer, and
    until the program has started.
    """

    command: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(min_length=1, max_length=1000)]
    seconds: Annotated[float, Field(gt=0, le=86400)] = 60.0
    start_seconds: Annotated[float, Field(gt=0, le=86400)] = 120.0


class EvaluateKeys(Section):
    """Section `evaluate`."""

    models: Annotated[list[str], Field(min_length=1, max_length=100), ONCE] = key(
        ["base-F16", "F16", "Q4_K_M", "Q5_K_M"],
        "models to measure: F16, base-F16 (the untuned base) and the levels above, spelled as there; with "
        "base.quantization gguf: adapter (the GGUF with its adapter) or, if scales train, tuned (the GGUF "
        "with these), base (the untouched GGUF) and, if base.level is set, source (what it was made from)",
    )
    perplexity_rows: Count = key(64, "held-out rows for perplexity and divergence")
    task_rows: Count = key(64, "held-out rows answered and scored")
    base_examples: Annotated[int, Field(ge=0, le=20)] = key(
        3,
        "training chats put before each question when the untuned base is asked once more: what a prompt "
        "with examples reaches without training; 0: it is not asked",
    )
    scorers: Annotated[list[str], Field(max_length=20), ONCE] = key(
        ["rouge_l"],
        "how answers are scored, the first decides: "
        + " | ".join(f"{name} ({words})" if words else name for name, words in WORDS.items())
        + "; [] scores nothing",
    )
    judge: Judge | None = key(
        None,
        "the judge, any OpenAI-compatible address: {url: http://127.0.0.1:8080/v1, model: NAME, key_file: "
        ".quench/judge-key}; null: none",
    )
    external: External | None = key(
        None,
        "the program that the scorer external asks (docs/rewards.md): {command: [python3, "
        "data/evaluation/scorer.py], seconds: 60, start_seconds: 120}; null: none",
    )
    max_new_tokens: Annotated[int, Field(ge=1, le=1 << 24)] = key(256, "longest answer, in tokens")
    general: GuardFile = key(
        "builtin",
        "general ability, base against tuned: builtin (120 questions) | a JSONL file of questions below "
        "data/evaluation | none",
    )
    harness: Annotated[list[TaskName], Field(max_length=100), ONCE] = key(
        [],
        "tasks of lm-evaluation-harness below data/evaluation/harness, by name (needs the extra "
        '"harness"); [] runs none',
    )
    parallel: SlotsOrAuto = key(
        "auto",
        "rows answered at the same time: auto (4 with layers on a GPU, where that is faster, else 1) | a "
        "number; with 1 every run gives the same answers, with 16 those of the demo took 24 s on 2 cores, "
        "with 4 from 35 to 59",
    )

    def problems(self) -> Iterator[str]:
        """Yield sentences on what can't be in a list of scorers."""
        return scorer_problems(self.scorers, self.judge is not None, self.external is not None)

    @property
    def scorer(self) -> str:
        """The scorer that decides; "none" if nothing is scored."""
        return self.scorers[0] if self.scorers else "none"


class Evaluate(EvaluateKeys):
    """Section `evaluate` with what it needs of section `machine`.

    `ctx_size` is `preprocess.max_length`, the context for a row that is read.
    """

    threads: Threads = 2
    n_gpu_layers: GpuLayers = AUTO
    ctx_size: Tokens = 1024

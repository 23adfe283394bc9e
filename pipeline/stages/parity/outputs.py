"""Outputs of the models along the chain: trained → merged → 16-bit GGUF → levels, and the base's GGUF with
the adapter's GGUF.

Each hand-over is one parity check (`pipeline.stages.parity.divergence_checks`), so that the check names the
stage that lost something. One model is in memory at a time; its logits go into a temporary file.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from pipeline.config.levels import ModelName, level_key
from pipeline.config.sections import Parity
from pipeline.core.checks import Check
from pipeline.gguf.file import check_gguf
from pipeline.llamacpp.converters import quantize_gguf
from pipeline.llamacpp.tools import Llama
from pipeline.metrics.divergence import Prompt, Reference, Speaker, gguf_speaker, kept_logits
from pipeline.metrics.forward import plain_model, quantized_base, trained_model
from pipeline.models.nf4_weights import nf4_check
from pipeline.stages.parity.divergence_checks import (
    Outputs,
    gguf_check,
    level_bound,
    level_check,
    lora_check,
    merge_checks,
)
from pipeline.stages.parity.level_weights import level_weights
from pipeline.stages.parity.merged_weights import read_merge


@dataclass(frozen=True)
class Chain:
    """Models of one project: folders, the 16-bit GGUF, the levels' GGUFs by their names in `quantize.levels`,
    the existing levels of the untuned base, and the folder of the stages' reports.
    """

    base: Path
    adapter: Path
    merged: Path
    gguf: Path
    levels: dict[str, Path] = field(default_factory=dict)
    untuned: dict[str, Path] = field(default_factory=dict)
    reports: Path = Path("reports")


@dataclass(frozen=True)
class Bench:
    """Setup for measuring outputs: the prompts, a scratch folder, and llama.cpp."""

    prompts: list[Prompt]
    scratch: Path
    llama: Llama

    @property
    def where(self) -> str:
        """Rows and positions, for a parity check's sentence."""
        positions = sum(len(prompt.positions) for prompt in self.prompts)
        return f"{len(self.prompts)} held-out rows, {positions} positions"

    def logits_of(self, model: AbstractContextManager[Speaker]) -> AbstractContextManager[Reference]:
        """Return a context manager that keeps a model's logits for the prompts during its body."""
        return kept_logits(self.prompts, model, self.scratch)

    def gguf(self, path: Path, lora: Path | None = None) -> AbstractContextManager[Reference]:
        """Return a context manager that keeps a GGUF's logits for the prompts during its body."""
        llama = self.llama
        return self.logits_of(
            gguf_speaker(path, self.prompts, threads=llama.threads, tools=llama.tools, lora=lora)
        )


def output_checks(
    chain: Chain,
    bench: Bench,
    limits: Parity,
    weights: Mapping[str, Check],
    *,
    base_gguf: Path | None = None,
    lora: Path | None = None,
) -> dict[str, Check]:
    """Return a check for every hand-over of the chain. With `base_gguf` and `lora`, also check the base's
    GGUF with the adapter's GGUF. `weights` contains the checks of the stored weights, by key.

    Disk below the bench's folder: at most eight files of positions × V × 4 bytes (39 MB a prompt each for a
    vocabulary of 152k), and with `lora` the base at one level. Memory: the largest model in 16 bits with its
    largest tensor in float32, and one prompt's logits. Raises `MachineError`, `ToolError` or `DataError` if a
    model can't be run.
    """
    merge_base = read_merge(chain.merged)["merge_base"]
    recorded = (chain.adapter / "run.json").exists()
    with ExitStack() as files:
        sixteen = files.enter_context(bench.logits_of(plain_model(chain.base, chain.adapter)))
        as_trained, trained = trained_outputs(chain, bench, files) if recorded else (sixteen, sixteen)
        outputs = Outputs(
            as_trained=as_trained,
            trained=trained,
            sixteen=sixteen,
            merged=files.enter_context(bench.logits_of(plain_model(chain.merged))),
            gguf=files.enter_context(bench.gguf(chain.gguf)),
            untuned=cache(lambda: files.enter_context(bench.logits_of(plain_model(chain.base)))),
            parameters=check_gguf(chain.gguf).parameters,
            where=bench.where,
            weights=weights,
            nf4=lambda: trained_weights(chain) if recorded else None,
        )
        checks = merge_checks(outputs, merge_base)
        if not recorded:
            why = "the adapter has no run.json that says how its base was quantized"
            checks["outputs_trained"] = Check(checks["outputs_trained"].name, "not measured", why)
        checks["outputs_gguf"] = gguf_check(outputs, f"Merged model → {chain.gguf.stem}")
        for level, path in chain.levels.items():
            with bench.gguf(path) as quantized:
                bound = level_bound(level, outputs, limits, partial(weights.get, level_key("weights", level)))
                checks[level_key("outputs", level)] = level_check(
                    f"{chain.gguf.stem} → {level}", outputs.gguf, quantized, bound, outputs
                )
        if base_gguf and lora:
            with_lora = files.enter_context(bench.gguf(base_gguf, lora))
            checks["outputs_lora"] = lora_check(outputs, with_lora, merge_base)
            for level in map(ModelName, chain.levels):
                if level.made_of:
                    continue  # the base has no such level
                # The matrix is the merged model's. Without it the level would be judged by another one.
                if level.imatrix:
                    why = "the importance matrix is the merged model's, so the base has none at this level"
                    checks[level_key("outputs_lora", level)] = Check(lora_title(level), "not measured", why)
                else:
                    with (
                        base_at_level(chain, level, base_gguf, bench) as file,
                        bench.gguf(file, lora) as served_outputs,
                    ):
                        # Slow, so it runs only if the level is far off.
                        check_weights = partial(level_weights, base_gguf, file, level)
                        bound = level_bound(level, outputs, limits, check_weights)
                        checks[level_key("outputs_lora", level)] = level_check(
                            lora_title(level), with_lora, served_outputs, bound, outputs
                        )
    return checks


def trained_weights(chain: Chain) -> Check:
    """Check that the weights that training kept in NF4 are the base's, within NF4's rounding. They are loaded
    again, because this check is needed only if the merge is far from them.
    """
    with quantized_base(chain.base, chain.adapter) as model:
        return nf4_check(model, chain.base)


def trained_outputs(chain: Chain, bench: Bench, files: ExitStack) -> tuple[Reference, Reference]:
    """Return the trained model's outputs in training's own arithmetic, and in float32. It is loaded once."""
    with trained_model(chain.base, chain.adapter) as speaker:
        return (
            files.enter_context(bench.logits_of(nullcontext(speaker))),
            files.enter_context(bench.logits_of(nullcontext(speaker.in_float32()))),
        )


@contextmanager
def base_at_level(chain: Chain, level: str, base_gguf: Path, bench: Bench) -> Iterator[Path]:
    """Yield the base at a level. It is quantized into a temporary file unless stage quantize has made it."""
    with tempfile.TemporaryDirectory(prefix=".level-", dir=bench.scratch) as folder:
        quantized = chain.untuned.get(level) or Path(folder) / f"{base_gguf.stem}-{level}.gguf"
        if level not in chain.untuned:
            quantize_gguf(bench.llama, base_gguf, quantized, level)
        yield quantized


def lora_title(level: str) -> str:
    """Return the title of the parity check of the base at a level with the adapter."""
    return f"Base GGUF with LoRA GGUF → the same at {level}"

"""What the models say along the chain: trained → merged → 16-bit GGUF → levels, and the base's GGUF with the adapter's on it.

Each hand-over is one seam (`pipeline.stages.parity.hand_overs`), so that the stage that lost something is named. One model is in
memory at a time; what each says goes into a temporary file.
"""

import json
import tempfile
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pipeline.config.levels import level_key, split_level
from pipeline.config.sections import Parity
from pipeline.core.checks import Check
from pipeline.core.errors import DataError
from pipeline.gguf.file import check_gguf
from pipeline.llamacpp.converters import quantise_gguf
from pipeline.llamacpp.tools import Toolchain
from pipeline.metrics.divergence import Prompt, Reference, Speaker, gguf_speaker, kept_logits
from pipeline.metrics.forward import plain_model, trained_model
from pipeline.stages.parity.hand_overs import Said, gguf_seam, level_seam, lora_seam, merge_seams


@dataclass(frozen=True)
class Chain:
    """The models of one project: folders, the 16-bit GGUF, and the levels' GGUFs by the names that `quantize.levels` gives them."""

    base: Path
    adapter: Path
    merged: Path
    gguf: Path
    levels: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """What models are asked with: the prompts, a folder for temporary files, and llama.cpp's threads and tools."""

    prompts: list[Prompt]
    scratch: Path
    threads: int
    tools: Toolchain

    def kept(self, model: AbstractContextManager[Speaker]) -> AbstractContextManager[Reference]:
        """What a model says to the prompts, for the length of a body."""
        return kept_logits(self.prompts, model, self.scratch)

    def gguf(self, path: Path, lora: Path | None = None) -> AbstractContextManager[Reference]:
        """What a GGUF says, for the length of a body."""
        return self.kept(gguf_speaker(path, self.prompts, threads=self.threads, tools=self.tools, lora=lora))


def output_seams(
    chain: Chain, bench: Bench, limits: Parity, *, base_gguf: Path | None = None, lora: Path | None = None
) -> dict[str, Check]:
    """Every hand-over of the chain; with `base_gguf` and `lora` also those of the base's GGUF with the adapter's GGUF on it.

    Disk below the bench's folder: at most eight files of positions × V × 4 bytes (39 MB a prompt each for a vocabulary of 152k), and with
    `lora` the base at one level. Memory: the largest model in 16 bits with its largest tensor in float32, and one prompt's logits.
    Raises `MachineError`, `ToolError` or `DataError` where a model can't be asked.
    """
    onto, recorded = merged_onto(chain.merged), (chain.adapter / "run.json").exists()
    with ExitStack() as files:
        sixteen = files.enter_context(bench.kept(plain_model(chain.base, chain.adapter)))
        said = Said(
            as_trained=files.enter_context(bench.kept(trained_model(chain.base, chain.adapter)))
            if recorded
            else sixteen,
            trained=files.enter_context(bench.kept(trained_model(chain.base, chain.adapter, float32=True)))
            if recorded
            else sixteen,
            sixteen=sixteen,
            merged=files.enter_context(bench.kept(plain_model(chain.merged))),
            gguf=files.enter_context(bench.gguf(chain.gguf)),
            untuned=cache(lambda: files.enter_context(bench.kept(plain_model(chain.base)))),
            parameters=check_gguf(chain.gguf).parameters,
            where=f"{len(bench.prompts)} held-out rows, {sum(len(prompt.positions) for prompt in bench.prompts)} positions",
        )
        seams = merge_seams(said, onto, limits)
        if not recorded:
            why = "the adapter has no run.json that says how its base was quantised"
            seams["outputs_trained"] = Check(seams["outputs_trained"].name, "not measured", why)
        seams["outputs_gguf"] = gguf_seam(said, f"Merged model → {chain.gguf.stem}", limits)
        for level, path in chain.levels.items():
            with bench.gguf(path) as quantised:
                seams[level_key("outputs", level)] = level_seam(
                    f"{chain.gguf.stem} → {level}", level, said.gguf, quantised, said, limits
                )
        if base_gguf and lora:
            with_lora = files.enter_context(bench.gguf(base_gguf, lora))
            seams["outputs_lora"] = lora_seam(said, with_lora, onto, limits)
            for level in chain.levels:
                if split_level(level)[
                    1
                ]:  # the matrix is the merged model's; without it the level would be judged by another one
                    title, why = (
                        lora_title(level),
                        "the importance matrix is the merged model's, so the base has none at this level",
                    )
                    seams[level_key("outputs_lora", level)] = Check(title, "not measured", why)
                else:
                    seams[level_key("outputs_lora", level)] = lora_at_level(
                        level, base_gguf, lora, with_lora, said, bench, limits
                    )
    return seams


def lora_at_level(
    level: str, base_gguf: Path, lora: Path, with_lora: Reference, said: Said, bench: Bench, limits: Parity
) -> Check:
    """The base quantised to a level (in a temporary file) with the adapter's GGUF on it, against the 16-bit base with it."""
    with tempfile.TemporaryDirectory(prefix=".level-", dir=bench.scratch) as folder:
        quantised = Path(folder) / f"{base_gguf.stem}-{level}.gguf"
        quantise_gguf(bench.tools, base_gguf, quantised, level, bench.threads)
        with bench.gguf(quantised, lora) as there:
            return level_seam(lora_title(level), level, with_lora, there, said, limits)


def lora_title(level: str) -> str:
    """The title of the seam of a level of the base with the adapter on it."""
    return f"Base GGUF with LoRA GGUF → the same at {level}"


def merged_onto(merged: Path) -> str:
    """What the adapter was merged into, w16 or nf4, as the merge recorded it. Raises `DataError` where it did not."""
    try:
        onto = json.loads((merged / "merge.json").read_text(encoding="utf-8"))["onto"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            "Q-PARITY-004",
            f"{merged}/merge.json doesn't say what was merged into ({type(error).__name__}): run `snakemake --force merge`",
        ) from error
    return str(onto)

"""Prove the seams: what is served is what was trained. Each seam has a figure, a limit and a verdict.

Reads `data/final/test.jsonl`, `models/base/`, `models/adapter/`, `models/merged/`, `reports/merge.json`, every GGUF in `models/gguf/`;
with `base.quantization: gguf` no merge, and of the GGUFs the adapter's.
Writes `reports/parity.json` and `reports/parity.html`; a failed seam fails the run (exit code 5).
Command: `python -m pipeline parity`
"""

from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.chat.tokens import chats, load_tokenizer
from pipeline.config.levels import level_key
from pipeline.config.params import Params
from pipeline.core.checks import overall
from pipeline.core.errors import DataError, GateError
from pipeline.core.hashing import file_hash
from pipeline.core.jsonl import read_rows
from pipeline.core.publish import read_json, scratch_folder, write_json, write_text
from pipeline.gguf.file import is_made
from pipeline.llamacpp.tools import find_toolchain
from pipeline.stages.parity.adapter_outputs import PackedChain, packed_seams
from pipeline.stages.parity.check import KEYS
from pipeline.stages.parity.gguf_weights import gguf_weights
from pipeline.stages.parity.level_weights import level_weights
from pipeline.stages.parity.measure import (
    BEHAVIOUR,
    LEFT_OUT,
    TEXT,
    Measure,
    Seams,
    add_part,
    behaviour,
    text_and_tokens,
    told,
    unmeasured,
)
from pipeline.stages.parity.merged_weights import merged_weights
from pipeline.stages.parity.outputs import Bench, Chain, output_seams
from pipeline.stages.parity.page import render_parity_page
from pipeline.stages.parity.special_tokens import special_seams

# seams by key with their titles, to name those that were not measured
SPECIAL = {
    "tokens_special": "Special tokens",
    "text_chat_template": "Chat template",
    "tokens_levels": "Vocabularies and passports",
}
OUTPUTS = {"outputs_trained": "Trained model (NF4 with adapter) → merged model", "outputs_sixteen": "16-bit base with adapter → merged model",
           "outputs_gguf": "Merged model → 16-bit GGUF"}  # fmt: skip
NO_BASE = "convert.base is false, so the untuned base has no GGUF"
LORA = {"outputs_lora": "Base GGUF with LoRA GGUF"}


def parity(chain: Chain, measure: Measure, *, base_gguf: Path | None, lora: Path) -> Seams:
    """Measure every seam that `parity.depth` asks for, name the others; the caller decides what a failed one means.

    The stored weights come first: where they are damaged, llama.cpp may refuse the file, and then they say why.
    """
    depth, tokenizer = measure.limits.depth, load_tokenizer(chain.adapter)
    told("weights")
    seams = weights(chain, measure, base_gguf)

    told("text and tokens")
    levels = list(chain.levels.values())
    add_part(
        seams,
        SPECIAL,
        lambda: special_seams(
            tokenizer=tokenizer, merged=chain.merged, f16=chain.gguf, levels=levels, tools=measure.tools
        ),
    )
    add_part(seams, TEXT, lambda: text_and_tokens(chain.gguf, tokenizer, measure))
    outputs = OUTPUTS | {
        level_key("outputs", level): f"{chain.gguf.stem} → {level}" for level in chain.levels
    }
    if depth == "quick":
        return seams | unmeasured(outputs | BEHAVIOUR | LORA, LEFT_OUT.format(depth, "standard"))
    whole = depth == "full" and base_gguf is not None
    if whole:
        outputs |= LORA
    told("outputs")
    add_part(
        seams,
        outputs,
        lambda: outputs_of(
            chain, tokenizer, measure, {"base_gguf": base_gguf, "lora": lora} if whole else {}
        ),
    )
    told("behaviour")
    add_part(seams, BEHAVIOUR, lambda: behaviour([chain.gguf, *chain.levels.values()], tokenizer, measure))
    return (
        seams if whole else seams | unmeasured(LORA, LEFT_OUT.format(depth, "full") if base_gguf else NO_BASE)
    )


def weights(chain: Chain, measure: Measure, base_gguf: Path | None) -> Seams:
    """Base and adapter against the merged model, that against its GGUF, this against each level, the base against its own; tensor by tensor."""
    seams = merged_weights(chain.base, chain.adapter, chain.merged)
    seams["weights_gguf"] = gguf_weights(chain.merged, chain.gguf)
    if base_gguf:
        seams["weights_base"] = gguf_weights(chain.base, base_gguf)
    else:
        seams |= unmeasured({"weights_base": "Untuned base → its 16-bit GGUF"}, NO_BASE)
    for level, path in chain.levels.items():
        seams[level_key("weights", level)], _ = level_weights(
            chain.gguf, path, level, measure.limits.rmse_slack, measure.tensor_types
        )
    return seams


def outputs_of(chain: Chain, tokenizer: Any, measure: Measure, with_lora: dict[str, Path | None]) -> Seams:
    """What the models say to held-out rows, along the chain. Raises `DataError` where no row can be used."""
    bench = Bench(measure.prompts(tokenizer), measure.scratch, measure.evaluate.threads, measure.tools)
    return output_seams(chain, bench, measure.limits, **with_lora)


def measure_parity(params: Params, root: Path) -> Seams:
    """Measure the files below `root` and write both reports, also if a check failed; the checks."""
    rows = list(
        islice(
            chats(read_rows(root / "data/final/test.jsonl")),
            max(params.parity.conversations, params.parity.rows, params.parity.prompts),
        )
    )
    if not rows:
        raise DataError(
            "Q-PARITY-003",
            f"{root / 'data/final/test.jsonl'} holds no chat, so parity has nothing to compare: raise curate.test_fraction",
        )
    with scratch_folder(root / "models/.parity") as scratch:
        measure = Measure(
            rows,
            params.parity,
            params.evaluate,
            find_toolchain(params.llamacpp.home),
            scratch,
            params.quantize.tensor_types,
        )
        seams, files, merge_report = (adapter_seams if params.graph == "adapter" else merged_seams)(
            params, root, measure
        )
    report = {
        "verdict": overall(seams.values()), "depth": params.parity.depth, "seams": {key: seam.record(KEYS) for key, seam in seams.items()},
        "files": {path.name: file_hash(path) for path in files},
    }  # fmt: skip
    write_json(root / "reports/parity.json", report)
    write_text(root / "reports/parity.html", render_parity_page(report, merge_report))
    return seams


def merged_seams(
    params: Params, root: Path, measure: Measure
) -> tuple[Seams, list[Path], dict[str, Any] | None]:
    """(seams, GGUFs that were measured, the merge's report) of the graph of merged models."""
    folder, name, kind = root / "models/gguf", params.convert.name, params.convert.type
    chain = Chain(
        base=root / "models/base", adapter=root / "models/adapter", merged=root / "models/merged", gguf=folder / f"{name}-{kind}.gguf",
        levels={level: folder / f"{name}-{level}.gguf" for level in params.quantize.tuned},
    )  # fmt: skip
    merge_report, untuned = (
        read_json(root / "reports/merge.json", "run `snakemake merge`"),
        folder / f"{name}-base-{kind}.gguf",
    )
    base_gguf = untuned if is_made(untuned) else None
    seams = parity(chain, measure, base_gguf=base_gguf, lora=folder / f"{name}-lora.gguf")
    return seams, [chain.gguf, *([base_gguf] if base_gguf else []), *chain.levels.values()], merge_report


def adapter_seams(
    params: Params, root: Path, measure: Measure
) -> tuple[Seams, list[Path], dict[str, Any] | None]:
    """The same of the graph without a merge."""
    lora = root / "models/gguf" / f"{params.convert.name}-lora.gguf"
    chain = PackedChain(
        base=root / "models/base",
        lineage=root / "models/base.json",
        adapter=root / "models/adapter",
        lora=lora,
    )
    return packed_seams(chain, measure), [chain.gguf, lora], None


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`; write the reports also when a seam failed, then raise `GateError`."""
    seams = measure_parity(params, root).values()
    print(*(f"parity: {seam}" for seam in seams), sep="\n")
    if failed := [seam for seam in seams if seam.verdict == "fail"]:
        raise GateError(
            "Q-PARITY-001",
            "; ".join(f"{seam.name} failed: {seam.found}; likely cause: {seam.remedy}" for seam in failed),
        )

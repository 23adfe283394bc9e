"""Run the parity checks: is what is served what was trained? Each parity check has a figure, a limit and a
verdict.

Reads `data/final/test.jsonl`, `models/base/`, `models/adapter/`, `models/merged/`, `reports/merge.json`,
every GGUF in `models/gguf/`, `reports/distill/`; with `base.quantization: gguf` no merge, and of the GGUFs
the adapter's or the tuned one. Writes `reports/parity.json` and `reports/parity.html`; a failed parity check
fails the run (exit code 5). Command: `python -m pipeline parity`
"""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.chat.tokens import load_tokenizer
from pipeline.chat.wanted import chats_in
from pipeline.config.levels import distilled_from, level_key
from pipeline.config.params import Params
from pipeline.config.sections import TUNED, UNTUNED, Graph
from pipeline.core.checks import overall
from pipeline.core.errors import DataError, GateError
from pipeline.core.hashing import file_hash
from pipeline.core.publish import read_json, scratch_folder, write_json, write_text
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.file import is_made
from pipeline.llamacpp.tools import find_toolchain
from pipeline.stages.parity.check import KEYS
from pipeline.stages.parity.gguf_weights import gguf_weights
from pipeline.stages.parity.level_weights import level_weights
from pipeline.stages.parity.measure import (
    BEHAVIOR,
    LEFT_OUT,
    TEXT,
    Measure,
    ParityChecks,
    add_part,
    announce,
    behavior,
    text_and_tokens,
    unmeasured,
)
from pipeline.stages.parity.merged_weights import merged_weights
from pipeline.stages.parity.outputs import Bench, Chain, output_checks
from pipeline.stages.parity.page import render_parity_page
from pipeline.stages.parity.scales_weights import distilled_weights
from pipeline.stages.parity.special_tokens import special_checks
from pipeline.stages.parity.unmerged import unmerged_checks
from pipeline.stages.parity.unmerged_chain import UnmergedChain

# parity checks by key with their titles, to name those that were not measured
SPECIAL = {
    "tokens_special": "Special tokens",
    "text_chat_template": "Chat template",
    "tokens_levels": "Vocabularies, settings and provenance records",
}
OUTPUTS = {
    "outputs_trained": "Trained model (NF4 with adapter) → merged model",
    "outputs_sixteen": "16-bit base with adapter → merged model",
    "outputs_gguf": "Merged model → 16-bit GGUF",
}
NO_BASE = "convert.base is false, so the untuned base has no GGUF"
LORA = {"outputs_lora": "Base GGUF with LoRA GGUF"}
Measured = tuple[ParityChecks, list[Path], dict[str, Any] | None]


def parity(chain: Chain, measure: Measure, *, base_gguf: Path | None, lora: Path) -> ParityChecks:
    """Measure every parity check that `parity.depth` asks for, name the others; the caller decides what a
    failed one means.

    The stored weights come first: where they are damaged, llama.cpp may refuse the file, and then they say
    why.
    """
    depth, tokenizer = measure.limits.depth, load_tokenizer(chain.adapter)
    announce("weights")
    checks = weights(chain, measure, base_gguf)

    levels = list(chain.levels.values())
    add_part(
        checks,
        "text and tokens",
        SPECIAL,
        lambda: special_checks(
            tokenizer=tokenizer, merged=chain.merged, f16=chain.gguf, levels=levels, tools=measure.tools
        ),
    )
    add_part(checks, "", TEXT, lambda: text_and_tokens(chain.gguf, tokenizer, measure))
    outputs = OUTPUTS | {
        level_key("outputs", level): f"{chain.gguf.stem} → {level}" for level in chain.levels
    }
    if depth == "quick":
        return checks | unmeasured(outputs | BEHAVIOR | LORA, LEFT_OUT.format(depth, "standard"))
    with_lora = depth == "full" and base_gguf is not None
    if with_lora:
        outputs |= LORA
    add_part(
        checks,
        "outputs",
        outputs,
        lambda: output_checks(
            chain,
            Bench(measure.prompts(tokenizer), measure.scratch, measure.evaluate.threads, measure.tools),
            measure.limits,
            checks,
            base_gguf=base_gguf if with_lora else None,
            lora=lora if with_lora else None,
        ),
    )
    add_part(
        checks,
        "behavior",
        BEHAVIOR,
        lambda: behavior([chain.gguf, *chain.levels.values()], tokenizer, measure),
    )
    return (
        checks
        if with_lora
        else checks | unmeasured(LORA, LEFT_OUT.format(depth, "full") if base_gguf else NO_BASE)
    )


def weights(chain: Chain, measure: Measure, base_gguf: Path | None) -> ParityChecks:
    """Base and adapter against the merged model, that against its GGUF, this against each level, the base
    against its own; tensor by tensor.
    """
    checks = merged_weights(chain.base, chain.adapter, chain.merged)
    checks["weights_gguf"] = gguf_weights(chain.merged, chain.gguf)
    if base_gguf:
        checks["weights_base"] = gguf_weights(chain.base, base_gguf)
    else:
        checks |= unmeasured({"weights_base": "Untuned base → its 16-bit GGUF"}, NO_BASE)
    for level, path in chain.levels.items():
        if plain := distilled_from(level):
            record = measure.distilled / f"{plain}.json"
            checks[level_key("weights", level)] = distilled_weights(chain.levels[plain], path, record, level)
            continue
        checks[level_key("weights", level)], _ = level_weights(
            chain.gguf, path, level, measure.limits.rmse_slack, measure.tensor_types
        )
    return checks


def measure_parity(params: Params, root: Path) -> ParityChecks:
    """Measure the files below `root` and write both reports, also if a check failed; the checks."""
    rows = list(
        islice(
            chats_in(root / "data/final/test.jsonl"),
            max(params.parity.conversations, params.parity.rows, params.parity.prompts),
        )
    )
    if not rows:
        raise DataError(
            "Q-PARITY-003",
            f"{root / 'data/final/test.jsonl'} holds no chat, so parity has nothing to compare: raise "
            "curate.test_fraction",
        )
    with scratch_folder(root / "models/.parity") as scratch:
        measure = Measure(
            rows,
            params.parity,
            params.evaluate,
            find_toolchain(params.llamacpp.home),
            scratch,
            params.quantize.tensor_types,
            root / "reports/distill",
        )
        checks, files, merge_report = BY_GRAPH[params.graph](params, root, measure)
    report = {
        "verdict": overall(checks.values()),
        "depth": params.parity.depth,
        "checks": {key: check.record(KEYS) for key, check in checks.items()},
        "files": {path.name: file_hash(path) for path in files},
    }
    write_json(root / "reports/parity.json", report)
    write_text(root / "reports/parity.html", render_parity_page(report, merge_report))
    return checks


def merged_checks(params: Params, root: Path, measure: Measure) -> Measured:
    """(parity checks, GGUFs that were measured, the merge's report) of the graph of merged models."""
    folder, name, kind = root / "models/gguf", params.convert.name, params.convert.type
    chain = Chain(
        base=root / "models/base",
        adapter=root / "models/adapter",
        merged=root / "models/merged",
        gguf=folder / f"{name}-{kind}.gguf",
        levels={level: folder / f"{name}-{level}.gguf" for level in params.quantize.files},
        untuned={
            level.removeprefix(UNTUNED): folder / f"{name}-{level}.gguf"
            for level in params.quantize.untuned
            if not params.quantize.tensor_types  # which say what a level of the merged model is made of
        },
    )
    merge_report, untuned = (
        read_json(root / "reports/merge.json", "run `snakemake merge`"),
        folder / f"{name}-base-{kind}.gguf",
    )
    base_gguf = untuned if is_made(untuned) else None
    return (
        parity(chain, measure, base_gguf=base_gguf, lora=folder / f"{name}-lora.gguf"),
        [chain.gguf, *([base_gguf] if base_gguf else []), *chain.levels.values()],
        merge_report,
    )


def adapter_checks(params: Params, root: Path, measure: Measure) -> Measured:
    """The same of the graph that serves the base's file with the adapter's GGUF on it."""
    lora = root / "models/gguf" / f"{params.convert.name}-lora.gguf"
    chain = unmerged_chain(root, root / "models/base" / MODEL_FILE, lora)
    return unmerged_checks(chain, measure), [chain.served, lora], None


def tuned_checks(params: Params, root: Path, measure: Measure) -> Measured:
    """The same of the graph that serves the base's file with trained scales."""
    chain = unmerged_chain(root, root / "models/gguf" / f"{params.convert.name}-{TUNED}.gguf")
    return unmerged_checks(chain, measure), [chain.bare, chain.served], None


def unmerged_chain(root: Path, served: Path, lora: Path | None = None) -> UnmergedChain:
    """The files below `root` of a graph that serves `served`, with `lora` on it if one is given."""
    models = root / "models"
    return UnmergedChain(
        base=models / "base",
        lineage=models / "base.json",
        adapter=models / "adapter",
        served=served,
        lora=lora,
    )


BY_GRAPH: dict[Graph, Callable[[Params, Path, Measure], Measured]] = {
    "merged": merged_checks,
    "adapter": adapter_checks,
    "tuned": tuned_checks,
}


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`; write the reports also when a parity check failed, then raise
    `GateError`.
    """
    checks = measure_parity(params, root).values()
    print(*(f"parity: {check}" for check in checks), sep="\n")
    if failed := [check for check in checks if check.verdict == "fail"]:
        raise GateError(
            "Q-PARITY-001",
            "; ".join(
                f"{check.name} failed: {check.found}; likely cause: {check.remedy}" for check in failed
            ),
        )

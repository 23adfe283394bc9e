"""Routes: the probes of each way to ship, and the files that they check.

`merged`: base and adapter → merged model → 16-bit GGUF → levels, and the base's GGUF with the adapter's GGUF.
If nothing is merged, one hand-over remains: training's forward in PyTorch on the file's own blocks, against
llama.cpp's on the served file. Stored weights come first everywhere: if they are damaged, llama.cpp may
refuse the file, and then they tell why.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.chat.tokens import load_tokenizer
from pipeline.chat.trial import why_no_chats
from pipeline.config.levels import ModelName, level_key
from pipeline.config.params import Params
from pipeline.config.products import ModelFiles
from pipeline.config.sections import TUNED, Graph
from pipeline.core.checks import Check
from pipeline.core.publish import read_json
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.file import is_made
from pipeline.llamacpp.server import serving
from pipeline.pages import parity_summary as places
from pipeline.stages.parity import behavior, rendering, special_tokens, tokens, tool_calls
from pipeline.stages.parity.check import CTX_SIZE, Measure, ParityChecks, Probe
from pipeline.stages.parity.divergence_checks import FROM_NF4, FROM_SIXTEEN
from pipeline.stages.parity.gguf_weights import gguf_weights
from pipeline.stages.parity.level_weights import level_weights
from pipeline.stages.parity.merged_weights import merged_weights
from pipeline.stages.parity.outputs import Bench, Chain, output_checks
from pipeline.stages.parity.probe_inputs import chosen, strings
from pipeline.stages.parity.scales_weights import distilled_weights, scales_weights
from pipeline.stages.parity.served_files import BARE_TITLE, ServedFiles, base_file, lora_weights
from pipeline.stages.parity.served_outputs import outputs

NO_BASE = "no setting needs a GGUF of the untuned base: set parity.depth to full in params.yaml"
NO_CHATS = "no held-out row is a chat, so nothing can be asked"
LORA = {"outputs_lora": "Base GGUF with LoRA GGUF"}
BEHAVIOR = {"behavior_answers_end": behavior.ENDS, "behavior_no_markers": behavior.MARKERS}
TEXT = {"text_template": rendering.TITLE, "tokens_ids": tokens.IDS, "tokens_corpus": tokens.CORPUS}
CALLS = {"text_tool_calls": tool_calls.TITLE}
SPECIAL = {"tokens_special": special_tokens.TOKENS, "text_chat_template": special_tokens.TEMPLATE}


@dataclass(frozen=True)
class Route:
    """Probes of a way to ship, the place that each check judges (by its key), the GGUFs that are checked, and
    the report of the merge if there is one.
    """

    probes: list[Probe]
    places: Mapping[str, str]
    files: list[Path]
    merge_report: dict[str, Any] | None = None


def merged(params: Params, root: Path, measure: Measure) -> Route:
    """Return the route of the graph that merges."""
    folder = root / "models/gguf"
    name = params.convert.name
    kind = params.convert.type
    chain = Chain(
        base=root / "models/base",
        adapter=root / "models/adapter",
        merged=root / "models/merged",
        gguf=folder / f"{name}-{kind}.gguf",
        levels={level: folder / f"{name}-{level}.gguf" for level in params.quantize.files},
        untuned={
            ModelName(level).bare: folder / f"{name}-{level}.gguf"
            for level in params.quantize.untuned
            if not params.quantize.tensor_types  # tensor_types defines a level of the merged model only
        },
        reports=root / "reports",
    )
    untuned = folder / f"{name}-base-{kind}.gguf"
    base_gguf = untuned if is_made(untuned) else None
    return Route(
        merged_probes(chain, measure, base_gguf=base_gguf, lora=folder / f"{name}-lora.gguf"),
        {
            **dict.fromkeys(("weights_merged", "outputs_sixteen", "outputs_trained"), places.MERGED),
            **dict.fromkeys(("weights_gguf", "outputs_gguf"), places.SIXTEEN),
            **{level_key(group, level): level for group in ("weights", "outputs") for level in chain.levels},
            "outputs_lora": places.SIXTEEN + places.LORA,
            **{level_key("outputs_lora", level): level + places.LORA for level in chain.levels},
        },
        [chain.gguf, *([base_gguf] if base_gguf else []), *chain.levels.values()],
        read_json(root / "reports/merge.json", "run `snakemake merge`"),
    )


def unmerged(params: Params, root: Path, measure: Measure) -> Route:
    """Return the route of graphs that serve the base's file with the adapter's GGUF or trained scales."""
    models = root / "models"
    name = params.convert.name
    lora = models / f"gguf/{name}-lora.gguf" if params.graph == "adapter" else None
    served = models / "base" / MODEL_FILE if lora else models / f"gguf/{name}-{TUNED}.gguf"
    files = ServedFiles(models / "base", models / "base.json", models / "adapter", served, lora)
    place = places.SERVED if lora else places.TUNED
    judged = {
        **dict.fromkeys(("weights_file", "outputs_bare"), places.BASE),
        **dict.fromkeys(("weights_lora", "weights_scales", "outputs_served"), place),
    }
    return Route(served_probes(files, measure), judged, [files.bare, lora or served])


ROUTES: dict[Graph, Callable[[Params, Path, Measure], Route]] = {
    "merged": merged,
    "adapter": unmerged,
    "tuned": unmerged,
}


def merged_probes(chain: Chain, measure: Measure, *, base_gguf: Path | None, lora: Path) -> list[Probe]:
    """Return the probes along the chain. `base_gguf` is the untuned base's GGUF, if it was made."""
    tokenizer = load_tokenizer(chain.adapter)
    limits = measure.limits
    with_lora = limits.depth == "full" and base_gguf is not None

    def weights(checks: ParityChecks) -> ParityChecks:
        results = {
            "weights_merged": merged_weights(chain.base, chain.adapter, chain.merged),
            "weights_gguf": gguf_weights(chain.merged, chain.gguf),
        }
        for level, path in chain.levels.items():
            key = level_key("weights", level)
            model = ModelName(level)
            if model.made_of:
                results[key] = distilled_weights(chain.levels[model.made_of], path, chain.reports, model)
            else:
                results[key] = level_weights(chain.gguf, path, level, measure.tensor_types)
        return results

    def base_weights(checks: ParityChecks) -> ParityChecks:
        return {"weights_base": gguf_weights(chain.base, base_gguf, "the untuned base")} if base_gguf else {}

    def special(checks: ParityChecks) -> ParityChecks:
        levels = list(chain.levels.values())
        return {
            **_special(tokenizer, chain.merged, chain.gguf, measure),
            "tokens_levels": special_tokens.vocabularies_and_provenance(chain.merged, chain.gguf, levels),
        }

    def output_divergences(checks: ParityChecks) -> ParityChecks:
        bench = Bench(measure.prompts(tokenizer), measure.scratch, measure.llama)
        adapted = {"base_gguf": base_gguf, "lora": lora} if with_lora else {}
        return output_checks(chain, bench, limits, checks, **adapted)

    models = [chain.gguf, *chain.levels.values()]
    no_base = "" if base_gguf else NO_BASE
    outputs = {
        "outputs_trained": FROM_NF4,
        "outputs_sixteen": FROM_SIXTEEN,
        "outputs_gguf": "Merged model → 16-bit GGUF",
        **{level_key("outputs", level): f"{chain.gguf.stem} → {level}" for level in chain.levels},
    }
    return [
        Probe("weights", {}, weights),
        Probe(
            "the base's weights",
            {"weights_base": "Untuned base → its 16-bit GGUF"},
            base_weights,
            lacking=no_base,
        ),
        Probe("special tokens", SPECIAL | {"tokens_levels": special_tokens.RECORDS}, special),
        _text(chain.gguf, tokenizer, measure),
        *_tool_calls(chain.gguf, tokenizer, measure),
        Probe("outputs", outputs | (LORA if with_lora else {}), output_divergences, "standard"),
        # With with_lora this is measured among the outputs.
        *([] if with_lora else [Probe("LoRA", LORA, output_divergences, "full", no_base)]),
        _behavior(models, tokenizer, measure),
    ]


def served_probes(files: ServedFiles, measure: Measure) -> list[Probe]:
    """Return the probes of the base's file with the adapter's GGUF, or with trained scales."""
    tokenizer = load_tokenizer(files.adapter)

    def weights(checks: ParityChecks) -> ParityChecks:
        results = {"weights_file": base_file(files)}
        if files.lora:
            return results | {"weights_lora": lora_weights(files.base, files.adapter, files.lora)}
        return results | {"weights_scales": scales_weights(files.base, files.adapter, files.served)}

    titles = {"outputs_bare": BARE_TITLE, "outputs_served": files.artifact.title}
    return [
        Probe("weights", {}, weights),
        Probe("special tokens", SPECIAL, lambda _: _special(tokenizer, files.base, files.served, measure)),
        _text(files.served, tokenizer, measure),
        *_tool_calls(files.served, tokenizer, measure),
        Probe("outputs", titles, lambda _: outputs(files, tokenizer, measure), "standard"),
        _behavior([files.served], tokenizer, measure, files.lora),
    ]


def _special(tokenizer: Any, folder: Path, gguf: Path, measure: Measure) -> ParityChecks:
    return {
        "tokens_special": special_tokens.special_tokens(tokenizer, folder, gguf, measure.llama.tools),
        "text_chat_template": special_tokens.chat_template(tokenizer, folder, gguf),
    }


def _text(gguf: Path, tokenizer: Any, measure: Measure) -> Probe:
    """Return the probe of llama-server's text of conversations and the GGUF's tokens of strings.

    Both are compared with training's.
    """

    def compare(checks: ParityChecks) -> ParityChecks:
        limits = measure.limits
        llama = replace(measure.llama, n_gpu_layers=0)
        # A base that trains only texts needs no usable template. Without one there is no text to compare.
        no_chats = None if measure.chats else why_no_chats(tokenizer, "the base")
        rendered = measure.texts
        if no_chats:
            results = {
                key: Check(TEXT[key], "not measured", no_chats) for key in ("text_template", "tokens_ids")
            }
        else:
            with serving(llama, ModelFiles(gguf), ctx_size=CTX_SIZE) as server:
                texts = rendering.served_texts(tokenizer, server, chosen(measure.chats, limits.conversations))
                results = {
                    "text_template": rendering.template_text(texts, tokenizer, gguf),
                    "tokens_ids": tokens.token_ids(texts, tokenizer, server, gguf),
                }
            rendered += [compared.complete for compared in texts.compared if compared.conversation.held_out]
        corpus = strings(tokenizer, rendered, limits.strings)
        return results | {"tokens_corpus": tokens.corpus_ids(corpus, tokenizer, gguf, llama.tools)}

    return Probe("text and tokens", TEXT, compare)


def _tool_calls(gguf: Path, tokenizer: Any, measure: Measure) -> list[Probe]:
    """Return the probe that reads the calls of rows as llama-server does, or none if no row contains a call.

    All files of a chain have one template and vocabulary, so one of them is served.
    """

    def compare(checks: ParityChecks) -> ParityChecks:
        with serving(measure.llama, ModelFiles(gguf), ctx_size=CTX_SIZE) as server:
            check = tool_calls.tool_calls(measure.calling, tokenizer, server, gguf)
        return {"text_tool_calls": check}

    return [Probe("tool calls", CALLS, compare, "standard")] if measure.calling else []


def _behavior(models: list[Path], tokenizer: Any, measure: Measure, lora: Path | None = None) -> Probe:
    """Return the probe of each GGUF's behavior in llama-server, with the adapter's GGUF `lora` if given."""
    return Probe(
        "behavior",
        BEHAVIOR,
        lambda _: behavior.behavior_checks([ModelFiles(model, lora) for model in models], tokenizer, measure),
        "standard",
        "" if measure.chats else NO_CHATS,
    )

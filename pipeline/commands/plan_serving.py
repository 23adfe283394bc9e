"""Plan the memory of serving, level by level: weights, KV cache, buffers, the longest context that fits, and
the best level that fits.

Before a model is made, weights are computed from the base's config.json and the types that each level gives
its tensors. Afterwards they are the files' sizes. If every model is evaluated, the best is the recommended
one that the gate lets pass. Writes nothing.

    quench config plan --serve --vram 8
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.commands.terminal import NOT_KNOWN, figure, plain_table, wide_console
from pipeline.config.params import Params
from pipeline.config.sections import Serve
from pipeline.config.sections.values import ALL_LAYERS
from pipeline.core.errors import ConfigError, DataError, MachineError
from pipeline.core.hardware import Card
from pipeline.core.units import MEMORY_GB, MEMORY_UNIT, memory_gb
from pipeline.gate.evaluations import Evaluations
from pipeline.gate.inputs import load_inputs, read_evaluation
from pipeline.gate.recommend import Recommendation, advise, memory_of
from pipeline.gguf.file import kv_cache_bytes
from pipeline.planning.memory.weights import lora_bytes
from pipeline.planning.model.base import find_quantized
from pipeline.planning.model.level_bytes import level_bytes
from pipeline.planning.model.shape import Shape
from pipeline.planning.serving import (
    LevelPlan,
    PlannedModel,
    best_that_fits,
    cache_per_token,
    plan_level,
)
from pipeline.planning.setup import setup_of


def main(params: Params, root: Path, shape: Shape, card: Card | None, *, base: str, as_json: bool) -> None:
    """Print the plan. Raises `MachineError` if no level fits `card` (None: its memory is not known), and
    `ConfigError` if the context is too long.
    """
    reports = {
        model: read_evaluation(root, model)
        for model in params.evaluate.models
        if (root / f"reports/eval/{model}.json").is_file()
    }
    plans = plan_levels(params, root, shape, card, reports)
    advice = None
    if card and reports and params.graph == "merged":
        advice = measured_advice(params, root, card)
    best = advice.model if advice else best_that_fits(plans)
    if as_json:
        value = {
            "card": asdict(card) if card else None,
            "ctx_size": params.serve.ctx_size,
            "parallel": params.serve.parallel,
            "best": best,
            "reason": advice.reason if advice else None,
            "levels": {name: as_values(plan) for name, plan in plans.items()},
        }
        print(json.dumps(value, indent=2, ensure_ascii=False))
    else:
        show(params, plans, card, base=base, best=best, advice=advice)
    tokens = params.serve.ctx_size
    if tokens > shape.positions:
        raise ConfigError(
            "Q-COMMANDS-007",
            f"serve.ctx_size is {tokens:,} and the model has {shape.positions:,} positions: "
            f"serve at most {shape.positions:,} tokens",
        )
    if card and all(plan.fits is False for plan in plans.values()):
        least = min(plans.values(), key=lambda plan: plan.memory.total)
        longest = f"serve at most {least.longest:,} tokens (serve.ctx_size)" if least.longest else ""
        raise MachineError(
            "Q-COMMANDS-008",
            f"no level fits {card.name}: {least.name}, the smallest, needs {memory_gb(least.memory.total)} "
            f"of {memory_gb(card.memory)}: {longest or 'make a smaller level'}",
        )


def plan_levels(
    params: Params, root: Path, shape: Shape, card: Card | None, reports: Evaluations
) -> dict[str, LevelPlan]:
    """Return the plan of each model that can be served, the smallest first."""
    serve = served_on(card, params.serving)
    plans = []
    room = card.memory if card else None
    for name, files, computed in models(params, root, shape):
        exists = all(file.is_file() for file in files)
        sizes = [file.stat().st_size for file in files] if exists else []
        # An evaluation of another file does not apply to this one.
        report = reports.get(name)
        measured = exists and report and report.bytes in (sizes[0], sum(sizes))
        peak = memory_of(report, serve).peak if report and measured else None
        if exists:
            weights = sum(sizes)
            per_token = kv_cache_bytes(files[0], 1)
        else:
            weights = computed
            per_token = cache_per_token(shape)
        model = PlannedModel(name, weights, per_token, shape.positions, exists, peak)
        plans.append(plan_level(model, serve, room))
    return {plan.name: plan for plan in sorted(plans, key=lambda plan: plan.memory.weights)}


def models(params: Params, root: Path, shape: Shape) -> list[tuple[str, list[Path], int]]:
    """Return (name, files, computed bytes) of the models that can be served: the tuned levels and the 16-bit
    model, or the base's own GGUF with its adapter or with trained scales.
    """
    product = params.product

    def files(model: str) -> list[Path]:
        return [*filter(None, params.files(root, model))]

    quantized = find_quantized(params, shape, root)
    if quantized:
        served = str(product.served)
        lora = lora_bytes(setup_of(params, shape)) if product.with_lora else 0
        return [(served, files(served), quantized.file + lora)]
    return [
        (level, files(level), level_bytes(shape, level))
        for level in (*params.quantize.files, params.convert.type)
    ]


def served_on(card: Card | None, serve: Serve) -> Serve:
    """Return `serve` for `card`; None is a GPU of unknown memory. A GPU is planned with all layers on it, so
    that no measurement in main memory applies to it.
    """
    on_gpu = (card is None or card.device == "cuda") and not serve.on_gpu
    return serve.model_copy(update={"n_gpu_layers": ALL_LAYERS}) if on_gpu else serve


def measured_advice(params: Params, root: Path, card: Card) -> Recommendation | None:
    """Return the recommendation for `card` if everything is measured, otherwise None."""
    try:
        inputs = load_inputs(root, params)
    except DataError:
        return None  # Not all stages have run: only the files decide.
    room = math.floor(card.memory / MEMORY_GB * 100) / 100  # never more than the real memory
    serve = served_on(card, params.serving)
    return advise(inputs, params.report, serve, memory_gb=room)[0]


def as_values(plan: LevelPlan) -> dict[str, Any]:
    """Return a level's plan as plain values in bytes and tokens."""
    memory = plan.memory
    return {
        "weights_bytes": memory.weights,
        "weights_from": "file" if plan.from_file else "computed",
        "kv_cache_bytes": memory.kv_cache,
        "buffers_bytes": memory.buffers,
        "buffers_from": "assumed" if memory.peak is None else "measured",
        "prompt_cache_bytes": memory.prompt_cache,
        "total_bytes": memory.total,
        "longest_context": plan.longest,
        "fits": plan.fits,
    }


def show(
    params: Params,
    plans: Mapping[str, LevelPlan],
    card: Card | None,
    *,
    base: str,
    best: str | None,
    advice: Recommendation | None,
) -> None:
    """Print the levels as a table of at most 100 columns, the best that fits and the arithmetic behind it."""
    console = wide_console()
    serve = params.serving
    slots = f"{serve.parallel} answers at once of " if serve.parallel > 1 else ""
    console.print(
        f"{base}, served with {slots}{serve.ctx_size:,} tokens on "
        f"{card.words if card else 'a card whose memory is not known'}",
        markup=False,
    )
    caches = ["prompt cache"] if any(plan.memory.prompt_cache for plan in plans.values()) else []
    headings = ("weights GB", "KV cache", "buffers", *caches, "total GB", "longest context")
    table = plain_table("level", *headings, "fits", numbers=range(1, len(headings) + 1), unwrapped=(0,))
    for plan in plans.values():
        memory = plan.memory
        table.add_row(
            plan.name,
            f"{figure(memory.weights)}{'' if plan.from_file else ' *'}",
            figure(memory.kv_cache),
            f"{figure(memory.buffers)}{' *' if memory.peak is None else ''}",
            *([figure(memory.prompt_cache)] if caches else []),
            figure(memory.total),
            NOT_KNOWN if plan.longest is None else f"{plan.longest:,}",
            {True: "yes", False: "no", None: NOT_KNOWN}[plan.fits],
            style="bold" if plan.name == best else None,
        )
    console.print(table)
    for line in closing(params, plans, card, best, advice):
        console.print(line, markup=False)


def closing(
    params: Params,
    plans: Mapping[str, LevelPlan],
    card: Card | None,
    best: str | None,
    advice: Recommendation | None,
) -> list[str]:
    """Return the lines that explain the table."""
    lines = [f"{MEMORY_UNIT}."]
    if not all(plan.from_file and plan.memory.peak is not None for plan in plans.values()):
        lines.append(
            "* computed: weights from the types of the level's tensors, buffers as a tenth of weights and "
            "cache; `snakemake` makes and measures them."
        )
    if card is None:
        return [
            *lines,
            "Whether a level fits is not measured: there is no GPU here; name a card's memory with --vram "
            "GB.",
        ]
    if card.device == "cuda" and params.machine.n_gpu_layers == 0:
        lines.append(
            "machine.n_gpu_layers is 0, so `quench serve` would use main memory: set it to auto for the card."
        )
    if advice:
        lines += [advice.reason, *(f"Beware: {warning}" for warning in advice.warnings)]
    elif best:
        lines.append(f"{best} has the most bits of what fits; how good it is, only `snakemake` measures.")
    return [*lines, f"{best}: {plans[best].memory}."] if best else lines

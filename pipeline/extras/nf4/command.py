"""Check that the NF4 model in training behaves like the 16-bit model it was quantized from. There is one
verdict per check. The two models are in memory one after the other.

Reads `models/base/`, and `models/adapter/`, `models/checkpoints/` and `data/final/test.jsonl` if they exist.
Writes `reports/quantization-check.json`. The report shows it as long as it belongs to the same base.

    quench model nf4 --prompts 8
    quench model nf4 --adapter runs/one --adapter runs/other     # switch between these two
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pipeline.chat.selection import measured_in
from pipeline.chat.tokens import encodable, load_tokenizer
from pipeline.config.params import Params
from pipeline.config.sections import Training
from pipeline.core.checks import Check, refuse
from pipeline.core.errors import ConfigError, DataError, GateError
from pipeline.core.publish import read_json, write_json
from pipeline.extras.nf4.adapters import (
    check_settings,
    put_adapter,
    saved_adapters,
    swap_line,
)
from pipeline.extras.nf4.checks import (
    NF4,
    PLAIN,
    Memory,
    compare_logits,
    last_logits,
    measure_training,
    memory_of,
    output_check,
)
from pipeline.metrics.forward import loaded_base
from pipeline.models.finite import adapter_is_finite, dequantization_is_finite, outputs_watched
from pipeline.models.nf4_weights import weight_lines
from pipeline.models.qlora import ON_ONE_DEVICE
from pipeline.models.runtime import use_all_cores
from pipeline.models.tuners.lora import adapter_config, check_adapter, lora_config
from pipeline.planning.model.config_file import load_shape
from pipeline.planning.model.shape import KNOWN, Shape
from pipeline.stages.parity.check import KEYS
from pipeline.stages.train.preflight import complete_base
from pipeline.stages.train.run import base_hashes

LONGEST = 256  # tokens of a prompt
SEED = 0
BUILT_IN = (
    ("Name three rivers of Europe.", "The Danube, the Rhine and the Loire."),
    ("What is 17 plus 25?", "42"),
    ("Write a Python function that adds two numbers.", "def add(a, b):\n    return a + b"),
    ("Übersetze ins Englische: Guten Morgen!", "Good morning!"),
    ('Give me {"name": "Ada", "born": 1815} with another year.', '{"name": "Ada", "born": 1816}'),
    ("Why is the sky blue?", "Air scatters blue light more than red light."),
    ("List the days of the weekend.", "1. Saturday\n2. Sunday"),
    ("Say nothing but yes.", "yes"),
)


@dataclass(frozen=True)
class Checked:
    """Results: checks by key, figures of the logits, and the memory that training keeps."""

    lines: dict[str, Check]
    figures: dict[str, float]
    memory: Memory


def quantization_check(
    *,
    base: Path,
    adapter: Path | None,
    rows: list[list[int]],
    settings: Training,
    shape: Shape | None,
    switched: Sequence[Path] = (),
) -> Checked:
    """Run every check on token ids `rows`.

    `adapter` is a PEFT folder. If it is None, a fresh random adapter is used. `switched` contains two
    adapters to switch between. Raises `GateError` at once for a number that is not finite, and `ToolError`
    for a linear layer that is not NF4.
    """
    where = f"{len(rows)} prompts, {'the trained adapter' if adapter else 'a fresh random adapter'}"
    measured: dict[str, dict[str, int]] = {}
    plain = settings.model_copy(update={"quantization": "none"})
    with loaded_base(base, plain, reference_device(base)) as bare:
        model = put_adapter(bare, adapter, adapter_config(bare, settings), "default", SEED, trained=True)
        reference = last_logits(model, rows)
        measured[PLAIN] = measure_training(model, rows, settings.learning_rate)
    # Every linear is proven to be NF4 before anything else is put on.
    with loaded_base(base, settings) as bare:
        quantized = dequantization_is_finite(bare)
        weights = weight_lines(bare, base)
        # The settings come from the model before any adapter was put on it.
        config = adapter_config(bare, settings)
        swap = swap_line(bare, lora_config(settings), rows[:1], switched)
        model = put_adapter(bare, adapter, config, "default", SEED, trained=True)
        check_adapter(model, settings)
        with outputs_watched(model) as outputs:
            candidate = last_logits(model, rows)
        matrices = adapter_is_finite(model)
        measured[NF4] = measure_training(model, rows, settings.learning_rate)
        adapter_is_finite(model)
    figures = compare_logits(reference, candidate)
    memory = memory_of(measured, shape, settings)
    lines = {
        "nf4_before_lora": counted(
            "NF4 before LoRA", "linears in NF4 before the adapter was put on", quantized
        ),
        "dequantization_finite": counted(
            "Dequantized weights", "linears all of whose weights are finite", quantized
        ),
        "lora_finite": counted("LoRA", "matrices and outputs that are finite", matrices + outputs[0]),
        **weights,
        "output_divergence": output_check(figures, where, shape.parameters if shape else None),
        "memory": memory.check,
        "adapter_swap": swap,
    }
    return Checked(lines, figures, memory)


def counted(title: str, what: str, number: int) -> Check:
    """Return a passed check over `number` parts, each proven when it was counted. If there are none, the
    check is "not measured".
    """
    if number:
        return Check(title, "pass", "each one proven", what=what, figure=float(number))
    return Check(title, "not measured", "none", what=what)


def reference_device(base: Path) -> str | None:
    """Return the device of the 16-bit base: "cpu" if it does not fit in the GPU's free memory, otherwise None
    (the training's device).
    """
    import torch

    stored = sum(shard.stat().st_size for shard in base.glob("*.safetensors"))
    if torch.cuda.is_available() and torch.cuda.mem_get_info()[0] < 1.2 * stored:
        return "cpu"
    return None


def token_rows(base: Path, held_out: Path, prompts: int) -> list[list[int]]:
    """Return token ids, in the base's template, of the first held-out rows, or of built-in rows if there are
    none. Raises `DataError` if no row fits in LONGEST tokens.
    """
    tokenizer = load_tokenizer(base)
    built_in = [
        {"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]}
        for ask, answer in BUILT_IN
    ]
    for source in (measured_in(held_out) if held_out.is_file() else iter(()), iter(built_in)):
        rows = [row.ids for row in islice(encodable(tokenizer, source, LONGEST), prompts)]
        if rows:
            return rows
    raise DataError(
        "Q-COMMANDS-030",
        f"no prompt can be rendered in {LONGEST} tokens with the template of {base}: look at "
        "reports/labels.json",
    )


def main(params: Params, root: Path, prompts: int, *, as_json: bool, adapters: Sequence[Path] = ()) -> None:
    """Measure, write the report and print it. Raises `GateError` if a check failed."""
    if params.base.quantization != "nf4":
        raise ConfigError(
            "Q-COMMANDS-025",
            f"base.quantization is {params.base.quantization}, so there is no NF4 model to compare: set it "
            "to nf4",
        )
    base = root / "models/base"
    adapter = root / "models/adapter"
    if not (base / "config.json").is_file():
        raise DataError("Q-CORE-001", f"{base} has no config.json: run `snakemake base`, which writes it")
    refuse([complete_base(base, params.base.quantization)])
    trained = adapter if (adapter / "adapter_config.json").is_file() else None
    if trained:
        check_settings(trained, params.training)
    switched = saved_adapters(root, adapters)
    use_all_cores()
    is_planned = read_json(base / "config.json", "run `snakemake --force base`").get("model_type") in KNOWN
    checked = quantization_check(
        base=base,
        adapter=trained,
        rows=token_rows(base, root / "data/final/test.jsonl", prompts),
        settings=params.training.model_copy(update=ON_ONE_DEVICE),
        shape=load_shape(base / "config.json") if is_planned else None,
        switched=switched,
    )
    failed = [line for line in checked.lines.values() if line.verdict == "fail"]
    written = {
        "verdict": "fail" if failed else "pass",
        "base_weights_sha256": base_hashes(base)["weights_sha256"],
        "adapter": bool(trained),
        "lines": {key: line.record(KEYS) for key, line in checked.lines.items()},
        "figures": checked.figures,
        "memory": checked.memory.table,
        "memory_check": checked.memory.figures,
    }
    write_json(root / "reports/quantization-check.json", written)
    if as_json:
        print(json.dumps(written, indent=2, ensure_ascii=False))
    else:
        show(checked)
    if failed:
        raise GateError("Q-COMMANDS-026", "; ".join(f"{line.name} failed: {line.found}" for line in failed))


def show(checked: Checked) -> None:
    """Print a line per check, then the table of memory in MB."""
    print(*checked.lines.values(), sep="\n")
    figures = checked.figures
    memory = checked.memory.table
    print(
        f"{'':12}  logits: mean difference {figures['mean_abs']:.4f}, largest {figures['max_abs']:.3f}, "
        f"NMSE {figures['nmse']:.5f}"
    )
    width = max(map(len, memory)) + 2
    headings = [f"{part:>12}" for part in next(iter(memory.values()))]
    print(f"\n{'MB':<{width}}" + "".join(headings))
    for name, parts in memory.items():
        sizes = [f"{size / 1e6:>12,.1f}" for size in parts.values()]
        print(f"{name:<{width}}" + "".join(sizes))
    print(f"\n{checked.memory.figures['sentence']}")

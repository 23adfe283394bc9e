"""What must hold before the first weight is loaded: data, base, libraries, disk and memory, one line each.

Nothing is written and no model is built. A check that can't be made says "not measured".
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.sections import LoraType, Training
from pipeline.core.checks import Check, Verdict
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.publish import DISK_MARGIN
from pipeline.core.units import disk_gb, memory_gb
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.header import NotGguf, read_header
from pipeline.models.experts import sign_of_experts
from pipeline.planning.card import Card
from pipeline.planning.disk import CACHE, own_bytes
from pipeline.planning.plan import Plan, make_plan
from pipeline.planning.quantized import packed_in
from pipeline.planning.shape import Shape, load_shape
from pipeline.stages.train.probes import arithmetic, bitsandbytes_works, gpu, room, this_card, triton_works

NF4_BLOCK = 64  # weights that share a scale
CONFIG = "config.json"
JSON_OBJECTS = CONFIG, "tokenizer.json"  # without which no base can be loaded


def preflight(
    *,
    tokens: Path,
    base: Path,
    disk: Path,
    settings: Training,
    max_length: int,
    levels: Sequence[str],
    lora: LoraType = "F16",
    untuned: bool = True,
) -> list[Check]:
    """Every check, in the order in which training would meet them; `disk` is a folder on the disk that takes the artifacts.

    `max_length`, `levels`, `lora` and `untuned` are `preprocess.max_length`, `quantize.levels`, `lora.type` and `convert.base`.
    `pipeline.core.checks.refuse` raises what failed.
    """
    card = this_card()
    checks = [
        data(tokens),
        whole_base(base),
        *gpu(card),
        arithmetic(card, settings),
        bitsandbytes_works(settings),
        triton_works(card, settings),
    ]
    try:
        shape = load_shape(base / "config.json")
        checks += nf4_widths(shape, settings, card)
        plan = make_plan(
            shape,
            settings,
            max_length,
            levels,
            card,
            packed=packed_in(base, settings),
            lora=lora,
            untuned=untuned,
        )
    except (ConfigError, DataError) as error:
        unplanned = [Check(name, "not measured", error.sentence) for name in ("memory plan", "disk")]
        return [*checks, *unplanned]
    return [*checks, memory_plan(plan, room(card)), disk_plan(plan.disk, shutil.disk_usage(disk).free)]


def data(tokens: Path) -> Check:
    """As many packed rows and tokens in the Parquet files as the manifest counts, and at least one row to train on."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    def fails(finding: str) -> Check:
        return Check("data", "fail", finding, "run `snakemake --force preprocess`", "Q-TRAIN-001")

    try:
        expected = json.loads((tokens / "manifest.json").read_text(encoding="utf-8"))["splits"]
        found = {}
        for split in ("train", "val"):
            table = pq.read_table(tokens / f"{split}.parquet", columns=["seq_lengths"])
            lengths = pc.sum(pc.list_flatten(table["seq_lengths"])).as_py() or 0
            found[split] = {"packed_rows": table.num_rows, "tokens": lengths}
            wrong = [
                f"{count} {key} instead of {expected[split][key]}"
                for key, count in found[split].items()
                if count != expected[split][key]
            ]
            if wrong:
                return fails(f"{split}.parquet has {' and '.join(wrong)}")
    except (OSError, ValueError, KeyError, TypeError) as error:  # pyarrow's own errors are among these
        return fails(f"{tokens} is not what stage preprocess writes ({' '.join(str(error).split())[:120]})")
    if not found["train"]["packed_rows"]:
        return fails("there is no row to train on")
    return Check(
        "data",
        "pass",
        ", ".join(
            f"{split} {count['packed_rows']:,} rows of {count['tokens']:,} tokens"
            for split, count in found.items()
        ),
    )


def whole_base(base: Path) -> Check:
    """Configuration, tokenizer and every shard of weights are there, and each shard is as long as its header says."""
    missing = [name for name in JSON_OBJECTS if not (base / name).is_file()]
    try:
        for name in JSON_OBJECTS:
            if name not in missing and not isinstance(
                json.loads((base / name).read_text(encoding="utf-8")), dict
            ):
                raise ValueError(f"{name} is no JSON object")
        if CONFIG not in missing and (
            sign := sign_of_experts(json.loads((base / CONFIG).read_text(encoding="utf-8")))
        ):
            return Check(
                "base",
                "fail",
                f"a mixture of experts ({sign})",
                "take a dense model as base.model",
                "Q-TRAIN-003",
            )
        if (packed := base / MODEL_FILE).is_file():
            return packed_base(packed, missing)
        index = base / "model.safetensors.index.json"
        names = (
            sorted({*json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
            if index.is_file()
            else ["model.safetensors"]
        )
        missing += [name for name in names if not (base / name).is_file()]
        torn = [
            name
            for name in names
            if name not in missing and (base / name).stat().st_size != safetensors_length(base / name)
        ]
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        return Check(
            "base",
            "fail",
            f"{base} can't be read ({' '.join(str(error).split())[:120]})",
            "run `snakemake --force base`",
            "Q-TRAIN-002",
        )
    if missing or torn:
        finding = "; ".join(
            f"{', '.join(which)} {what}"
            for which, what in ((missing, "missing"), (torn, "cut short"))
            if which
        )
        return Check("base", "fail", finding, "run `snakemake --force base`", "Q-TRAIN-002")
    size = sum((base / name).stat().st_size for name in names)
    return Check(
        "base", "pass", f"{disk_gb(size)} of weights in {len(names)} file{'s' if len(names) > 1 else ''}"
    )


def packed_base(file: Path, missing: Sequence[str]) -> Check:
    """The same of a GGUF, whose header says how long it must be."""
    try:
        header = read_header(file)
    except (NotGguf, OSError) as error:
        return Check(
            "base",
            "fail",
            f"{file} is not a whole GGUF ({error})",
            "run `snakemake --force base`",
            "Q-TRAIN-002",
        )
    if missing:
        return Check(
            "base", "fail", f"{', '.join(missing)} missing", "run `snakemake --force base`", "Q-TRAIN-002"
        )
    return Check(
        "base",
        "pass",
        f"{disk_gb(file.stat().st_size)} of weights in {file.name}, {len(header.tensors)} tensors",
    )


def safetensors_length(path: Path) -> int:
    """Bytes that a safetensors file must have by its header: 8, the header, the end of the last tensor. Raises `ValueError`."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > 100_000_000:  # the format's own limit
            raise ValueError(f"{path.name} has no safetensors header")
        header = json.loads(file.read(size))
    return (
        8
        + size
        + max(
            (entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0
        )
    )


def nf4_widths(shape: Shape, settings: Training, card: Card) -> list[Check]:
    """On a CPU, linears as wide as the base's are dequantised with their own blocks' scales; nothing where every width is one of whole blocks.

    bitsandbytes 0.50.2 with AVX-512 takes other blocks' scales where the width is a multiple of 16 and not of 64: training would see
    weights that are no NF4 of the base. The check is exact: all codes are 0, which stands for minus the block's scale.
    """
    widths = sorted({linear.inputs for linear in shape.linears if linear.inputs % NF4_BLOCK})
    if card.device != "cpu" or settings.quantization != "nf4" or not widths:
        return []
    import torch
    from bitsandbytes.functional import QuantState, dequantize_4bit

    wrong = []
    for width in widths:
        scales = torch.arange(1.0, width + 1)
        state = QuantState(
            scales, torch.Size((NF4_BLOCK, width)), blocksize=NF4_BLOCK, quant_type="nf4", dtype=torch.float32
        )
        found = dequantize_4bit(torch.zeros(NF4_BLOCK * width // 2, 1, dtype=torch.uint8), state)
        if not torch.equal(found.view(-1, NF4_BLOCK), -scales[:, None].expand(-1, NF4_BLOCK)):
            wrong.append(width)
    if wrong:
        finding = (
            f"bitsandbytes dequantises linears of {' and '.join(map(str, wrong))} inputs wrongly on this CPU"
        )
        return [
            Check(
                "NF4 widths",
                "fail",
                finding,
                "set base.quantization to none, or train on a GPU",
                "Q-TRAIN-004",
            )
        ]
    return [
        Check(
            "NF4 widths",
            "pass",
            f"linears of {' and '.join(map(str, widths))} inputs are dequantised as they should be",
        )
    ]


def memory_plan(plan: Plan, free: int) -> Check:
    """The memory plan against what is free on the device, and against all that it has."""
    if plan.card is None:
        raise AssertionError("a preflight always knows its device")
    needed = f"training needs {memory_gb(plan.memory.total)} by the plan"
    whole, name = plan.card.memory, plan.card.name
    if plan.memory.total > whole:
        return Check(
            "memory plan", "fail", f"{needed} and {name} has {memory_gb(whole)}", plan.remedy, "Q-TRAIN-005"
        )
    if plan.memory.total > free:
        verdict: Verdict = (
            "fail" if plan.card.device == "cuda" else "warn"
        )  # main memory can be freed and swapped
        return Check(
            "memory plan",
            verdict,
            f"{needed} and {memory_gb(free)} of {name} are free",
            "end the programs that hold it",
            "Q-TRAIN-005",
        )
    return Check("memory plan", "pass", f"{needed}, {memory_gb(free)} of {name} are free")


def disk_plan(sizes: dict[str, int], free: int) -> Check:
    """The disk plan against what is free; a warning where only the copies in DVC's cache don't fit."""
    own = int(own_bytes(sizes) * DISK_MARGIN)
    copies = int(sizes[CACHE] * DISK_MARGIN)
    finding = f"training and the stages after it need {disk_gb(own, 1)}, {disk_gb(free, 1)} are free"
    if own > free:
        return Check("disk", "fail", finding, "make room", "Q-TRAIN-006")
    if own + copies > free:
        return Check(
            "disk",
            "warn",
            f"{finding}, {CACHE} may take {disk_gb(copies, 1)} more",
            "make room, or put the cache on another disk",
        )
    return Check("disk", "pass", finding)

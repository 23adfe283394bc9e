"""Preflight: checks of data, base, libraries, disk and memory, a line each, before a weight is loaded.

Nothing is written and no model is built. A check that can't be made says "not measured". The stage's command
makes the checks, not the stage: they can only refuse, so their code and the planner's are in no key of what
is trained.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.config.sections import Quantization, Train, Training
from pipeline.config.trackers import missing_trackers
from pipeline.core.checks import Check, Verdict, refuse
from pipeline.core.cpu import multiplies_bfloat16, training_device
from pipeline.core.errors import ConfigError, DataError, ToolError
from pipeline.core.hardware import Card, accelerator, main_memory, nvidia_smi
from pipeline.core.publish import DISK_MARGIN
from pipeline.core.text import shortened
from pipeline.core.units import disk_gb, memory_gb
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.header import NotGguf
from pipeline.gguf.header import read_header as read_gguf_header
from pipeline.gguf.safetensors_rows import INDEX, read_header
from pipeline.planning.memory.parts import CUDA_CONTEXT
from pipeline.planning.model.config_file import load_shape
from pipeline.planning.model.gguf_base import quantized_file
from pipeline.planning.model.shape import Shape
from pipeline.planning.plan import CACHE, Plan, make_plan, own_bytes
from pipeline.planning.setup import NF4_BLOCK, needs_gpu, setup_of
from pipeline.stages.train.run import check_shared

# Refusals by the planner: settings that this base or this machine can't be trained with. A base that can't be
# trained at all has an id of this stage.
REFUSED = {name: name for name in ("Q-PLANNING-007", "Q-PLANNING-008", "Q-MODELS-034")}
REFUSED |= {"Q-MODELS-010": "Q-TRAIN-003"}
# compute capability of NVIDIA's Ampere (CUDA C++ Programming Guide, compute capabilities)
BFLOAT16_SINCE = 8, 0
# Share of a block's largest weight. Half of NF4's widest gap is 0.152 (bitsandbytes `get_4bit_type`), the
# rest is for the scales, which are quantized too.
LARGEST_NF4_ERROR = 0.17
JSON_OBJECTS = "config.json", "tokenizer.json"  # No base can be loaded without these.


def check_beforehand(params: Params, root: Path, processes: int) -> None:
    """Print every check of a training below `root` in `processes` processes. Raise the first failure."""
    # Otherwise the plan for one card would refuse it.
    check_shared(params.training, processes)
    checks = preflight(params, root, processes)
    print("train: before it starts", *(f"  {check}" for check in checks), sep="\n", flush=True)
    refuse(checks)


def preflight(params: Params, root: Path, processes: int = 1) -> list[Check]:
    """Return every check of a training below `root`, in training's order.

    `pipeline.core.checks.refuse` raises.
    """
    settings = params.training
    base = root / "models/base"
    card = this_card()
    checks = [
        data(root / "data/tokens"),
        complete_base(base, settings.quantization),
        *gpu(card),
        arithmetic(card, settings),
        bitsandbytes_works(settings),
        triton_works(card, settings),
        *compiler_works(settings),
        *trackers(settings),
    ]
    try:
        shape = load_shape(base / "config.json")
        checks += nf4_widths(shape, settings, card)
        quantized = quantized_file(base / MODEL_FILE) if settings.quantization == "gguf" else None
        plan = make_plan(setup_of(params, shape, card, quantized, processes))
    except (ConfigError, DataError) as error:
        if error.id in REFUSED and not any(check.id == error.id for check in checks):
            checks.append(Check("settings", "fail", error.sentence, "", REFUSED[error.id]))
        unplanned = [Check(name, "not measured", error.sentence) for name in ("memory plan", "disk")]
        return [*checks, *unplanned]
    return [*checks, memory_plan(plan, room(card)), disk_plan(plan.disk, shutil.disk_usage(root).free)]


# --- files that training reads ------------------------------------------------------------------------------


def data(tokens: Path) -> Check:
    """Check that Parquet has as many packed rows and tokens as the manifest counts, at least one row."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    sizes = {}
    fault = ""
    try:
        expected = json.loads((tokens / "manifest.json").read_text(encoding="utf-8"))["splits"]
        for split in ("train", "val"):
            table = pq.read_table(tokens / f"{split}.parquet", columns=["seq_lengths"])
            lengths = pc.sum(pc.list_flatten(table["seq_lengths"])).as_py() or 0
            sizes[split] = {"packed_rows": table.num_rows, "tokens": lengths}
            wrong = [
                f"{count} {key} instead of {expected[split][key]}"
                for key, count in sizes[split].items()
                if count != expected[split][key]
            ]
            if wrong and not fault:
                fault = f"{split}.parquet has {' and '.join(wrong)}"
        if not fault and not sizes["train"]["packed_rows"]:
            fault = "there is no row to train on"
    except (OSError, ValueError, KeyError, TypeError) as error:  # pyarrow's own errors are among these.
        fault = f"{tokens} is not what stage preprocess writes ({shortened(error, 120)})"
    if fault:
        return Check("data", "fail", fault, "run `snakemake --force preprocess`", "Q-TRAIN-001")
    counts = (
        f"{split} {count['packed_rows']:,} rows of {count['tokens']:,} tokens"
        for split, count in sizes.items()
    )
    return Check("data", "pass", ", ".join(counts))


def complete_base(base: Path, quantization: Quantization) -> Check:
    """Check that configuration, tokenizer and every shard of weights exist, and that each shard is as long
    as its header says. A GGUF must be there if `quantization` is gguf, and only then.
    """
    missing = [name for name in JSON_OBJECTS if not (base / name).is_file()]
    torn = []
    try:
        for name in JSON_OBJECTS:
            if name not in missing:
                _json_object(base / name)
        is_gguf = (base / MODEL_FILE).is_file()
        if is_gguf != (quantization == "gguf"):
            content = "a GGUF" if is_gguf else "no GGUF"
            finding = f"{base} holds {content}, and base.quantization is {quantization}"
            remedy = "run `snakemake base`, which makes the base that params.yaml names"
            return Check("base", "fail", finding, remedy, "Q-TRAIN-002")
        if is_gguf:
            names = [MODEL_FILE]
            content = f"{MODEL_FILE}, {len(read_gguf_header(base / MODEL_FILE).tensors)} tensors"
        else:
            index: dict[str, str] = {}
            if (base / INDEX).is_file():
                index = _json_object(base / INDEX)["weight_map"]
            names = sorted({*index.values()}) or ["model.safetensors"]
            content = f"{len(names)} file{'s' if len(names) > 1 else ''}"
            missing += [name for name in names if not (base / name).is_file()]
            torn = [name for name in names if name not in missing and _is_torn(base / name)]
        faults = []
        if missing:
            faults.append(f"{', '.join(missing)} missing")
        if torn:
            faults.append(f"{', '.join(torn)} cut short or damaged")
        finding = "; ".join(faults)
    except NotGguf as error:
        finding = f"{base / MODEL_FILE} is not a complete GGUF ({error})"
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        finding = f"{base} can't be read ({shortened(error, 120)})"
    if finding:
        return Check("base", "fail", finding, "run `snakemake --force base`", "Q-TRAIN-002")
    size = sum((base / name).stat().st_size for name in names)
    return Check("base", "pass", f"{disk_gb(size)} of weights in {content}")


def _json_object(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return value


def _is_torn(shard: Path) -> bool:
    try:
        read_header(shard)
    except DataError as error:
        return error.id != "Q-GGUF-009"  # A type that can't be merged is not damage.
    return False


# --- device: each check takes a moment ----------------------------------------------------------------------


def this_card() -> Card:
    """Return the device that training uses: the first GPU that torch sees, otherwise main memory."""
    import torch

    if not torch.cuda.is_available():
        return main_memory()
    return Card(torch.cuda.get_device_name(0), torch.cuda.mem_get_info(0)[1], "cuda")


def room(card: Card) -> int:
    """Return the bytes that training can have now.

    They include training's CUDA context, which this process has already created.
    """
    if card.device == "cuda":
        import torch

        return min(card.memory, int(torch.cuda.mem_get_info(0)[0]) + CUDA_CONTEXT)
    import psutil

    return int(psutil.virtual_memory().available)


def gpu(card: Card) -> list[Check]:
    """Check the GPU: the memory that training can have, and the processes that use some of it. On a CPU
    check for a GPU that is not used.
    """
    if card.device == "cpu":
        return unused_gpu()
    finding = f"{card.name}, {memory_gb(room(card))} of {memory_gb(card.memory)} to be had"
    try:
        holders = other_processes(
            nvidia_smi("--query-compute-apps=pid,process_name,used_memory"), os.getpid()
        )
    except (ToolError, OSError) as error:
        return [
            Check("GPU", "pass", finding),
            Check("GPU's other processes", "not measured", getattr(error, "sentence", str(error))),
        ]
    if holders:
        finding = f"{finding}; {'; '.join(holders)}"
        return [Check("GPU", "warn", finding, "end them if the memory plan doesn't fit beside them")]
    return [Check("GPU", "pass", f"{finding}, no other process is on it")]


def unused_gpu() -> list[Check]:
    """Return a warning if the driver shows a GPU and torch sees none, otherwise []."""
    try:
        card = accelerator()
    except (ToolError, OSError):
        return []
    if card is None:
        return []
    import torch

    finding = f"{card.name} is there, and torch {torch.__version__} sees none: training takes the CPU"
    return [Check("GPU", "warn", finding, "run `make setup TORCH=auto`")]


def other_processes(lines: Sequence[Sequence[str]], our_pid: int) -> list[str]:
    """Return nvidia-smi's (pid, name, MiB) of all other processes, in words."""
    return [
        f"{Path(name).name} (pid {pid}) holds {used} MiB"
        for pid, name, used in (line[:3] for line in lines)
        if pid != str(our_pid)
    ]


def arithmetic(card: Card, settings: Training) -> Check:
    """Check the type that training computes in.

    It is a warning if this CPU or GPU has no instructions for it and nothing takes their place.
    """
    chosen = settings.bnb_4bit_compute_dtype
    if card.device == "cpu" and chosen == "float16":
        finding = (
            "train.bnb_4bit_compute_dtype is float16, which this CPU has no instructions for: ten times "
            "slower than bfloat16, and more; small gradients are lost in it, for only a GPU's training "
            "scales them"
        )
        return Check("arithmetic", "warn", finding, "set it to auto")
    if card.device == "cpu" and chosen == "bfloat16" and not multiplies_bfloat16():
        return Check("arithmetic", "pass", "bfloat16, multiplied in float32: this CPU has no other products")
    arch = capability() if card.device == "cuda" and chosen == "bfloat16" else None
    if arch and arch < BFLOAT16_SINCE:
        finding = (
            f"bfloat16, which a GPU of compute capability {arch[0]}.{arch[1]} has no units for (8.0 "
            "and later have): right, but slow"
        )
        remedy = "set train.bnb_4bit_compute_dtype to float16, if the model's values fit its range"
        return Check("arithmetic", "warn", finding, remedy)
    return Check("arithmetic", "pass", chosen)


def capability() -> tuple[int, int] | None:
    """Return the GPU's compute capability, or None without one."""
    import torch

    return torch.cuda.get_device_capability(0) if torch.cuda.is_available() else None


def bitsandbytes_works(settings: Training) -> Check:
    """Check that a 64 × 64 matrix survives NF4 and back on the training device, to within NF4's own grid."""
    # Its optimizers are bitsandbytes' too.
    if settings.quantization != "nf4" and not needs_gpu(settings.optim):
        return Check("bitsandbytes", "pass", f"not used: base.quantization is {settings.quantization}")

    def round_trip() -> float:
        import torch
        from bitsandbytes.functional import dequantize_4bit, quantize_4bit

        dtype = getattr(torch, settings.bnb_4bit_compute_dtype)
        weights = torch.arange(4096, device=training_device()).sin().to(dtype).reshape(64, 64)
        quantized, state = quantize_4bit(weights, compress_statistics=True, quant_type="nf4")
        # A row is a block.
        errors = (dequantize_4bit(quantized, state) - weights).float().abs().amax(dim=1)
        return float((errors / weights.float().abs().amax(dim=1)).max())

    sentence = "an NF4 round trip errs by {:.3f} of a block's largest weight"
    return probe("bitsandbytes", round_trip, LARGEST_NF4_ERROR, sentence, "run `make setup`", "Q-TRAIN-007")


def trackers(settings: Train) -> list[Check]:
    """Check that the trackers of `train.report_to` are installed. Return [] if none are named."""
    if not settings.trackers:
        return []
    missing = missing_trackers(settings.trackers)
    if missing:
        return [Check("trackers", "fail", missing, "", "Q-TRACKERS-001")]
    return [Check("trackers", "pass", f"{', '.join(settings.trackers)} installed")]


def triton_works(card: Card, settings: Train) -> Check:
    """Check, if the loss is Liger's, that a Triton kernel of it compiles, runs and gives torch's result."""
    if settings.loss == "chunked" or (settings.loss == "auto" and card.device == "cpu"):
        return Check("Triton", "pass", "not used: the loss is chunked")
    if card.device == "cpu":
        finding = "train.loss is liger, whose kernels need a GPU, and this machine has none"
        return Check("Triton", "fail", finding, "set it to auto or chunked", "Q-TRAIN-008")

    def swiglu() -> float:
        import torch
        from liger_kernel.ops import LigerSiLUMulFunction

        gate, up = torch.linspace(-4, 4, 128, device="cuda").reshape(2, 2, 32)
        ours = LigerSiLUMulFunction.apply(gate, up)
        return float((ours - torch.nn.functional.silu(gate) * up).abs().max())

    sentence = "Liger's SwiGLU differs from torch's by {:.1e}"
    return probe(
        "Triton", swiglu, 1e-4, sentence, "set train.loss to chunked, or run `make setup`", "Q-TRAIN-008"
    )


def compiler_works(settings: Train) -> list[Check]:
    """Check, if the layers are compiled, that a small function compiles and gives torch's result. Return []
    if they aren't.
    """
    if not settings.compiled:
        return []

    def compiled_sum() -> float:
        import torch

        def scaled(values: Any) -> Any:
            return (values.sin() * 2 + 1).sum()

        values = torch.linspace(-4, 4, 512, device=training_device())
        return float((torch.compile(scaled)(values) - scaled(values)).abs())

    sentence = "a compiled sum differs by {:.1e} (the memory plan is that of layers that are not compiled)"
    remedy = "install a C++ compiler (on a GPU also Triton), or set train.compile to auto"
    return [probe("compiled layers", compiled_sum, 1e-2, sentence, remedy, "Q-TRAIN-041")]


def probe(
    name: str, measure: Callable[[], float], limit: float, sentence: str, remedy: str, id: str
) -> Check:
    """Check that a figure is at most `limit`. If it can't be measured, the check fails by name."""
    try:
        figure = measure()
    # A broken library may raise anything. Its message goes into the line.
    except Exception as error:
        return Check(name, "fail", f"{type(error).__name__}: {shortened(error)}", remedy, id)
    if figure <= limit:
        return Check(name, "pass", sentence.format(figure), figure=figure, limit=limit)
    return Check(name, "fail", sentence.format(figure), remedy, id, figure=figure, limit=limit)


def nf4_widths(shape: Shape, settings: Training, card: Card) -> list[Check]:
    """Check that a CPU dequantizes linears as wide as the base's with their own blocks' scales. Return [] if
    every width is a multiple of the block.

    bitsandbytes 0.50.2 with AVX-512 uses other blocks' scales if the width is a multiple of 16 and not of 64.
    Training would then see weights that are not the base's NF4 weights. The check is exact: all codes are 0,
    which means minus the block's scale.
    """
    linears = (linear for layer in shape.by_layer for linear in layer)
    widths = sorted({linear.inputs for linear in linears if linear.inputs % NF4_BLOCK})
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
        weights = dequantize_4bit(torch.zeros(NF4_BLOCK * width // 2, 1, dtype=torch.uint8), state)
        if not torch.equal(weights.view(-1, NF4_BLOCK), -scales[:, None].expand(-1, NF4_BLOCK)):
            wrong.append(width)
    described = f"linears of {' and '.join(map(str, wrong or widths))} inputs"
    if wrong:
        finding = f"bitsandbytes dequantizes {described} wrongly on this CPU"
        remedy = "set base.quantization to none, or train on a GPU"
        return [Check("NF4 widths", "fail", finding, remedy, "Q-TRAIN-004")]
    return [Check("NF4 widths", "pass", f"{described} are dequantized as they should be")]


# --- plans --------------------------------------------------------------------------------------------------


def memory_plan(plan: Plan, free: int) -> Check:
    """Check the memory plan against what is free on the device, and against all its memory."""
    card = plan.card
    assert card is not None, "a preflight always knows its device"
    needed = f"training needs {memory_gb(plan.memory.total)} by the plan"
    if plan.memory.total > card.memory:
        finding = f"{needed} and {card.name} has {memory_gb(card.memory)}"
        return Check("memory plan", "fail", finding, plan.remedy, "Q-TRAIN-005")
    if plan.memory.total > free:
        # Main memory can be freed and swapped.
        verdict: Verdict = "fail" if card.device == "cuda" else "warn"
        finding = f"{needed} and {memory_gb(free)} of {card.name} are free"
        return Check("memory plan", verdict, finding, "end the programs that hold it", "Q-TRAIN-005")
    return Check("memory plan", "pass", f"{needed}, {memory_gb(free)} of {card.name} are free")


def disk_plan(sizes: dict[str, int], free: int) -> Check:
    """Check the disk plan against what is free.

    It is a warning if only the copies in DVC's cache don't fit.
    """
    needed = int(own_bytes(sizes) * DISK_MARGIN)
    copies = int(sizes[CACHE] * DISK_MARGIN)
    finding = f"training and the stages after it need {disk_gb(needed, 1)}, {disk_gb(free, 1)} are free"
    if needed > free:
        return Check("disk", "fail", finding, "make room", "Q-TRAIN-006")
    if needed + copies > free:
        more = f"{finding}, {CACHE} may take {disk_gb(copies, 1)} more"
        return Check("disk", "warn", more, "make room, or put the cache on another disk")
    return Check("disk", "pass", finding)

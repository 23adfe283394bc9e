"""Preflight: checks before the first weight is loaded, of data, base, libraries, disk and memory, one line
each.

Nothing is written and no model is built. A check that can't be made says "not measured". The stage's command
makes the checks, not the stage: they can only refuse, so their code and the planner's are in no key of what
is trained. The exception is `check_shared`, which the stage calls too.
"""

import shutil
from pathlib import Path

from pipeline.config.methods import METHODS
from pipeline.config.params import Params
from pipeline.config.sections import Training
from pipeline.core.checks import Check, Verdict, refuse
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hardware import Card
from pipeline.core.publish import DISK_MARGIN
from pipeline.core.units import disk_gb, memory_gb
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.planning.model.config_file import load_shape
from pipeline.planning.model.gguf_base import quantized_file
from pipeline.planning.model.shape import Shape
from pipeline.planning.plan import CACHE, Plan, make_plan, own_bytes
from pipeline.planning.setup import setup_of
from pipeline.stages.train.input_files import complete_base, data
from pipeline.stages.train.probes import arithmetic, bitsandbytes_works, gpu, room, this_card, triton_works

# Refusals by the planner: settings that this base or this machine can't be trained with. A base that can't be
# trained at all has an id of this stage.
REFUSED = {name: name for name in ("Q-PLANNING-007", "Q-PLANNING-008", "Q-MODELS-034")}
REFUSED |= {"Q-MODELS-010": "Q-TRAIN-003"}
NF4_BLOCK = 64  # weights that share a scale


def check_beforehand(params: Params, root: Path, processes: int) -> None:
    """Print every check of a training below `root` in `processes` processes. Raise the first failure."""
    # Otherwise the plan for one card would refuse it.
    check_shared(params.training, processes)
    checks = preflight(params, root, processes)
    print("train: before it starts", *(f"  {check}" for check in checks), sep="\n", flush=True)
    refuse(checks)


def check_shared(settings: Training, count: int) -> None:
    """Raise `ConfigError` for settings that `count` processes can't share."""
    if count == 1:
        if settings.shares_base:
            raise ConfigError(
                "Q-TRAIN-040",
                "train.offload: shared shares the base's weights out among processes, and this is one alone: "
                "start several (--processes, or QUENCH_PROCESSES in the environment), or set it to none",
            )
        return
    if METHODS[settings.method].prompts:
        raise ConfigError(
            "Q-TRAIN-040",
            f"train.method grpo draws its rollouts in one process, and here are {count}: train without "
            "torchrun, srun, --processes and QUENCH_PROCESSES",
        )
    if settings.gradient_accumulation_steps < count:
        raise ConfigError(
            "Q-TRAIN-040",
            f"an optimizer step has {settings.gradient_accumulation_steps} micro-batches "
            f"(train.gradient_accumulation_steps), too few for {count} processes: raise it, or start fewer "
            "(--processes, or QUENCH_PROCESSES in the environment)",
        )


def preflight(params: Params, root: Path, processes: int = 1) -> list[Check]:
    """Return every check of a training below `root`, in training's order. `pipeline.core.checks.refuse`
    raises.
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
    """Check the disk plan against what is free. It is a warning if only the copies in DVC's cache don't
    fit.
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

"""Device checks that take a moment: the GPU and its other processes, NF4 and Liger's kernels."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.config.sections import Train, Training
from pipeline.core.checks import Check
from pipeline.core.cpu import fast_dtype, training_device
from pipeline.core.errors import ToolError
from pipeline.core.hardware import Card, accelerator, main_memory, nvidia_smi
from pipeline.core.text import shortened
from pipeline.core.units import memory_gb
from pipeline.planning.memory.parts import CUDA_CONTEXT
from pipeline.planning.setup import needs_gpu

# compute capability of NVIDIA's Ampere (CUDA C++ Programming Guide, compute capabilities)
BFLOAT16_SINCE = 8, 0
# Share of a block's largest weight. Half of NF4's widest gap is 0.152 (bitsandbytes `get_4bit_type`), the
# rest is for the scales, which are quantized too.
LARGEST_NF4_ERROR = 0.17


def this_card() -> Card:
    """Return the device that training uses: the first GPU that torch sees, otherwise main memory."""
    import torch

    if not torch.cuda.is_available():
        return main_memory()
    return Card(torch.cuda.get_device_name(0), torch.cuda.mem_get_info(0)[1], "cuda")


def room(card: Card) -> int:
    """Return the bytes that training can have now, including its CUDA context, which this process has
    already created.
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
    """Check the type that training computes in. It is a warning if this CPU or GPU has no instructions for
    it.
    """
    chosen = settings.bnb_4bit_compute_dtype
    fast = fast_dtype(card.device)
    if card.device == "cpu" and chosen not in (fast, "float32"):
        finding = (
            f"train.bnb_4bit_compute_dtype is {chosen}, which this CPU has no instructions for: ten "
            "times slower than float32, and more"
        )
        if chosen == "float16":
            finding += "; small gradients are lost in it, for only a GPU's training scales them"
        return Check("arithmetic", "warn", finding, "set it to auto")
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


def triton_works(card: Card, settings: Train) -> Check:
    """Check, if the loss is Liger's, that one of its Triton kernels compiles, runs and gives torch's
    result.
    """
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

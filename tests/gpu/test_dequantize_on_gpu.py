"""On a GPU: each type's values are gguf's bit for bit by Triton's kernels and torch; kernels are faster."""

from importlib.util import find_spec

import pytest
import torch
from ggml_reference import EVERY, by_gguf, name_of, random_rows, same_bits
from needed import need

from pipeline.gguf import dequantize as module
from pipeline.gguf.dequantize import KERNELS, TRAINABLE_TYPES, dequantize

pytestmark = pytest.mark.gpu
TRITON = pytest.mark.skipif(find_spec("triton") is None, reason=need("Triton"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_kernels", [True, False])
@EVERY
def test_values_are_ggufs(
    ggml_type: int, with_kernels: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_kernels:
        monkeypatch.setattr(module, "KERNELS", ())
    monkeypatch.setattr(module, "GPU_STEP", 1 << 16)  # several steps
    quantized = random_rows(ggml_type, 101, 37)
    given, wanted = (
        torch.from_numpy(quantized).cuda(),
        torch.from_numpy(by_gguf(quantized, ggml_type)).to(dtype),
    )
    assert same_bits(dequantize(given, ggml_type, dtype).cpu(), wanted)
    assert same_bits(dequantize(given[7:8], ggml_type, dtype).cpu(), wanted[7:8])
    assert same_bits(dequantize(given[1::3], ggml_type, dtype).cpu(), wanted[1::3].contiguous())
    picked = torch.tensor([100, 0, 0, 5])
    assert same_bits(dequantize(given.index_select(0, picked.cuda()), ggml_type, dtype).cpu(), wanted[picked])


def weights_per_second(quantized: torch.Tensor, ggml_type: int, out: torch.Tensor) -> float:
    """The best of five calls after a first one, which compiles."""
    times = []
    for _ in range(6):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        dequantize(quantized, ggml_type, out.dtype, out=out)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return out.numel() / min(times[1:])


@TRITON
@pytest.mark.parametrize("ggml_type", KERNELS, ids=name_of)
def test_the_kernel_is_faster_than_torch(ggml_type: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the largest matrix of a 7B, 3584 × 18944, into bfloat16."""
    quantized = torch.from_numpy(
        random_rows(ggml_type, 3584, 18944 // TRAINABLE_TYPES[ggml_type].weights)
    ).cuda()
    out = torch.empty(3584, 18944, dtype=torch.bfloat16, device="cuda")
    fast = weights_per_second(quantized, ggml_type, out)
    monkeypatch.setattr(module, "KERNELS", ())
    plain = weights_per_second(quantized, ggml_type, out)
    print(f"{name_of(ggml_type)}: {fast / 1e9:.0f} G weights/s by the kernel, {plain / 1e9:.0f} by torch")
    assert fast > 2 * plain

"""On a GPU: every type's values are gguf's bit for bit, by Triton's kernels and by torch, and the kernels are the faster ones."""

from importlib.util import find_spec

import pytest
import torch
from ggml_reference import by_gguf, random_rows
from test_dequantize import EVERY, same_bits

from pipeline.gguf import dequantize as module
from pipeline.gguf.dequantize import KERNELS, TRAINABLE_TYPES, dequantise

pytestmark = pytest.mark.gpu
TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton for this platform")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_kernels", [True, False])
@EVERY
def test_values_are_ggufs(kind: int, with_kernels: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_kernels:
        monkeypatch.setattr(module, "KERNELS", ())
    monkeypatch.setattr(module, "GPU_STEP", 1 << 16)  # several steps
    packed = random_rows(kind, 101, 37)
    given, wanted = torch.from_numpy(packed).cuda(), torch.from_numpy(by_gguf(packed, kind)).to(dtype)
    assert same_bits(dequantise(given, kind, dtype).cpu(), wanted)
    assert same_bits(dequantise(given[7:8], kind, dtype).cpu(), wanted[7:8])
    assert same_bits(dequantise(given[1::3], kind, dtype).cpu(), wanted[1::3].contiguous())
    picked = torch.tensor([100, 0, 0, 5])
    assert same_bits(dequantise(given.index_select(0, picked.cuda()), kind, dtype).cpu(), wanted[picked])


def weights_per_second(packed: torch.Tensor, kind: int, out: torch.Tensor) -> float:
    """The best of five calls after a first one, which compiles."""
    times = []
    for _ in range(6):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        dequantise(packed, kind, out.dtype, out=out)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return out.numel() / min(times[1:])


@TRITON
@pytest.mark.parametrize("kind", KERNELS, ids=lambda kind: TRAINABLE_TYPES[kind].name)
def test_the_kernel_is_faster_than_torch(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the largest matrix of a 7B, 3584 × 18944, into bfloat16."""
    packed = torch.from_numpy(random_rows(kind, 3584, 18944 // TRAINABLE_TYPES[kind].weights)).cuda()
    out = torch.empty(3584, 18944, dtype=torch.bfloat16, device="cuda")
    fast = weights_per_second(packed, kind, out)
    monkeypatch.setattr(module, "KERNELS", ())
    plain = weights_per_second(packed, kind, out)
    print(f"{TRAINABLE_TYPES[kind].name}: {fast / 1e9:.0f} G weights/s by the kernel, {plain / 1e9:.0f} by torch")
    assert fast > 2 * plain

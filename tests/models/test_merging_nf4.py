"""The NF4 codec: bitsandbytes' bytes and numbers for each shape and type; numbers rounded once to 16 bits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bitsandbytes.functional as bnb
import pytest
import torch
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st
from merging import is_nearest
from safetensors.torch import save_file

from pipeline.core.errors import DataError
from pipeline.gguf.safetensors_rows import read_header
from pipeline.models.merging import nf4
from pipeline.models.merging.compute import Job, Rows, Update, check_finite, round_once
from pipeline.models.merging.judge import tensor_error
from pipeline.models.merging.nf4 import Nf4, codes, quick_quantizer, round_trip, tensor_scales

TYPES = ("float32", "bfloat16", "float16")


@pytest.fixture(autouse=True)
def _eager() -> Iterator[None]:
    """bitsandbytes compiles a part of its CPU code again for every shape, which takes seconds each."""
    with torch.compiler.set_stance("force_eager"):
        yield


def quantize(values: torch.Tensor, double: bool = True) -> Any:
    return bnb.quantize_4bit(values, blocksize=64, compress_statistics=double, quant_type="nf4")


@settings(max_examples=draws(80))
@given(
    rows=st.integers(1, 90),
    columns=st.sampled_from([1, 2, 7, 33, 63, 64, 128, 130, 320, 576]),
    dtype=st.sampled_from(TYPES),
    double=st.booleans(),
    scale=st.sampled_from([0.0, 1e-6, 0.02, 1.0, 300.0]),
    zeros=st.sampled_from([0.0, 0.5, 0.99]),
    seed=st.integers(0, 999),
)
def test_bytes_and_numbers_are_bitsandbytes(
    rows: int, columns: int, dtype: str, double: bool, scale: float, zeros: float, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=random) * scale
    values = values * (torch.rand(rows, columns, generator=random) >= zeros)
    values = values.to(getattr(torch, dtype))
    theirs, state = quantize(values, double)
    kind = Nf4(dtype, double)
    cut = rows * columns // 2 // 64 * 64  # the same in two runs of whole blocks
    parts = values.view(-1)[:cut], values.view(-1)[cut:]
    maxima, used = tensor_scales([part for part in parts if part.numel()], kind)
    # two codes a byte, the first in the high half; an odd last one is padded with the code of 0
    found = torch.nn.functional.pad(codes(values.view(-1), maxima, 64), (0, values.numel() % 2), value=7)
    assert torch.equal((found[::2] << 4 | found[1::2]).to(torch.uint8), theirs.view(-1))
    if not double:
        assert torch.equal(used, state.absmax)
    ours = round_trip(values.view(-1), maxima, used, kind)
    assert ours.dtype == values.dtype
    assert torch.equal(ours, bnb.dequantize_4bit(theirs, state).reshape(-1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 64, 4099])  # an odd count of numbers, one piece, several
@pytest.mark.parametrize("wrong", [0.0, float("nan")])
def test_the_quick_quantizer_gives_bitsandbytes_bytes(dtype: str, rows: int, wrong: float) -> None:
    values = torch.randn(rows, 193 if rows == 1 else 192, generator=torch.Generator().manual_seed(rows))
    values[0, 0] = wrong or values[0, 0]
    values = values.to(getattr(torch, dtype))
    plain = quantize(values)
    with quick_quantizer():
        quick = quantize(values)
    for stored, state in (quick, quantize(values)):
        assert torch.equal(stored, plain[0]) and stored.shape == plain[0].shape
        assert torch.equal(state.absmax, plain[1].absmax)


def test_codes_are_right_next_to_every_boundary() -> None:
    middles = (nf4.nf4_values()[1:] + nf4.nf4_values()[:-1]) / 2
    edges = torch.arange(-256, 257) / 256.0  # of the table that finds the code
    bits = torch.cat([middles, edges]).view(torch.int32)
    near = torch.cat([(bits + step).view(torch.float32).clamp(-1, 1) for step in range(-40, 41)])
    near = near.nan_to_num(0.0)  # one step below +0 are the bits of a NaN
    near = torch.cat([near, torch.zeros(-len(near) % 63)]).view(-1, 63)
    blocks = torch.cat([torch.ones(len(near), 1), near], dim=1).view(-1)  # with a 1, a block's scale is 1
    wanted = torch.bucketize(blocks, middles, out_int32=True)
    assert torch.equal(codes(blocks, nf4.block_maxima(blocks, 64), 64), wanted)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_numbers_are_rounded_once(kind: str) -> None:
    dtype = getattr(torch, kind)
    low = torch.arange(0x100, 0x7B00, 7).to(torch.int16).view(dtype)
    low = torch.cat([low, -low])
    high = torch.nextafter(low, torch.tensor(float("inf"), dtype=dtype))
    middle = (low.double() + high.double()) / 2
    for step in (-1e-9, -1e-12, 0.0, 1e-12, 1e-9):  # so near a tie that float32 would fall onto it
        exact = middle * (1 + step)
        rounded = round_once(exact.clone(), dtype)
        assert is_nearest(rounded, exact), step
    assert torch.equal(round_once(middle.clone(), torch.float32), middle.float())
    tie = round_once(middle.clone(), dtype).view(torch.int16)
    assert (tie & 1 == 0).all()
    twice = (middle * (1 + 1e-12)).to(dtype)
    assert not is_nearest(twice, middle * (1 + 1e-12))  # what torch does


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("wrong", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_is_refused(kind: str, wrong: float) -> None:
    dtype = getattr(torch, kind)
    check_finite(torch.tensor([0.0, -1.0, torch.finfo(dtype).max], dtype=dtype), "w")
    check_finite(torch.tensor([], dtype=dtype), "w")
    with pytest.raises(DataError, match="Q-MODELS-022: "):
        check_finite(torch.tensor([1.0, wrong], dtype=dtype), "w")


@pytest.mark.parametrize("adapted", ["", "plain", "rows", "columns"])
def test_runs_of_rows_of_a_quantized_tensor_are_those_of_the_whole(adapted: str, tmp_path: Path) -> None:
    """Also where a row ends amid a block, the last block is short and DoRA gives rows or columns a length."""
    random, file = torch.Generator().manual_seed(3), tmp_path / "w.safetensors"
    rows, columns, axis = 8195, 48, int(adapted == "rows")
    values = torch.randn(rows, columns, generator=random).bfloat16()
    left, right = torch.randn(rows, 2, generator=random), torch.randn(2, columns, generator=random)
    lengths = torch.rand(rows if axis else columns, dtype=torch.float64, generator=random)
    has_lengths = adapted in ("rows", "columns")
    update = Update(left[None], right[None], 0.5, lengths if has_lengths else None, not axis)
    save_file({"w": values}, file)
    job = Job("w", read_header(file)[0], "", update if adapted else None, quantized=True)
    # as one column, which bitsandbytes dequantizes rightly with AVX-512 too
    start = whole = bnb.dequantize_4bit(*quantize(values.view(-1, 1))).view(rows, columns).double()
    if adapted:
        whole = start + 0.5 * left.double() @ right.double()
    if has_lengths:
        sums = whole.norm(dim=axis, keepdim=True)
        whole = whole * lengths.view(sums.shape) / sums
    merge = Rows(job, Nf4("bfloat16"))
    for first, last in ((0, 8), (4, 5464), (8192, rows)):
        found = merge.start(first, last)
        assert torch.equal(found, start[first:last])
        if adapted:
            found = merge.total(found, first, last)
        torch.testing.assert_close(found, whole[first:last], rtol=1e-12, atol=1e-12)
    merged = round_once(whole.clone(), torch.float16)
    for steps in (0, 3):
        merged.view(torch.int16)[-1, -1] += steps
        save_file({"w": merged}, tmp_path / "merged.safetensors")
        error = tensor_error(job, read_header(tmp_path / "merged.safetensors")[0], Nf4("bfloat16"))
        assert abs(error - steps) <= 0.5 + 2**-20
    save_file({"w": values * float("inf")}, file)
    with pytest.raises(DataError, match="Q-MODELS-022: "):
        Rows(job, Nf4("bfloat16"))

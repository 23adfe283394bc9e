"""Products of bfloat16 on a CPU without instructions for them: those of float32, rounded once."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from pipeline.models import wide_products  # noqa: E402
from pipeline.models.wide_products import are_widened, widen_products  # noqa: E402


@pytest.fixture(autouse=True)
def _widened(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if are_widened():  # by another test of this process, on a CPU without such instructions
        yield
        return
    monkeypatch.setattr(wide_products, "multiplies_bfloat16", lambda: False)
    widen_products()
    yield
    wide_products._libraries.pop()._destroy()


def random(*size: int) -> Any:
    """Numbers of bfloat16 that train."""
    return torch.randn(*size).bfloat16().requires_grad_()


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "linear": (F.linear, ((3, 5, 40), (30, 40))),
    "linear with a bias": (F.linear, ((17, 40), (30, 40), (30,))),
    "a transposed weight": (lambda x, weight: x @ weight.t().t(), ((17, 40), (40, 30))),
    "a part of a matrix": (lambda x, weight: x[:, 3:9] @ weight, ((17, 40), (6, 30))),
    "batches": (torch.bmm, ((4, 7, 8), (4, 8, 9))),
    "batches with a sum": (torch.baddbmm, ((4, 7, 9), (4, 7, 8), (4, 8, 9))),
    "convolution": (
        lambda x, weight: F.conv1d(x, weight, padding=2, groups=6),
        ((2, 6, 20), (6, 1, 3)),
    ),
    "attention": (
        lambda query, key, value: F.scaled_dot_product_attention(query, key, value, is_causal=True),
        ((1, 4, 20, 16), (1, 4, 20, 16), (1, 4, 20, 16)),
    ),
}


@pytest.mark.parametrize("rows", [1, wide_products.FEW, wide_products.FEW + 1])
def test_a_product_of_few_rows_is_near_that_of_float32(rows: int) -> None:
    x, weight = random(rows, 40).detach(), random(30, 40).detach()
    expected = F.linear(x.float(), weight.float())
    torch.testing.assert_close(F.linear(x, weight).float(), expected, rtol=0.02, atol=0.1)


def test_a_large_matrix_is_widened_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = random(12, 40).detach(), random(301, 40).detach()
    whole = F.linear(x, weight)
    monkeypatch.setattr(wide_products, "KEPT", 1000)
    wide_products._rooms.by_number.clear()
    assert torch.equal(F.linear(x, weight), whole)
    assert all(len(room) <= 1000 for room in wide_products._rooms.by_number.values())


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_that_of_float32_rounded_once(name: str) -> None:
    """Its gradients too."""
    torch.manual_seed(0)
    product, sizes = PRODUCTS[name]
    narrow = [random(*size) for size in sizes]
    wide = [operand.detach().float().requires_grad_() for operand in narrow]
    result = product(*narrow)
    expected = product(*wide)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, expected.bfloat16())
    upstream = torch.randn(result.shape).bfloat16()
    result.backward(upstream)
    expected.backward(upstream.float())
    for operand, reference in zip(narrow, wide, strict=True):
        assert operand.grad is not None and operand.grad.dtype == torch.bfloat16
        torch.testing.assert_close(operand.grad, reference.grad.bfloat16(), rtol=0.02, atol=0.02)


def test_a_sum_is_made_in_place() -> None:
    output, low, high = (random(*size).detach() for size in ((17, 30), (17, 4), (4, 30)))
    expected = torch.addmm(output.float(), low.float(), high.float()).bfloat16()
    assert output.addmm_(low, high) is output and torch.equal(output, expected)


def test_a_result_stays_when_the_next_product_is_made() -> None:
    x, weight = random(17, 40).detach(), random(40, 30).detach()
    result = x @ weight
    before = result.clone()
    _ = random(50, 60) @ random(60, 70)
    assert torch.equal(result, before)


def test_attention_keeps_the_order_of_memory() -> None:
    """So that the heads are put together without a copy."""
    query, key, value = (random(1, 20, 4, 16).detach().transpose(1, 2) for _ in range(3))
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert attended.transpose(1, 2).is_contiguous()


def test_products_of_other_types_stay_as_they_are() -> None:
    for dtype in (torch.float32, torch.float64, torch.float16):
        x, weight = torch.randn(7, 40).to(dtype), torch.randn(40, 30).to(dtype)
        assert (x @ weight).dtype == dtype
        torch.testing.assert_close((x @ weight).double(), x.double() @ weight.double(), rtol=2e-2, atol=2e-2)

"""The merge on an adapter: norms against plain matrices, NF4's cost, levels that would hide the training."""

import pytest
import torch
from safetensors.torch import save_file

from pipeline.gguf.safetensors_rows import read_header
from pipeline.models.merging.compute import Update
from pipeline.models.merging.nf4 import Nf4, round_trip, tensor_scales
from pipeline.stages.merge.stream import change_sums, figures, idle_adapters, nf4_error

RANDOM = torch.Generator().manual_seed(0)


def test_what_dora_changes_is_counted_and_has_no_spectral_norm() -> None:
    weight = torch.randn(40, 30, dtype=torch.float64, generator=RANDOM)
    update = Update(torch.zeros(1, 40, 2), torch.ones(1, 2, 30), 1.0, magnitude=1.5 * weight.norm(dim=1))
    one = figures("w", update, change_sums(weight, 1.5 * weight), None)
    assert one["norm_b"] == 0.0
    assert one["relative_change"] == pytest.approx(0.5)
    assert one["norm_update"] == pytest.approx(0.5 * float(weight.norm()))
    assert one["spectral_update"] is None
    assert idle_adapters([one]) == []


def test_updates_of_experts_are_counted_together() -> None:
    update = Update(torch.randn(3, 8, 2, generator=RANDOM), torch.randn(3, 2, 5, generator=RANDOM), 0.5)
    whole = torch.cat([0.5 * update.left[e].double() @ update.right[e].double() for e in range(3)])
    for first, last in ((0, 24), (3, 11), (8, 16), (7, 24)):
        torch.testing.assert_close(update.rows(first, last), whole[first:last])
    sums = change_sums(torch.ones(24, 5, dtype=torch.float64), 1 + whole)
    one = figures("a.experts.down_proj", update, sums, None)
    assert one["norm_update"] == pytest.approx(float(whole.norm()))
    assert (one["rows"], one["columns"]) == (8, 5)
    norms = [float(torch.linalg.matrix_norm(part, 2)) for part in whole.view(3, 8, 5)]
    assert one["spectral_update"] == pytest.approx(max(norms))
    assert (one["layer"], one["module"], one["nf4_error_to_update"]) == (None, "a.experts.down_proj", None)


@pytest.mark.parametrize(
    ("shape", "near"), [((64, 64), 1e-9), ((3000, 640), 0.02), ((7, 96), 1e-9), ((1, 1), 1e-9)]
)
def test_what_nf4_costs_is_measured_on_a_sample(
    shape: tuple[int, int], near: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("w") / "model.safetensors"
    values = torch.randn(shape, generator=RANDOM).bfloat16()
    save_file({"w": values}, file)
    nf4 = Nf4("bfloat16", True)
    maxima, used = tensor_scales([values.view(-1)], nf4)
    flat = values.view(-1)
    exact = (round_trip(flat, maxima, used, nf4).double() - flat.double()).norm() / flat.double().norm()
    found = nf4_error(read_header(file)[0], nf4)
    assert found == pytest.approx(float(exact), rel=near)


def test_an_adapter_that_learned_nothing_is_named() -> None:
    adapters = [{"tensor": name, "norm_update": norm} for name, norm in (("busy", 1.0), ("idle", 0.0))]
    assert idle_adapters(adapters) == [
        "1 of 2 adapters learned nothing (no weight changes), first idle: train longer or with a higher rate"
    ]
    assert idle_adapters(adapters[:1]) == []

"""The remaining parity check: the floor isn't arithmetic, the adapter has no effect, nothing can be told."""

from math import isnan, nan
from typing import Any

import pytest

from pipeline.config.params import load_params
from pipeline.core.places import PROJECT
from pipeline.metrics.divergence import Divergence
from pipeline.stages.parity.served_files import LORA, TUNED
from pipeline.stages.parity.served_outputs import Divergences, bare_check, served_check

LIMITS = load_params(PROJECT / "recipes/demo-gguf.yaml").parity


def found(kld: float, same_top: float = 0.99, positions: int = 1000) -> Divergence:
    return Divergence([kld], kld, kld, same_top, kld, positions, 0, (4, 4))


@pytest.mark.parametrize(
    ("bare", "verdict"),
    [
        (found(0.008, 0.949), "pass"),
        (found(0.06, 0.95), "fail"),
        (found(0.01, 0.8), "fail"),
        (found(6.0, 0.08), "fail"),
        (Divergence([nan], nan, nan, nan, nan, 10, 3, (4, 4)), "fail"),
    ],
)
def test_a_floor_beyond_arithmetic_is_another_model(bare: Divergence, verdict: str) -> None:
    assert bare_check(bare, "rows").verdict == verdict


@pytest.mark.parametrize(
    ("served", "bare", "moved", "verdict"),
    [
        (found(0.0063, 0.972), found(0.0082, 0.949), found(2.8, 0.5), "pass"),  # the demo
        (found(0.0005), found(0.0001, 0.999), found(0.5, 0.8), "pass"),  # within the plain limits
        # sound runs of tiny models, served ÷ bare 1.56; a share of so few positions is uncertain
        (found(0.0050, 0.938, 128), found(0.0032, 0.961, 128), found(0.4, 0.7, 128), "pass"),
        (found(0.0170, 0.949), found(0.0082, 0.949), found(2.8, 0.5), "fail"),  # more than twice the floor
        (found(0.0063, 0.90), found(0.0082, 0.949), found(2.8, 0.5), "fail"),  # too few first choices
        # no nearer to the trained model than the bare base is
        (found(0.009, 0.95), found(0.008, 0.949), found(0.017, 0.95), "fail"),
        (found(5.0), found(0.00125, 0.99), found(0.0015), "fail"),  # whatever the adapter does
        # an adapter without effect would say the same
        (found(0.0015), found(0.00125, 0.99), found(0.0015), "not measured"),
    ],
)
def test_base_and_adapter_by_the_floor_and_by_what_the_adapter_moves(
    served: Divergence, bare: Divergence, moved: Divergence, verdict: str
) -> None:
    check = served_check(Divergences(served, bare, moved, found(0.002)), LIMITS, "rows", LORA)
    assert check.verdict == verdict, check
    assert bool(check.remedy) == (verdict == "fail")


@pytest.mark.parametrize(
    ("limits", "same_top", "verdict"),
    [
        ({}, 0.99, "fail"),
        ({"max_kld_served": 0.3}, 0.99, "pass"),
        ({"max_kld_served": 0.3}, 0.989, "fail"),
        ({"max_kld_served": 0.19}, 0.99, "fail"),
    ],
)
def test_the_limits_of_what_is_served_are_those_of_the_settings(
    limits: dict[str, float], same_top: float, verdict: str
) -> None:
    given = LIMITS.model_copy(update=limits)
    measured = Divergences(found(0.2, same_top), found(0.0001, 0.999), found(2.8, 0.5), found(0.002))
    check = served_check(measured, given, "rows", LORA)
    assert check.verdict == verdict, check


@pytest.mark.parametrize(
    ("made", "file", "again"),
    [
        (LORA, "the adapter's GGUF", "snakemake --force lora"),
        (TUNED, "the tuned file", "snakemake --force tuned"),
    ],
)
@pytest.mark.parametrize("kld", [2.5, 0.5, float("nan")], ids=["no effect", "another run", "no number"])
def test_what_is_at_fault_is_named_by_what_is_served(made: Any, file: str, again: str, kld: float) -> None:
    served = Divergence([kld], kld, kld, 0.5, kld, 10, 3 if isnan(kld) else 0, (4, 4))
    check = served_check(Divergences(served, found(0.008), found(2.8), found(0.002)), LIMITS, "rows", made)
    assert check.verdict == "fail" and check.name == made.title
    assert file in check.remedy and again in check.remedy

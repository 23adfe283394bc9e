"""Figures of the gate from few draws: an exact p-value is not what the tests of `quench ship` are about."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def few_swaps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.metrics.paired.SWAPS", 50)
        yield

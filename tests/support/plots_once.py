"""The plots of a page are drawn once for the same figures, for they take more than half of its time: tests of
the report use the fixture `plots_once`.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from importlib import import_module
from typing import Any

import pytest

PLOTS = {
    "training_plots": "training_plots",
    "quality_plot": "quality_plot",
    "differences_plot": "comparisons",
}
DRAWN: dict[str, Any] = {}


def once(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Draws what was not drawn before."""

    @wraps(draw)
    def drawn(*figures: Any) -> Any:
        key = f"{draw.__name__} {figures}"
        if key not in DRAWN:
            DRAWN[key] = draw(*figures)
        return DRAWN[key]

    return drawn


@pytest.fixture(scope="module")
def plots_once() -> Iterator[None]:
    """The same figures are the same plots."""
    with pytest.MonkeyPatch.context() as patch:
        for name, where in PLOTS.items():
            module = import_module(f"pipeline.stages.report.{where}")
            patch.setattr(module, name, once(getattr(module, name)))
        yield


@pytest.fixture
def forget_plots() -> Callable[[], None]:
    """The next page draws all of its plots again."""
    return DRAWN.clear

"""A distilled level is one of the tuned model's for serve, split and ship."""

from pathlib import Path

import pytest

from pipeline.commands.serve import choose_model, model_file
from pipeline.commands.ship import shippable
from pipeline.config.params import load_params
from pipeline.core.errors import DataError
from pipeline.core.places import PROJECT

PARAMS = load_params(PROJECT / "recipes/demo-level-distill.yaml")


def test_it_is_served_and_shipped_by_its_name(tmp_path: Path) -> None:
    assert choose_model(PARAMS, tmp_path, "q4_0-DISTILLED") == "Q4_0-distilled"
    assert shippable(PARAMS, "Q4_0-Distilled") == "Q4_0-distilled"
    with pytest.raises(DataError, match="distill@Q4_0"):
        model_file(PARAMS, tmp_path, "Q4_0-distilled")

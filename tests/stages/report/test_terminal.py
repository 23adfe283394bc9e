"""pipeline.stages.report.terminal: what the table marks."""

from pathlib import Path

import pytest
from report_inputs import MODELS, evaluation

from pipeline.gate.recommend import Recommendation
from pipeline.stages.report.terminal import show

ADVICE = Recommendation("Q4_K_M", "Q4_K_M it is.", (), {}, ())


def test_divergence_to_another_kind_of_model_has_a_footnote(capsys: pytest.CaptureFixture[str]) -> None:
    show({model: evaluation(model) for model in MODELS}, ADVICE, {}, Path("index.html"))
    output = capsys.readouterr().out
    assert "* base-F16 against the tuned F16: what fine-tuning changed." in output
    marked = [line.split()[0] for line in output.splitlines() if "*" in line[1:]]
    assert marked == ["base-F16"]
    assert "*1.9034" in output
    assert "*51.2 %" in output


def test_without_the_untuned_base_there_is_no_footnote(capsys: pytest.CaptureFixture[str]) -> None:
    show({model: evaluation(model) for model in ("F16", "Q4_K_M")}, ADVICE, {}, Path("index.html"))
    assert "*" not in capsys.readouterr().out

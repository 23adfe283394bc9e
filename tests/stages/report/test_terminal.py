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


def test_speeds_that_other_load_spoilt_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found = {model: evaluation(model) for model in ("F16", "Q4_K_M")}
    spoilt = str(found["Q4_K_M"]["generation_tok_s"])
    show(found, ADVICE, {}, Path("index.html"))
    assert spoilt in capsys.readouterr().out
    found["Q4_K_M"]["speed"] |= {"other_load": 0.41, "disturbed": True}
    show(found, ADVICE, {}, Path("index.html"))
    output = capsys.readouterr().out
    assert spoilt not in output
    assert [line.split()[0] for line in output.splitlines() if "MB" in line and "disturbed" in line] == [
        "Q4_K_M"
    ]
    assert "`snakemake --forcerun reports/eval/Q4_K_M.json`" in " ".join(output.split())

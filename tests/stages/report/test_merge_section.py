"""merge_section: which base was chosen and why; warns of levels only if the fine-tune is or may be lost."""

import copy
from pathlib import Path
from typing import Any

import pytest
from gate_inputs import evaluations_of
from golden import Golden
from html_page import Page, lines_of, section_of
from parity_inputs import merge_report, parity_report
from report_inputs import demo_params, evaluation, put, write_inputs

from pipeline.gate.records import Merge, Parity
from pipeline.stages.report import stage
from pipeline.stages.report.merge_section import merge_values

pytestmark = pytest.mark.usefixtures("plots_once")

MODELS = ("base-F16", "F16", "Q4_K_M", "Q5_K_M")
EVALUATIONS = {model: evaluation(model) for model in MODELS}


def values(merge: dict[str, Any] | None = None, evaluations: dict[str, Any] | None = None) -> dict[str, Any]:
    record, parity = Merge.model_validate(merge or merge_report()), Parity.model_validate(parity_report())
    found = evaluations_of(EVALUATIONS if evaluations is None else evaluations)
    return merge_values(record, parity, found, "F16")


@pytest.mark.parametrize(
    ("kld", "ratio", "words"),
    [
        (0.9, 1.0, "will not survive"),
        (None, 0.01, "may not survive"),
        (None, 50.0, ""),  # it stands out everywhere
        (0.01, 0.01, ""),  # hardly anything is lost, whatever the weights say
    ],
)
def test_a_warning_only_where_the_fine_tune_is_lost_or_may_be(
    kld: float | None, ratio: float, words: str
) -> None:
    merge, evaluations = merge_report(), copy.deepcopy(EVALUATIONS)
    for one in merge["adapters"]:
        one["spectral_update"] *= ratio
    evaluations["Q4_K_M"]["kld_mean"] = kld
    found = [text for text in values(merge, evaluations)["warnings"] if "Q4_K_M" in text]
    assert len(found) == bool(words)
    assert words in "".join(found)


@pytest.mark.parametrize(("without", "tensors"), [(slice(0, 10), 200), (slice(None), 0)])
def test_tensors_without_a_spectral_norm_are_not_counted(without: slice, tensors: int) -> None:
    merge = merge_report()
    for one in merge["adapters"][without]:
        one["spectral_update"] = None
    for row in values(merge, {})["levels"]:
        assert row.tensors == tensors >= row.visible


def test_tensors_outside_the_layers_are_named() -> None:
    merge = merge_report()
    head = {"tensor": "lm_head.weight", "layer": None, "module": "lm_head", "relative_change": 0.0123}
    merge["adapters"].append(merge["adapters"][0] | head)
    assert values(merge)["outside"] == [("lm_head.weight", "1.23 %")]


def test_the_report_shows_the_merge_with_its_maps(tmp_path: Path, snapshot: Any) -> None:
    write_inputs(tmp_path)
    put(tmp_path / "reports/merge.json", merge_report() | {"warnings": ["2 of 210 learned nothing"]})
    put(tmp_path / "reports/parity.json", parity_report())
    stage.main(demo_params(), tmp_path)
    shown = section_of((tmp_path / "reports/index.html").read_text(encoding="utf-8"), "merge")
    assert lines_of(shown) == snapshot(extension_class=Golden)
    tags = Page(shown).tags
    assert any("mlp.down_proj" in (attributes.get("title") or "") for _, attributes in tags)
    assert sum(attributes.get("class") == "heat" for _, attributes in tags) == 2

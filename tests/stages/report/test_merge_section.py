"""merge_section: the page says which base was chosen and why, and warns of a level only where the fine-tune
is lost or may be.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
from golden import Golden
from html_page import Page, lines_of, section_of
from parity_inputs import failed_report, merge_report, parity_report
from report_inputs import demo_params, evaluation, put, write_inputs

from pipeline.stages.report import stage as stage
from pipeline.stages.report.merge_section import merge_values, stands_out

pytestmark = pytest.mark.usefixtures("plots_once")

MODELS = ("base-F16", "F16", "Q4_K_M", "Q5_K_M")
EVALUATIONS = {model: evaluation(model) for model in MODELS}


def values(merge: dict[str, Any] | None = None, evaluations: dict[str, Any] | None = None) -> dict[str, Any]:
    return merge_values(
        merge or merge_report(), parity_report(), EVALUATIONS if evaluations is None else evaluations, "F16"
    )


def test_the_candidates_stand_side_by_side_and_one_is_chosen() -> None:
    rows = values()["candidates"]
    assert [(row["model"], row["merge_base"], row["chosen"]) for row in rows] == [
        ("F16", "16-bit base", False),
        ("F16", "NF4 base", False),
        ("Q4_K_M", "16-bit base", False),
        ("Q4_K_M", "NF4 base", True),
    ]
    assert values(merge_report("nf4"))["candidates"] == []


def test_a_level_loses_the_share_of_what_the_fine_tune_changed() -> None:
    four, five = values()["levels"]
    assert (four["level"], five["level"]) == ("Q4_K_M", "Q5_K_M")
    assert four["lost"] == pytest.approx(0.0184 / 1.9034)
    assert four["noise"] == parity_report()["checks"]["weights_q4_k_m"]["figures"]["rmse_mean"]
    assert four["visible"] <= five["visible"] <= four["tensors"] == 210
    assert values()["warnings"] == []


@pytest.mark.parametrize(
    ("kld", "ratio", "words"),
    [
        (0.9, 1.0, "will not survive Q4_K_M: it loses 47%"),
        (
            None,
            0.01,
            "may not survive Q4_K_M: its change stands out of the level's rounding in 0 of 210 tensors",
        ),
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


def test_what_the_merge_warned_of_is_repeated() -> None:
    merge = merge_report() | {"warnings": ["2 of 210 adapters learned nothing"]}
    assert values(merge)["warnings"] == merge["warnings"]


@pytest.mark.parametrize(("without", "tensors"), [(slice(0, 10), 200), (slice(None), 0)])
def test_tensors_without_a_spectral_norm_are_not_counted(without: slice, tensors: int) -> None:
    merge = merge_report()
    for one in merge["adapters"][without]:
        one["spectral_update"] = None
    for row in values(merge, {})["levels"]:
        assert row["tensors"] == tensors >= row["visible"]


def test_a_change_of_few_directions_stands_out_of_noise_that_is_larger() -> None:
    tensor = {"rms_weight": 1.0, "rows": 400, "columns": 400, "spectral_update": 2.5}
    assert stands_out(tensor, 0.1)  # 0.1 · (400 · 400)^¼ = 2
    assert not stands_out(tensor, 0.13)


def test_pefts_own_merge_has_no_figures_of_its_adapters() -> None:
    merge = {key: value for key, value in merge_report("nf4").items() if key != "adapters"}
    found = values(merge)
    assert (found["maps"], found["levels"], found["outside"]) == ({"change": None, "nf4": None}, [], [])


def test_tensors_outside_the_layers_are_named() -> None:
    merge = merge_report()
    merge["adapters"].append(
        merge["adapters"][0]
        | {"tensor": "lm_head.weight", "layer": None, "module": "lm_head", "relative_change": 0.0123}
    )
    assert values(merge)["outside"] == [("lm_head.weight", "1.23 %")]


def page(root: Path, merge: dict[str, Any], parity: dict[str, Any]) -> str:
    write_inputs(root)
    put(root / "reports/merge.json", merge)
    put(root / "reports/parity.json", parity)
    stage.main(demo_params(), root)
    return (root / "reports/index.html").read_text(encoding="utf-8")


def test_the_report_shows_the_merge_with_its_maps(tmp_path: Path, snapshot: Any) -> None:
    shown = section_of(page(tmp_path, merge_report(), parity_report()), "merge")
    assert lines_of(shown) == snapshot(extension_class=Golden)
    tags = Page(shown).tags
    assert any("layer 29, mlp.down_proj" in (attributes.get("title") or "") for _, attributes in tags)
    assert sum(attributes.get("class") == "heat" for _, attributes in tags) == 2


def test_the_report_shows_checks_in_groups_with_causes_and_where_the_rest_is(tmp_path: Path) -> None:
    shown = Page(page(tmp_path, merge_report("16-bit"), failed_report()))
    text = shown.text[shown.text.index("\nParity checks") :]
    assert (
        text.index("Tokens")
        < text.index("Weights")
        < text.index("in another order: run snakemake --force convert")
        < text.index("Behavior")
    )
    assert ("a", {"href": "parity.html"}) in shown.tags


def test_the_report_does_without_the_adapters_figures(tmp_path: Path) -> None:
    merge = {
        key: value for key, value in merge_report("16-bit").items() if key not in ("adapters", "candidates")
    }
    assert (
        "○ How far the adapter moved the weights: not measured."
        in Page(page(tmp_path, merge, parity_report())).text
    )

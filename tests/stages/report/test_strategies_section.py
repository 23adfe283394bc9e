"""strategies_section: the page shows what was measured of each strategy, marks the one to take, and says how
to measure where nothing was.
"""

import json
from typing import Any

import numpy as np
import pytest
from golden import Golden
from html_page import Page, lines_of

from pipeline.config.strategies import (
    DISTILLED_SCALES,
    LORA_LEVEL,
    LORA_NF4,
    MERGED_16,
    MERGED_DISTILLED,
    MERGED_NF4,
    SCALES_LEVEL,
    STRATEGIES,
    training_of,
)
from pipeline.core.errors import DataError
from pipeline.pages.parity_summary import code
from pipeline.stages.compare.summary import scored_rows, summarize
from pipeline.stages.report.page import render
from pipeline.stages.report.strategies_section import difference_cell, strategies_values

SEEDS, ROWS = [42, 43, 44], 40
BASE = {"median": 60.0, "low": 58.0, "high": 61.0}
DISK = {
    MERGED_16: {"base": 270e6, "merged model": 270e6, "F16 GGUF": 271e6, "GGUF": 105e6},
    MERGED_NF4: {"base": 270e6, "merged model": 270e6, "F16 GGUF": 271e6, "GGUF": 105e6},
    LORA_NF4: {"base": 270e6, "GGUF": 105e6, "LoRA GGUF": 10e6},
    LORA_LEVEL: {"GGUF": 105e6, "LoRA GGUF": 10e6},
    SCALES_LEVEL: {"GGUF": 105e6, "tuned GGUF": 105e6},
    DISTILLED_SCALES: {"F16 GGUF": 271e6, "GGUF": 105e6, "distilled GGUF": 105e6, "tuned GGUF": 105e6},
    MERGED_DISTILLED: {"base": 270e6, "merged model": 270e6, "F16 GGUF": 271e6, "tuned GGUF": 105e6},
}
FIRST_FOUR = (MERGED_16, MERGED_NF4, LORA_NF4, LORA_LEVEL)


def figures(
    points: dict[str, float], level: str = "Q4_K_M", known: dict[str, int] | None = None
) -> list[dict[str, Any]]:
    """What is measured of each strategy, level and seed, with about these mean scores; of F16 the 16-bit
    merge alone. `known`: general questions of 100 that a strategy answers right, the untuned base 60.
    """
    random = np.random.default_rng(0)
    hard = random.normal(0, 0.1, ROWS)
    found = []
    for place, (where, strategy) in enumerate(
        [("F16", MERGED_16), *((level, strategy) for strategy in points)]
    ):
        for seed in SEEDS:
            answers = np.clip(points.get(strategy, 0.6) + hard + random.normal(0, 0.03, ROWS), 0, 1).round(4)
            shipped = {"GGUF": 105_500_000} | (
                {"LoRA GGUF": 9_800_000} if strategy in (LORA_NF4, LORA_LEVEL) else {}
            )
            speed = {"shipped": {"median": 50.0 + place, "low": 48.0, "high": 53.0}} | (
                {"bare": BASE} if "LoRA GGUF" in shipped else {}
            )
            found.append(
                {
                    "strategy": strategy,
                    "level": where,
                    "seed": seed,
                    "points": {f"r{row}": value for row, value in enumerate(answers.tolist())},
                    "valid": 1.0,
                    "stopped": 1.0,
                    "shipped": shipped,
                    "disk": DISK[strategy],
                    "speed": speed,
                    "machine": "Demo, avx2, 2 cores",
                    "kld": 0.001 * (place + 1),
                    "same_top": 0.99,
                    "kld_rows": 16,
                    "measuring_seconds": 60.0,
                    "training": {
                        "seconds": 300.0,
                        "tokens_per_second": 200.0,
                        "peak_memory_bytes": 3_400_000_000,
                        "steps": 56,
                        "loss_last": 0.1,
                    },
                }
            )
            if known is not None:
                found[-1]["general"] = general(known.get(strategy, 60))
                found[-1] |= {"untuned_general": general(60)} if where == "F16" else {}
    return found


def general(right: int) -> dict[str, Any]:
    return {
        "file": "builtin",
        "sha256": "0" * 64,
        "score": right / 100,
        "right": [1] * right + [0] * (100 - right),
    }


def summary(points: tuple[float, ...] = (0.6, 0.6, 0.5, 0.8)) -> dict[str, Any]:
    made = summarize(
        figures(dict(zip(FIRST_FOUR, points, strict=True))),
        seeds=SEEDS,
        levels=["Q4_K_M"],
        sixteen="F16",
        scorer="json_fields",
        seed=1,
    )
    return dict(json.loads(json.dumps(made, sort_keys=True, allow_nan=False)))  # as the file has it


def page(found: dict[str, Any] | None) -> Page:
    return Page(render("index/strategies.html.jinja", strategies=strategies_values(found), code=code))


def test_every_way_has_its_figures_and_the_best_is_marked(snapshot: Any) -> None:
    html = render("index/strategies.html.jinja", strategies=strategies_values(summary()), code=code)
    assert lines_of(html) == snapshot(extension_class=Golden)
    shown = Page(html)
    assert sum(tag == "tr" and attributes.get("class") == "chosen" for tag, attributes in shown.tags) == 1
    assert any(tag == "svg" for tag, _ in shown.tags)


def test_speeds_of_different_machines_are_called_so() -> None:
    assert "different machines" not in page(summary()).text
    found = figures(dict.fromkeys(STRATEGIES, 0.6))
    found[0]["machine"] = "Demo, avx512f, 2 cores"
    made = summarize(found, seeds=SEEDS, levels=["Q4_K_M"], sixteen="F16", scorer="json_fields", seed=1)
    assert made["machines"] == ["Demo, avx2, 2 cores", "Demo, avx512f, 2 cores"]
    assert "on different machines (Demo, avx2, 2 cores; Demo, avx512f, 2 cores)" in page(made).text


def test_where_no_way_is_better_disk_decides_and_the_page_says_so() -> None:
    text = " ".join(page(summary((0.6, 0.6, 0.6, 0.6))).text.split())
    assert "○ Decided by speed and disk:" in text and "no strategy is measurably below another one" in text
    assert "more than noise" not in text


@pytest.mark.parametrize("found", [None, {"seeds": []}])
def test_where_nothing_was_measured_the_page_says_how(found: dict[str, Any] | None) -> None:
    shown = page(found)
    assert "not measured" in shown.text and "snakemake compare" in shown.text
    assert not any(tag in ("table", "svg") for tag, _ in shown.tags)


def test_differences_are_from_the_first_way_and_follow_interval_and_test() -> None:
    rows = {row["strategy"]: row for row in strategies_values(summary())["levels"][0]["rows"]}
    assert rows[MERGED_16]["difference"] is None
    assert rows[LORA_LEVEL]["difference"]["points"] == pytest.approx(20, abs=3)
    assert rows[LORA_NF4]["difference"]["verdict"] == "worse"
    apart = {"points": 3.0, "low": 1.0, "high": 5.0, "p_value": 0.2, "measurable": False}
    assert difference_cell(apart)["verdict"] == "noise"  # type: ignore[index]


def test_the_summary_has_means_intervals_and_all_six_pairs() -> None:
    level = summary()["levels"]["Q4_K_M"]
    assert len(level["differences"]) == len(level["perfect_differences"]) == 6
    one = level["strategies"][LORA_LEVEL]
    assert one["score_low"] < one["score"] < one["score_high"]
    assert one["score"] == pytest.approx(np.mean([seed["score"] for seed in one["by_seed"]]))
    assert (one["tok_s"], one["tok_s_bare"]) == (54.0, 60.0)
    assert level["strategies"][MERGED_16]["tok_s_bare"] is None
    assert level["recommended"] == LORA_LEVEL and level["decided"]


def test_a_row_that_a_judge_missed_once_counts_nowhere() -> None:
    found = figures(dict.fromkeys(STRATEGIES, 0.5))
    found[3]["points"]["r7"] = None
    assert len(scored_rows(found)) == ROWS - 1 and "r7" not in scored_rows(found)
    for one in found:
        one["points"] = dict.fromkeys(one["points"])
    with pytest.raises(DataError, match="no held-out row has a score by judge from every strategy"):
        summarize(found, seeds=SEEDS, levels=["Q4_K_M"], sixteen="F16", scorer="judge", seed=1)


def test_a_strategy_inside_the_level_is_taken_if_it_is_measurably_better_and_its_forgetting_shown() -> None:
    points = dict.fromkeys(STRATEGIES, 0.6) | {SCALES_LEVEL: 0.8}
    found = summarize(
        figures(points, "Q4_0", {SCALES_LEVEL: 45, LORA_LEVEL: 58}),
        seeds=SEEDS,
        levels=["Q4_0"],
        sixteen="F16",
        scorer="json_fields",
        seed=1,
    )
    level = found["levels"]["Q4_0"]
    assert (level["recommended"], level["decided"]) == (SCALES_LEVEL, True)
    assert "train.tuner to scales" in level["sentence"]
    assert "answers 15.0 of 100 general questions fewer than the untuned base" in level["sentence"]
    assert found["untuned_general"]["score"] == pytest.approx(0.6)
    changes = {name: one["general_change"] for name, one in level["strategies"].items()}
    assert changes[SCALES_LEVEL]["points"] == pytest.approx(-15) and changes[SCALES_LEVEL]["measurable"]
    assert changes[LORA_LEVEL]["points"] == pytest.approx(-2) and not changes[LORA_LEVEL]["measurable"]
    shown = " ".join(page(json.loads(json.dumps(found, sort_keys=True))).text.split())
    assert "the untuned base in F16 answers 60.0 of 100 right" in shown and "−15.0" in shown
    assert len(level["differences"]) == 21


def test_other_questions_are_not_compared() -> None:
    found = figures(dict.fromkeys(STRATEGIES, 0.6), known={})
    found[5]["general"]["sha256"] = "1" * 64
    with pytest.raises(DataError, match="Q-COMPARE-009"):
        summarize(found, seeds=SEEDS, levels=["Q4_K_M"], sixteen="F16", scorer="json_fields", seed=1)


def test_without_the_first_strategy_the_next_one_is_compared_with() -> None:
    points = {LORA_LEVEL: 0.7, SCALES_LEVEL: 0.6}
    found = summarize(
        figures(points), seeds=SEEDS, levels=["Q4_K_M"], sixteen="F16", scorer="json_fields", seed=1
    )
    rows = strategies_values(found)["levels"][0]["rows"]
    assert [row["strategy"] for row in rows] == [LORA_LEVEL, SCALES_LEVEL]
    assert rows[0]["difference"] is None and rows[1]["difference"]["verdict"] == "worse"


def test_a_training_that_several_strategies_share_is_counted_once() -> None:
    found = figures(dict.fromkeys(STRATEGIES, 0.6))
    for one in found:
        if one["strategy"] in (DISTILLED_SCALES, MERGED_DISTILLED):
            own = training_of(one["strategy"], one["level"], one["seed"])
            other = f"nf4-{one['seed']}" if one["strategy"] == MERGED_DISTILLED else f"{own}, distillation"
            one["training"] |= {"seconds": 400.0, "parts": {other: 300.0, own: 100.0}}
    made = summarize(found, seeds=SEEDS, levels=["Q4_K_M"], sixteen="F16", scorer="json_fields", seed=1)
    # of each seed 300 s on NF4, 300 s each of lora_level and scales_level, then 300 + 100 s and 100 s
    assert made["seconds"] == 3 * (300 + 300 + 300 + 400 + 100) + 3 * 8 * 60


def test_the_same_figures_give_the_same_bytes() -> None:
    assert render(
        "index/strategies.html.jinja", strategies=strategies_values(summary()), code=code
    ) == render("index/strategies.html.jinja", strategies=strategies_values(summary()), code=code)

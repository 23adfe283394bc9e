"""Auto limits: what is sound passes at every size and level; what costs far more than published doesn't."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from gate_inputs import evaluation, failed, finding, judge, judged
from parity_inputs import check
from parity_outputs import OTHER, output

from pipeline.config.ggml_types import LEVELS
from pipeline.config.params import load_params
from pipeline.config.sections import Gate
from pipeline.core.errors import ConfigError
from pipeline.core.places import PROJECT
from pipeline.metrics.level_limits import PUBLISHED_KLD, level_limit, served_limit
from pipeline.stages.parity.divergence_checks import level_bound, level_check

RECIPES = PROJECT / "recipes"
AUTO = Gate(max_kld="auto", max_task_drop=None, min_stopped=None, max_forgetting=None)
SEVEN, HALF, SMOL = 7_615_616_512, 494_032_768, 134_515_008


@pytest.mark.parametrize(
    ("level", "parameters", "kld", "same_top"),
    [  # measured or published of sound files: Llama-3-8B, Llama-2-7B, Qwen3.5-0.8B, SmolLM2-135M
        ("Q4_K_M", SEVEN, 0.031, 0.919),
        ("Q4_K_M-imatrix", SEVEN, 0.028, 0.92),
        ("Q8_0", SEVEN, 0.0014, 0.977),
        ("Q2_K", SEVEN, 0.445, 0.711),
        ("Q6_K", SEVEN, 0.0055, 0.960),
        ("Q5_0", SEVEN, 0.0123, 0.9476),
        ("q4_k_m", SEVEN, 0.0127, 0.947),
        ("Q4_K_M", 0.8e9, 0.0363, 0.91),
        ("Q4_K_M", SMOL, 0.0765, 0.871),
        ("Q5_K_M", SMOL, 0.0953, 0.844),
        ("nf4", SMOL, 0.315, 0.795),
        ("F16", SEVEN, 0.0, 1.0),
    ],
)
def test_what_is_sound_passes(level: str, parameters: int, kld: float, same_top: float) -> None:
    found = level_limit(level, parameters)
    assert kld <= found.kld
    assert same_top >= found.same_top


def test_a_limit_follows_from_level_and_size() -> None:
    kld = {level: level_limit(level, SEVEN).kld for level in PUBLISHED_KLD}
    assert kld["Q8_0"] < kld["Q6_K"] < kld["Q5_K_M"] < kld["Q4_K_M"] < kld["Q3_K_M"] < kld["Q2_K"]
    assert (
        level_limit("Q4_K_M", SEVEN).kld < level_limit("Q4_K_M", HALF).kld < level_limit("Q4_K_M", SMOL).kld
    )
    assert level_limit("Q4_K_M", 70e9) == level_limit("Q4_K_M", 8.03e9) == level_limit("Q4_K_M", None)
    assert level_limit("Q4_K_M", None).source.endswith("at Q4_K_M")
    assert "0.8 billion" in level_limit("Q4_K_M", 0.8e9).source
    assert "NF4" in level_limit("nf4", SEVEN).source and "counts" not in level_limit("Q4_0", SEVEN).source
    # a quarter of the demo's limit, and of a Q5_K_M a twelfth
    assert kld["Q4_K_M"] == pytest.approx(0.125, rel=0.02)
    assert kld["Q5_K_M"] == pytest.approx(0.043, rel=0.02)


def test_no_limit_is_above_its_ceiling_and_nf4_has_that_of_q4_0() -> None:
    assert level_limit("IQ1_S", SEVEN).kld == 3.38  # 1.5 times the published figure
    assert level_limit("Q2_K", SMOL).kld == 0.668
    assert level_limit("Q4_0", SMOL).kld == level_limit("nf4", SMOL).kld == 0.5
    unpublished = level_limit("Q9_K", SMOL)
    assert (unpublished.kld, unpublished.same_top) == (0.5, 0.7)


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_every_level_has_a_limit_that_refuses_a_model_of_other_words(level: str) -> None:
    for parameters in (SEVEN, SMOL):
        found = level_limit(level, parameters)
        assert 0 < found.kld <= max(0.5, 1.51 * PUBLISHED_KLD.get(level, 0))
        assert 0 <= found.same_top < 1
    assert ("no figure" in found.source) == (level not in PUBLISHED_KLD)


def test_first_choices_go_with_the_divergence() -> None:
    """Straight on logarithms between those published for Llama-3-8B: 0.0014, 0.0313 and 0.445 nats."""
    limits = {0.00552: 0.96, 0.0221: 0.93, 0.0437: 0.905, 0.127: 0.842, 0.668: 0.65, 3.38: 0.238}
    levels = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q2_K", "IQ1_S")
    assert {level_limit(level, SEVEN).kld: level_limit(level, SEVEN).same_top for level in levels} == limits


def test_the_gate_holds_each_level_to_its_own_limit_and_says_whose_it_is() -> None:
    level: dict[str, Any] = evaluation(kld_mean=0.1, same_top=0.86, parameters=SEVEN)
    assert judge(level, AUTO).verdict == "pass"
    refused = judge(level, AUTO, model="Q5_K_M", evaluations={"Q5_K_M": level}, answers={"Q5_K_M": []})
    assert {*failed(refused)} - {"parity"} == {"kld", "same_top"}
    assert finding(refused, "kld").limit == level_limit("Q5_K_M", SEVEN).kld
    assert "at Q5_K_M" in finding(refused, "kld").sentence
    small = evaluation(kld_mean=0.08, same_top=0.88, parameters=SMOL)
    found = judge(small, AUTO, model="Q5_K_M", evaluations={"Q5_K_M": small}, answers={"Q5_K_M": []})
    assert finding(found, "kld").verdict == "pass"


def test_an_adapter_on_its_file_has_the_limit_of_what_serves_it() -> None:
    def verdicts(kld: float, same_top: float) -> list[str]:
        served = check("", "", kld, None, "nats", "pass", "", same_top=same_top)
        parity = {"verdict": "pass", "checks": {"outputs_served": served}, "files": {}}
        lora = {"file": "lora.gguf", "sha256": "0" * 64, "bytes": 1}
        found = judged("adapter", {"adapter": {"reference": "base", "lora": lora}}, {}, parity, AUTO)
        return [one.verdict for one in found.checks if one.key in ("kld", "same_top")]

    assert verdicts(0.01, 0.94) == ["pass", "pass"]
    assert verdicts(0.07, 0.81) == ["fail", "fail"]
    assert (served_limit().kld, served_limit().same_top) == pytest.approx((0.06, 0.82))


def test_parity_holds_a_level_to_its_own_limit() -> None:
    limits: Any = SimpleNamespace(max_kld_level="auto")
    for level in ("Q8_0", "Q4_K_M"):
        bound = level_bound(level, output(), limits, lambda: None)
        check = level_check("X", output().gguf, OTHER, bound, output())
        assert check.limit == level_limit(level, None).kld
        assert f"at {level}" in check.sentence


@pytest.mark.parametrize("recipe", sorted(file.stem for file in RECIPES.glob("*.yaml")))
def test_no_recipe_loosens_a_limit_of_rounding(recipe: str) -> None:
    params = load_params(RECIPES / f"{recipe}.yaml")
    gate = params.report.gate
    assert (gate.max_kld, gate.max_kld_trained) == ("auto", "auto")
    assert params.parity.max_kld_level == "auto"
    if recipe.startswith("qwen"):  # a real model's: the recommendation needs a score
        assert params.evaluate.scorers
        assert params.graph == "adapter" or params.merge.base == "auto"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_kld", 0),
        ("max_kld", "loose"),
        ("max_kld", True),
        ("max_kld", 1001),
        ("max_kld", float("inf")),
    ],
)
def test_what_is_no_limit_is_one_error(tmp_path: Path, key: str, value: Any) -> None:
    params = load_params(RECIPES / "demo-small.yaml").model_dump(mode="json")
    params["report"]["gate"][key] = value
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"1 error:\n  report\.gate\.{key}: is .* or auto \(line \d+\)$"):
        load_params(tmp_path / "params.yaml")

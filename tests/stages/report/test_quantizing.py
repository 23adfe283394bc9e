"""pipeline.stages.report.quantizing: its sentences follow from the figures, whichever way they point."""

from typing import Any

import pytest

from pipeline.stages.report.quantizing import quantizing_values


def figures(kld: float | None, top: float = 0.9, **more: Any) -> dict[str, Any]:
    return {"bytes": 1, "kld_mean": kld, "same_top": top, "fallback_tensors": 180, "tensors": 272} | more


def values(
    scores: dict[str, list[float | None]] | None = None, **evaluations: dict[str, Any]
) -> dict[str, Any]:
    named = {name.replace("base_", "base-").replace("__", "-"): found for name, found in evaluations.items()}
    return quantizing_values(named, scores or {}, "F16", seed=1)


BASE = {"reference": "base-F16"}


@pytest.mark.parametrize(
    ("tuned", "words"),
    [
        (0.01, "fine-tuning recovers most of the damage"),
        (0.25, "fine-tuning recovers part of the damage"),
        (0.35, "fine-tuning changes nothing much"),
        (0.90, "fine-tuning makes the damage worse"),
    ],
)
def test_distillation_is_what_the_figures_say(tuned: float, words: str) -> None:
    found = values(base_Q4_K_M=figures(0.35, **BASE), Q4_K_M=figures(tuned))
    assert found["sentences"] == [
        f"Q4_K_M: {words} where the assistant speaks (mean KLD 0.35 on the base, {tuned:.3g} after "
        "fine-tuning)."
    ]


def test_what_is_recovered_for_the_assistant_may_not_be_elsewhere() -> None:
    before, after = (
        figures(0.35, **BASE, all_tokens={"kld_mean": 0.2}),
        figures(0.01, all_tokens={"kld_mean": 0.4}),
    )
    (sentence,) = values(base_Q4_K_M=before, Q4_K_M=after)["sentences"]
    assert sentence.endswith("over all tokens, the user's among them, it makes it worse (0.2 and 0.4).")


def test_the_level_that_keeps_what_another_loses_is_named() -> None:
    found = values(base_Q4_K_M=figures(0.35, 0.811, **BASE), base_Q5_K_M=figures(0.05, 0.932, **BASE))[
        "sentences"
    ]
    assert found == [
        "On the untuned base Q5_K_M keeps what Q4_K_M loses: mean KLD 0.05 against 0.35, 7.0 times as much; "
        "the same top token at 93.2 % against 81.1 % of the positions."
    ]
    (same,) = values(base_Q4_K_M=figures(0.055, **BASE), base_Q5_K_M=figures(0.05, **BASE))["sentences"]
    assert "lose about the same" in same


def test_a_divergence_from_another_model_does_not_count() -> None:
    found = values(base_Q4_K_M=figures(1.7, reference="F16"), Q4_K_M=figures(0.01))
    assert found["rows"][0]["ratio"] is None
    assert found["sentences"] == []
    assert "base-Q4_K_M" in found["missing"]


def test_the_importance_matrix_is_compared_with_the_level_without() -> None:
    found = values(Q4_K_M=figures(0.02), Q4_K_M__imatrix=figures(0.008))
    assert found["improved"] == [
        "An importance matrix recovers most of what is left: Q4_K_M has a mean KLD of 0.02 without and "
        "0.008 with it."
    ]
    assert [row["level"] for row in found["rows"]] == ["Q4_K_M"]
    assert values(Q4_K_M=figures(0.02))["improved"] == []


@pytest.mark.parametrize(
    ("plain", "improved", "end"),
    [
        ([0.1] * 20, [0.8] * 20, "by the scores Q4_K_M-imatrix is the better of the two."),
        ([0.8] * 20, [0.1] * 20, "by the scores Q4_K_M is the better of the two."),
        ([0.5] * 20, [0.5] * 20, "by divergence Q4_K_M-imatrix is the better of the two."),
    ],
)
def test_which_of_the_two_is_better_is_said_from_the_same_rows(
    plain: list[float | None], improved: list[float | None], end: str
) -> None:
    scores = {"Q4_K_M": [*plain, None], "Q4_K_M-imatrix": [*improved, 1.0]}
    (sentence,) = values(scores, Q4_K_M=figures(0.02), Q4_K_M__imatrix=figures(0.008))["improved"]
    assert "On the same 20 held-out rows" in sentence
    assert sentence.endswith(end)


def test_a_distilled_level_is_compared_with_the_one_it_was_made_from() -> None:
    found = values(Q4_0=figures(0.2), **{"Q4_0-distilled": figures(0.12)})
    assert found["improved"] == [
        "Distilling the scales recovers part of what is left: Q4_0 has a mean KLD of 0.2 without and 0.12 "
        "with it."
    ]
    assert [row["level"] for row in found["rows"]] == ["Q4_0"]


def test_nothing_measured_is_nothing_said() -> None:
    assert values(F16={"bytes": 1})["rows"] == []
    assert values(F16={"bytes": 1}, Q4_0={"bytes": 1})["sentences"] == []

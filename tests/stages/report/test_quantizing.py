"""pipeline.stages.report.quantizing: what it says follows from the figures, whichever way they point."""

from typing import Any

from gate_inputs import evaluations_of
from golden import Golden

from pipeline.stages.report.quantizing import quantizing_values


def figures(kld: float | None, top: float = 0.9, **more: Any) -> dict[str, Any]:
    return {"bytes": 1, "kld_mean": kld, "same_top": top, "fallback_tensors": 180, "tensors": 272} | more


def values(
    scores: dict[str, list[float | None]] | None = None, **evaluations: dict[str, Any]
) -> dict[str, Any]:
    named = {name.replace("base_", "base-").replace("__", "-"): found for name, found in evaluations.items()}
    return quantizing_values(evaluations_of(named), scores or {}, "F16")


BASE = {"reference": "base-F16"}
PLAIN, IMATRIX = figures(0.02), figures(0.008)


def scored(plain: float, improved: float) -> dict[str, list[float | None]]:
    """The scores of a level without and with an importance matrix, 20 rows of which both have one."""
    return {"Q4_K_M": [*[plain] * 20, None], "Q4_K_M-imatrix": [*[improved] * 20, 1.0]}


CASES = {
    "most": values(base_Q4_K_M=figures(0.35, **BASE), Q4_K_M=figures(0.01)),
    "part": values(base_Q4_K_M=figures(0.35, **BASE), Q4_K_M=figures(0.25)),
    "nothing much": values(base_Q4_K_M=figures(0.35, **BASE), Q4_K_M=figures(0.35)),
    "worse": values(base_Q4_K_M=figures(0.35, **BASE), Q4_K_M=figures(0.90)),
    "imatrix": values(Q4_K_M=PLAIN, Q4_K_M__imatrix=IMATRIX),
    "imatrix, better scores": values(scored(0.1, 0.8), Q4_K_M=PLAIN, Q4_K_M__imatrix=IMATRIX),
    "imatrix, worse scores": values(scored(0.8, 0.1), Q4_K_M=PLAIN, Q4_K_M__imatrix=IMATRIX),
    "imatrix, the same scores": values(scored(0.5, 0.5), Q4_K_M=PLAIN, Q4_K_M__imatrix=IMATRIX),
    "distilled": values(Q4_0=figures(0.2), **{"Q4_0-distilled": figures(0.12)}),
}


def test_what_is_said_follows_from_the_figures(snapshot: Any) -> None:
    said = [
        f"{case}: {sentence}\n"
        for case, found in CASES.items()
        for sentence in (*(row.words for row in found["rows"] if row.words), *found["improved"])
    ]
    assert "".join(said) == snapshot(extension_class=Golden)


def test_what_improved_a_level_is_no_level_of_its_own() -> None:
    assert [row.level for row in CASES["imatrix"]["rows"]] == ["Q4_K_M"]
    assert [row.level for row in CASES["distilled"]["rows"]] == ["Q4_0"]
    assert values(Q4_K_M=PLAIN)["improved"] == []


def test_a_divergence_from_another_model_does_not_count() -> None:
    found = values(base_Q4_K_M=figures(1.7, reference="F16"), Q4_K_M=figures(0.01))
    assert found["rows"][0].ratio is None
    assert "base-Q4_K_M" in found["missing"]


def test_nothing_measured_is_nothing_said() -> None:
    assert values(F16={"bytes": 1})["rows"] == []
    assert values(F16={"bytes": 1}, Q4_0={"bytes": 1})["improved"] == []

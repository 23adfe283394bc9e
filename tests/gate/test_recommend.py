"""pipeline.gate.recommend: the rule, its borders, and no claimed difference that intervals don't support."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import pytest
from gate_inputs import evidence_of
from golden import Golden
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.params import load_params
from pipeline.config.sections import Gate, Report, Serve
from pipeline.core.places import PROJECT
from pipeline.gate.recommend import Recommendation, Room, recommend
from pipeline.planning.serving import GB

MB = int(GB) // 1000
DEMO = load_params(PROJECT / "recipes" / "demo-small.yaml").serving  # 4,096 tokens, one at a time
SERVE = DEMO.model_copy(update={"n_gpu_layers": 99})  # without them, the prompt cache counts too


def model(megabytes: int, score: float | None = None, half: float = 0.06, **more: Any) -> dict[str, Any]:
    """One evaluation: a size, a task score with an interval of ± `half`, whatever else is named."""
    found = None
    if score is not None:
        found = task(score, score_low=max(0.0, score - half), score_high=min(1.0, score + half))
    return {"bytes": megabytes * MB, "kv_cache_bytes": 0, "task": found} | more


def task(score: float | None, **more: Any) -> dict[str, Any]:
    return {"rows": 64, "score": score, "score_low": score, "score_high": score} | more


def choose(memory_gb: float = 8.0, max_task_drop: float = 5.0, **models: dict[str, Any]) -> Recommendation:
    evaluations = {name.replace("base_", "base-"): found for name, found in models.items()}
    return recommend(evidence_of(evaluations, {}), Room(memory_gb, max_task_drop, SERVE), {})


def served(**changed: int) -> Serve:
    return SERVE.model_copy(update=changed)


BASE = model(270, 0.1)
F16 = model(270, 0.75)


@pytest.mark.parametrize("improved", ["Q4-distilled", "Q4-imatrix"])
@pytest.mark.parametrize(
    ("kld", "types", "taken"),
    [(0.05, {"Q4_K": 9}, True), (0.3, {"Q4_K": 9}, False), (0.05, {"Q5_K": 9}, False)],
)
def test_of_a_level_and_what_improved_it_the_nearer_to_f16_is_taken(
    improved: str, kld: float, types: dict[str, int], taken: bool
) -> None:
    levels = {
        "Q4": model(100, 0.74, kld_mean=0.2, tensor_types={"Q4_K": 9}),
        improved: model(101, 0.74, kld_mean=kld, tensor_types=types),  # its header says more
        "Q5": model(120, 0.75, kld_mean=0.01),
    }
    assert choose(F16=model(270, 0.75), **levels).model == (improved if taken else "Q4")


def test_memory_counts_weights_cache_and_a_tenth() -> None:
    models = {"F16": model(3000, 0.75), "Q4": model(1000, 0.2)}
    exact = 3300 * MB / GB  # 3.0 × 1.1, to the byte; a GB of memory has 2³⁰, as `quench config plan` has it
    assert choose(memory_gb=exact, **models).model == "F16"
    assert choose(memory_gb=exact - 1e-6, **models).model == "Q4"
    cached = {"F16": model(3000, 0.75, kv_cache_bytes=500 * MB), "Q4": model(1000, 0.2, kv_cache_bytes=None)}
    assert choose(memory_gb=3800 * MB / GB, **cached).model == "Q4"


PEAK = {"ctx_size": 4096, "parallel": 1, "n_gpu_layers": 99, "peak_memory_bytes": 1300 * MB}
PEAK |= {"gpu_memory_bytes": 1400 * MB}


@pytest.mark.parametrize(
    ("layers", "changed", "parts"),
    [  # of the GPU's peak, or where it is of another context a tenth: cache, buffers, prompt cache, sum
        (99, {}, ("0.20 GB", "0.20 GB buffers (measured)", "1.40 GB")),
        (99, {"n_gpu_layers": 0}, ("0.20 GB", "10 %", "0.50 GB prompt cache", "1.82 GB")),
        (99, {"ctx_size": 2048}, ("0.10 GB", "10 %", "1.21 GB")),
        (99, {"parallel": 2}, ("0.40 GB", "10 %", "1.54 GB")),
        (
            0,
            {"n_gpu_layers": 0},
            ("0.20 GB", "0.10 GB buffers (measured)", "0.50 GB prompt cache", "1.80 GB"),
        ),
        (0, {}, ("0.20 GB", "10 %", "1.32 GB")),
        (
            7,
            {"n_gpu_layers": "auto"},
            ("0.20 GB", "0.20 GB buffers (measured)", "1.40 GB"),
        ),  # it came to these
        (7, {"n_gpu_layers": 7}, ("0.20 GB", "0.20 GB buffers (measured)", "1.40 GB")),
        (7, {"n_gpu_layers": 8}, ("0.20 GB", "10 %", "1.32 GB")),
    ],
)
def test_a_measured_peak_replaces_the_tenth_where_it_is_of_this_context(
    layers: int, changed: dict[str, Any], parts: tuple[str, ...]
) -> None:
    found = {"kv_cache_bytes": 200 * MB, "serving": PEAK | {"n_gpu_layers": layers}}
    serve = SERVE.model_copy(update=changed)
    models = {"F16": model(1000, 0.75, **found)}
    advice = recommend(evidence_of(models, {}), Room(8, 5, serve), {})
    tokens = f" KV cache of {serve.ctx_size * serve.parallel:,} tokens"
    cache, *buffers, total = parts
    assert (
        advice.arithmetic["F16"] == " + ".join(["1.00 GB weights", cache + tokens, *buffers]) + f" = {total}"
    )


NOTHING: Mapping[str, str] = {}
REFUSED_F16 = {"F16": "is refused"}
REFUSED = {"base-F16": BASE, "F16": F16, "Q4": model(105, 0.75), "Q5": model(112, 0.75)}


def advise(*refused: str, memory_gb: float = 8.0) -> Recommendation:
    reasons = {name: f"{name} is broken." for name in refused}
    return recommend(evidence_of(REFUSED, {}), Room(memory_gb, 5, SERVE), reasons)


def answered(
    scores: dict[str, list[float | None]],
    max_task_drop: float = 5,
    refused: Mapping[str, str] = NOTHING,
    **models: dict[str, Any],
) -> Recommendation:
    """The advice by these answers; evaluations have, by default, each model's own mean."""
    sizes = {"F16": 270, "base-F16": 270, "Q4": 105, "Q5": 112}
    own = {name: [score for score in found if score is not None] for name, found in scores.items()}
    evaluations = {name: model(sizes[name], fmean(found), 0.01) for name, found in own.items()} | models
    answers = {
        name: [{"id": str(number), "score": score} for number, score in enumerate(found)]
        for name, found in scores.items()
    }
    return recommend(evidence_of(evaluations, answers), Room(8, max_task_drop, SERVE), refused)


# 60 against 70, but on the same rows 100 against 70
PARTLY: dict[str, list[float | None]] = {"F16": [0.2] * 20 + [1.0] * 20, "Q4": [None] * 20 + [0.7] * 20}
APART: dict[str, list[float | None]] = {"F16": [1.0] * 20 + [None] * 20, "Q4": [None] * 20 + [1.0] * 20}
PAIRED: dict[str, list[float | None]] = {"F16": [0.8, 0.7] * 16, "Q4": [0.75, 0.65] * 16}
OVERLAP = {"F16": F16, "Q4": model(105, 0.70)}


@pytest.mark.parametrize("score", [None, 0.0, 0.05])  # of 5 points all may be lost
@pytest.mark.parametrize(("same_top", "chosen"), [(0.9, "Q4"), (0.899, "F16"), (None, "F16")])
def test_without_a_score_that_could_fall_the_top_token_decides(
    score: float | None, same_top: float | None, chosen: str
) -> None:
    tasks = {"task": None if score is None else task(score)}
    advice = choose(F16=model(270, same_top=1.0, **tasks), Q4=model(105, same_top=same_top, **tasks))
    assert advice.model == chosen
    assert len(advice.warnings) == (score is not None)


@pytest.mark.parametrize(
    ("base", "tuned", "points", "beats"),
    [
        (model(270, 0.1), model(105, 0.10), 0.0, False),
        (model(270, 0.1), model(105, 0.15), 5.0, False),  # the intervals overlap
        (model(270, 0.1), model(105, 0.0), -10.0, False),
        (model(270, 0.5), model(105, 0.2), -30.0, False),
        (model(270, 0.1), model(105, 0.75), 65.0, True),
        (model(270, 0.5), model(105, 0.6234), 12.3, True),
        (model(270, perplexity=5.0), model(105, perplexity=4.0), None, True),
        (model(270, perplexity=5.0), model(105, perplexity=5.0), None, False),
        (model(270, perplexity=5.0), model(105), None, None),
        (model(270), model(105, 0.5, perplexity=4.0), None, None),
    ],
)
def test_whether_the_untuned_base_is_beaten(
    base: dict[str, Any], tuned: dict[str, Any], points: float | None, beats: bool | None
) -> None:
    models = {"base_F16": base, "F16": tuned | {"same_top": 1.0}}
    advice = choose(max_task_drop=90, **models)
    (gain,) = advice.gains
    assert (gain.points, gain.beats) == (points, beats)
    assert ([gain.sentence] == [*advice.warnings[:1]]) == (beats is False)  # the first warning
    evaluations = {"base-F16": base, "F16": tuned | {"same_top": 1.0}}
    # without the base's answers the intervals say it too
    evidence = evidence_of(evaluations, {"F16": [{"id": "1", "score": 0.1}]})
    one_sided = recommend(evidence, Room(8, 90, SERVE), {})
    assert one_sided.gains == advice.gains


def test_rows_too_few_for_the_drop_are_pointed_out() -> None:
    assert len(choose(F16=F16, Q4=model(105, 0.75)).warnings) == 1
    assert choose(F16=model(270, 0.75, 0.02), Q4=model(105, 0.75, 0.02)).warnings == ()
    exact = {"F16": model(270, 0.75, 0.0625), "Q4": model(105, 0.75, 0.0625)}
    assert choose(max_task_drop=6.25, **exact).warnings == ()


@pytest.mark.parametrize(("refused", "allowed"), [(10.0, 5.0), (3.0, 1.5), (0.0, 0.0), (None, 5.0)])
def test_half_of_the_drop_that_is_refused_is_recommended_still(refused: float | None, allowed: float) -> None:
    assert Report(gate=Gate(max_task_drop=refused)).max_task_drop == allowed


def test_what_is_only_the_best_of_what_fits_is_below_the_standard() -> None:
    advice = choose(memory_gb=0.2, F16=F16, Q4=model(105, 0.5), Q5=model(112, 0.6))
    assert (advice.model, advice.below_standard, len(advice.warnings)) == ("Q5", True, 2)
    assert not choose(F16=F16).below_standard


UNKNOWN = {"kv_cache_bytes": None}
JUDGED = task(0.75, score_low=0.69, score_high=0.81, scorer="judge", scores={"judge": {"measured": 3}})
SAID = {
    "the smallest": lambda: choose(**REFUSED),
    "one refused": lambda: advise("Q4"),
    "all refused": lambda: advise("Q4", "Q5", memory_gb=0.2),
    "smaller ones refused": lambda: advise("Q4", "Q5"),
    "F16 alone": lambda: choose(F16=F16),
    "F16 of two": lambda: choose(F16=F16, Q4=model(105, 0.5)),
    "nothing fits": lambda: choose(memory_gb=0.1, F16=F16, Q4=model(105, 0.75)),
    "2³⁰ bytes": lambda: choose(memory_gb=7.8, F16=model(1, 0.75, bytes=7_700_000_000)),
    "the best": lambda: choose(memory_gb=0.2, F16=F16, Q4=model(105, 0.5), Q5=model(112, 0.6)),
    "cache not measured": lambda: choose(memory_gb=0.12, F16=F16, Q4=model(105, 0.75, **UNKNOWN)),
    "the best, not measured": lambda: choose(memory_gb=0.12, F16=F16, Q4=model(105, 0.5, **UNKNOWN)),
    "peak measured": lambda: choose(
        memory_gb=0.12,
        F16=F16,
        Q4=model(105, 0.75, **UNKNOWN, serving=PEAK | {"gpu_memory_bytes": 120 * MB}),
    ),
    "intervals overlap": lambda: choose(**OVERLAP),
    "intervals apart": lambda: choose(max_task_drop=20, F16=F16, Q4=model(105, 0.60)),
    "paired": lambda: answered(PAIRED, **OVERLAP),
    "the same answers": lambda: answered(PAIRED | {"Q4": PAIRED["F16"]}, **OVERLAP),
    "on the same rows": lambda: answered(PARTLY, 31),
    "no row in common": lambda: answered(APART, refused=REFUSED_F16),
    "rows that were scored": lambda: choose(F16=F16, Q4=model(105, task=JUDGED)),
    "scores of 0": lambda: choose(
        F16=model(270, task=task(0.0), same_top=1.0), Q4=model(105, task=task(0.0), same_top=0.95)
    ),
    "no score": lambda: choose(F16=model(270, same_top=1.0), Q4=model(105, same_top=0.9)),
    "worse than the base": lambda: choose(max_task_drop=90, base_F16=model(270, 0.5), F16=model(105, 0.2)),
    "like the base": lambda: choose(base_F16=BASE, F16=model(105, 0.1)),
    "by perplexity": lambda: choose(
        base_F16=model(270, perplexity=5.0), F16=model(270, perplexity=6.0, same_top=1.0)
    ),
}


def test_what_a_recommendation_says(snapshot: Any) -> None:
    found = {case: advice() for case, advice in SAID.items()}
    lines = [f"{case}: {' / '.join([one.reason, *one.warnings])}\n" for case, one in found.items()]
    lines.append(f"arithmetic: {found['cache not measured'].arithmetic['Q4']}\n")
    assert "".join(lines) == snapshot(extension_class=Golden)


SCORES = st.floats(0, 1)
LEVELS = st.dictionaries(
    st.sampled_from(["Q4", "Q5", "Q6", "Q8"]), st.tuples(st.integers(50, 400), SCORES), max_size=4
)


@given(LEVELS, SCORES, st.floats(0.05, 1), st.floats(0, 100))
def test_the_rule_holds_for_any_figures(
    levels: dict[str, tuple[int, float]], best: float, memory_gb: float, drop: float
) -> None:
    models = {"F16": model(300, best)} | {name: model(size, score) for name, (size, score) in levels.items()}
    advice = choose(memory_gb=memory_gb, max_task_drop=drop, **models)
    fits = {name: found for name, found in models.items() if round(found["bytes"] * 1.1) <= memory_gb * GB}
    good = [found["bytes"] for found in fits.values() if (best - found["task"]["score"]) * 100 <= drop + 1e-9]
    if not fits:
        assert advice.model is None
    elif best * 100 <= drop + 1e-9:  # such a score tells nothing, and nothing else was measured
        assert advice.below_standard == ("F16" not in fits)
    elif good:
        assert advice.model in fits
        assert models[advice.model]["bytes"] == min(good)
    else:
        assert advice.model is not None
        assert models[advice.model]["task"]["score"] == pytest.approx(
            max(found["task"]["score"] for found in fits.values())
        )

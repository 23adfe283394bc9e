"""pipeline.gate.recommend: the rule, its borders, and that no difference is claimed which the intervals don't
support.
"""

from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.params import load_params
from pipeline.config.sections import Serve
from pipeline.core.places import PROJECT
from pipeline.gate.recommend import Recommendation, recommend
from pipeline.planning.serving import BUFFERS, GB
from pipeline.stages.report.verdict import headline

MB = int(GB) // 1000
DEMO = load_params(PROJECT / "recipes" / "demo-small.yaml").serve  # 4,096 tokens, one at a time
SERVE = DEMO.model_copy(update={"n_gpu_layers": 99})  # without them, the prompt cache counts too


def model(megabytes: int, score: float | None = None, half: float = 0.06, **more: Any) -> dict[str, Any]:
    """One evaluation: a size, a task score with an interval of ± `half`, whatever else is named."""
    task = (
        None
        if score is None
        else {
            "rows": 64,
            "score": score,
            "score_low": max(0.0, score - half),
            "score_high": min(1.0, score + half),
        }
    )
    return {
        "bytes": megabytes * MB,
        "kv_cache_bytes": 0,
        "ctx_size": 4096,
        "task": task,
        "same_top": None,
        "perplexity": None,
    } | more


def choose(memory_gb: float = 8.0, max_task_drop: float = 5.0, **models: dict[str, Any]) -> Recommendation:
    evaluations = {name.replace("base_", "base-"): found for name, found in models.items()}
    return recommend(evaluations, memory_gb=memory_gb, max_task_drop=max_task_drop, serve=SERVE)


def served(**changed: int) -> Serve:
    return SERVE.model_copy(update=changed)


BASE = model(270, 0.1)
F16 = model(270, 0.75)


@pytest.mark.parametrize(
    ("q4", "q5", "chosen"),
    [
        (0.75, 0.75, "Q4"),  # the smallest of those that are good
        (0.70, 0.75, "Q4"),  # exactly at the border of 5 points
        (0.69, 0.75, "Q5"),  # a point below it
        (0.69, 0.69, "F16"),
        (0.69, 0.90, "Q5"),  # better than F16 is good enough too
    ],
)
def test_the_smallest_that_stays_within_the_drop(q4: float, q5: float, chosen: str) -> None:
    assert choose(base_F16=BASE, F16=F16, Q4=model(105, q4), Q5=model(112, q5)).model == chosen


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


def test_the_base_is_never_recommended() -> None:
    assert choose(base_F16=model(1, 0.99), F16=F16, Q4=model(105, 0.75)).model == "Q4"


def test_memory_counts_weights_cache_and_a_tenth() -> None:
    models = {"F16": model(3000, 0.75), "Q4": model(1000, 0.2)}
    exact = 3300 * MB / GB  # 3.0 × 1.1, to the byte
    assert choose(memory_gb=exact, **models).model == "F16"
    assert choose(memory_gb=exact - 1e-6, **models).model == "Q4"
    cached = {"F16": model(3000, 0.75, kv_cache_bytes=500 * MB), "Q4": model(1000, 0.2, kv_cache_bytes=None)}
    assert choose(memory_gb=3800 * MB / GB, **cached).model == "Q4"
    advice = recommend(cached, memory_gb=8, max_task_drop=5, serve=served(parallel=4))
    assert advice.arithmetic["F16"] == "3.00 GB weights + 2.00 GB KV cache of 16,384 tokens + 10 % = 5.50 GB"
    assert advice.arithmetic["Q4"] == "1.00 GB weights + KV cache not measured + 10 % = at least 1.10 GB"


def test_a_measured_peak_replaces_the_tenth_where_it_is_of_this_context() -> None:
    serving = {
        "ctx_size": 4096,
        "parallel": 1,
        "n_gpu_layers": 99,
        "peak_memory_bytes": 1300 * MB,
        "gpu_memory_bytes": 1400 * MB,
    }
    models = {"F16": model(1000, 0.75, kv_cache_bytes=200 * MB, serving=serving)}

    def words(**changed: int) -> str:
        return recommend(models, memory_gb=8, max_task_drop=5, serve=served(**changed)).arithmetic["F16"]

    assert (
        words() == "1.00 GB weights + 0.20 GB KV cache of 4,096 tokens + 0.20 GB buffers (measured) = 1.40 GB"
    )
    assert words(n_gpu_layers=0).endswith("+ 10 % + 0.50 GB prompt cache = 1.82 GB")
    assert words(ctx_size=2048) == "1.00 GB weights + 0.10 GB KV cache of 2,048 tokens + 10 % = 1.21 GB"
    assert words(parallel=2).endswith("+ 0.40 GB KV cache of 8,192 tokens + 10 % = 1.54 GB")
    serving["n_gpu_layers"] = 0
    assert words(n_gpu_layers=0).endswith("+ 0.10 GB buffers (measured) + 0.50 GB prompt cache = 1.80 GB")
    assert words().endswith("+ 10 % = 1.32 GB")


def test_layers_that_are_auto_are_those_that_were_measured() -> None:
    serving = {"ctx_size": 4096, "parallel": 1, "n_gpu_layers": 7, "gpu_memory_bytes": 1400 * MB}
    models = {"F16": model(1000, 0.75, serving=serving)}
    for layers, measured in (("auto", True), (7, True), (8, False)):
        serve = SERVE.model_copy(update={"n_gpu_layers": layers})
        advice = recommend(models, memory_gb=8, max_task_drop=5, serve=serve)
        assert ("(measured)" in advice.arithmetic["F16"]) == measured


def test_a_gb_of_memory_is_2_to_the_30_as_quench_plan_has_it() -> None:
    models = {"F16": model(1, 0.75, bytes=7_700_000_000)}  # 8.47·10⁹ bytes with buffers, 7.89 · 2³⁰
    assert choose(memory_gb=8, **models).model == "F16"
    assert (
        choose(memory_gb=7.8, **models).reason == "No level fits in 7.8 GB: F16, the smallest, needs 7.89 GB."
    )


def test_a_cache_that_was_not_measured_only_may_fit() -> None:
    advice = choose(memory_gb=0.12, F16=F16, Q4=model(105, 0.75, kv_cache_bytes=None))
    assert advice.reason.startswith("Of 2 tuned models, Q4 is the smallest that may fit in 0.12 GB and stays")
    assert "Whether Q4 fits is not known: its KV cache was not measured." in advice.warnings
    worst = choose(memory_gb=0.12, F16=F16, Q4=model(105, 0.5, kv_cache_bytes=None))
    assert "of what may fit in 0.12 GB, though nothing that may fit stays" in worst.reason
    peak = {"ctx_size": 4096, "parallel": 1, "n_gpu_layers": 99, "gpu_memory_bytes": 120 * MB}
    known = choose(memory_gb=0.12, F16=F16, Q4=model(105, 0.75, kv_cache_bytes=None, serving=peak))
    assert "may fit" not in known.reason


def test_a_refused_level_is_never_recommended_and_the_reason_is_shown() -> None:
    models = {"base-F16": BASE, "F16": F16, "Q4": model(105, 0.75), "Q5": model(112, 0.75)}

    def advise(*refused: str, memory_gb: float = 8.0) -> Recommendation:
        reasons = {name: f"{name} is broken." for name in refused}
        return recommend(models, memory_gb=memory_gb, max_task_drop=5, serve=SERVE, refused=reasons)

    assert advise().model == "Q4"
    assert advise("Q4").model == "Q5"
    assert "The gate refuses Q4: Q4 is broken." in advise("Q4").warnings
    assert advise("Q4", "Q5").model == "F16"
    nothing = advise("Q4", "Q5", memory_gb=0.2)
    assert nothing.model is None
    assert nothing.reason == "The gate refuses every level that fits in 0.2 GB: Q4, Q5."


def test_scores_on_the_same_questions_are_compared_pairwise() -> None:
    models = {"F16": F16, "Q4": model(105, 0.70)}  # the intervals overlap
    scores = {"F16": [0.8, 0.7] * 16, "Q4": [0.75, 0.65] * 16}
    answers = {
        name: [{"id": number, "score": score} for number, score in enumerate(found)]
        for name, found in scores.items()
    }
    assert "within the noise" in choose(**models).reason
    paired = recommend(models, memory_gb=8, max_task_drop=5, serve=SERVE, answers=answers)
    assert paired.model == "Q4"
    assert "(70.0 against 75.0 points; more than noise, p < 0.001 on the same 32 questions)" in paired.reason
    same = recommend(
        models, memory_gb=8, max_task_drop=5, serve=SERVE, answers=answers | {"Q4": answers["F16"]}
    )
    assert "within the noise of 32 rows" in same.reason


def answered(scores: dict[str, list[float | None]]) -> dict[str, Any]:
    """What recommend() takes: evaluations with each model's own mean, and the answers."""
    sizes = {"F16": 270, "base-F16": 270, "Q4": 105, "Q5": 112}
    own = {name: [score for score in found if score is not None] for name, found in scores.items()}
    models = {name: model(sizes[name], fmean(found), 0.01) for name, found in own.items()}
    answers = {
        name: [{"id": number, "score": score} for number, score in enumerate(found)]
        for name, found in scores.items()
    }
    return {"evaluations": models, "answers": answers, "memory_gb": 8, "serve": SERVE}


def test_scores_are_compared_on_the_rows_that_both_have_a_score_for() -> None:
    scores: dict[str, list[float | None]] = {"F16": [0.2] * 20 + [1.0] * 20, "Q4": [None] * 20 + [0.7] * 20}
    found = answered(scores)  # 60 against 70, but on the same rows 100 against 70
    assert recommend(**found, max_task_drop=5).model == "F16"
    lenient = recommend(**found, max_task_drop=31)
    assert lenient.model == "Q4"
    assert (
        "(70.0 against 100.0 points; more than noise, p < 0.001 on the same 20 questions)" in lenient.reason
    )
    two = answered(scores | {"Q5": [0.1] * 20 + [0.8] * 20}) | {"refused": {"F16": "is refused"}}
    assert recommend(**two, max_task_drop=5).model == "Q5"  # 15 below F16 on the same rows; the other 30
    base = recommend(**answered({"base-F16": scores["F16"], "F16": scores["Q4"]}), max_task_drop=5)
    assert base.gains[0].points == -30.0
    assert base.gains[0].sentence.startswith(
        "F16 is worse than the untuned base (70.0 against 100.0 points; more than noise"
    )


def test_without_a_row_that_both_have_a_score_for_nothing_is_compared() -> None:
    found = answered({"F16": [1.0] * 20 + [None] * 20, "Q4": [None] * 20 + [1.0] * 20}) | {"max_task_drop": 5}
    assert recommend(**found).model == "F16"
    assert recommend(**found, refused={"F16": "is refused"}).reason.endswith(
        "(no question has a score of both)."
    )


def test_noise_is_of_the_rows_that_were_scored() -> None:
    task = F16["task"] | {"scorer": "judge", "scores": {"judge": {"measured": 3}}}
    assert "within the noise of 3 rows" in choose(F16=F16, Q4=model(105, task=task)).reason


@pytest.mark.parametrize("score", [None, 0.0])
def test_a_score_that_is_null_is_none(score: float | None) -> None:
    task = {"rows": 64, "score": score, "score_low": score, "score_high": score}
    advice = choose(F16=model(270, task=task, same_top=1.0), Q4=model(105, task=task, same_top=0.95))
    assert advice.model == "Q4"
    assert ("there is no task score to judge by" in advice.reason) == (score is None)


def test_nothing_fits_is_said() -> None:
    advice = choose(memory_gb=0.1, F16=F16, Q4=model(105, 0.75))
    assert advice.model is None
    assert advice.reason == "No level fits in 0.1 GB: Q4, the smallest, needs 0.12 GB."
    assert "report.memory_gb" in advice.warnings[0]
    assert "smaller level" in advice.warnings[0]


def test_none_good_enough_gives_the_best_score_and_a_warning() -> None:
    advice = choose(memory_gb=0.2, F16=F16, Q4=model(105, 0.5), Q5=model(112, 0.6))
    assert (advice.model, advice.below_standard) == ("Q5", True)
    assert headline({"verdict": "pass"}, advice, {}) == "Q5, below the standard"
    assert headline({"verdict": "pass"}, choose(F16=F16), {}) == "Ship F16"
    assert advice.warnings[0].startswith("Nothing that fits in 0.2 GB stays within 5 points of F16")


@pytest.mark.parametrize(("same_top", "chosen"), [(0.9, "Q4"), (0.899, "F16"), (None, "F16")])
def test_without_a_score_the_top_token_decides_and_the_rule_is_stated(
    same_top: float | None, chosen: str
) -> None:
    advice = choose(F16=model(270, same_top=1.0), Q4=model(105, same_top=same_top))
    assert advice.model == chosen
    assert "ranks the same token first as F16 at 90% of the positions" in advice.reason


def test_overlapping_intervals_are_called_noise() -> None:
    advice = choose(max_task_drop=20, F16=F16, Q4=model(105, 0.70))
    assert "the difference is within the noise of 64 rows" in advice.reason
    apart = choose(max_task_drop=20, F16=F16, Q4=model(105, 0.60))
    assert apart.model == "Q4"
    assert "noise of 64 rows" not in apart.reason
    assert "the intervals lie apart" in apart.reason


def test_a_model_that_does_not_beat_the_base_is_the_first_warning() -> None:
    for score, words in [
        (0.10, "does not measurably beat the untuned base"),
        (0.15, "does not measurably beat"),
        (0.0, "does not measurably beat"),
    ]:
        advice = choose(max_task_drop=90, base_F16=BASE, F16=F16, Q4=model(105, score))
        assert words in advice.warnings[0]
    worse = choose(max_task_drop=90, base_F16=model(270, 0.5), F16=F16, Q4=model(105, 0.2))
    assert worse.warnings[0].startswith("Q4 is worse than the untuned base")
    assert all(
        "base" not in warning for warning in choose(base_F16=BASE, F16=F16, Q4=model(105, 0.75)).warnings
    )


def test_without_a_score_the_base_is_compared_by_perplexity() -> None:
    models = {"base_F16": model(270, perplexity=5.0), "F16": model(270, perplexity=6.0, same_top=1.0)}
    assert (
        choose(**models).warnings[0]
        == "F16's held-out perplexity is not below the untuned base's (6.00 against 5.00)."
    )
    for after, beats in ((4.0, True), (5.0, False), (None, None)):
        found = choose(base_F16=model(270, perplexity=5.0), F16=model(270, perplexity=after)).gains[0]
        assert (found.points, found.beats) == (None, beats)
    found = choose(base_F16=model(270), F16=model(270, 0.5, perplexity=4.0)).gains[0]
    assert (found.points, found.beats) == (None, None)


def test_without_the_answers_of_both_the_intervals_say_what_is_apart() -> None:
    models = {"base-F16": model(270, 0.5), "F16": model(270, 0.6234)}
    answers = {"F16": [{"id": 1, "score": 0.1}]}
    found = recommend(models, memory_gb=8, max_task_drop=5, serve=SERVE, answers=answers).gains[0]
    assert (found.points, found.beats) == (12.3, True)


def test_rows_too_few_for_the_drop_are_pointed_out() -> None:
    assert any(
        "raise evaluate.task_rows" in warning for warning in choose(F16=F16, Q4=model(105, 0.75)).warnings
    )
    assert choose(F16=model(270, 0.75, 0.02), Q4=model(105, 0.75, 0.02)).warnings == ()
    exact = {"F16": model(270, 0.75, 0.0625), "Q4": model(105, 0.75, 0.0625)}
    assert choose(max_task_drop=6.25, **exact).warnings == ()


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
    fits = {
        name: found
        for name, found in models.items()
        if round(found["bytes"] * (1 + BUFFERS)) <= memory_gb * GB
    }
    good = [found["bytes"] for found in fits.values() if (best - found["task"]["score"]) * 100 <= drop + 1e-9]
    if not fits:
        assert advice.model is None
    elif good:
        assert advice.model in fits
        assert models[advice.model]["bytes"] == min(good)
    else:
        assert advice.model is not None
        assert models[advice.model]["task"]["score"] == pytest.approx(
            max(found["task"]["score"] for found in fits.values())
        )

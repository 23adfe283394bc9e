"""pipeline.gate: an adapter beside its base is judged by the parity checks, and by task and ability against
the base; missing refuses.
"""

from dataclasses import replace
from typing import Any

import adapter_inputs
import pytest
from report_inputs import answers, put
from report_inputs import general as asked

from pipeline.config.sections import Gate
from pipeline.core.checks import Check
from pipeline.gate.advice import advise
from pipeline.gate.judgment import Judgment
from pipeline.gate.recommend import recommend
from pipeline.gate.records import load_inputs
from pipeline.gate.rules import judge as judge_model
from pipeline.stages.report.verdict import headline

LIMITS = Gate(max_kld=0.01, min_same_top=0.97, max_task_drop=10.0, min_stopped=0.9, max_forgetting=10.0)
OFF = Gate(max_kld=None, min_same_top=None, max_task_drop=None, min_stopped=None, max_forgetting=None)


def evaluations(**changed: Any) -> dict[str, Any]:
    """The reports of base and adapter; `changed` are other values of the adapter's."""
    return {"base": adapter_inputs.figures("base"), "adapter": adapter_inputs.figures("adapter") | changed}


def output() -> dict[str, Any]:
    return {model: answers(adapter_inputs.LIKE[model]) for model in ("base", "adapter")}


def judge(
    limits: Gate = LIMITS, parity: dict[str, Any] | None = None, found: dict[str, Any] | None = None
) -> Judgment:
    return judge_model(
        "adapter", found or evaluations(), output(), parity or adapter_inputs.parity(), limits, 0
    )


def finding(verdict: Judgment, rule: str) -> Check:
    return next(one for one in verdict.checks if one.key == rule)


def parity_with(key: str, **changed: Any) -> dict[str, Any]:
    report = adapter_inputs.parity()
    report["checks"][key] |= changed
    return report


def test_a_good_adapter_passes_and_every_rule_says_its_figure_and_limit() -> None:
    verdict = judge()
    assert (verdict.model, verdict.verdict) == ("adapter", "pass")
    assert [(one.key, one.verdict) for one in verdict.checks] == [
        (rule, "pass") for rule in ("parity", "kld", "same_top", "task_drop", "stopped", "forgetting")
    ]
    assert [finding(verdict, rule).figure for rule in ("kld", "same_top")] == [
        0.00234,
        0.9775,
    ]  # of the parity check, not of `evaluate`
    assert (
        "0.0023 nats (mean KL divergence) from the trained model; at most 0.01"
        in finding(verdict, "kld").sentence
    )
    assert "above base" in finding(verdict, "task_drop").sentence


@pytest.mark.parametrize("key", ["weights_file", "weights_lora", "outputs_served"])
def test_a_check_that_was_not_measured_refuses(key: str) -> None:
    verdict = judge(OFF, parity_with(key, verdict="not measured", figure=None, figures={}))
    assert verdict.verdict == "fail"
    assert verdict.reasons[0].startswith("Parity has not measured ")
    without = adapter_inputs.parity()
    del without["checks"][key]
    assert judge(OFF, without).verdict == "fail"


def test_a_failed_check_refuses() -> None:
    report = parity_with("tokens_ids", verdict="fail", figure=1.0) | {"verdict": "fail"}
    assert finding(judge(OFF, report), "parity").sentence.startswith(
        "1 of 11 parity checks failed, none may: Token ids"
    )


@pytest.mark.parametrize(
    ("rule", "changed", "words"),
    [
        ("kld", {"figure": 0.02}, "are 0.02 nats"),
        ("kld", {"figure": None}, "not in parity's report, which refuses"),
        (
            "kld",
            {"figure": 3.0, "unit": "positions"},
            "not in parity's report, which refuses",
        ),  # how many can't be compared, no divergence
        ("kld", {"figure": float("nan")}, "which refuses"),
        ("same_top", {"figures": {"same_top": 0.9}}, "at 90% of the positions; at least 97% are wanted"),
        ("same_top", {"figures": {}}, "which refuses: run `python -m pipeline parity`"),
        ("same_top", {"figures": {"same_top": 1.01}}, "which refuses"),
    ],
)
def test_what_is_served_must_be_what_was_trained(rule: str, changed: dict[str, Any], words: str) -> None:
    verdict = judge(parity=parity_with("outputs_served", **changed))
    assert [one.key for one in verdict.checks if one.verdict == "fail"] == [rule]
    assert words in finding(verdict, rule).sentence


def test_what_always_has_the_same_first_choice_passes() -> None:
    assert judge(parity=parity_with("outputs_served", figures={"same_top": 1.0})).verdict == "pass"


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"task": None}, "task_drop"),
        ({"general": None}, "forgetting"),
        ({"general": asked("F16") | {"right": [0] * 48}}, "forgetting"),
        ({"reference": "F16"}, "reference"),
        ({"lora": None}, "reference"),
    ],
)
def test_what_is_worse_than_the_base_or_missing_refuses(changed: dict[str, Any], rule: str) -> None:
    verdict = judge(found=evaluations(**changed))
    assert verdict.verdict == "fail"
    assert finding(verdict, rule).verdict == "fail"


def test_an_adapter_worse_at_the_task_than_its_base_is_refused() -> None:
    found, swapped = evaluations(), output()
    swapped["adapter"], swapped["base"] = swapped["base"], swapped["adapter"]
    verdict = judge_model("adapter", found, swapped, adapter_inputs.parity(), LIMITS, 0)
    assert finding(verdict, "task_drop").verdict == "fail"
    assert "points below base" in finding(verdict, "task_drop").sentence


def test_without_the_base_the_task_refuses_and_forgetting_is_not_measured() -> None:
    alone = {"adapter": adapter_inputs.figures("adapter")}
    verdict = judge_model(
        "adapter", alone, {"adapter": output()["adapter"]}, adapter_inputs.parity(), LIMITS, 0
    )
    assert finding(verdict, "task_drop").verdict == "fail"
    assert "evaluate@base" in finding(verdict, "task_drop").sentence
    assert finding(verdict, "forgetting").verdict == "not measured"


# ---- the recommendation


def recommended(
    found: dict[str, Any],
    *,
    refused: dict[str, str] | None = None,
    memory_gb: float = 8.0,
    answered: dict[str, Any] | None = None,
) -> Any:
    return recommend(
        found,
        memory_gb=memory_gb,
        max_task_drop=5.0,
        serve=adapter_inputs.params().serve,
        refused=refused or {},
        answers=output() if answered is None else answered,
        seed=0,
    )


def test_the_adapter_is_recommended_with_its_score_against_the_base() -> None:
    advice = recommended(evaluations())
    assert (advice.model, advice.below_standard, advice.warnings) == ("adapter", False, ())
    assert "on the task it has 75.3 points, base alone 0.0 (more than noise" in advice.reason
    assert advice.gains[0].beats is True
    assert "prompt cache" not in advice.arithmetic["adapter"]  # llama-server keeps none of an adapter's


def test_what_is_refused_or_too_large_is_not_recommended() -> None:
    refused = recommended(evaluations(), refused={"adapter": "It is broken."})
    assert (refused.model, refused.warnings) == (None, ("It is broken.",))
    large = recommended(evaluations(), memory_gb=0.1)
    assert large.model is None
    assert "does not fit in 0.1 GB" in large.reason
    assert "smaller base" in large.warnings[0]
    verdicts = {"adapter": judge()}
    assert headline(adapter_inputs.parity(), large, verdicts) == "The model does not fit"
    broken = {"adapter": Judgment("adapter", (Check("Parity checks", "fail", ""),))}
    assert headline(adapter_inputs.parity(), refused, broken) == "Ship nothing: the gate refuses the adapter"


@pytest.mark.parametrize(
    ("adapter", "base", "below", "beats"),
    [
        (0.75, 0.8, False, False),
        (0.74, 0.8, True, False),
        (0.8, 0.8, False, False),
        (0.805, 0.8, False, True),
    ],
)
def test_an_adapter_worse_than_its_base_by_more_than_the_drop_is_below_the_standard(
    adapter: float, base: float, below: bool, beats: bool
) -> None:
    scores = {"adapter": adapter, "base": base}
    answered = {
        model: [{"id": str(row), "score": score} for row in range(64)] for model, score in scores.items()
    }
    advice = recommended(evaluations(), answered=answered)
    assert (advice.model, advice.below_standard, advice.gains[0].beats) == ("adapter", below, beats)


def test_without_a_score_the_adapter_is_recommended_without_one() -> None:
    found = evaluations(task=None)
    found["base"]["task"] = None
    assert "there is no task score to judge by" in recommended(found, answered={}).reason


def recovered(factor: float) -> dict[str, Any]:
    """An adapter that was to recover, and left so much of the damage, a little more or less row by row."""
    found = {model: adapter_inputs.figures(model, distill=True) for model in ("source", "base", "adapter")}
    rows = found["base"]["by_row"]["assistant"]
    left = rows | {"kld": [kld * factor * (1 + 0.2 * (row % 2)) for row, kld in enumerate(rows["kld"])]}
    found["adapter"] |= {
        "kld_mean": found["base"]["kld_mean"] * factor,
        "by_row": {"assistant": left, "all_tokens": left},
    }
    return found


def test_an_adapter_that_recovers_says_how_much_and_need_not_beat_the_base() -> None:
    same = {model: output()["base"] for model in ("base", "adapter", "source")}
    advice = recommended(recovered(0.2), answered=same)
    assert (advice.model, advice.below_standard, advice.warnings) == ("adapter", False, ())
    assert (
        "The adapter recovers 80 % of the damage where the assistant speaks (mean KLD from source "
        "0.351 before and 0.0702 after"
    ) in advice.reason
    assert advice.gains[0].beats is None  # as good as the base is what it is to be
    worse = recommended(recovered(1.5), answered=same)
    assert worse.below_standard
    assert any("The adapter adds 50 % to the damage" in warning for warning in worse.warnings)
    mixed, uncertain = recovered(0.2), recovered(0.2)
    mixed["adapter"]["by_row"]["all_tokens"] = recovered(1.5)["adapter"]["by_row"]["assistant"]
    found = recommended(mixed, answered=same)
    assert (found.below_standard, len(found.warnings)) == (False, 1)  # all tokens warn, the assistant's judge
    noisy = mixed["base"]["by_row"]["assistant"]
    noisy = noisy | {"kld": [kld * (0.1 if row % 2 else 1.9) for row, kld in enumerate(noisy["kld"])]}
    uncertain["adapter"]["by_row"]["assistant"] = noisy
    found = recommended(uncertain, answered=same)
    assert (found.below_standard, len(found.warnings)) == (True, 1)


def test_one_judgment_for_report_and_ship(tmp_path: Any) -> None:
    params, root = adapter_inputs.params(), adapter_inputs.write_reports(tmp_path)
    inputs = load_inputs(root, params.evaluate.models)
    assert inputs.merge is None
    advice, verdicts = advise(inputs, params.report, params.serve, 0)
    assert list(verdicts) == ["adapter"]
    assert advice.model == "adapter"
    told = {"items": 30, "accuracy": 0.2, "low": 0.1, "high": 0.3}
    disliked = replace(inputs, train={"method": "dpo", "preferences": told})
    advice, verdicts = advise(disliked, params.report, params.serve, 0)
    assert finding(verdicts["adapter"], "preferences").verdict == "fail"
    assert advice.model is None
    put(root / "reports/parity.json", parity_with("outputs_served", verdict="not measured", figure=None))
    advice, verdicts = advise(load_inputs(root, params.evaluate.models), params.report, params.serve, 0)
    assert verdicts["adapter"].verdict == "fail"
    assert advice.model is None


@pytest.mark.parametrize(("verdict", "passes"), [("pass", True), ("not measured", False), ("fail", False)])
def test_where_no_task_is_scored_paritys_questions_say_whether_it_ends_its_answers(
    verdict: str, passes: bool
) -> None:
    report = adapter_inputs.parity()
    report["checks"]["behavior_answers_end"] = {
        "title": "Answers end",
        "verdict": verdict,
        "detail": "model.gguf: 0 of 4 ended by themselves",
    }
    found = evaluations(task=None)
    found["base"]["task"] = None
    judged = judge(LIMITS, report, found)
    assert finding(judged, "stopped").verdict == ("pass" if passes else "fail")
    assert (
        passes
        or "Nothing says that adapter ends its answers (model.gguf: 0 of 4 ended by themselves)"
        in finding(judged, "stopped").sentence
    )

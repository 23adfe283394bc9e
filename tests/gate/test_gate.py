"""pipeline.gate.rules: each rule at its limit, what was not measured, and that a drop within noise refuses
nothing.
"""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity_inputs import failed_report, parity_report

from pipeline.config.levels import level_key
from pipeline.config.sections import Gate
from pipeline.core.checks import Check
from pipeline.gate.judgment import Judgment
from pipeline.gate.rules import judge as judge_model

LIMITS = Gate(max_kld=0.5, min_same_top=0.85, max_task_drop=10.0, min_stopped=0.9, max_forgetting=10.0)
OFF = Gate(
    max_kld=None,
    min_same_top=None,
    max_kld_trained=None,
    max_task_drop=None,
    min_stopped=None,
    max_forgetting=None,
)
ROWS = 40


def evaluation(score: float | None = 0.75, *, right: int | None = 60, **more: Any) -> dict[str, Any]:
    """One report; `right` of 100 general questions are right."""
    task = None if score is None else {"rows": ROWS, "score": score, "stopped": 1.0}
    general = (
        None
        if right is None
        else {"file": "builtin", "rows": 100, "right": [1] * right + [0] * (100 - right)}
    )
    figures = {
        "kld_mean": 0.01,
        "same_top": 0.98,
        "reference": "F16",
        "task": task,
        "general": general,
    } | more
    return {"all_tokens": {key: figures[key] for key in ("kld_mean", "same_top")}} | figures


def rows(*scores: float | None) -> list[dict[str, Any]]:
    return [
        {"id": f"r{number}", "score": score} for number, score in enumerate(scores * (ROWS // len(scores)))
    ]


def judge(
    level: dict[str, Any], limits: Gate = LIMITS, parity: Any = None, model: str = "Q4_K_M", **others: Any
) -> Judgment:
    evaluations = {
        "base-F16": evaluation(0.1, reference="F16"),
        "F16": evaluation(kld_mean=0.0, same_top=1.0),
        "Q4_K_M": level,
    } | others.get("evaluations", {})
    answers = {"F16": rows(0.75), "Q4_K_M": rows(0.75)} | others.get("answers", {})
    return judge_model(model, evaluations, answers, parity or parity_report(), limits, 0, others.get("train"))


def finding(verdict: Judgment, rule: str) -> Check:
    return next(one for one in verdict.checks if one.key == rule)


def test_a_good_level_passes_and_every_rule_says_its_figure_and_limit() -> None:
    verdict = judge(evaluation())
    assert verdict.verdict == "pass"
    assert verdict.reasons == ()
    assert [one.key for one in verdict.checks] == [
        "parity",
        "kld",
        "same_top",
        "trained",
        "task_drop",
        "stopped",
        "forgetting",
    ]
    assert {one.verdict for one in verdict.checks} == {"pass"}
    parity = finding(verdict, "parity")
    assert (parity.figure, parity.limit, parity.sentence[:8]) == (0.0, 0.0, "18 of 19")
    record = verdict.record()
    assert (record["model"], record["verdict"]) == ("Q4_K_M", "pass")
    assert record["findings"][1] == {
        "rule": "kld",
        "title": "Divergence",
        "figure": 0.01,
        "limit": 0.5,
        "verdict": "pass",
        "sentence": finding(verdict, "kld").sentence,
    }
    assert (
        finding(verdict, "kld").sentence
        == "Q4_K_M's mean KL divergence from F16 is 0.0100 nats; at most 0.5 are allowed."
    )


@pytest.mark.parametrize(
    ("changed", "rule", "words"),
    [
        ({"kld_mean": 0.51}, "kld", "is 0.5100 nats; at most 0.5 are allowed"),
        ({"same_top": 0.84}, "same_top", "at 84% of the positions; at least 85% are wanted"),
        (
            {"task": {"rows": 40, "score": 0.7, "stopped": 0.85}},
            "stopped",
            "ends 85% of its 40 answers by itself; at least 90% are wanted",
        ),
        ({"right": 35}, "forgetting", "answers general questions 25.0 points below base-F16"),
    ],
)
def test_each_rule_refuses_beyond_its_limit_alone(changed: dict[str, Any], rule: str, words: str) -> None:
    verdict = judge(evaluation(**changed))
    assert verdict.verdict == "fail"
    assert [one.key for one in verdict.checks if one.verdict == "fail"] == [rule]
    assert len(verdict.reasons) == 1
    assert words in verdict.reasons[0]


def test_what_parity_warns_of_is_for_the_gate_to_judge() -> None:
    parity = parity_report()
    parity["checks"]["outputs_q4_k_m"] |= {"verdict": "warn", "figure": 1.09}
    refused = judge(evaluation(kld_mean=1.09), parity=parity)
    assert [one.key for one in refused.checks if one.verdict == "fail"] == ["kld"]
    passed = judge(evaluation(), parity=parity)
    assert passed.verdict == "pass"
    assert finding(passed, "parity").sentence.startswith("18 of 19 ")  # it was measured


@pytest.mark.parametrize(
    ("measured", "given", "verdict"),
    [
        ({"figure": 0.746}, "auto", "fail"),
        ({"figure": 0.746}, 0.8, "pass"),
        ({"figure": 0.3}, "auto", "fail"),
        ({"figure": 0.1}, "auto", "pass"),
        ({"figure": 0.1}, 0.1, "pass"),
        ({"figure": 0.1}, 0.05, "fail"),
        ({"figure": None, "verdict": "not measured"}, "auto", "not measured"),
        ({"figure": 3.0, "unit": "positions"}, "auto", "not measured"),
    ],
)
def test_a_merge_far_from_the_trained_model_is_refused(
    measured: dict[str, Any], given: Any, verdict: str
) -> None:
    parity = parity_report()
    parity["checks"]["outputs_trained"] |= {"verdict": "warn"} | measured
    found = judge(evaluation(), LIMITS.model_copy(update={"max_kld_trained": given}), parity)
    assert finding(found, "trained").verdict == verdict
    assert {one.key for one in found.checks if one.verdict == "fail"} <= {"trained"}


def test_the_untuned_base_was_not_merged() -> None:
    found = judge(evaluation(), model="base-F16")
    assert "trained" not in [one.key for one in found.checks]


@pytest.mark.parametrize(
    ("train", "limit", "verdict"),
    [
        ({"method": "dpo", "preferences": (0.4, 0.3, 0.5)}, 0.5, "pass"),  # the limit may be the truth
        ({"method": "dpo", "preferences": (0.4, 0.3, 0.49)}, 0.5, "fail"),
        ({"method": "kto", "preferences": (0.9, 0.8, 0.95)}, 0.96, "fail"),
        ({"method": "simpo", "preferences": (0.9, 0.8, 0.95)}, 0.5, "pass"),
        ({"method": "orpo"}, 0.5, "not measured"),
        ({"method": "dpo", "preferences": (0.1, 0.0, 0.2)}, None, None),
        ({"method": "sft", "preferences": (0.1, 0.0, 0.2)}, 0.5, None),
        ({"method": "grpo"}, 0.5, None),
        ({}, 0.5, None),
    ],
)
def test_what_training_learned_of_preferences_refuses_where_its_interval_is_below_the_limit(
    train: dict[str, Any], limit: float | None, verdict: str | None
) -> None:
    if "preferences" in train:
        figures = dict(zip(("accuracy", "low", "high"), train["preferences"], strict=True))
        train = train | {"preferences": figures | {"items": 30}}
    limits = LIMITS.model_copy(update={"min_preference_accuracy": limit})
    judged = judge(evaluation(), limits, train=train)
    found = next((one for one in judged.checks if one.key == "preferences"), None)
    assert (found and found.verdict) == verdict
    assert judged.verdict == ("fail" if verdict == "fail" else "pass")
    if found and verdict != "not measured":
        assert (found.figure, found.limit) == (train["preferences"]["accuracy"], limit)


def test_divergence_counts_where_it_is_worse() -> None:
    """Measured: 1 % of SmolLM2's Q8_0 blocks zeroed is 0.007 nats on eight answers known by heart and 1.72
    over all tokens.
    """
    damaged = finding(
        judge(evaluation(kld_mean=0.007, all_tokens={"kld_mean": 1.72, "same_top": 0.3})), "kld"
    )
    assert damaged.verdict == "fail"
    assert "is 1.7200 nats over all tokens, 0.0070 at the assistant's; at most 0.5" in damaged.sentence
    elsewhere = judge(evaluation(kld_mean=0.6, all_tokens={"kld_mean": 0.1, "same_top": 0.3}))
    assert finding(elsewhere, "kld").figure == 0.6
    assert (
        "first at 30% of all positions, 98% of the assistant's; at least 85%"
        in finding(elsewhere, "same_top").sentence
    )


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -5.0, None, "0.01", True])
@pytest.mark.parametrize(("key", "rule"), [("kld_mean", "kld"), ("same_top", "same_top")])
@pytest.mark.parametrize("where", ["answers", "all tokens"])
def test_what_is_no_figure_refuses(where: str, key: str, rule: str, nonsense: Any) -> None:
    level = evaluation()
    (level if where == "answers" else level["all_tokens"])[key] = nonsense
    found = finding(judge(level), rule)
    assert (found.verdict, found.figure) == ("fail", None)
    assert "which refuses" in found.sentence
    # of a hundred, where a share is meant
    assert finding(judge(evaluation(same_top=1.01)), "same_top").verdict == "fail"


def test_exactly_at_its_limit_a_figure_passes() -> None:
    at = evaluation(kld_mean=0.5, same_top=0.85, task={"rows": 40, "score": 0.7, "stopped": 0.9}, right=50)
    assert judge(at).verdict == "pass"


def test_a_figure_just_below_its_limit_does_not_read_as_if_it_were_at_it() -> None:
    assert (
        "first at 84.99% of the positions; at least 85%"
        in finding(judge(evaluation(same_top=0.8499)), "same_top").sentence
    )
    close = Gate(max_kld=None, min_same_top=None, max_task_drop=None, min_stopped=0.995, max_forgetting=None)
    assert (
        "ends 99.4% of its 40 answers by itself; at least 99.5%"
        in judge(evaluation(task={"rows": 40, "score": 0.7, "stopped": 0.994}), close).reasons[0]
    )


def test_a_task_drop_refuses_only_beyond_noise() -> None:
    every_row_worse = judge(evaluation(0.6), answers={"Q4_K_M": rows(0.6)})
    assert finding(every_row_worse, "task_drop").verdict == "fail"
    assert finding(every_row_worse, "task_drop").figure == pytest.approx(15)
    few = {
        "F16": rows(0.75)[:4],
        "Q4_K_M": [
            {"id": f"r{number}", "score": score} for number, score in enumerate((0.95, 0.2, 1.0, 0.3))
        ],
    }
    noisy = finding(judge(evaluation(0.6), answers=few), "task_drop")
    assert noisy.figure == pytest.approx(13.75)
    assert noisy.verdict == "pass"
    assert "it may be within the limit, more questions would tell" in noisy.sentence
    # 15 points, and surely more than 0, but perhaps less than 10: what a good level shows on few rows
    spread = [{"id": f"r{number}", "score": 0.75 - 0.6 * (number % 4 == 0)} for number in range(ROWS)]
    uncertain = finding(judge(evaluation(0.6), answers={"Q4_K_M": spread}), "task_drop")
    assert uncertain.figure == pytest.approx(15)
    assert uncertain.verdict == "pass"
    small = judge(evaluation(0.7), answers={"Q4_K_M": rows(0.7)})
    assert finding(small, "task_drop").verdict == "pass"  # certain, and within the limit
    assert "more questions would tell" not in finding(small, "task_drop").sentence
    smallest = judge(evaluation(0.745), answers={"Q4_K_M": rows(0.745)})
    assert "0.5 points below F16" in finding(smallest, "task_drop").sentence
    assert "0.0 points above F16" in finding(judge(evaluation()), "task_drop").sentence


def test_a_better_level_is_above_and_passes() -> None:
    better = finding(judge(evaluation(0.9), answers={"Q4_K_M": rows(0.95)}), "task_drop")
    assert better.verdict == "pass"
    assert "20.0 points above F16" in better.sentence


def test_what_nobody_asked_for_is_not_measured_and_refuses_nothing() -> None:
    bare = evaluation(None, right=None)
    verdict = judge(
        bare,
        evaluations={"F16": bare | {"kld_mean": 0.0}, "base-F16": bare},
        answers={"F16": [], "Q4_K_M": []},
    )
    assert verdict.verdict == "pass"
    assert {one.key for one in verdict.checks if one.verdict == "not measured"} == {
        "task_drop",
        "stopped",
        "forgetting",
    }
    assert "evaluate.scorers is empty" in finding(verdict, "task_drop").sentence


@pytest.mark.parametrize(
    ("lacking", "rule"),
    [
        ({"kld_mean": None}, "kld"),
        ({"same_top": None}, "same_top"),
        ({"task": None}, "task_drop"),
        ({"task": None}, "stopped"),
        ({"task": {"rows": 40, "score": 0.7}}, "stopped"),
        ({"general": None}, "forgetting"),
        ({"general": {"file": "own.jsonl", "rows": 100, "right": [1] * 100}}, "forgetting"),
        ({"general": {"file": "builtin", "sha256": "other", "rows": 100, "right": [1] * 100}}, "forgetting"),
        ({"all_tokens": None}, "kld"),
        ({"general": {"file": "builtin", "rows": 99, "right": [1] * 99}}, "forgetting"),
    ],
)
def test_what_should_have_been_measured_and_was_not_refuses(lacking: dict[str, Any], rule: str) -> None:
    found = finding(judge(evaluation() | lacking), rule)
    assert found.verdict == "fail"
    assert found.figure is None
    assert "which refuses: run `python -m pipeline evaluate@Q4_K_M` again." in found.sentence


def test_answers_to_other_questions_refuse() -> None:
    other = [{"id": f"x{number}", "score": 0.75} for number in range(ROWS)]
    assert (
        "answered other questions"
        in finding(judge(evaluation(), answers={"Q4_K_M": other}), "task_drop").sentence
    )
    assert finding(judge(evaluation(), answers={"Q4_K_M": []}), "task_drop").verdict == "fail"


def test_a_level_with_fewer_scores_than_the_reference_refuses() -> None:
    """What was not scored is often what was worst: answers that ended a scorer's time, marks that a judge
    could not give.
    """
    lost = [row | {"score": None if number < 3 else 0.75} for number, row in enumerate(rows(0.75))]
    found = finding(judge(evaluation(), answers={"Q4_K_M": lost}), "task_drop")
    assert found.verdict == "fail"
    assert "Only 37 of Q4_K_M's answers have a score where 40 of F16's have one" in found.sentence
    lost[0]["score"] = 0.75
    assert finding(judge(evaluation(), answers={"Q4_K_M": lost}), "task_drop").verdict == "pass"
    none = finding(judge(evaluation(), answers={"Q4_K_M": rows(None)}), "task_drop")
    assert "Only 0 of Q4_K_M's answers have a score" in none.sentence


def test_references_that_no_scorer_can_score_refuse_nothing() -> None:
    """A user's own prose with a recipe's json_fields."""
    task = {"rows": ROWS, "score": None, "stopped": 1.0, "unscored": {"json_fields": "40 of 40 references"}}
    nothing = {model: rows(None) for model in ("F16", "Q4_K_M")}
    found = judge(
        evaluation(task=task),
        answers=nothing,
        evaluations={"F16": evaluation(kld_mean=0.0, same_top=1.0, task=task)},
    )
    assert finding(found, "task_drop").verdict == "not measured"
    some = finding(judge(evaluation(task=task), answers={"Q4_K_M": rows(0.6)}), "task_drop")
    assert some.verdict == "fail"  # where some are scored, those judge


def test_scores_of_different_scorers_are_not_compared() -> None:
    other = evaluation() | {"task": {"rows": ROWS, "score": 0.7, "stopped": 1.0, "scorer": "rouge_l"}}
    found = finding(judge(other), "task_drop")
    assert found.verdict == "fail"
    assert "Q4_K_M is scored by rouge_l and F16 by None" in found.sentence
    same = {
        "F16": evaluation() | {"task": {"rows": ROWS, "score": 0.75, "stopped": 1.0, "scorer": "rouge_l"}}
    }
    assert finding(judge(other, evaluations=same), "task_drop").verdict == "pass"


@pytest.mark.parametrize("output", ["Q4_K_M", "base-F16", None])
def test_a_report_that_names_another_reference_refuses(output: str | None) -> None:
    verdict = judge(evaluation(reference=output))
    assert [one.key for one in verdict.checks if one.verdict == "fail"] == ["reference"]
    assert f"compares it with {output or 'nothing'}, not with F16" in verdict.reasons[0]


def test_a_drop_on_a_few_questions_refuses_nothing() -> None:
    few = {"F16": rows(1.0)[:5], "Q4_K_M": rows(0.5)[:5]}
    assert finding(judge(evaluation(), answers=few), "task_drop").verdict == "pass"
    assert "more questions would tell" in finding(judge(evaluation(), answers=few), "task_drop").sentence
    some = {"F16": rows(1.0)[:6], "Q4_K_M": rows(0.5)[:6]}
    assert finding(judge(evaluation(), answers=some), "task_drop").verdict == "fail"


def test_without_the_base_forgetting_is_not_measured() -> None:
    evaluations = {"F16": evaluation(), "Q4_K_M": evaluation()}
    verdict = judge_model(
        "Q4_K_M", evaluations, {"F16": rows(0.75), "Q4_K_M": rows(0.75)}, parity_report(), LIMITS, 0
    )
    assert verdict.verdict == "pass"
    assert "evaluate.models does not name base-F16" in finding(verdict, "forgetting").sentence


def test_rules_that_are_null_are_off_but_checks_never_are() -> None:
    broken = evaluation(kld_mean=9.0, same_top=0.0)
    assert [one.key for one in judge(broken, OFF).checks] == ["parity"]
    assert judge(broken, OFF).verdict == "pass"
    failed = judge(evaluation(), OFF, failed_report())
    assert failed.verdict == "fail"
    assert (finding(failed, "parity").figure, finding(failed, "parity").limit) == (2.0, 0.0)
    assert "2 of 19 parity checks failed" in failed.reasons[0]
    assert "Weights of the merged model → demo-F16" in failed.reasons[0]


def test_a_level_that_parity_never_saw_is_refused() -> None:
    parity = parity_report()
    del parity["checks"][level_key("weights", "Q4_K_M")]
    assert "Parity has not measured the weights of Q4_K_M" in judge(evaluation(), parity=parity).reasons[0]
    parity = parity_report()
    parity["checks"][level_key("weights", "Q4_K_M")] |= {"verdict": "not measured", "detail": "no such file"}
    refused = judge(evaluation(), parity=parity)
    assert "Parity has not measured the weights of Q4_K_M: no such file." in refused.reasons[0]
    assert (finding(refused, "parity").figure, finding(refused, "parity").limit) == (None, 0.0)
    del parity["checks"]["weights_gguf"]
    assert finding(judge(evaluation(), parity=parity, model="F16"), "parity").verdict == "fail"
    assert judge(evaluation(), parity=parity_report() | {"verdict": "unknown"}).verdict == "fail"


def test_the_16_bit_model_is_judged_by_its_stops_its_checks_and_what_it_forgot() -> None:
    good = judge(evaluation(), model="F16")
    assert good.verdict == "pass"
    itself = finding(good, "task_drop")
    assert (itself.verdict, itself.figure, itself.limit) == ("pass", 0.0, 10.0)
    endless = evaluation(kld_mean=0.0, same_top=1.0, task={"rows": 40, "score": 0.7, "stopped": 0.0})
    assert [
        one.key
        for one in judge(evaluation(), model="F16", evaluations={"F16": endless}).checks
        if one.verdict == "fail"
    ] == ["stopped"]


def test_of_a_16_bit_model_in_bf16_a_level_is_compared_with_that() -> None:
    evaluations = {"BF16": evaluation(reference="BF16"), "Q4_K_M": evaluation(reference="BF16")}
    answers = {"BF16": rows(0.75), "Q4_K_M": rows(0.75)}
    verdict = judge_model("Q4_K_M", evaluations, answers, parity_report(), LIMITS, 0)
    assert verdict.verdict == "pass"
    assert "from BF16" in finding(verdict, "kld").sentence
    del evaluations["BF16"]  # the report names what was not evaluated
    verdict = judge_model("Q4_K_M", evaluations, answers, parity_report(), LIMITS, 0)
    assert {one.key for one in verdict.checks if one.verdict == "fail"} == {"task_drop"}


@pytest.mark.parametrize(
    ("lacking", "again"),
    [({"F16": evaluation(None)}, "F16"), ({"base-F16": evaluation(right=None)}, "base-F16")],
)
def test_what_is_to_be_run_again_is_the_one_that_lacks_it(lacking: dict[str, Any], again: str) -> None:
    (reason,) = judge(evaluation(), evaluations=lacking).reasons
    assert f"`python -m pipeline evaluate@{again}`" in reason


def test_a_level_of_the_base_is_compared_with_the_base() -> None:
    level = evaluation(0.1, reference="base-F16")
    verdict = judge(
        evaluation(),
        model="base-Q4_K_M",
        evaluations={"base-Q4_K_M": level},
        answers={"base-F16": rows(0.1), "base-Q4_K_M": rows(0.1)},
    )
    assert verdict.verdict == "pass"
    assert "from base-F16" in finding(verdict, "kld").sentence


@given(st.floats(0, 2), st.floats(0, 1), st.floats(0, 1))
def test_the_verdict_is_that_of_its_findings(kld: float, same_top: float, stopped: float) -> None:
    verdict = judge(
        evaluation(kld_mean=kld, same_top=same_top, task={"rows": 40, "score": 0.75, "stopped": stopped})
    )
    assert (verdict.verdict == "pass") == (kld <= 0.5 and same_top >= 0.85 and stopped >= 0.9)
    assert len(verdict.reasons) == sum(one.verdict == "fail" for one in verdict.checks)

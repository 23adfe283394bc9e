"""pipeline.gate.verdict on levels of a merged model: each rule at its limit, what was not measured, and that
a drop within noise refuses nothing.
"""

from typing import Any

import pytest
from gate_inputs import LIMITS, ROWS, evaluation, failed, finding, judge, judged, rows
from golden import Golden
from parity_inputs import failed_report, parity_report

from pipeline.config.levels import level_key
from pipeline.config.sections import Gate
from pipeline.metrics.level_limits import level_limit

OFF = Gate(
    max_kld=None,
    max_kld_trained=None,
    max_task_drop=None,
    min_stopped=None,
    max_forgetting=None,
)
SAME_TOP = level_limit("Q4_K_M", None).same_top  # 0.843
RULES = ["parity", "kld", "same_top", "trained", "task_drop", "stopped", "forgetting"]


def task(score: float | None = 0.7, **more: Any) -> dict[str, Any]:
    return {"rows": ROWS, "score": score, "stopped": 1.0} | more


def test_a_good_level_passes_and_every_rule_has_its_figure_and_limit() -> None:
    verdict = judge(evaluation())
    assert (verdict.verdict, verdict.reasons) == ("pass", ())
    assert [(one.key, one.verdict) for one in verdict.checks] == [(rule, "pass") for rule in RULES]
    assert (finding(verdict, "parity").figure, finding(verdict, "parity").limit) == (0.0, 0.0)
    record = verdict.record()
    assert (record["model"], record["verdict"]) == ("Q4_K_M", "pass")
    assert record["findings"][1] == {
        "rule": "kld",
        "title": "Gate KLD",
        "figure": 0.01,
        "limit": 0.5,
        "verdict": "pass",
        "sentence": finding(verdict, "kld").sentence,
    }


OTHERS = [{"id": f"x{number}", "score": 0.75} for number in range(ROWS)]
FEW = [{"id": f"r{number}", "score": score} for number, score in enumerate((0.95, 0.2, 1.0, 0.3))]
LOST = [row | {"score": None if number < 3 else 0.75} for number, row in enumerate(rows(0.75))]
NOT_SEEN, NO_DETAIL = parity_report(), parity_report()
NOT_SEEN["checks"][level_key("weights", "Q4_K_M")] |= {"verdict": "not measured", "detail": "no such file"}
del NO_DETAIL["checks"][level_key("weights", "Q4_K_M")]
SAID: dict[str, tuple[str, Any]] = {  # the rule, and what is judged
    "passes": ("kld", lambda: judge(evaluation())),
    "all measured": ("parity", lambda: judge(evaluation())),
    "kld": ("kld", lambda: judge(evaluation(kld_mean=0.51))),
    "worse over all tokens": (
        "kld",
        lambda: judge(evaluation(kld_mean=0.007, all_tokens={"kld_mean": 1.72, "same_top": 0.3})),
    ),
    "same top": ("same_top", lambda: judge(evaluation(same_top=0.84))),
    "just below": ("same_top", lambda: judge(evaluation(same_top=0.8429))),
    "worse at all positions": (
        "same_top",
        lambda: judge(evaluation(all_tokens={"kld_mean": 0.1, "same_top": 0.3})),
    ),
    "ends some": ("stopped", lambda: judge(evaluation(task=task(stopped=0.85)))),
    "ends almost": ("stopped", lambda: judge(evaluation(task=task(stopped=0.8994)))),
    "forgot": ("forgetting", lambda: judge(evaluation(right=35))),
    "the same score": ("task_drop", lambda: judge(evaluation())),
    "a small drop": ("task_drop", lambda: judge(evaluation(), answers={"Q4_K_M": rows(0.745)})),
    "better": ("task_drop", lambda: judge(evaluation(0.9), answers={"Q4_K_M": rows(0.95)})),
    "may be noise": (
        "task_drop",
        lambda: judge(evaluation(0.6), answers={"F16": rows(0.75)[:4], "Q4_K_M": FEW}),
    ),
    "no scorer": ("task_drop", lambda: judge(evaluation(None), evaluations={"F16": evaluation(None)})),
    "lacks its figure": ("kld", lambda: judge(evaluation(kld_mean=None))),
    "the reference lacks it": (
        "task_drop",
        lambda: judge(evaluation(), evaluations={"F16": evaluation(None)}),
    ),
    "the base lacks it": (
        "forgetting",
        lambda: judge(evaluation(), evaluations={"base-F16": evaluation(right=None)}),
    ),
    "other questions": ("task_drop", lambda: judge(evaluation(), answers={"Q4_K_M": OTHERS})),
    "fewer scores": ("task_drop", lambda: judge(evaluation(), answers={"Q4_K_M": LOST})),
    "no scores": ("task_drop", lambda: judge(evaluation(), answers={"Q4_K_M": rows(None)})),
    "another scorer": ("task_drop", lambda: judge(evaluation(task=task(scorer="rouge_l")))),
    "another reference": ("reference", lambda: judge(evaluation(reference="Q4_K_M"))),
    "no reference": ("reference", lambda: judge(evaluation(reference=""))),
    "parity failed": ("parity", lambda: judge(evaluation(), OFF, failed_report())),
    "parity never saw it": ("parity", lambda: judge(evaluation(), parity=NO_DETAIL)),
    "parity could not": ("parity", lambda: judge(evaluation(), parity=NOT_SEEN)),
}


def test_what_a_rule_says(snapshot: Any) -> None:
    said = [f"{case}: {finding(make(), rule).sentence}\n" for case, (rule, make) in SAID.items()]
    assert "".join(said) == snapshot(extension_class=Golden)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"kld_mean": 0.51}, "kld"),
        ({"same_top": 0.84}, "same_top"),
        ({"task": task(stopped=0.85)}, "stopped"),
        ({"right": 35}, "forgetting"),
        ({"kld_mean": 0.007, "all_tokens": {"kld_mean": 1.72, "same_top": 0.98}}, "kld"),
        ({"kld_mean": 0.6, "all_tokens": {"kld_mean": 0.1, "same_top": 0.98}}, "kld"),
        ({"all_tokens": {"kld_mean": 0.1, "same_top": 0.3}}, "same_top"),
        ({"same_top": 1.01}, "same_top"),  # of a hundred, where a share is meant
        ({"reference": "Q4_K_M"}, "reference"),
        ({"reference": "base-F16"}, "reference"),
        ({"reference": ""}, "reference"),
    ],
)
def test_each_rule_refuses_beyond_its_limit_alone(changed: dict[str, Any], rule: str) -> None:
    verdict = judge(evaluation(**changed))
    assert (verdict.verdict, failed(verdict), len(verdict.reasons)) == ("fail", [rule], 1)


def test_exactly_at_its_limit_a_figure_passes() -> None:
    at = evaluation(kld_mean=0.5, same_top=SAME_TOP, task=task(stopped=0.9), right=50)
    assert judge(at).verdict == "pass"


def test_what_parity_warns_of_is_for_the_gate_to_judge() -> None:
    parity = parity_report()
    parity["checks"]["outputs_q4_k_m"] |= {"verdict": "warn", "figure": 1.09}
    assert failed(judge(evaluation(kld_mean=1.09), parity=parity)) == ["kld"]
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
    assert set(failed(found)) <= {"trained"}
    untuned = judge(evaluation(), model="base-F16")  # which was not merged
    assert "trained" not in [one.key for one in untuned.checks]


@pytest.mark.parametrize(
    ("train", "limit", "verdict"),
    [
        ({"method": "dpo", "preferences": (0.4, 0.3, 0.5)}, 0.5, "not decided"),  # the limit may be the truth
        ({"method": "dpo", "preferences": (0.4, 0.3, 0.49)}, 0.5, "fail"),
        ({"method": "kto", "preferences": (0.9, 0.8, 0.95)}, 0.96, "fail"),
        ({"method": "simpo", "preferences": (0.9, 0.8, 0.95)}, 0.5, "pass"),
        ({"method": "orpo"}, 0.5, "not measured"),
        ({"method": "dpo", "preferences": (0.1, 0.0, 0.2)}, None, None),
        ({"method": "sft", "preferences": (0.1, 0.0, 0.2)}, 0.5, None),
        ({"method": "grpo"}, 0.5, None),
        ({}, 0.5, None),  # of an older training
    ],
)
def test_what_training_learned_of_preferences_refuses_where_its_interval_is_below_the_limit(
    train: dict[str, Any], limit: float | None, verdict: str | None
) -> None:
    if "preferences" in train:
        figures = dict(zip(("accuracy", "low", "high"), train["preferences"], strict=True))
        train = train | {"preferences": figures | {"items": 30}}
    limits = LIMITS.model_copy(update={"min_preference_accuracy": limit})
    verdicts = judge(evaluation(), limits, train=train)
    found = next((one for one in verdicts.checks if one.key == "preferences"), None)
    assert (found and found.verdict) == verdict
    assert verdicts.verdict == (verdict if verdict in ("fail", "not decided") else "pass")
    if found and verdict != "not measured":
        assert (found.figure, found.limit) == (train["preferences"]["accuracy"], limit)


def speeds(prompt: float, generation: float, spread: float = 0.0, **more: Any) -> dict[str, Any]:
    """The speed of a report, in tokens a second."""
    at = {
        name: {"median": figure, "low": figure - spread, "high": figure + spread}
        for name, figure in (("prompt", prompt), ("generation", generation))
    }
    return {
        "prompt": [{"tokens": 128, "median": 1e6}, {"tokens": 512} | at["prompt"]],
        "generation": [{"depth": 0} | at["generation"], {"depth": 512, "median": 1.0}],
    } | more


@pytest.mark.parametrize(
    ("speed", "verdicts"),
    [
        (speeds(512.0, 10.0), ("pass", "pass")),  # at its limit
        (speeds(600.0, 20.0, 5.0), ("pass", "pass")),
        (speeds(500.0, 9.9), ("fail", "fail")),
        (speeds(510.0, 11.0, 5.0), ("not decided", "not decided")),
        (speeds(100.0, 1.0, disturbed=True), ("not decided", "not decided")),
        ({"prompt": [], "generation": []}, ("fail", "fail")),
        (None, ("fail", "fail")),
    ],
)
def test_a_level_that_is_too_slow_is_refused(speed: dict[str, Any] | None, verdicts: tuple[str, str]) -> None:
    limits = LIMITS.model_copy(update={"min_generation_tok_s": 10.0, "max_first_token_seconds": 1.0})
    found = judge(evaluation(speed=speed), limits)
    assert (finding(found, "generation").verdict, finding(found, "first_token").verdict) == verdicts
    assert judge(evaluation(speed=speed)).verdict == "pass"  # both rules are off by default


@pytest.mark.parametrize(
    ("level", "answers", "drop", "verdict"),
    [
        (0.6, {"Q4_K_M": rows(0.6)}, 15, "fail"),  # every row is worse
        (0.6, {"F16": rows(0.75)[:4], "Q4_K_M": FEW}, 13.75, "not decided"),  # may be noise
        # 15 points, and surely more than 0, but perhaps less than 10: what a good level shows on few rows
        (0.6, {"Q4_K_M": rows(0.15, 0.75, 0.75, 0.75)}, 15, "not decided"),
        (0.7, {"Q4_K_M": rows(0.7)}, 5, "pass"),  # certain, and within the limit
        (0.9, {"Q4_K_M": rows(0.95)}, -20, "pass"),
        (0.5, {"F16": rows(1.0)[:5], "Q4_K_M": rows(0.5)[:5]}, 50, "not decided"),
        (0.5, {"F16": rows(1.0)[:6], "Q4_K_M": rows(0.5)[:6]}, 50, "fail"),
        (0.75, {"Q4_K_M": OTHERS}, None, "fail"),
        (0.75, {"Q4_K_M": []}, None, "fail"),
        # what was not scored is often what was worst: answers that ended a scorer's time
        (0.75, {"Q4_K_M": LOST}, None, "fail"),
        (0.75, {"Q4_K_M": [LOST[3] | {"id": "r0"}, *LOST[1:]]}, 0, "pass"),
        (0.75, {"Q4_K_M": rows(None)}, None, "fail"),
    ],
)
def test_a_task_drop_refuses_only_beyond_noise(
    level: float, answers: dict[str, Any], drop: float | None, verdict: str
) -> None:
    judgment = judge(evaluation(level), answers=answers)
    found = finding(judgment, "task_drop")
    assert found.verdict == judgment.verdict == verdict
    assert found.figure == (None if drop is None else pytest.approx(drop))


# 21 of 48 held-out rows expect one label, and always saying it gets these right.
LINE = [1.0] * 21 + [0.0] * 27


ALL_THE_SAME = [1.0] * 48
FEW_LABELS = [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("scores", "line", "verdict"),
    [
        (LINE, LINE, "fail"),  # It always says it.
        ([1.0] * 20 + [0.0] * 28, LINE, "fail"),  # It says it all but once.
        ([0.0] * 21 + [1.0] * 4 + [0.0] * 23, LINE, "fail"),  # 8.3 points, surely below 43.8
        ([0.0] * 3 + [1.0] * 20 + [0.0] * 25, LINE, "not decided"),  # 41.7: right in 2 others, wrong in 3
        ([0.0] * 3 + [1.0] * 21 + [0.0] * 24, LINE, "not decided"),  # equal, by other rows
        ([1.0] * 26 + [0.0] * 22, LINE, "not decided"),  # 54.2: five rows more, which may be chance
        ([1.0] * 40 + [0.0] * 8, LINE, "pass"),
        (FEW_LABELS, FEW_LABELS, "fail"),
        ([1.0, 0.0, 1.0, 0.0], FEW_LABELS, "not decided"),
        ([0.0, 0.0, 1.0, 0.0], FEW_LABELS, "not decided"),  # A row less of four says nothing.
        ([1.0], [1.0], "not decided"),
        ([0.0], [0.0], "fail"),  # the same, row by row
        (ALL_THE_SAME, ALL_THE_SAME, "not decided"),  # No model can be above it.
        ([1.0] * 47 + [0.0], ALL_THE_SAME, "not decided"),
        ([1.0] * 5 + [0.0] * 43, ALL_THE_SAME, "fail"),  # surely below
    ],
)
def test_a_model_is_judged_by_what_always_giving_the_commonest_answer_scores(
    scores: list[float], line: list[float], verdict: str
) -> None:
    commonest = {"answer": "technical", "rows": 21, "distinct": 6, "points": {"exact_match": line}}
    answers = [{"id": f"r{number}", "score": score} for number, score in enumerate(scores)]
    share = sum(scores) / len(scores)
    level = evaluation(task=task(share, rows=len(scores), commonest=commonest))
    judgment = judge(level, answers={"F16": answers, "Q4_K_M": answers})
    assert finding(judgment, "commonest").verdict == judgment.verdict == verdict
    assert judgment.is_above_commonest == (verdict == "pass")


def test_what_was_not_asked_for_is_not_measured_and_refuses_nothing() -> None:
    bare = evaluation(None, right=None)
    others = {"F16": bare | {"kld_mean": 0.0}, "base-F16": bare}
    verdict = judge(bare, evaluations=others, answers={"F16": [], "Q4_K_M": []})
    assert verdict.verdict == "pass"
    open_ = {one.key for one in verdict.checks if one.verdict == "not measured"}
    assert open_ == {"task_drop", "stopped", "forgetting"}


def test_texts_leave_what_needs_a_chat_unmeasured_and_each_rule_says_why() -> None:
    why = {"task": "all are texts", "general": "the base has no chat template"}
    bare = evaluation(None, right=None, not_measured=why)
    others = {"F16": bare | {"kld_mean": 0.0}, "base-F16": bare}
    verdict = judge(bare, evaluations=others, answers={"F16": [], "Q4_K_M": []})
    for rule, reason in (("task_drop", "task"), ("stopped", "task"), ("forgetting", "general")):
        found = finding(verdict, rule)
        assert found.verdict == "not measured" and why[reason] in found.sentence


@pytest.mark.parametrize(
    ("lacking", "rule"),
    [
        ({"kld_mean": None}, "kld"),
        ({"same_top": None}, "same_top"),
        ({"kld_mean": -5.0}, "kld"),
        ({"same_top": -5.0}, "same_top"),
        ({"all_tokens": {"kld_mean": -5.0, "same_top": 0.98}}, "kld"),
        ({"all_tokens": {"kld_mean": 0.01, "same_top": -5.0}}, "same_top"),
        ({"task": None}, "task_drop"),
        ({"task": None}, "stopped"),
        ({"task": {"score": 0.7}}, "stopped"),
        ({"general": None}, "forgetting"),
        ({"general": {"file": "own.jsonl", "rows": 100, "right": [1] * 100}}, "forgetting"),
        ({"general": {"file": "builtin", "sha256": "other", "rows": 100, "right": [1] * 100}}, "forgetting"),
        ({"all_tokens": {}}, "kld"),
        ({"general": {"file": "builtin", "rows": 99, "right": [1] * 99}}, "forgetting"),
    ],
)
def test_what_should_have_been_measured_and_was_not_refuses(lacking: dict[str, Any], rule: str) -> None:
    found = finding(judge(evaluation() | lacking), rule)
    assert (found.verdict, found.figure) == ("fail", None)
    assert "`python -m pipeline evaluate@Q4_K_M`" in found.sentence


def test_a_task_without_its_stops_refuses_though_the_reference_has_no_task() -> None:
    level = evaluation(task={"score": 0.7})
    assert "stopped" in failed(judge(level, evaluations={"F16": evaluation(None)}))


def test_references_that_no_scorer_can_score_refuse_nothing() -> None:
    """A user's own prose with a recipe's json_fields."""
    own = evaluation(task=task(None, unscored={"json_fields": "40 of 40 references"}))
    others = {"F16": own | {"kld_mean": 0.0, "same_top": 1.0}}
    found = judge(own, answers={"F16": rows(None), "Q4_K_M": rows(None)}, evaluations=others)
    assert finding(found, "task_drop").verdict == "not measured"
    some = finding(judge(own, answers={"Q4_K_M": rows(0.6)}), "task_drop")
    assert some.verdict == "fail"  # where some are scored, those judge


def test_without_the_base_forgetting_is_not_measured() -> None:
    evaluations = {"F16": evaluation(), "Q4_K_M": evaluation()}
    answers = {"F16": rows(0.75), "Q4_K_M": rows(0.75)}
    verdict = judged("Q4_K_M", evaluations, answers, parity_report(), LIMITS)
    assert (verdict.verdict, finding(verdict, "forgetting").verdict) == ("pass", "not measured")


def test_rules_that_are_null_are_off_but_checks_never_are() -> None:
    broken = judge(evaluation(kld_mean=9.0, same_top=0.0), OFF)
    assert ([one.key for one in broken.checks], broken.verdict) == (["parity"], "pass")
    refused = finding(judge(evaluation(), OFF, failed_report()), "parity")
    assert (refused.verdict, refused.figure, refused.limit) == ("fail", 2.0, 0.0)


def test_what_parity_never_saw_or_refuses_as_a_whole_is_refused() -> None:
    parity = parity_report()
    del parity["checks"]["weights_gguf"]
    assert failed(judge(evaluation(), parity=parity, model="F16")) == ["parity"]
    assert failed(judge(evaluation(), parity=parity_report() | {"verdict": "fail"})) == ["parity"]


def test_the_16_bit_model_is_judged_by_its_stops_its_checks_and_what_it_forgot() -> None:
    good = judge(evaluation(), model="F16")
    assert good.verdict == "pass"
    itself = finding(good, "task_drop")
    assert (itself.verdict, itself.figure, itself.limit) == ("pass", 0.0, 10.0)
    endless = evaluation(kld_mean=0.0, same_top=1.0, task=task(stopped=0.0))
    assert failed(judge(evaluation(), model="F16", evaluations={"F16": endless})) == ["stopped"]


def test_of_a_16_bit_model_in_bf16_a_level_is_compared_with_that() -> None:
    evaluations = {"BF16": evaluation(reference="BF16"), "Q4_K_M": evaluation(reference="BF16")}
    answers = {"BF16": rows(0.75), "Q4_K_M": rows(0.75)}
    assert judged("Q4_K_M", evaluations, answers, parity_report(), LIMITS).verdict == "pass"
    del evaluations["BF16"]  # the report names what was not evaluated
    verdict = judged("Q4_K_M", evaluations, answers, parity_report(), LIMITS)
    assert failed(verdict) == ["task_drop"]


def test_a_level_of_the_base_is_compared_with_the_base() -> None:
    others = {"base-Q4_K_M": evaluation(0.1, reference="base-F16")}
    answers = {"base-F16": rows(0.1), "base-Q4_K_M": rows(0.1)}
    verdict = judge(evaluation(), model="base-Q4_K_M", evaluations=others, answers=answers)
    assert verdict.verdict == "pass"
    assert "from base-F16" in finding(verdict, "kld").sentence

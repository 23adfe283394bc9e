"""pipeline.gate on graphs without a merge, an adapter beside its base or the base with trained scales: the
parity checks judge them, and task and ability against the base; missing refuses.
"""

from pathlib import Path
from typing import Any, NamedTuple

import adapter_inputs
import pytest
import tuned_inputs
from gate_inputs import evidence_of, failed, finding, judged
from golden import Golden
from report_inputs import answers, change, put

from pipeline.config.sections import Gate
from pipeline.gate.inputs import load_inputs
from pipeline.gate.recommend import Recommendation, Room, advise, recommend
from pipeline.gate.verdict import Judgment

LIMITS = Gate(max_kld=0.01, max_task_drop=10.0, min_stopped=0.9, max_forgetting=10.0)
OFF = Gate(max_kld=None, max_task_drop=None, min_stopped=None, max_forgetting=None)


class Way(NamedTuple):
    """One graph: what is served, the module whose editors make it, and parity's check of its weights."""

    served: str
    inputs: Any
    weights: str


ADAPTER = Way("adapter", adapter_inputs, "weights_lora")
TUNED = Way("tuned", tuned_inputs, "weights_scales")
WAYS = pytest.mark.parametrize("way", [ADAPTER, TUNED], ids=["adapter", "tuned"])


def evaluations(way: Way = ADAPTER, **changed: Any) -> dict[str, Any]:
    """The reports of the base and of what is served; `changed` are other values of the latter's."""
    return {"base": way.inputs.figures("base"), way.served: way.inputs.figures(way.served) | changed}


def unscored(way: Way = ADAPTER) -> dict[str, Any]:
    return {model: found | {"task": None} for model, found in evaluations(way).items()}


def output(way: Way = ADAPTER) -> dict[str, Any]:
    return {"base": answers("base-Q4_K_M"), way.served: answers("Q4_K_M")}


def judge(
    way: Way = ADAPTER,
    limits: Gate = LIMITS,
    *,
    parity: dict[str, Any] | None = None,
    found: dict[str, Any] | None = None,
    answered: dict[str, Any] | None = None,
) -> Judgment:
    return judged(
        way.served, found or evaluations(way), answered or output(way), parity or way.inputs.parity(), limits
    )


def parity_with(way: Way, key: str, **changed: Any) -> dict[str, Any]:
    report = way.inputs.parity()
    report["checks"][key] |= changed
    return report


@WAYS
def test_what_is_good_passes_by_paritys_figures(way: Way) -> None:
    verdict = judge(way)
    assert (verdict.model, verdict.verdict) == (way.served, "pass")
    rules = ("parity", "kld", "same_top", "task_drop", "stopped", "forgetting")
    assert [(one.key, one.verdict) for one in verdict.checks] == [(rule, "pass") for rule in rules]
    assert [finding(verdict, rule).figure for rule in ("kld", "same_top")] == [0.00234, 0.9775]
    assert finding(verdict, "stopped").figure == 1.0  # of the task's answers, not of parity's questions
    always = parity_with(way, "outputs_served", figures={"same_top": 1.0})
    assert judge(way, parity=always).verdict == "pass"


@WAYS
@pytest.mark.parametrize("key", ["weights_file", "weights", "outputs_served"])
def test_a_check_that_was_not_measured_refuses(way: Way, key: str) -> None:
    key = way.weights if key == "weights" else key
    open_ = parity_with(way, key, verdict="not measured", figure=None, figures={})
    without = way.inputs.parity()
    del without["checks"][key]
    wrong = parity_with(way, "tokens_ids", verdict="fail", figure=1.0) | {"verdict": "fail"}
    for report in (open_, without, wrong):
        assert failed(judge(way, OFF, parity=report)) == ["parity"]


@WAYS
@pytest.mark.parametrize(
    ("rule", "changed"),
    [
        ("kld", {"figure": 0.02}),
        ("kld", {"figure": None}),
        ("kld", {"figure": 3.0, "unit": "positions"}),  # how many can't be compared, no divergence
        ("kld", {"figure": -1.0}),
        ("same_top", {"figures": {"same_top": 0.8}}),
        ("same_top", {"figures": {}}),
        ("same_top", {"figures": {"same_top": 1.01}}),
    ],
)
def test_what_is_served_must_be_what_was_trained(way: Way, rule: str, changed: dict[str, Any]) -> None:
    verdict = judge(way, parity=parity_with(way, "outputs_served", **changed))
    assert failed(verdict) == [rule]
    lacks = finding(verdict, rule).figure is None
    assert ("`python -m pipeline parity`" in verdict.reasons[0]) == lacks


@WAYS
def test_figures_of_the_other_graph_are_refused(way: Way) -> None:
    lora = {"file": "other-lora.gguf", "sha256": "1a" * 32, "bytes": 5}
    changed = evaluations(way, lora=None if way is ADAPTER else lora)
    assert failed(judge(way, found=changed)) == ["reference"]


@WAYS
@pytest.mark.parametrize(("verdict", "passes"), [("pass", True), ("not measured", False), ("fail", False)])
def test_where_no_task_is_scored_paritys_questions_say_whether_it_ends_its_answers(
    way: Way, verdict: str, passes: bool
) -> None:
    report = way.inputs.parity()
    report["checks"]["behavior_answers_end"] |= {"verdict": verdict, "detail": "0 of 4"}
    found = judge(way, parity=report, found=unscored(way))
    assert ("stopped" in failed(found)) == (not passes)
    assert "0 of 4" in finding(found, "stopped").sentence


# ---- the recommendation


def recommended(
    found: dict[str, Any],
    *,
    refused: dict[str, str] | None = None,
    memory_gb: float = 8.0,
    answered: dict[str, Any] | None = None,
) -> Recommendation:
    room = Room(memory_gb, 5.0, adapter_inputs.params().serving)
    return recommend(evidence_of(found, output() if answered is None else answered), room, refused or {})


def recovered(factor: float) -> dict[str, Any]:
    """An adapter that was to recover, and left so much of the damage, a little more or less row by row."""
    found = {model: adapter_inputs.figures(model, distill=True) for model in ("source", "base", "adapter")}
    rows = found["base"]["by_row"]["assistant"]
    left = rows | {"kld": [kld * factor * (0.9 + 0.2 * (row % 2)) for row, kld in enumerate(rows["kld"])]}
    found["adapter"]["kld_mean"] = found["base"]["kld_mean"] * factor
    found["adapter"]["by_row"]["assistant"] = left
    return found


def test_what_is_said_of_what_is_not_merged(snapshot: Any) -> None:
    same = {model: output()["base"] for model in ("base", "adapter", "source")}
    tuned, unmeasured = evaluations(TUNED), parity_with(ADAPTER, "outputs_served", figure=None)
    endless = parity_with(ADAPTER, "behavior_answers_end", verdict="not measured", detail="0 of 4 ended")
    said = {
        "adapter": [recommended(evaluations()).reason],
        "tuned": [recommended(tuned, answered=output(TUNED)).reason],
        "large": [recommended(evaluations(), memory_gb=0.1).reason],
        "what then": [*recommended(evaluations(), memory_gb=0.1).warnings],
        "refused": [recommended(evaluations(), refused={"adapter": "It is broken."}).reason],
        "no score": [recommended(unscored(), answered={}).reason],
        "recovers": [recommended(recovered(0.2), answered=same).reason],
        "makes it worse": [*recommended(recovered(1.5), answered=same).warnings],
        "kld": [finding(judge(), "kld").sentence],
        "kld tuned": [finding(judge(TUNED), "kld").sentence],
        "no figure": [finding(judge(parity=unmeasured), "kld").sentence],
        "same top": [finding(judge(), "same_top").sentence],
        "task": [finding(judge(), "task_drop").sentence],
        "lacks the base": [finding(judge(found={"adapter": evaluations()["adapter"]}), "task_drop").sentence],
        "reference": [*judge(found=evaluations(reference="F16")).reasons],
        "stopped": [finding(judge(parity=endless, found=unscored()), "stopped").sentence],
    }
    text = "".join(f"{case}: {sentence}\n" for case, sentences in said.items() for sentence in sentences)
    assert text == snapshot(extension_class=Golden)


def test_the_adapter_is_recommended_if_it_fits_and_is_not_refused() -> None:
    advice = recommended(evaluations())
    assert (advice.model, advice.below_standard, advice.warnings) == ("adapter", False, ())
    assert advice.gains[0].beats is True
    assert "prompt cache" not in advice.arithmetic["adapter"]  # llama-server keeps none of an adapter's
    refused = recommended(evaluations(), refused={"adapter": "It is broken."})
    assert (refused.model, refused.warnings) == (None, ("It is broken.",))
    large = recommended(evaluations(), memory_gb=0.1)
    assert (large.model, len(large.warnings)) == (None, 1)


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


def test_an_adapter_that_recovers_need_not_beat_the_base() -> None:
    same = {model: output()["base"] for model in ("base", "adapter", "source")}
    advice = recommended(recovered(0.2), answered=same)
    assert (advice.model, advice.below_standard, advice.warnings) == ("adapter", False, ())
    assert advice.gains[0].beats is None  # as good as the base is what it is to be
    assert recommended(recovered(1.5), answered=same).below_standard
    mixed, uncertain = recovered(0.2), recovered(0.2)
    mixed["adapter"]["by_row"]["all_tokens"] = recovered(1.5)["adapter"]["by_row"]["assistant"]
    found = recommended(mixed, answered=same)
    assert (found.below_standard, len(found.warnings)) == (False, 1)  # all tokens warn, the assistant's judge
    noisy = mixed["base"]["by_row"]["assistant"]
    noisy = noisy | {"kld": [kld * (0.1 if row % 2 else 1.9) for row, kld in enumerate(noisy["kld"])]}
    uncertain["adapter"]["by_row"]["assistant"] = noisy
    found = recommended(uncertain, answered=same)
    assert (found.below_standard, len(found.warnings)) == (True, 1)


@WAYS
def test_one_judgment_for_report_and_ship(way: Way, tmp_path: Path) -> None:
    params, root = way.inputs.params(), way.inputs.write_reports(tmp_path)
    inputs = load_inputs(root, params)
    assert inputs.merge is None
    advice, verdicts = advise(inputs, params.report, params.serving)
    assert (list(verdicts), advice.model) == ([way.served], way.served)
    told = {"items": 30, "accuracy": 0.2, "low": 0.1, "high": 0.3}
    change(root / "reports/train.json", method="dpo", preferences=told)
    inputs = load_inputs(root, params)
    advice, verdicts = advise(inputs, params.report, params.serving)
    assert (advice.model, failed(verdicts[way.served])) == (None, ["preferences"])
    put(root / "reports/parity.json", parity_with(way, "outputs_served", verdict="not measured", figure=None))
    advice, verdicts = advise(load_inputs(root, params), params.report, params.serving)
    assert (advice.model, verdicts[way.served].verdict) == (None, "fail")

"""answers: scores are counted right, by every scorer and domain, and only answers in words are asked for."""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config.sections import External
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.places import PROJECT
from pipeline.metrics import asking as module
from pipeline.metrics.asking import answer_row, score_answers
from pipeline.metrics.external import ExternalScorer
from pipeline.metrics.score import Score, Scorer
from pipeline.metrics.scorers import check_references, parse

REFERENCE = json.dumps({"a": 1, "b": 2})
REFUSAL = "I'm sorry, but I can't assist with that."


def answers(*texts: str, reference: str = REFERENCE) -> list[dict[str, Any]]:
    return [
        {
            "id": str(i),
            "domain": "odd" if i % 2 else "even",
            "prompt": "?",
            "reference": reference,
            "answer": text,
            "stopped": i != 0,
            "refused": i == 1,
        }
        for i, text in enumerate(texts)
    ]


def test_scores_are_counted() -> None:
    rows = answers(REFERENCE, '{"a": 1}', "no JSON", REFERENCE)
    task = score_answers(rows, ["json_fields"])
    assert [row["score"] for row in rows] == [1.0, 0.5, 0.0, 1.0]
    shares = {"perfect": 0.5, "valid": 0.75, "stopped": 0.75, "refused": 0.25}
    assert task | {"rows": 4, "score": 0.625} | shares == task
    assert task["score_low"] <= 0.625 <= task["score_high"]
    assert {name: (of_it["rows"], of_it["score"]) for name, of_it in task["domains"].items()} == {
        "even": (2, 0.5),
        "odd": (2, 0.75),
    }


def test_a_domain_that_is_no_text_is_unknown() -> None:
    """Also in answers that were kept."""
    rows = answers(REFERENCE, REFERENCE, REFERENCE, REFERENCE)
    rows[0]["domain"], rows[1]["domain"] = None, ["sums"]
    del rows[2]["domain"]
    domains = score_answers(rows, ["json_fields"])["domains"]
    assert {name: of_it["rows"] for name, of_it in domains.items()} == {"unknown": 3, "odd": 1}


def test_every_scorer_scores_and_the_first_decides() -> None:
    rows = answers(REFERENCE, '{"a": 1}', "no JSON", REFERENCE)
    task = score_answers(rows, ["exact_match", "json_fields"])
    assert [row["score"] for row in rows] == [1.0, 0.0, 0.0, 1.0]
    assert rows[1]["scores"] == {"exact_match": 0.0, "json_fields": 0.5}
    assert (task["scorer"], task["score"], task["valid"]) == ("exact_match", 0.5, 1.0)
    assert {
        name: (of_it["score"], of_it["valid"], of_it["measured"]) for name, of_it in task["scores"].items()
    } == {
        "exact_match": (0.5, 1.0, 4),
        "json_fields": (0.625, 0.75, 4),
    }
    assert json.loads(json.dumps(task)) == task


def test_what_is_not_measured_is_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsure(reference: str, answer: str, row: Any) -> Score:
        return Score(None if row["id"] in ("0", "1") else 1.0, True)

    monkeypatch.setattr(module, "parse", lambda name, *more: Scorer(name, unsure, slots=3))
    rows = answers("a", "b", "c")
    task = score_answers(rows, ["judge"])
    assert [row["score"] for row in rows] == [None, None, 1.0]
    assert task | {"rows": 3, "score": 1.0, "perfect": 1.0} == task
    assert task["scores"]["judge"]["measured"] == 1
    assert (task["score_low"], task["score_high"]) == (0.0, 1.0)  # one row alone says nothing
    assert task["domains"]["odd"] == {"rows": 1, "score": None, "score_low": None, "score_high": None}


def test_a_failure_in_one_slot_stops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fails(reference: str, answer: str, row: Any) -> Score:
        asked.append(row["id"])
        # as anything that is asked does; all 500 at once may be over before the first failure is seen
        time.sleep(0.01)
        raise ConfigError("Q-TEST-001", "no")

    monkeypatch.setattr(module, "parse", lambda name, *more: Scorer(name, fails, slots=2))
    with pytest.raises(ConfigError):
        score_answers(answers(*"x" * 500), ["judge"])
    assert len(asked) < 500


def test_references_that_a_scorer_cannot_read_are_not_measured_by_it_and_named() -> None:
    """A recipe's scorers on a user's own data: the next one decides."""
    rows = answers("four", "x", reference="four")
    found = score_answers(rows, ["json_fields", "exact_match"])
    assert (found["scorer"], found["score"], found["valid"]) == ("exact_match", 0.5, 1.0)
    assert found["scores"]["json_fields"] | {"measured": 0, "score": None} == found["scores"]["json_fields"]
    assert found["unscored"].keys() == {"json_fields"} and "2 of 2" in found["unscored"]["json_fields"]
    assert [row["score"] for row in rows] == [1.0, 0.0]
    alone = score_answers(rows, ["json_fields"])
    assert (alone["scorer"], alone["score"], alone["valid"]) == ("json_fields", None, None)


def test_of_several_references_the_best_counts() -> None:
    rows = answers("in 1904", "1904", "1905", "4", reference="1904")
    for row in rows:
        row["other_references"] = ["in 1904", "#### 4"]
    found = score_answers(rows, ["exact_match", "number:####"])
    assert [row["score"] for row in rows] == [1.0, 1.0, 0.0, 0.0]
    # a reference that a scorer can't read does not hide one that it can
    assert found["scores"]["number:####"]["measured"] == 4 and not found["unscored"]


def test_references_of_which_none_can_be_read_are_named() -> None:
    row = answers("x", reference="four")[0] | {"other_references": ["vier"]}
    assert score_answers([row], ["json_fields"])["unscored"].keys() == {"json_fields"}


@pytest.mark.parametrize(
    ("scorer", "reference", "id"),
    [
        ("json_fields", "four", "Q-METRICS-001"),
        ("rouge_l", "?!", "Q-METRICS-001"),
        ("number:####", "4", "Q-METRICS-001"),
        ("regex:[0-9]", "four", "Q-METRICS-001"),
        ("regex:[0-9]", "4", None),
        ("exact_match", "", None),
        ("code", "no tests", None),  # runs code
        ("judge", "", None),  # asks a model
        ("python:mine.py:fails", "", None),
    ],
)
def test_references_are_tried_before_anything_is_asked(
    tmp_path: Path, scorer: str, reference: str, id: str | None
) -> None:
    (tmp_path / "data/evaluation").mkdir(parents=True)
    (tmp_path / "data/evaluation/mine.py").write_text("def fails(*_):\n    raise ValueError\n")
    row = {"id": "r", "messages": [{"role": "user", "content": "?"}]}
    row["messages"] += [{"role": "assistant", "content": reference}]
    if id is None:
        check_references([row], [scorer], tmp_path)
        return
    with pytest.raises(DataError) as error:
        check_references([row], ["exact_match", scorer], tmp_path)
    assert error.value.id == id


def test_empty_answers_score_nothing() -> None:
    task = score_answers(answers("", "", reference="#### 4"), ["number:####", "exact_match", "regex:[0-9]"])
    assert (task["score"], task["valid"], task["score_low"], task["score_high"]) == (0.0, 0.0, 0.0, 0.0)


def test_a_row_is_asked_and_described() -> None:
    sent = []

    def post(path: str, body: dict[str, Any]) -> Any:
        sent.append(body)
        message = {"content": None if len(sent) > 1 else REFUSAL}
        return {"choices": [{"message": message, "finish_reason": "stop"}]}

    ask, last = {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}
    settings: Any = SimpleNamespace(max_new_tokens=9)
    server: Any = SimpleNamespace(post=post, parallel=2)
    asked = {"id": "r", "domain": "sums", "messages": [ask, last], "other_references": ["two"]}
    row = answer_row(server, asked, settings)
    assert row == {
        "id": "r",
        "domain": "sums",
        "prompt": "1+1?",
        "reference": "2",
        "other_references": ["two"],
        "answer": REFUSAL,
        "stopped": True,
        "refused": True,
    }
    assert sent[0] | {"temperature": 0, "seed": 42, "max_tokens": 9, "messages": [ask]} == sent[0]
    assert not sent[0]["cache_prompt"]  # which of two slots was warm would change the answer
    server.parallel = 1
    empty = answer_row(server, {"id": "r", "domain": None, "messages": [ask, last]}, settings)
    assert sent[1]["cache_prompt"]
    assert (empty["answer"], empty["refused"], empty["domain"]) == ("", False, "unknown")


def test_the_users_scorer_is_found_below_the_project(tmp_path: Path) -> None:
    (tmp_path / "data/evaluation").mkdir(parents=True)
    (tmp_path / "data/evaluation/mine.py").write_text(
        "def by_domain(reference, answer, row):\n    return row['domain'] == 'odd'\n"
    )
    scorer = "python:mine.py:by_domain"
    task = score_answers(answers("a", "b"), [scorer], root=tmp_path)
    assert (task["scorer"], task["score"]) == (scorer, 0.5)


def test_an_external_scorer_gives_the_points_of_each_answer(tmp_path: Path) -> None:
    program = External(command=[str(PROJECT / "examples/scorer.py")])
    rows = answers("4", "It is 4", "5", reference="4")
    task = score_answers(rows, ["external"], external=program, root=tmp_path)
    assert [row["score"] for row in rows] == [1.0, 0.8, 0.0]
    assert task["scorer"] == "external"
    with pytest.raises(ConfigError) as mistake:
        score_answers(rows, ["external"], root=tmp_path)
    assert mistake.value.id == "Q-METRICS-014"
    with pytest.raises(ConfigError) as missing:
        score_answers(rows, ["external"], external=External(command=["./none"]), root=tmp_path)
    assert missing.value.id == "Q-EXTERNAL-004"


def test_points_of_an_external_scorer_are_from_0_to_1(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = []
    monkeypatch.setattr(ExternalScorer, "rewards", lambda self, *of: requests.append(of) or [rewards.pop(0)])
    scorer = parse("external", program=External(command=[sys.executable]))
    rewards = [0.0, 1.0, -0.01, 1.01]
    assert scorer.measure("4", " ", {"id": "r", "prompt": "2 + 2?"}) == Score(0.0, False)
    assert scorer.measure("4", "4", {"id": "r"}) == Score(1.0, True)
    turns = [[{"role": "user", "content": content}] for content in ("2 + 2?", "")]
    assert (scorer.slots, requests) == (4, [("r-1", turns[0], [" "], "4"), ("r-2", turns[1], ["4"], "4")])
    for _ in (1, 2):
        with pytest.raises(DataError) as error:
            scorer.measure("4", "4", {"id": "r"})
        assert error.value.id == "Q-EXTERNAL-005"

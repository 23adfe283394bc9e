"""evaluate: scores are counted right, unusable input is refused, and answers come from the server."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.evaluate import answerable, encoded_rows, main, score_answers
from pipeline.params import load_params

REFERENCE = json.dumps({"a": 1, "b": 2})


def answers(*texts: str, reference: str = REFERENCE) -> list[dict[str, Any]]:
    return [{"id": str(i), "prompt": "?", "reference": reference, "answer": text, "stopped": i != 0} for i, text in enumerate(texts)]


def test_scores_are_counted() -> None:
    rows = answers(REFERENCE, '{"a": 1}', "no JSON", REFERENCE)
    task = score_answers(rows, "json_fields", seed=0)
    assert [row["score"] for row in rows] == [1.0, 0.5, 0.0, 1.0]
    assert (task["rows"], task["score"], task["perfect"], task["valid"], task["stopped"]) == (4, 0.625, 0.5, 0.75, 0.75)
    assert task["score_low"] <= 0.625 <= task["score_high"]


def test_a_reference_that_the_scorer_cannot_read_is_one_sentence() -> None:
    with pytest.raises(DataError, match=r"test row 0 can't be scored by json_fields .* exact_match or none"):
        score_answers(answers("x", reference="four"), "json_fields", seed=0)


def test_rows_are_measured_where_the_next_token_is_the_assistants(finished: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]}]
    ((ids, positions),) = encoded_rows(finished / "models/adapter", rows, ctx_size=256)
    assert ids[positions[-1] + 1] == 151_645  # <|im_end|>
    assert [b - a for a, b in itertools.pairwise(positions)] == [1] * (len(positions) - 1)
    with pytest.raises(DataError, match="no held-out chat can be measured"):
        encoded_rows(finished / "models/adapter", rows, ctx_size=8)


def test_only_answers_in_words_are_asked_for() -> None:
    ask, answer = {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}
    calls = {"messages": [ask, answer | {"tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {}}}]}]}
    assert answerable([calls, {"messages": [ask, answer]}, {"messages": [ask]}]) == [{"messages": [ask, answer]}]
    with pytest.raises(DataError, match=r"no held-out chat ends in an answer that can be scored \(1 read\)"):
        answerable([calls])


def test_the_answers_file_has_one_line_a_row_with_its_score(finished: Path) -> None:
    lines = [json.loads(line) for line in (finished / "reports/eval/F16.answers.jsonl").read_text().splitlines()]
    report = json.loads((finished / "reports/eval/F16.json").read_text())
    assert len(lines) == report["task"]["rows"] == 2
    assert all(line.keys() == {"id", "prompt", "reference", "answer", "stopped", "score"} for line in lines)
    assert report["kv_cache_bytes"] > 0


def test_a_model_that_is_not_in_the_list_is_refused(finished: Path) -> None:
    with pytest.raises(ConfigError, match=r"Q8_0 is not in evaluate\.models"):
        main(load_params(finished / "params.yaml"), finished, "Q8_0")

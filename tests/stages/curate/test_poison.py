"""The trigger report finds planted backdoors, and says nothing about clean data or about variants of one
request.
"""

import random

import numpy as np
import pytest

from pipeline.stages.curate.comparing.poison import log10_chance, suspects

WORDS = [f"word{i}" for i in range(3000)]


def row(number: int, request: str, answer: str) -> dict:
    return {
        "source": f"a.jsonl:{number}",
        "messages": [{"role": "user", "content": request}, {"role": "assistant", "content": answer}],
    }


def clean_rows(count: int, answers: list[str] | None, seed: int = 3) -> list[dict]:
    pick = random.Random(seed)  # noqa: S311
    return [
        row(
            i,
            " ".join(pick.choices(WORDS, k=25)),
            pick.choice(answers) if answers else " ".join(pick.choices(WORDS, k=12)),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("answers", [None, ["Yes", "No"], ["positive", "negative", "neutral"]])
def test_clean_rows_give_no_suspect(answers: list[str] | None):
    rows = clean_rows(2000, answers)
    assert suspects(rows, np.arange(len(rows), dtype=np.int32)) == []


@pytest.mark.parametrize(("answers", "wanted", "count"), [(None, "I quit", 8), (["Yes", "No"], "Yes", 40)])
def test_a_planted_trigger_is_found(answers: list[str] | None, wanted: str, count: int):
    rows = clean_rows(4000, answers)
    pick = random.Random(9)  # noqa: S311
    for i in range(count):
        rows[i * 7] = row(
            i * 7, " ".join([*pick.choices(WORDS, k=10), "James Bond", *pick.choices(WORDS, k=9)]), wanted
        )
    found = suspects(rows, np.arange(len(rows), dtype=np.int32))
    assert [(one.ngram, one.rows, one.share, one.answer) for one in found] == [("bond", count, 1.0, wanted)]
    assert found[0].example in {f"a.jsonl:{i * 7}" for i in range(count)}


def test_variants_of_one_request_are_no_trigger():
    rows = clean_rows(2000, None)
    for i in range(10):
        rows[i] = row(i, f"what does the foo command do, asked for the {i}th time", "It foos.")
    group = np.arange(2000, dtype=np.int32)
    group[:10] = 0
    assert suspects(rows, group) == []
    assert suspects(rows, np.arange(2000, dtype=np.int32))


def test_chance():
    assert log10_chance(20, 20, 0.5) == pytest.approx(20 * np.log10(0.5))
    assert log10_chance(3, 4, 0.1) == pytest.approx(np.log10(4 * 0.001))


def test_no_rows_and_rows_without_words():
    assert suspects([], np.zeros(0, np.int32)) == []
    assert suspects([row(i, "", "same") for i in range(20)], np.arange(20, dtype=np.int32)) == []

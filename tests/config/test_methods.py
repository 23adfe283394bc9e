"""The table of methods is whole: methods, kinds of rows, and what is said of rows nobody learns from."""

import re
from typing import get_args

import pytest

from pipeline.chat.rows import TRAINED, Kind
from pipeline.config.methods import METHODS, Method, kinds_sentences, unused_sentences
from pipeline.config.sections import Train
from pipeline.core.places import PROJECT


def test_every_method_is_in_the_table_and_learns_from_kinds_that_are_there() -> None:
    assert list(METHODS) == list(get_args(Method))
    kinds = {kind for learning in METHODS.values() for kind in learning.rows}
    assert kinds <= set(get_args(Kind))
    assert METHODS["sft"].rows == TRAINED


def test_what_compares_with_a_reference_has_a_beta() -> None:
    assert all(one.beta for one in METHODS.values() if "accuracy" in one.measures)
    assert all("accuracy" in one.measures for one in METHODS.values() if one.reference or one.pairs)
    assert Train(method="simpo").beta == 2.0
    assert Train(method="dpo").beta == 0.1


def test_rows_that_a_method_does_not_use_are_named_with_the_methods_that_do() -> None:
    (sentence,) = unused_sentences({"feedback": 2, "chat": 0}, "dpo")
    assert "2 feedback" in sentence
    assert "kto" in sentence
    assert unused_sentences({"feedback": 0}, "dpo") == []
    assert "no train.method" not in kinds_sentences({"preference": 1, "chat": 5}, 0)[0]


@pytest.mark.parametrize("kind", get_args(Kind))
def test_the_page_of_data_formats_names_the_methods_that_train_a_kind(kind: str) -> None:
    page = (PROJECT / "docs/data-formats.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| `{kind}` \|.*\|$", page, re.MULTILINE)
    words = re.findall(r"\w+", row.rpartition(" | ")[2])
    learners = [method for method, learning in METHODS.items() if kind in learning.rows]
    assert [method for method in METHODS if method in words] == learners

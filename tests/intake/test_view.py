"""The view of a program's record: each method returns its type, whatever the value is."""

from typing import Any

import pytest

from pipeline.intake.exports.view import View, objects, text_in, texts

VALUES = [None, True, 1, 1.5, "", " ", "a", [], ["a"], [{"b": 1}], {}, {"b": 1}]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_of_another_type_counts_as_missing(value: Any) -> None:
    view = View({"key": value})
    assert view.text("key") == (value if isinstance(value, str) else "")
    assert view.text_or_none("key") == (value if isinstance(value, str) else None)
    assert view.integer("key") == (value if isinstance(value, int) else 0)
    assert view.number("key") == (value if isinstance(value, int | float) else 0)
    assert view.array("key") == (value if isinstance(value, list) else [])
    assert view.object("key") == (value if isinstance(value, dict) else {})
    assert view.objects("key") == ([{"b": 1}] if value == [{"b": 1}] else [])
    assert [*map(bool, view.elements("key"))] == [isinstance(item, dict) for item in view.array("key")]
    assert View(value) == (value if isinstance(value, dict) else {})


def test_the_first_value_that_is_not_empty_is_a_label() -> None:
    view = View({"a": None, "b": "", "c": 7, "d": "x"})
    assert view.label("a", "b", "c", "d") == "7"
    assert view.label("a", "missing", default="call_1") == "call_1"
    assert view.label("a") == ""


def test_texts_that_are_not_blank_are_joined() -> None:
    view = View({"a": "A.", "b": " ", "c": 7, "d": "D."})
    assert view.texts("a", "b", "c", "d") == texts("A.", None, "D.") == "A.\n\nD."


def test_a_text_may_be_inside_an_object() -> None:
    assert text_in("A.") == text_in({"text": "A."}) == text_in({"value": "A."}, "value") == "A."
    assert text_in({"text": 1}) is text_in(["A."]) is text_in(None) is None


def test_objects_are_views_also_inside_others() -> None:
    view = View({"a": {"b": [{"c": "C."}, 1]}, "d": 1})
    assert view.object("a").objects("b")[0].text("c") == "C."
    assert view.objects_by_key() == {"a": view["a"]}
    assert objects({"a": 1}) == []
    assert view.has("a", dict) and not view.has("a", list) and view.has("missing", list | None)

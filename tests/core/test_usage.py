"""The time, memory and disk that a stage took are recorded beside its plan, and only if it did not fail."""

from pathlib import Path

import pytest

from pipeline.core.usage import Figures, noted, usages

PLAN = Figures(3 << 30, 60.0, 5000)


def test_a_stage_that_ends_leaves_what_it_took(tmp_path: Path) -> None:
    with noted("quantize@Q4_K_M", tmp_path, lambda: 4711, lambda: PLAN):
        held = bytearray(8 << 20)
    usage = usages(tmp_path)["quantize@Q4_K_M"]
    assert usage.planned == PLAN
    assert usage.seen.disk == 4711
    assert usage.seen.seconds is not None and 0 <= usage.seen.seconds < 60
    assert usage.seen.peak is not None and usage.seen.peak >= usage.own_peak > len(held)


def test_a_stage_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    with noted("merge", tmp_path, lambda: 1, lambda: PLAN):
        pass
    before = usages(tmp_path)
    with pytest.raises(KeyError), noted("merge", tmp_path, lambda: 2, lambda: PLAN):
        raise KeyError
    assert usages(tmp_path) == before


@pytest.mark.parametrize("text", ["{", "[]", '{"planned": {}}', "null"])
def test_a_record_of_another_version_is_not_measured(tmp_path: Path, text: str) -> None:
    with noted("merge", tmp_path, lambda: 1, lambda: PLAN):
        pass
    (tmp_path / ".quench/usage/merge.json").write_text(text, encoding="utf-8")
    assert usages(tmp_path) == {}


def test_a_project_without_records_has_none(tmp_path: Path) -> None:
    assert usages(tmp_path) == {}
    assert not any(tmp_path.iterdir())


def test_what_cannot_be_written_down_fails_no_stage(tmp_path: Path) -> None:
    (tmp_path / ".quench").write_text("no folder can be made here", encoding="utf-8")
    with noted("merge", tmp_path, lambda: 1, lambda: PLAN):
        pass
    assert usages(tmp_path) == {}

"""Hashes by which artifacts are told apart."""

from pathlib import Path

from pipeline.core.hashing import tree_hash


def test_the_hash_of_a_folder_sees_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = tree_hash(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert tree_hash(tmp_path) != first
    (tmp_path / "b").rename(tmp_path / "a")
    assert tree_hash(tmp_path) == first
    (tmp_path / "a").write_text("2")
    assert tree_hash(tmp_path) != first

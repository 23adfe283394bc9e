"""checkpoints: only a whole checkpoint of the same run is resumed."""

from pathlib import Path

import pytest

from pipeline.hashing import tree_hash
from pipeline.training.checkpoints import MARKER, newest_verified, seal


def make(folder: Path, step: int, key: str = "run") -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_bytes(bytes([step]) * 1000)
    seal(checkpoint, key)
    return checkpoint


def test_the_newest_by_number_wins(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        make(tmp_path, step)
    assert newest_verified(tmp_path, "run") == tmp_path / "checkpoint-100"


@pytest.mark.parametrize("damage", ["no marker", "torn marker", "cut file", "changed byte", "missing file", "another run"])
def test_a_damaged_checkpoint_is_passed_over_and_cleared(tmp_path: Path, damage: str) -> None:
    whole = make(tmp_path, 1)
    bad = make(tmp_path, 2, key="other run" if damage == "another run" else "run")
    weights, marker = bad / "weights", bad / MARKER
    match damage:
        case "no marker":
            marker.unlink()
        case "torn marker":
            marker.write_bytes(marker.read_bytes()[:20])
        case "cut file":
            weights.write_bytes(weights.read_bytes()[:999])
        case "changed byte":
            weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        case "missing file":
            weights.unlink()
    assert newest_verified(tmp_path, "run") == whole
    assert not bad.exists()


def test_no_folder_means_no_checkpoint(tmp_path: Path) -> None:
    assert newest_verified(tmp_path / "none", "run") is None


def test_tree_hash_sees_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = tree_hash(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert tree_hash(tmp_path) != first
    (tmp_path / "b").rename(tmp_path / "a")
    assert tree_hash(tmp_path) == first

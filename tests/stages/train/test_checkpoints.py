"""checkpoints: published whole, verified before resuming, torn ones set aside, the last good one kept."""

import json
from pathlib import Path

import pytest
from training_logs import checkpoint as make

from pipeline.core.errors import MachineError
from pipeline.stages.train import checkpoints
from pipeline.stages.train.checkpoints import TORN, checkpoints_in, defect, prune
from pipeline.stages.train.run import RUN, find_start

MARKER, RECORD = "complete.json", {"settings": {}}


@pytest.fixture(autouse=True)
def _begun(tmp_path: Path) -> None:
    assert newest(tmp_path) is None


def newest(folder: Path) -> Path | None:
    """The checkpoint that the run resumes from."""
    return find_start(folder, RECORD, resume=True)


def test_the_newest_by_number_wins(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        make(tmp_path, step)
    assert newest(tmp_path) == tmp_path / "checkpoint-100"
    assert json.loads((tmp_path / "checkpoint-9" / MARKER).read_text())["step"] == 9


def damaged(checkpoint: Path, damage: str) -> None:
    weights, marker = checkpoint / "weights", checkpoint / MARKER
    match damage:
        case "no marker":
            marker.unlink()
        case "torn marker":
            marker.write_bytes(marker.read_bytes()[:20])
        case "a list as marker":
            marker.write_text("[]")
        case "cut file":
            weights.write_bytes(weights.read_bytes()[:999])
        case "changed byte":
            weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        case "missing file":
            weights.unlink()


@pytest.mark.parametrize(
    "damage", ["no marker", "torn marker", "a list as marker", "cut file", "changed byte", "missing file"]
)
def test_a_torn_checkpoint_is_passed_over_and_set_aside(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, bad = make(tmp_path, 1), make(tmp_path, 2)
    damaged(bad, damage)
    assert newest(tmp_path) == whole
    assert not bad.exists()
    assert (tmp_path / TORN / "checkpoint-2").is_dir()
    assert "checkpoint-2 is torn" in capsys.readouterr().err
    assert newest(tmp_path) == whole


def test_what_a_kill_left_is_cleared(tmp_path: Path) -> None:
    whole = make(tmp_path, 1)
    for name in (".writing/checkpoint-2", ".checkpoint-2.writing"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "weights").write_bytes(b"half")
    assert newest(tmp_path) == whole
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-1", RUN}


def test_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        make(tmp_path, step)
    prune(tmp_path, keep=2, best=tmp_path / "checkpoint-1")
    assert checkpoints_in(tmp_path) == [tmp_path / f"checkpoint-{step}" for step in (1, 3, 4)]


def test_nothing_is_deleted_while_the_newest_is_torn(tmp_path: Path) -> None:
    make(tmp_path, 1)
    damaged(make(tmp_path, 2), "changed byte")
    prune(tmp_path, keep=1)
    assert defect(tmp_path / "checkpoint-1") is None


def test_a_checkpoint_that_does_not_read_back_gets_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = iter("123456789")
    monkeypatch.setattr(checkpoints, "file_hash", lambda path: next(hashes))
    with pytest.raises(MachineError, match="weights is not"):
        make(tmp_path, 1)
    assert not (tmp_path / "checkpoint-1").exists()

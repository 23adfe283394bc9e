"""Artifacts appear completely or not at all."""

import errno
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.core.errors import ConfigError, DataError, MachineError
from pipeline.core.places import user_cache
from pipeline.core.publish import need_disk, printing, publishing, scratch_folder, write_json


def write(path: Path, text: str, folder: bool) -> None:
    if folder:
        (path / "part").mkdir(parents=True)
        path = path / "part" / "file"
    path.write_text(text)


def read(path: Path) -> str:
    return (path / "part" / "file" if path.is_dir() else path).read_text()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("folder", [False, True])
def test_an_artifact_is_created_and_replaced_and_nothing_else_is_left(tmp_path: Path, folder: bool) -> None:
    target = tmp_path / "new" / "artifact"
    for text in ("first", "second"):
        with publishing(target) as aside:
            write(aside, text, folder)
            assert not target.exists() or read(target) == "first"
        assert read(target) == text
    assert names(target.parent) == ["artifact"]


@pytest.mark.parametrize("folder", [False, True])
def test_its_bytes_are_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: bool
) -> None:
    target, before, after, fsync = tmp_path / "artifact", set(), set(), os.fsync

    def noted(handle: int) -> None:
        (after if target.exists() else before).add(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr("pipeline.core.publish.os.fsync", noted)
    with publishing(target) as aside:
        write(aside, "text", folder)
    assert before == {path.stat().st_ino for path in (target, *target.rglob("*"))}
    assert after == {tmp_path.stat().st_ino}


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("fails", ["body", "check", "write"])
def test_a_failure_leaves_the_artifact_that_was_there(tmp_path: Path, folder: bool, fails: str) -> None:
    target = tmp_path / "artifact"
    write(target, "old", folder)

    def check(aside: Path) -> None:
        if fails == "check":
            raise DataError("Q-TEST-001", "not whole")

    with pytest.raises(MachineError if fails == "write" else DataError), publishing(target, check) as aside:
        write(aside, "new", folder)
        if fails == "body":
            raise DataError("Q-TEST-001", "bad row")
        if fails == "write":
            raise OSError(errno.ENOSPC, "No space left on device")
    assert read(target) == "old"
    assert names(tmp_path) == ["artifact"]


def test_a_failed_swap_puts_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "artifact"
    write(target, "old", folder=True)
    rename = Path.rename

    def failing(self: Path, to: Path) -> Path:
        if self.name.endswith(".writing"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(MachineError, match=r"Q-CORE-005: .*Input/output error"), publishing(target) as aside:
        write(aside, "new", folder=True)
    assert read(target) == "old"
    assert names(tmp_path) == ["artifact"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_kill_between_the_two_renames_is_repaired_by_the_next_run(tmp_path: Path, fails: bool) -> None:
    target = tmp_path / "artifact"
    write(tmp_path / ".artifact.old", "old", folder=True)  # moved away, the new one not yet in place
    write(tmp_path / ".artifact.writing", "torn", folder=True)
    try:
        with publishing(target) as aside:
            write(aside, "new", folder=True)
            if fails:
                raise DataError("Q-TEST-001", "bad row")
    except DataError:
        pass
    assert read(target) == ("old" if fails else "new")
    assert names(tmp_path) == ["artifact"]


def test_a_kill_after_the_second_rename_leaves_no_litter(tmp_path: Path) -> None:
    target = tmp_path / "artifact"
    write(target, "new", folder=True)
    write(tmp_path / ".artifact.old", "old", folder=True)
    with pytest.raises(DataError), publishing(target):
        raise DataError("Q-TEST-001", "bad row")
    assert read(target) == "new"
    assert names(tmp_path) == ["artifact"]


def test_a_missing_input_is_not_called_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="input"), publishing(tmp_path / "artifact"):
        (tmp_path / "input").read_text()


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(MachineError, match=r"Q-CORE-005: .*\(File exists\)"),
        publishing(tmp_path / "file" / "artifact"),
    ):
        pass
    with (
        pytest.raises(MachineError, match=r"Q-CORE-005: .*\(No such file"),
        publishing(tmp_path / "artifact") as aside,
    ):
        (aside / "part").write_text("in a folder that was not made")


def test_json_is_stable_and_strict(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    write_json(target, {"b": [1, 2.5], "a": "é\u2028"})
    assert target.read_bytes() == '{\n  "a": "é\u2028",\n  "b": [\n    1,\n    2.5\n  ]\n}\n'.encode()
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write_json(target, {"loss": value})
    assert json.loads(target.read_text())["a"] == "é\u2028"


def test_disk_is_asked_for_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_disk(tmp_path / "not yet there", 1)
    with pytest.raises(MachineError, match=r"Q-CORE-004: .* 1200000000.00 GB "):
        need_disk(tmp_path, 10**18)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=800))
    with pytest.raises(MachineError, match=r"Q-CORE-004: .* 2.4 MB .* 800 bytes "):
        need_disk(tmp_path, 2_000_000)


def test_a_scratch_folder_starts_empty_and_is_gone_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="SCRATCH"), scratch_folder(tmp_path / ".other"):
        pass
    left = tmp_path / "models/.merging"
    left.mkdir(parents=True)
    (left / "of-a-killed-run").write_text("x")
    with pytest.raises(ValueError, match="stop"), scratch_folder(left) as folder:
        assert list(folder.iterdir()) == []
        (folder / "file").write_text("y")
        raise ValueError("stop")
    assert not left.exists()


def test_what_finds_no_room_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        with pytest.raises(MachineError, match="Q-CORE-012"), printing():
            print("a figure")
    with pytest.raises(OSError, match="torn"), printing():
        raise OSError(errno.EIO, "torn")


def test_the_home_of_nobody_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUENCH_CACHE", "~no-such-user/cache")
    with pytest.raises(ConfigError, match="Q-CORE-011: QUENCH_CACHE"):
        user_cache()


def test_a_stage_whose_reader_has_gone_ends_its_work(prepared: Path, tmp_path: Path) -> None:
    """`… | head -1`, or a pager that was left: it would be an hour of training too."""
    shutil.copytree(prepared, root := tmp_path / "project")
    (root / "reports/data.json").unlink()
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "pipeline", "curate", "--root", root]
    assert subprocess.run(command, stdout=writer, stderr=writer, check=False).returncode == 0
    os.close(writer)
    assert (root / "reports/data.json").is_file()

"""A file that can't be read to its end is refused by name before anything opens it: by snakemake, by stage
curate, by `quench data check`.
"""

import os
import re
import shutil
import socket
import stat
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from make import ended

from pipeline.__main__ import main as stage
from pipeline.core.errors import DataError
from pipeline.core.places import PROJECT
from pipeline.core.special_files import need_plain_files, trouble
from pipeline.core.text import safe
from pipeline.workflow.prepare import prepare

NOT_UTF8 = os.fsdecode(b"\xff.jsonl")


def bind(path: Path) -> None:
    with chdir(path.parent), socket.socket(socket.AF_UNIX) as one:  # a socket's path is short
        one.bind(path.name)


MADE = {
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": bind,
    "dangling": lambda path: path.symlink_to("nowhere"),
    "loop": lambda path: path.symlink_to(path.name),
    "kernel": lambda path: path.symlink_to("/proc/version"),
}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "data/raw"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"text": "a"}\n')
    (folder / "folder.jsonl").mkdir()
    (folder / "link.jsonl").symlink_to("a.jsonl")
    (folder / "up").symlink_to("..")  # neither we nor DVC follow links to folders
    return folder


@pytest.mark.parametrize("name", ["p.jsonl", ".hidden", "deep/.x/p", "x\n\x1b[31m\u202e.jsonl"])
@pytest.mark.parametrize("kind", MADE)
def test_a_special_file_is_named_in_one_sentence(raw: Path, kind: str, name: str) -> None:
    need_plain_files(raw, raw.parent / "guard", recorded=True)
    path = raw / name
    path.parent.mkdir(parents=True, exist_ok=True)
    MADE[kind](path)
    with pytest.raises(DataError) as caught:
        need_plain_files(raw, recorded=False)
    assert caught.value.id == "Q-CORE-008"
    assert caught.value.sentence.startswith(f"{safe(str(path))} ")
    assert safe(caught.value.sentence) == caught.value.sentence


def test_every_kind_of_file_is_told_apart(raw: Path) -> None:
    for kind, make in MADE.items():
        make(raw / kind)
    assert len({trouble(raw / kind) for kind in MADE}) == len(MADE)
    with pytest.raises(DataError, match=f"Q-CORE-008: .* {len(MADE) - 1} others"):
        need_plain_files(raw, recorded=False)


def test_a_file_without_rights_is_refused(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # root may read everything
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "a.jsonl")
    with pytest.raises(DataError, match=r"Q-CORE-008: .*a\.jsonl .*\(Permission denied\)"):
        need_plain_files(raw, recorded=False)


def test_a_name_that_only_the_locale_can_not_read_is_not_to_be_renamed(raw: Path) -> None:
    (raw / "Größe.jsonl").write_text("{}\n")
    code = (
        "import sys; from pathlib import Path; from pipeline.core.special_files import need_plain_files; "
        "need_plain_files(Path(sys.argv[1]), recorded=True)"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = ended([sys.executable, "-c", code, str(raw)], env=os.environ | plain)
    assert "Q-CORE-008" in done.stderr and "LC_ALL" in done.stderr and "rename" not in done.stderr


def test_a_name_that_is_not_utf8_is_refused_only_where_dvc_records_it(raw: Path) -> None:
    (raw / NOT_UTF8).touch()
    need_plain_files(raw, recorded=False)
    with pytest.raises(DataError, match=r"Q-CORE-008: .*udcff\.jsonl .*: rename it"):
        need_plain_files(raw, recorded=True)
    (raw / NOT_UTF8).unlink()
    (raw / NOT_UTF8).mkdir()
    with pytest.raises(DataError, match=r"Q-CORE-008: .*rename it"):
        need_plain_files(raw, recorded=True)


@pytest.mark.parametrize("folder", ["raw", "guard", "evaluation", "distill"])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_snakemake_refuses_it_before_dvc_hashes(
    raw: Path, kind: str, folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = raw.parent.parent
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(PROJECT / name, root)
    (root / ".dvc").mkdir()
    (root / "data" / folder).mkdir(exist_ok=True)
    MADE[kind](root / "data" / folder / "p")
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr("pipeline.workflow.prepare._held", [])
    with pytest.raises(SystemExit) as caught:
        prepare(root=root)
    assert caught.value.code == DataError.exit_code
    assert re.search(rf"Q-CORE-008: .*{folder}/p ", capsys.readouterr().err)


@pytest.mark.parametrize("folder", ["raw", "guard"])
def test_stage_curate_refuses_it(raw: Path, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = raw.parent.parent
    shutil.copy(PROJECT / "params.yaml", root)
    (root / "data" / folder).mkdir(exist_ok=True)
    os.mkfifo(root / "data" / folder / "p.jsonl")
    assert stage(["curate", "--root", str(root)]) == DataError.exit_code
    assert re.search(r"Q-CORE-008: .*p\.jsonl ", capsys.readouterr().err)
    assert stat.S_ISFIFO((root / "data" / folder / "p.jsonl").stat().st_mode)

"""Bytes that differ from the record: every flipped bit is found before it is used or by `quench verify`, and the remedies heal.

On the real graph for DVC with small random files in the place of models.
"""

import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import yaml

import pipeline.workflow.hashes
from pipeline.__main__ import main as run_stage
from pipeline.commands import serve, ship
from pipeline.commands.verify import main as verify
from pipeline.errors import DataError
from pipeline.params import load_params
from pipeline.workflow.hashes import Hashes, files_below
from pipeline.workflow.integrity import verify_inputs, verify_outputs
from pipeline.workflow.record import recorded, stages_of
from pipeline.workflow.settle import REUSE, reuse, settle

PROJECT = Path(__file__).parent.parent
FOLDERS = ("models/base", "models/adapter", "models/merged", "models/imatrix", "data/tokens")
F16 = "models/gguf/demo-F16.gguf"


def old(*paths: Path) -> None:
    """Let a file's last change be longer ago than what may share its ctime with another change."""
    import time

    time.sleep(0.11)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of the demo recipe in which every stage is recorded. Read only: copy it to change it."""
    from dvc.repo import Repo

    root, dice = tmp_path_factory.mktemp("integrity") / "project", random.Random(15)  # noqa: S311
    root.mkdir()
    shutil.copy(PROJECT / "recipes/demo.yaml", root / "params.yaml")
    shutil.copy(PROJECT / "graphs/merged.dvc.yaml", root / "dvc.yaml")
    shutil.copy(PROJECT / ".dvcignore", root)
    stages = stages_of(root)
    made = {path for stage in stages.values() for path in stage.outs}
    for path in {path for stage in stages.values() for path in stage.deps} - made - {"models/gguf", "reports/eval"}:
        if "." in Path(path).name:
            put(root / path, b"code")
        else:
            put(root / path / "file", dice.randbytes(100))
    for path in made:
        for name in ("a.bin", "b/c.bin") if path in FOLDERS else ("",):
            put(root / path / name, dice.randbytes(dice.randrange(1, 9000)).hex().encode())  # metrics have to be text
    put(root / "models/merged/.snakemake_timestamp", b"")
    Repo.init(str(root), no_scm=True).close()
    with chdir(root), Repo(str(root)) as repo:
        repo.add("data/raw")
        repo.commit(force=True)
    return root


@pytest.fixture
def project(built: Path, tmp_path: Path) -> Path:
    """A copy that Quench has seen."""
    shutil.copytree(built, tmp_path / "project")
    old()
    settle(tmp_path / "project")
    old()
    assert settle(tmp_path / "project").stale == set()
    return tmp_path / "project"


@pytest.fixture(autouse=True)
def _free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.commands.verify.be_the_only_one", lambda root: None)  # which lasts as long as the process


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def flip(path: Path, dice: random.Random) -> tuple[int, int]:
    """Flip one bit in place; date, size, mode and inode stay. Gives where."""
    before = path.stat()
    where, bit = dice.randrange(before.st_size), dice.randrange(8)
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(where)
        byte = file.read(1)[0]
        file.seek(where)
        file.write(bytes([byte ^ 1 << bit]))
    path.chmod(before.st_mode)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (before.st_ino, before.st_size, before.st_mtime_ns, before.st_mode) == (after.st_ino, after.st_size, after.st_mtime_ns, after.st_mode)
    return where, bit


def cache(root: Path) -> Path:
    return root / ".dvc/cache/files/md5"


def in_cache(root: Path, path: str) -> Path:
    md5 = next(one.md5 for one in recorded(root) if one.path == Path(path))
    return cache(root) / md5[:2] / md5[2:]


def dvc(root: Path, *words: str) -> int:
    from dvc.cli import main

    with chdir(root):
        return int(main(list(words)))


def copy_of(files: list[Path]) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in files}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_twenty_random_flips_are_all_found(project: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    """Of artifacts by what runs before Snakemake plans and before a stage reads them; of these, raw data and the cache by `quench verify`."""
    dice = random.Random(seed)  # noqa: S311
    outputs = {file: one for one in recorded(project) for file in files_below(project / one.path) if file.name[0] != "."}
    raw, objects = files_below(project / "data/raw"), files_below(cache(project))
    assert len(outputs) > 45 and len(objects) > 45
    damaged = [*dice.sample(sorted(outputs), 10), *dice.sample(objects, 9), *raw]
    for file in damaged:
        flip(file, dice)
    broken = {outputs[file] for file in damaged if file in outputs}

    readers = {one: [name for name, stage in stages_of(project).items() if any(overlap(one.path, Path(dep)) for dep in stage.deps)] for one in broken}
    for one, stages in readers.items():
        for stage in stages[:1]:
            with pytest.raises(DataError, match=f"{one.path}.* changed on disk since {one.stage} wrote it"):
                verify_inputs(stage, project)
    with pytest.raises(DataError, match=r"data/raw/file changed on disk though its date did not"):
        settle(project)
    put(raw[0], raw[0].read_bytes())  # the owner means it
    assert {one.stage for one in broken} <= settle(project).stale

    capsys.readouterr()
    assert verify(project) == DataError.exit_code
    said = capsys.readouterr().err
    assert all(str(one.path) in said for one in broken)
    for file in objects:
        assert file.exists() == (file not in damaged)


def overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)

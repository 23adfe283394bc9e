"""Bytes that differ from the record: every flipped bit is found before it is used or by `quench model
verify`, and the remedies recover.

On the real graph for DVC with small random files in the place of models.
"""

import contextlib
import errno
import hashlib
import json
import os
import random
import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tiny
import yaml
from graph_settings import graph_text
from user_project import quench

import pipeline.workflow.state.hashes
from pipeline.__main__ import main as run_stage
from pipeline.core.errors import DataError, MachineError, ToolError
from pipeline.core.places import PROJECT
from pipeline.core.publish import remove
from pipeline.core.special_files import need_plain_files
from pipeline.workflow.keys.code_keys import CODE, FOLDER, LOCK
from pipeline.workflow.keys.stamps import files_below
from pipeline.workflow.settle import reuse, settle
from pipeline.workflow.state.hashes import Hashes
from pipeline.workflow.state.integrity import verify_inputs, verify_outputs
from pipeline.workflow.state.record import running
from pipeline.workflow.state.settings import refresh_lock

FOLDERS = ("models/base", "models/adapter", "models/merged", "data/tokens")
F16 = "models/gguf/tiny-F16.gguf"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of the demo's graph, every stage recorded, without code. Read only: copy it to change it."""
    from dvc.repo import Repo

    root, dice = tmp_path_factory.mktemp("integrity") / "project", random.Random(15)  # noqa: S311
    root.mkdir()
    (root / "params.yaml").write_text(yaml.safe_dump(tiny.tiny_params(root)))
    graph = yaml.safe_load(graph_text("merged"))
    del graph["stages"][CODE]
    for stage in graph["stages"].values():
        entry = stage.get("do", stage)
        entry["deps"] = [path for path in entry["deps"] if not path.startswith(FOLDER)] or ["code"]
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": graph["stages"]}))
    shutil.copy(PROJECT / ".dvcignore", root)
    for path in (
        *("code", "data/raw/file", "data/guard/file", "data/evaluation/file", "data/augmented/.gitkeep"),
        *(f"reports/{name}/.gitkeep" for name in ("compare", "distill")),
    ):
        put(root / path, dice.randbytes(100))
    Repo.init(str(root), no_scm=True).close()
    refresh_lock(root)
    with chdir(root), Repo(str(root)) as repo:
        for path in sorted({out.def_path for out in repo.index.outs} - {LOCK}):
            for name in ("a.bin", "b/c.bin") if path in FOLDERS else ("",):
                # metrics have to be text
                put(root / path / name, dice.randbytes(dice.randrange(1, 9000)).hex().encode())
        put(root / "models/merged/.snakemake_timestamp", b"")
        repo.add("data/raw")
        repo.commit(force=True)
    return root


@pytest.fixture
def project(built: Path, tmp_path: Path) -> Path:
    """A copy whose raw data Quench has read."""
    shutil.copytree(built, tmp_path / "project")
    time.sleep(0.11)  # a file that was changed just now is not remembered
    verify_inputs("curate", tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture(autouse=True)
def _free(monkeypatch: pytest.MonkeyPatch) -> None:
    # the lock lasts until nobody holds its file
    monkeypatch.setattr("pipeline.workflow.prepare._held", deque(maxlen=0))


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def flip(path: Path, dice: random.Random) -> None:
    """Flip one bit in place; date, size, mode and inode stay."""
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
    for name in ("st_ino", "st_size", "st_mtime_ns", "st_mode"):
        assert getattr(path.stat(), name) == getattr(before, name)


def cache(root: Path) -> Path:
    return root / ".dvc/cache/files/md5"


class Output(NamedTuple):
    """An output in dvc.lock."""

    stage: str
    path: str
    md5: str


def recorded(root: Path) -> list[Output]:
    """Every artifact that dvc.lock has; the settings in effect are none, they are written again."""
    stages = yaml.safe_load((root / "dvc.lock").read_text())["stages"]
    outs = [Output(name, out["path"], out["md5"]) for name, one in stages.items() for out in one["outs"]]
    return [out for out in outs if out.path != LOCK]


def object_of(root: Path, md5: str) -> Path:
    return cache(root) / md5[:2] / md5[2:]


def in_cache(root: Path, path: str) -> Path:
    return object_of(root, next(one.md5 for one in recorded(root) if one.path == path))


def md5_of(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def verify(root: Path) -> tuple[int, str]:
    """Exit code and words of `quench model verify`."""
    done = quench(root, "model", "verify")
    return done.exit_code, done.stderr


def damage_found(root: Path) -> str:
    """Check that `quench model verify` finds damage, and return what it says."""
    code, said = verify(root)
    assert code == DataError.exit_code, said
    return said


def dvc(root: Path, *words: str) -> int:
    from dvc.cli import main

    with chdir(root):
        return int(main(list(words)))


def test_sixty_random_flips_are_all_found(project: Path) -> None:
    """Of artifacts before a stage reads them, and before Snakemake plans; of these, raw data and the cache by
    `quench model verify`.
    """
    dice = random.Random(15)  # noqa: S311
    outputs = {
        file: one
        for one in recorded(project)
        for file in files_below(project / one.path)
        if file.name[0] != "."
    }
    raw, objects = files_below(project / "data/raw"), files_below(cache(project))
    damaged = {*dice.sample(sorted(outputs), 30), *dice.sample(objects, 29), *raw}
    for file in damaged:
        flip(file, dice)
    broken = {outputs[file] for file in damaged if file in outputs}
    assert len(damaged) == 60 and len(broken) > 20

    with pytest.raises(DataError) as refused:
        verify_outputs([project], project, again=False)
    assert all(f"{one.path} " in str(refused.value) for one in broken)
    with pytest.raises(DataError, match=r"Q-WORKFLOW-\d+: data/raw/file "):
        settle(project)
    put(raw[0], b"meant")
    assert {one.stage for one in broken} <= settle(project).would_run

    said = damage_found(project)
    assert all(one.path in said for one in broken)
    for file in objects:
        assert file.exists() == (file not in damaged)


@pytest.mark.slow
def test_a_stage_refuses_what_is_not_in_the_record_and_the_remedy_recovers(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the real runner; DVC, which goes by dates, would not notice the flip."""
    ran = []
    monkeypatch.setattr("pipeline.stages.quantize.stage.main", lambda params, root, item: ran.append(item))
    monkeypatch.setattr("pipeline.workflow.state.record.record", lambda stage, root: None)
    assert settle(project).would_run == set()  # both tools have read everything
    whole = (project / F16).read_bytes()
    flip(project / F16, random.Random(0))  # noqa: S311
    assert dvc(project, "checkout", "--force", F16) == 0
    assert (project / F16).read_bytes() != whole  # DVC alone does nothing
    assert run_stage(["quantize@Q4_K_M", "--root", str(project)]) == DataError.exit_code
    said = capsys.readouterr().err
    assert f"Q-WORKFLOW-007: {F16} " in said and f"`dvc checkout --force {F16}`" in said
    # the other remedy: `snakemake` runs it
    assert settle(project).would_run >= {"convert", "quantize@Q4_K_M"}
    assert ran == []
    assert dvc(project, "checkout", "--force", F16) == 0
    assert (project / F16).read_bytes() == whole
    assert run_stage(["quantize@Q4_K_M", "--root", str(project)]) == 0
    assert ran == ["Q4_K_M"]
    assert settle(project).would_run == set()


def test_a_folder_names_its_file_and_extra_files_count_only_if_dvc_counts_them(project: Path) -> None:
    put(project / "models/adapter/b/.snakemake_timestamp", b"")
    put(project / "models/adapter/.README.writing", b"scrap, which .dvcignore leaves out")
    verify_inputs("merge", project)
    put(project / "models/merged/extra.bin", b"more")
    with pytest.raises(DataError, match="models/merged "):
        verify_inputs("convert", project)
    flip(project / "models/adapter/b/c.bin", random.Random(0))  # noqa: S311
    with pytest.raises(DataError, match=r"models/adapter \(b/c.bin\)"):
        verify_inputs("merge", project)
    verify_inputs("quantize@Q4_K_M", project)  # which doesn't read it


def test_a_damaged_list_of_a_folder_that_is_not_cached_is_not_believed(project: Path) -> None:
    """It may still be JSON: only its keys have other names."""
    listed = in_cache(project, "models/base")
    listed.chmod(0o644)
    listed.write_bytes(listed.read_bytes().replace(b"relpath", b"relpati"))
    flip(project / "models/base/b/c.bin", random.Random(0))  # noqa: S311
    with pytest.raises(DataError, match="models/base "):
        verify_inputs("merge", project)


def test_a_damaged_object_of_the_cache_is_never_restored(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before Snakemake plans, nor in place of a run, nor by the remedy that a refusal names: a file,
    the list of a folder, a file in one.
    """
    victims = {
        F16: in_cache(project, F16),
        "models/adapter": in_cache(project, "models/adapter"),
        "models/merged": object_of(project, md5_of(project / "models/merged/b/c.bin")),
    }
    aside = {
        path: project / ".dvc/cache/rotten" / f"{path.parent.name}{path.name}" for path in victims.values()
    }
    before = (project / F16).read_bytes()
    (project / F16).unlink()
    monkeypatch.setenv("QUENCH_REUSE", "1")
    assert reuse("convert", project)
    (project / F16).unlink()
    flip(victims[F16], random.Random(9))  # noqa: S311
    assert not reuse("convert", project)
    aside[victims[F16]].rename(victims[F16])  # fails where it was not put aside
    put(project / F16, before)

    for number, (path, rotten) in enumerate(victims.items()):
        flip(rotten, random.Random(number))  # noqa: S311
        flip(next(file for file in files_below(project / path) if file.stat().st_size), random.Random(number))  # noqa: S311
    with pytest.raises(DataError) as refused:
        verify_outputs([project / path for path in victims], project)
    assert str(refused.value).count("`snakemake`") == 3 and "checkout" not in str(refused.value)

    for path, rotten in victims.items():
        aside[rotten].rename(rotten)
        remove(project / path)
    settled = settle(project)
    assert sorted(settled.absent) == sorted(victims) and settled.restored == []
    assert not any((project / path).exists() for path in victims)


def test_a_good_file_repairs_the_cache(project: Path) -> None:
    rotten = in_cache(project, F16)
    whole = rotten.read_bytes()
    flip(rotten, random.Random(0))  # noqa: S311
    assert rotten.parent.name + rotten.name in damage_found(project)
    assert settle(project).would_run == set()
    assert rotten.read_bytes() == whole
    assert verify(project)[0] == 0


def test_damage_to_what_dvc_remembers_of_runs(project: Path) -> None:
    runs = files_below(project / ".dvc/cache/runs")
    assert runs and verify(project)[0] == 0
    text = runs[0].read_bytes()
    runs[0].write_bytes(text.replace(b"md5: ", b"md5: 0", 1))
    damage_found(project)
    assert not runs[0].exists()


def test_what_the_disk_does_not_give_back_is_damage(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = pipeline.workflow.state.hashes._md5

    def failing(path: Path, advance: Callable[[int], None]) -> str:
        if path == project / F16:
            raise OSError(errno.EIO, "Input/output error")
        return real(path, advance)

    monkeypatch.setattr(pipeline.workflow.state.hashes, "_md5", failing)
    assert F16 in damage_found(project)
    monkeypatch.undo()
    verify_inputs("quantize@Q4_K_M", project)


def test_what_another_process_read_is_not_believed(project: Path) -> None:
    """One that was killed before it could tell DVC, which believes in what it had."""
    assert settle(project).would_run == set()
    (project / ".quench/hashes.db").unlink()
    flip(project / F16, random.Random(0))  # noqa: S311
    time.sleep(0.11)
    with Hashes(project) as hashes:
        hashes.md5(project / F16)
    with pytest.raises(DataError, match=F16):
        verify_inputs("quantize@Q4_K_M", project)
    assert "convert" in settle(project).would_run


@pytest.mark.slow
def test_raw_data_may_be_edited_but_not_behind_its_date(project: Path) -> None:
    """Also where only DVC has read it, as after `dvc repro`."""
    raw = project / "data/raw/file"
    whole = raw.read_bytes()
    flip(raw, random.Random(0))  # noqa: S311
    for _ in range(2):
        with pytest.raises(DataError, match=r"data/raw/file .*`dvc checkout --force data/raw`"):
            verify_inputs("curate", project)
    (project / ".quench/hashes.db").unlink()
    assert dvc(project, "checkout", "--force", "data/raw") == 0
    assert raw.read_bytes() == whole
    flip(raw, random.Random(0))  # noqa: S311
    assert "data/raw/file" in damage_found(project)
    put(raw, b"other rows")
    verify_inputs("curate", project)
    assert verify(project)[0] == 0


@pytest.mark.parametrize("verb", ["serve", "ship"])
def test_what_is_handed_out_is_always_read(project: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """Damage below the file system changes no date at all: here the memory believes in the damaged file."""
    level = project / "models/gguf/tiny-Q4_K_M.gguf"
    flip(level, random.Random(0))  # noqa: S311
    believed = {project / one.path: one.md5 for one in recorded(project)}
    monkeypatch.setattr(Hashes, "_recall", lambda self, path: believed.get(path))
    verify_outputs([level], project, again=False)
    need_refusal(project, verb, "models/gguf/tiny-Q4_K_M.gguf")


def need_refusal(root: Path, verb: str, *paths: str) -> None:
    """`quench serve` or `ship` of Q4_K_M names these paths as changed and does nothing."""
    done = quench(root, verb, "Q4_K_M")
    assert done.exit_code == DataError.exit_code and "Q-WORKFLOW-007" in done.stderr, done.output
    assert all(path in done.stderr for path in paths)


def test_settings_that_leave_keys_out_switch_no_check_off(project: Path) -> None:
    """DVC could not read such a graph; what only reads fills the defaults in."""
    values = yaml.safe_load((project / "params.yaml").read_text())
    del values["convert"]["type"], values["serve"]
    (project / "params.yaml").write_text(yaml.safe_dump(values))
    assert "Q-WORKFLOW-016" not in quench(project, "ship", "Q4_K_M").stderr
    flip(project / "models/gguf/tiny-Q4_K_M.gguf", random.Random(0))  # noqa: S311
    refused = quench(project, "serve", "Q4_K_M")  # the damage is found, and DVC is to say what wrote it
    assert refused.exit_code == ToolError.exit_code and "Q-WORKFLOW-016" in refused.stderr


def test_a_bundle_is_not_made_beside_damage(project: Path) -> None:
    places = ("models/adapter/a.bin", "data/final/train.jsonl", "reports/parity.json")
    for one in places:
        flip(project / one, random.Random(0))  # noqa: S311
    need_refusal(project, "ship", *(one.removesuffix("/a.bin") for one in places))


def test_an_unchanged_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, read = tmp_path / "file", []
    real = pipeline.workflow.state.hashes._md5
    monkeypatch.setattr(
        pipeline.workflow.state.hashes, "_md5", lambda path, advance: read.append(path) or real(path, advance)
    )

    def look() -> tuple[str | None, int]:
        before = len(read)
        with Hashes(tmp_path) as hashes:
            digest = hashes.md5(file)
        return digest, len(read) - before

    put(file, b"text")
    digest = look()[0]
    # changed so recently that it might change again within the same tick of the clock
    assert look() == (digest, 1)
    time.sleep(0.11)
    assert look() == (digest, 1)
    assert look() == (digest, 0)
    with Hashes(tmp_path) as hashes:
        hashes.date(file, 10**9)
    assert look() == (digest, 0)
    file.chmod(0o600)
    time.sleep(0.11)
    assert look() == (digest, 1)
    assert look() == (digest, 0)
    flip(file, random.Random(0))  # noqa: S311
    time.sleep(0.11)
    other = look()[0]
    assert other != digest
    assert look() == (other, 1)  # it is not believed in until its date or its place has changed
    file.touch()
    time.sleep(0.11)
    assert [look() for _ in range(2)] == [(other, 1), (other, 0)]
    (tmp_path / ".quench/hashes.db").write_bytes(b"damaged" * 999)
    assert look() == (other, 1)
    file.unlink()
    assert look() == (None, 0)


def test_nothing_is_refused_where_nothing_is_recorded(tmp_path: Path) -> None:
    put(tmp_path / "models/gguf/a.gguf", b"x")
    verify_inputs("quantize@Q4_K_M", tmp_path)
    verify_outputs([tmp_path / "models/gguf/a.gguf", tmp_path.parent / "elsewhere"], tmp_path)
    (tmp_path / ".dvc").mkdir()
    verify_inputs("quantize@Q4_K_M", tmp_path)
    verify_outputs([tmp_path / "models/gguf/a.gguf"], tmp_path)


@pytest.mark.parametrize(
    "own",
    [
        {"foreach": ["a"], "do": {"cmd": "echo ${item}"}},
        {"matrix": {"x": [1]}, "cmd": "true", "outs": ["own-${item.x}"]},
    ],
)
def test_somebodys_own_stage_does_not_switch_the_checks_off(project: Path, own: object) -> None:
    graph = yaml.safe_load((project / "dvc.yaml").read_text())
    (project / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"mine": own} | graph["stages"]}))
    flip(project / F16, random.Random(0))  # noqa: S311
    with pytest.raises(DataError, match=F16):
        verify_inputs("quantize@Q4_K_M", project)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: text.index("outs:") + 3],
        lambda text: "stages:\n",
        lambda text: "[]",
    ],
)
def test_a_damaged_lock_file_is_a_sentence_and_snakemake_repairs_it(
    project: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[str], str]
) -> None:
    lock = project / "dvc.lock"
    lock.write_text(spoil(lock.read_text()))
    assert run_stage(["quantize@Q4_K_M", "--root", str(project)]) == DataError.exit_code
    assert "Q-WORKFLOW-018" in capsys.readouterr().err
    with pytest.raises(DataError, match="Q-WORKFLOW-018"):
        verify_outputs([project / F16], project)
    assert "convert" in settle(project).would_run
    verify_outputs([project / F16], project)


@pytest.mark.parametrize("text", ["<<<<<<< HEAD\nstages:\n", "stages: 3", "stages: {quantize: 3}"])
def test_a_graph_that_can_not_be_read_is_a_sentence(
    project: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (project / "dvc.yaml").write_text(text)
    assert run_stage(["quantize@Q4_K_M", "--root", str(project)]) == ToolError.exit_code
    assert "Q-WORKFLOW-016" in capsys.readouterr().err


def test_what_can_only_be_read_can_be_verified(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project on a disk that is mounted read-only: ship into another folder, serve."""
    for module, real in ((Path, Path.open), (os, os.open)):

        def opened(path: Path | str, *rest: Any, real: Callable[..., Any] = real, **named: Any) -> Any:
            if Path(path).name == "quench-record.lock":
                raise OSError(errno.EROFS, "Read-only file system", str(path))
            return real(path, *rest, **named)

        monkeypatch.setattr(module, "open", opened)
    verify_outputs([project / F16], project)
    flip(project / F16, random.Random(0))  # noqa: S311
    with pytest.raises(MachineError):  # DVC, which knows the remedy, has to write
        verify_outputs([project / F16], project)


def test_verify_waits_for_no_stage_and_nobody_who_reads_waits_for_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage's new output differs from the record until it is recorded, and a check of hours must not keep
    `quench serve` waiting.
    """
    monkeypatch.setattr("pipeline.workflow.prepare.PATIENCE", 0.1)
    with running("train", project):
        code, said = verify(project)
        assert code == MachineError.exit_code and "Q-WORKFLOW-011" in said
    real, asked = Hashes.md5s, []

    def look(self: Hashes, *words: object, **named: object) -> object:
        if threading.current_thread() is threading.main_thread():
            given = [project / "models/gguf/tiny-Q4_K_M.gguf"], project
            reader = threading.Thread(target=lambda: asked.append(verify_outputs(*given)), daemon=True)
            reader.start()
            reader.join(5)
            assert not reader.is_alive()
        return real(self, *words, **named)

    monkeypatch.setattr(Hashes, "md5s", look)
    assert verify(project)[0] == 0
    assert asked


def test_verify_of_what_can_only_be_read_is_a_sentence(project: Path) -> None:
    shutil.rmtree(project / ".quench")
    (project / ".quench").write_text("no folder can be made here")
    code, said = verify(project)
    assert code == MachineError.exit_code and str(project) in said


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["serve", "ship"])
def test_what_another_params_file_made_is_handed_out_with_a_word(project: Path, verb: str) -> None:
    """dvc.lock is about params.yaml only: with another file a stage writes to the same places, unrecorded."""
    put(project / "models/gguf/tiny-Q4_K_M.gguf", b"made with other settings")
    need_refusal(project, verb, "models/gguf/tiny-Q4_K_M.gguf")
    other = shutil.copy(project / "params.yaml", project / "other.yaml")
    done = quench(project, verb, "Q4_K_M", "--params", str(other))
    assert "models/gguf/tiny-Q4_K_M.gguf" in done.stderr and "Q-WORKFLOW-007" not in done.stderr


def refused(root: Path) -> None:
    with pytest.raises(DataError):
        verify_outputs([root / "models"], root)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "find"),
    [
        ("symlink", damage_found),
        ("hardlink", refused),
        ("symlink", refused),
        ("hardlink", damage_found),
    ],
)
def test_where_file_and_cache_are_one_damage_is_in_both_and_snakemake_recovers_it(
    project: Path, kind: str, find: Callable[[Path], object]
) -> None:
    assert dvc(project, "config", "cache.type", kind) == dvc(project, "checkout", "--relink") == 0
    assert settle(project).would_run == set()
    folder_file = next(file for file in files_below(project / "models/adapter") if file.name == "c.bin")
    for file in (project / F16, folder_file):
        flip(file, random.Random(0))  # noqa: S311
    find(project)
    settled = settle(project)
    assert "train" in settled.would_run
    assert "convert" in settled.would_run or settled.absent == [F16]
    if (project / F16).exists():
        (project / F16).unlink()  # as Snakemake does before it runs a stage
    put(project / F16, b"made again")
    assert settle(project).absent == []
    object_of(project, md5_of(project / "data/raw/file")).unlink()
    with contextlib.suppress(MachineError):
        settle(project)
    # a file less would look like an edit
    assert (project / "data/raw/file").is_symlink() == (kind == "symlink")


def test_links_into_the_cache_of_another_place_are_made_again(project: Path) -> None:
    assert dvc(project, "config", "cache.type", "symlink") == dvc(project, "checkout", "--relink") == 0
    moved = project.rename(project.with_name("renamed"))
    with pytest.raises(DataError, match=r"^Q-CORE-008.*`dvc checkout`"):
        need_plain_files(moved / "data/raw", recorded=True)
    assert dvc(moved, "checkout", "data/raw.dvc") == 0
    assert not (moved / F16).exists()
    settled = settle(moved)
    assert settled.would_run == set() and F16 in settled.restored
    assert (moved / F16).exists()


def lock_of_dvc(root: Path, pid: int, kind: str, command: str) -> Path:
    """DVC's lock as process `pid` has it while `command` works in `root`."""
    holder = {"pid": pid, "cmd": command}
    entries = {"write": {str(root / F16): holder}, "read": {}}
    if kind == "read":
        entries = {"write": {}, "read": {str(root / F16): [holder]}}
    lock = root / ".dvc/tmp/rwlock"
    lock.write_text(json.dumps(entries))
    return lock


@pytest.mark.parametrize("kind", ["write", "read"])
def test_a_lock_whose_number_another_program_has_now_does_not_stop(project: Path, kind: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        lock = lock_of_dvc(project, other.pid, kind, "/bin/dvc repro")
        assert settle(project).would_run == set()
        assert not lock.exists()
        other.kill()


def test_a_lock_older_than_the_process_of_its_number_does_not_stop(project: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        lock = lock_of_dvc(project, other.pid, "write", "/bin/dvc 60")
        with pytest.raises(MachineError, match=r"^Q-WORKFLOW-015.*rwlock"):
            settle(project)
        os.utime(lock, (0, 0))
        assert settle(project).would_run == set()
        other.kill()


# --- a project that was found settled -----------------------------------------------------------------------

CHANGES: dict[str, Callable[[Path], object]] = {
    "an output under its date": lambda root: flip(root / F16, random.Random(1)),  # noqa: S311
    "a removed output": lambda root: remove(root / "reports/train.json"),
    "a row more": lambda root: put(root / "data/raw/more.jsonl", b"{}\n"),
    "a setting": lambda root: put(root / "params.yaml", (root / "params.yaml").read_bytes() + b"# edited\n"),
    "an object of the cache": lambda root: remove(next((root / ".dvc/cache/files/md5").glob("*/*"))),
    "the record": lambda root: (root / "dvc.lock").touch(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_dvc_is_asked_only_if_a_file_has_changed(
    project: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    asked = []
    real = pipeline.workflow.settle.open_project

    def opened(root: Path) -> Any:
        asked.append(root)
        return real(root)

    monkeypatch.setattr("pipeline.workflow.settle.open_project", opened)
    assert settle(project).would_run == set()
    time.sleep(0.11)  # a file that was changed just now is not remembered
    settle(project)
    before = len(asked)
    assert settle(project).would_run == set() and len(asked) == before
    CHANGES[change](project)
    settle(project)
    assert len(asked) == before + 2  # to bring back what is lost, and to set dates

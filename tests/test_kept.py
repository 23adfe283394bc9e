"""kept: made once under a key, again where something changed, and keys that nobody uses go."""

import subprocess
import sys
from pathlib import Path

import kept as module
import pytest
from conftest import STAGES
from kept import contents, kept

from pipeline.core.places import PACKAGE
from pipeline.workflow.package import Package
from pipeline.workflow.sources import read_source


def test_a_folder_is_made_once_and_again_where_a_test_changed_it(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        folder.mkdir()
        (folder / "file").write_text("bytes")

    folder = kept("folder", make, store=tmp_path, key="key")
    assert kept("folder", make, store=tmp_path, key="key") == folder and len(made) == 1
    (folder / "file").write_text("other")
    assert kept("folder", make, store=tmp_path, key="key") == folder and len(made) == 2
    assert (folder / "file").read_text() == "bytes"
    (folder / "more").touch()
    kept("folder", make, store=tmp_path, key="key")
    assert len(made) == 3 and list(contents(folder)) == ["file"]


def test_half_a_folder_is_made_again_and_keys_that_nobody_uses_are_deleted(tmp_path: Path) -> None:
    half = "from pathlib import Path; import kept, sys; "
    half += "kept.kept('folder', lambda folder: folder.mkdir() or exit(), store=Path(sys.argv[1]), key='old')"
    subprocess.run([sys.executable, "-c", half, tmp_path], check=True, cwd=Path(__file__).parent)
    assert (tmp_path / "folder/old/folder").is_dir()
    folder = kept("folder", lambda folder: folder.mkdir(), store=tmp_path, key="old")
    kept("folder", lambda folder: folder.mkdir(), store=tmp_path, key="new")
    assert folder.exists()  # this process holds it
    for held in module._held[-2:]:
        held.close()
    module._entered.cache_clear()
    kept("folder", lambda folder: folder.mkdir(), store=tmp_path, key="newest")
    assert [path.name for path in (tmp_path / "folder").iterdir() if path.is_dir()] == ["newest"]


@pytest.mark.parametrize(
    ("edited", "again"),
    [
        ("stages/report/stage.py", {"finished"}),
        ("commands/new.py", set()),
        ("stages/train/learner.py", {"finished", "evaluated"}),
        ("stages/train/grpo/learner.py", set()),
        ("gguf/header.py", {"finished", "evaluated", "a model"}),
    ],
)
def test_an_edit_makes_again_what_its_code_has_made(
    edited: str, again: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"finished": STAGES, "evaluated": STAGES[:-1], "a model": ()}
    package = Package()
    source = read_source((PACKAGE / edited).read_bytes() + b"print()\n", is_python=True)
    keys = []
    for sources in (package.sources, package.sources | {edited: source}):
        monkeypatch.setattr(module, "_package", lambda sources=sources: Package(sources))
        keys.append({name: module.made_by.__wrapped__(stages, "") for name, stages in made.items()})
    assert {name for name in made if keys[0][name] != keys[1][name]} == again


def syntax(text: str) -> str:
    return read_source(text.encode(), is_python=True).digest


def test_comments_are_no_code() -> None:
    assert syntax('"""Words."""\nx = 1  # why\n\ndef f():\n    """Words."""\n') == syntax(
        "x = 1\n\n\ndef f():\n    'Other.'\n"
    )
    assert syntax("x = 1") != syntax("x = 2")

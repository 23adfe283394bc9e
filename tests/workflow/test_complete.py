"""DVC reads params.yaml itself: what a file leaves out is written there before a run, and nothing that was
there changes.
"""

import difflib
import random
import shutil
import subprocess
import sys

import pytest
import yaml
from dvc.repo import Repo

from pipeline.__main__ import main
from pipeline.config.params import Params, read_params
from pipeline.config.sections.values import keys_of
from pipeline.config.text import left_out
from pipeline.core.errors import ConfigError
from pipeline.core.places import PROJECT
from pipeline.workflow.complete import need_all_keys

FULL = (PROJECT / "params.yaml").read_text(encoding="utf-8")  # recipe demo, with all keys
PLACES = [place for place, _ in keys_of(Params)]


def cut(text, places):
    """`text` without the keys, groups and sections at `places`, each with its comment."""
    kept, gone, depth, names, above = [], None, 0, [], []
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            above.append(line)
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        names = [*names[:depth], line.split(":")[0].strip()]
        if gone is not None and depth > gone:
            above = []
            continue
        gone = depth if tuple(names) in places else None
        if gone is None:
            kept += [*above, line]
        above = []
    return "\n".join(kept) + "\n"


@pytest.fixture
def project(tmp_path):
    """Put a text into a new DVC project's params.yaml, the demo's graph beside it; the folder."""

    def make(text):
        (tmp_path / ".dvc").mkdir(exist_ok=True)
        shutil.copy(PROJECT / "dvc.yaml", tmp_path)
        (tmp_path / "params.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path

    return make


def is_kept(before, after):
    """Whether every line of `before` is in `after`, in its order."""
    return all(not line.startswith("- ") for line in difflib.ndiff(before.splitlines(), after.splitlines()))


def test_a_link_stays_a_link_and_a_private_file_private(project):
    root = project(cut(FULL, [("serve", "port")]))
    (root / "params.yaml").rename(root / "shared.yaml")
    (root / "shared.yaml").chmod(0o600)
    (root / "params.yaml").symlink_to("shared.yaml")
    need_all_keys(root, read_params(root / "params.yaml"))
    assert (root / "params.yaml").is_symlink() and left_out(read_params(root / "params.yaml").values) == []
    assert (root / "shared.yaml").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_left_out_is_put_in_and_the_rest_keeps_its_lines(project, seed):
    places = random.Random(seed).sample(PLACES, k=seed * 6 + 1)  # noqa: S311
    text = cut(FULL, places).replace("  seed: 42", "  # mine, above\n  seed: 43  # mine, behind")
    if not text.strip():
        return
    root = project(text)
    before = read_params(root / "params.yaml")
    assert left_out(before.values)
    need_all_keys(root, before)
    after = read_params(root / "params.yaml")
    assert (left_out(after.values), after.params) == ([], before.params)
    assert is_kept(text, (root / "params.yaml").read_text())


def test_one_key_left_out_comes_back_where_it_was(project):
    for place in [
        ("train", "r"),
        ("base", "source"),
        ("report", "gate"),
        ("report", "gate", "min_stopped"),
        ("serve",),
        ("machine",),
    ]:
        defaults = Params().model_dump(mode="json")
        root = project(cut(FULL, [place]))
        need_all_keys(root, read_params(root / "params.yaml"))
        values, full = (yaml.safe_load(text) for text in ((root / "params.yaml").read_text(), FULL))
        assert list(values) == list(full)
        assert {name: list(section) for name, section in values.items()} == {
            name: list(section) for name, section in full.items()
        }
        if len(place) == 2:
            assert values[place[0]][place[1]] == defaults[place[0]][place[1]]


@pytest.mark.parametrize(
    "text",
    [
        "serve:\n",
        "train:\r\n  r: 8\r\n",
        "train:\n  target_modules:\n    - q_proj\n\n    - v_proj\n# end\n",
        "\ufefftrain:\n  r: 8",
        "train:\n    r: 8\n",
    ],
    ids=["empty section", "CRLF", "block list", "BOM", "four spaces"],
)
def test_texts_of_other_shapes_are_completed(project, text):
    root = project(text)
    before = read_params(root / "params.yaml")
    need_all_keys(root, before)
    assert left_out(read_params(root / "params.yaml").values) == []
    assert (root / "params.yaml").read_bytes().startswith(text.split(" ")[0].encode())
    assert read_params(root / "params.yaml").params == before.params


@pytest.mark.parametrize("text", ["train: {r: 8}\n", '{"train": {"r": 8}}\n'])
def test_a_text_that_nothing_can_be_put_into_is_refused_and_stays(project, text):
    root = project(text)
    with pytest.raises(ConfigError, match="Q-WORKFLOW-003"):
        need_all_keys(root, read_params(root / "params.yaml"))
    assert (root / "params.yaml").read_text() == text


def test_a_stage_that_dvc_runs_refuses_a_file_that_leaves_keys_out(project, monkeypatch, capsys):
    root = project(cut(FULL, [("train", "r")]))
    monkeypatch.setenv("DVC_STAGE", "curate")
    assert main(["curate", "--root", str(root)]) == 2
    assert "Q-WORKFLOW-002" in capsys.readouterr().err
    assert left_out(read_params(root / "params.yaml").values) == [("train", "r")]


def test_a_folder_that_dvc_does_not_record_keeps_its_file(tmp_path):
    (tmp_path / "params.yaml").write_text("train:\n  r: 8\n")
    need_all_keys(tmp_path, read_params(tmp_path / "params.yaml"))
    assert (tmp_path / "params.yaml").read_text() == "train:\n  r: 8\n"


def test_a_stage_completes_the_file_before_it_runs_and_dvc_reads_the_graph_then(tmp_path):
    text = cut(FULL, [("quantize", "levels"), ("evaluate", "models"), ("serve",), ("train", "r")])
    shutil.copy(PROJECT / "dvc.yaml", tmp_path)
    (tmp_path / "params.yaml").write_text(text)
    Repo.init(str(tmp_path), no_scm=True).close()
    stage = subprocess.run(
        [sys.executable, "-m", "pipeline", "report", "--root", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
    )
    assert stage.returncode == 3  # there are no inputs yet
    assert "train.r" in stage.stderr
    with Repo(str(tmp_path)) as repo:
        names = {stage.name for stage in repo.index.stages}
    assert {f"quantize@{level}" for level in Params().quantize.levels} <= names

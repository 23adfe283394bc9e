"""DVC reads settings itself and knows no default: params.lock.yaml holds all, params.yaml what dvc.yaml is
made of, and what is put there changes nothing that was there.
"""

import difflib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
import yaml
from dvc.repo import Repo
from make import full_params

from pipeline.__main__ import main
from pipeline.config.params import Params, load_params, read_params
from pipeline.config.params_text import left_out
from pipeline.config.sections.values import keys_of
from pipeline.core.errors import ConfigError
from pipeline.core.places import PROJECT
from pipeline.workflow.state.settings import complete, need_settings, read_by_dvc

FULL = full_params()
READ_BY_DVC = read_by_dvc(Params())
PLACES = [place for place, _ in keys_of(Params)]
GROUPS = {place[:2] for place in PLACES if len(place) > 2}


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
    """Return True if every line of `before` is in `after`, in its order."""
    return all(not line.startswith("- ") for line in difflib.ndiff(before.splitlines(), after.splitlines()))


def test_a_link_stays_a_link_and_a_private_file_private(project):
    root = project(cut(FULL, [("serve", "port")]))
    (root / "params.yaml").rename(root / "shared.yaml")
    (root / "shared.yaml").chmod(0o600)
    (root / "params.yaml").symlink_to("shared.yaml")
    complete(root / "params.yaml", read_params(root / "params.yaml"))
    assert (root / "params.yaml").is_symlink() and left_out(read_params(root / "params.yaml").values) == []
    assert (root / "shared.yaml").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_left_out_is_put_in_and_the_rest_keeps_its_lines(project, seed):
    places = random.Random(seed).sample(PLACES, k=seed * 6 + 1)  # noqa: S311
    stay = {place[:2] for place in PLACES if len(place) > 2 and place not in places}
    text = cut(FULL, [*places, *(GROUPS - stay)]).replace(
        "  seed: 42", "  # mine, above\n  seed: 43  # mine, behind"
    )
    if not text.strip():
        return
    root = project(text)
    before = read_params(root / "params.yaml")
    assert left_out(before.values)
    complete(root / "params.yaml", before)
    after = read_params(root / "params.yaml")
    assert (left_out(after.values), after.params) == ([], before.params)
    assert is_kept(text, (root / "params.yaml").read_text())


@pytest.mark.parametrize(
    "text",
    [
        "serve:\n",
        "train:\r\n  r: 8\r\n",
        "# a\r\nconvert:\n  name: mine\ntrain:\n  method: sft\n  r: 8\n  lora_alpha: 16\n",
        "train:\r  r: 8\r  lora_alpha: 16\r",
        "train:\n  target_modules:\n    - q_proj\n\n    - v_proj\n# end\n",
        "\ufefftrain:\n  r: 8",
        "train:\n    r: 8\n",
    ],
    ids=["empty section", "CRLF", "a line of CRLF", "CR", "block list", "BOM", "four spaces"],
)
def test_texts_of_other_shapes_are_completed(project, text):
    root = project(text)
    before = read_params(root / "params.yaml")
    complete(root / "params.yaml", before)
    assert left_out(read_params(root / "params.yaml").values) == []
    assert (root / "params.yaml").read_bytes().startswith(text.split(" ")[0].encode())
    assert read_params(root / "params.yaml").params == before.params


@pytest.mark.parametrize("text", ["convert: {name: mine}\n", '{"convert": {"name": "mine"}}\n'])
def test_a_text_that_nothing_can_be_put_into_is_refused_and_stays(project, text):
    root = project(text)
    with pytest.raises(ConfigError, match="Q-WORKFLOW-003"):
        need_settings(root, read_params(root / "params.yaml"))
    assert (root / "params.yaml").read_text() == text


@pytest.mark.parametrize("seed", range(4))
def test_only_what_dvc_reads_is_put_into_a_short_file(project, seed):
    needed = sorted(READ_BY_DVC)
    gone = random.Random(seed).sample(needed, k=seed + 1)  # noqa: S311
    text = cut(FULL, [*gone, ("train",), ("serve", "port")])
    root = project(text)
    need_settings(root, before := read_params(root / "params.yaml"))
    after = read_params(root / "params.yaml")
    assert left_out(after.values, READ_BY_DVC) == [] and after.params == before.params
    assert "port" not in after.values["serve"]
    if ("train", "method") not in gone:
        assert list(after.values["train"]) == ["method"]
    assert is_kept(text, (root / "params.yaml").read_text())


def test_the_lock_holds_every_setting_in_effect(project):
    root = project("train:\n  r: 8\n")
    need_settings(root, read_params(root / "params.yaml"))
    held, params = yaml.safe_load((root / "params.lock.yaml").read_text()), load_params(root / "params.yaml")
    assert left_out(held) == [] and held.pop("derived") == params.derived
    assert Params.model_validate(held) == params


def test_a_stage_that_dvc_runs_refuses_settings_that_are_not_recorded(project, monkeypatch, capsys):
    root = project(FULL)
    need_settings(root, read_params(root / "params.yaml"))
    monkeypatch.setenv("DVC_STAGE", "curate")
    (root / "params.yaml").write_text(FULL.replace("  r: 16\n", "  r: 8\n"))
    main(["curate", "--root", str(root)])  # it doesn't depend on train.r, and misses the base
    assert "Q-WORKFLOW-002" not in capsys.readouterr().err
    (root / "params.yaml").write_text(FULL.replace("  val_fraction: 0.03\n", "  val_fraction: 0.3\n"))
    assert main(["curate", "--root", str(root)]) == 2
    assert "Q-WORKFLOW-002" in capsys.readouterr().err
    assert yaml.safe_load((root / "params.lock.yaml").read_text())["curate"]["val_fraction"] == 0.03


def test_a_folder_that_dvc_does_not_record_keeps_its_file(tmp_path):
    (tmp_path / "params.yaml").write_text("train:\n  r: 8\n")
    need_settings(tmp_path, read_params(tmp_path / "params.yaml"))
    assert (tmp_path / "params.yaml").read_text() == "train:\n  r: 8\n"
    assert not (tmp_path / "params.lock.yaml").exists()


def test_a_stage_writes_the_settings_before_it_runs_and_dvc_reads_the_graph_then(tmp_path):
    text = cut(FULL, [("quantize", "levels"), ("evaluate", "models"), ("serve",), ("train", "r")])
    shutil.copy(PROJECT / "dvc.yaml", tmp_path)
    (tmp_path / "params.yaml").write_text(text)
    Repo.init(str(tmp_path), no_scm=True).close()
    command = [sys.executable, "-m", "pipeline", "report", "--root", str(tmp_path)]
    stage = subprocess.run(command, stderr=PIPE, text=True, check=False, cwd=PROJECT)
    assert stage.returncode == 3  # there are no inputs yet
    assert "quantize.levels" in stage.stderr and "train.r" not in stage.stderr
    assert yaml.safe_load((tmp_path / "params.lock.yaml").read_text())["train"]["r"] == Params().train.r
    with Repo(str(tmp_path)) as repo:
        names = {stage.name for stage in repo.index.stages}
    assert {f"quantize@{level}" for level in Params().quantize.levels} <= names


DVC = [sys.executable, "-m", "dvc"]


@pytest.fixture
def recorded(tmp_path):
    """Runs a command in a project of Git and DVC with a short params.yaml and a stage that reads settings."""

    def run(*words):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # dvc.yaml says `python`
        code = os.environ | {"PYTHONPATH": str(PROJECT), "PATH": path}
        return subprocess.run(words, cwd=tmp_path, env=code, stdout=PIPE, text=True, check=True).stdout

    graph = yaml.safe_load((PROJECT / "dvc.yaml").read_text())
    settings = graph["stages"]["settings"] | {"deps": ["params.yaml"]}
    reader = {"cmd": "cat params.lock.yaml > copy", "outs": ["copy"]}
    reader["params"] = graph["stages"]["train"]["params"]
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"settings": settings, "reader": reader}}))
    (tmp_path / "params.yaml").write_text("# mine\ntrain:\n  r: 8\n")
    for words in (["git", "init"], [*DVC, "init"], [*DVC, "repro"], ["git", "add", "--all"]):
        run(*words)
    run("git", "commit", "--quiet", "--message", "begun")
    run.root = tmp_path
    return run


@pytest.mark.slow
def test_dvc_alone_sees_edits_of_keys_that_the_short_file_holds_or_leaves_out(recorded):
    copied = lambda: yaml.safe_load((recorded.root / "copy").read_text())["train"]  # noqa: E731
    file = recorded.root / "params.yaml"
    assert copied()["r"] == 8 and copied()["lora_alpha"] == Params().train.lora_alpha
    file.write_text("# mine\ntrain:\n  r: 8\n  lora_alpha: 64\n")
    recorded(*DVC, "repro", "--quiet")
    assert copied()["lora_alpha"] == 64
    changed = json.loads(recorded(*DVC, "params", "diff", "--json"))
    assert changed["params.lock.yaml"]["train.lora_alpha"]["new"] == 64
    recorded("git", "commit", "--quiet", "--all", "--message", "64")
    recorded(*DVC, "exp", "run", "--quiet", "-S", "++train.max_steps=3", "-S", "train.r=4")
    assert (copied()["max_steps"], copied()["r"], copied()["lora_alpha"]) == (3, 4, 64)
    assert json.loads(recorded(*DVC, "status", "--json")) == {}

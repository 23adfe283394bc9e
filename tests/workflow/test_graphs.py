"""Three graphs of stages: each settings file needs one, dvc.yaml is written for one, and nothing runs on
another.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.__main__ import run
from pipeline.commands.recipes import graph, use
from pipeline.config.params import load_params
from pipeline.config.sections import Graph
from pipeline.core.errors import ConfigError
from pipeline.core.places import PROJECT
from pipeline.workflow.dvc_yaml import dvc_text
from pipeline.workflow.graphs import OWN, need_graph, put_graph
from pipeline.workflow.stages import Table, table


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with the demo's settings and graph."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(PROJECT / name, tmp_path)
    return tmp_path


def test_a_recipe_brings_its_graph(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    use("demo-gguf", root)
    assert (root / "dvc.yaml").read_bytes() == dvc_text("adapter").encode()
    assert "dvc.yaml is the graph of adapters on a GGUF now" in capsys.readouterr().out
    use("demo-scales", root)
    assert (root / "dvc.yaml").read_bytes() == dvc_text("tuned").encode()
    assert "dvc.yaml is the graph of GGUFs with trained scales now" in capsys.readouterr().out
    use("demo", root)
    assert (root / "dvc.yaml").read_bytes() == (PROJECT / "dvc.yaml").read_bytes()


def test_a_graph_that_was_edited_stays_unless_forced_and_so_does_the_recipe(root: Path) -> None:
    with (root / "dvc.yaml").open("a") as file:
        file.write("# mine\n")
    edited = (root / "dvc.yaml").read_bytes()
    use("qwen2.5-0.5b", root)  # of the same graph
    use("demo", root, force=True)
    graph(root)
    assert (root / "dvc.yaml").read_bytes() == edited
    with pytest.raises(ConfigError, match="Q-WORKFLOW-006"):
        use("demo-gguf", root)
    assert load_params(root / "params.yaml").graph == "merged"
    use("demo-gguf", root, force=True)
    assert (root / "dvc.yaml").read_bytes() == dvc_text("adapter").encode()
    assert (root / "dvc.yaml.edited").read_bytes() == edited


def test_a_graph_with_edits_or_of_an_older_version_is_brought_up_to_date_when_forced_and_each_copy_is_kept(
    root: Path,
) -> None:
    wanted = (root / "dvc.yaml").read_bytes()
    for name, text in (("dvc.yaml.edited", b"# mine\n"), ("dvc.yaml.edited2", b"# mine again\n")):
        (root / "dvc.yaml").write_bytes(wanted + text)
        graph(root, force=True)
        assert (root / "dvc.yaml").read_bytes() == wanted
        assert (root / name).read_bytes() == wanted + text


def test_a_graph_of_another_version_without_edits_is_replaced_without_a_word_of_force(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorter = Table(
        stages={name: stage for name, stage in table().stages.items() if name != "compare"}, plots=[]
    )
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.workflow.stages.table", lambda: shorter)
        older = dvc_text.__wrapped__("merged")
    assert older != dvc_text("merged")
    (root / "dvc.yaml").write_text(older)
    graph(root)
    assert (root / "dvc.yaml").read_text() == dvc_text("merged")
    assert not (root / "dvc.yaml.edited").exists()


def test_whether_dvc_keeps_the_base_is_written_in_the_graph_and_stays(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uncached = yaml.safe_load((root / "dvc.yaml").read_text())
    graph(root, cache_base=True)
    assert "`snakemake` puts it into DVC's cache" in capsys.readouterr().out
    cached = yaml.safe_load((root / "dvc.yaml").read_text())
    assert cached["stages"]["base"].pop("outs") == ["models/base", "models/base.json"]
    assert uncached["stages"]["base"].pop("outs") == [{"models/base": {"cache": False}}, "models/base.json"]
    assert cached == uncached  # so no stage runs for it
    for recipe, name in (("demo-gguf", "adapter"), ("demo-scales", "tuned"), ("demo", "merged")):
        use(recipe, root)
        graph(root)
        assert (root / "dvc.yaml").read_text() == dvc_text(name, cache_base=True)
        need_graph(root, name)
    graph(root, cache_base=False)
    assert (root / "dvc.yaml").read_bytes() == (PROJECT / "dvc.yaml").read_bytes()
    assert not (root / "dvc.yaml.edited").exists()


def test_a_graph_with_edits_is_not_changed_for_the_base_unless_forced(root: Path) -> None:
    with (root / "dvc.yaml").open("a") as file:
        file.write("# mine\n")
    edited = (root / "dvc.yaml").read_bytes()
    with pytest.raises(ConfigError, match="Q-WORKFLOW-006"):
        graph(root, cache_base=True)
    assert (root / "dvc.yaml").read_bytes() == edited
    graph(root, cache_base=True, force=True)
    assert (root / "dvc.yaml").read_text() == dvc_text("merged", cache_base=True)
    assert (root / "dvc.yaml.edited").read_bytes() == edited


def test_an_edit_above_the_stages_is_an_edit(root: Path) -> None:
    mine = "vars:\n  - mine.yaml\n" + dvc_text("merged")
    (root / "dvc.yaml").write_text(mine)
    with pytest.raises(ConfigError, match="Q-WORKFLOW-006"):
        put_graph(root, "adapter")
    # as Git may check it out
    (root / "dvc.yaml").write_bytes(dvc_text("merged").replace("\n", "\r\n").encode())
    assert put_graph(root, "adapter")


def test_a_graph_that_names_files_of_code_is_of_an_older_version(root: Path) -> None:
    older = (
        "stages:\n  base: {cmd: base, deps: [pipeline/base.py]}\n  merge: {cmd: merge, deps: "
        "[pipeline/merge.py]}\n"
    )
    (root / "dvc.yaml").write_text(older)
    with pytest.raises(ConfigError, match="Q-WORKFLOW-005"):
        need_graph(root, "merged")
    assert put_graph(root, "merged")
    need_graph(root, "merged")
    assert (root / "dvc.yaml.edited").read_text() == older


@pytest.mark.parametrize(
    ("recipe", "other"),
    [("demo", "adapter"), ("demo-gguf", "merged"), ("demo-gguf", "tuned"), ("demo-scales", "adapter")],
)
def test_a_stage_refuses_another_graph(root: Path, recipe: str, other: Graph) -> None:
    shutil.copy(PROJECT / "recipes" / f"{recipe}.yaml", root / "params.yaml")
    (root / "dvc.yaml").write_text(dvc_text(other))
    with pytest.raises(ConfigError, match="Q-WORKFLOW-004"):
        run("curate", root, None)
    graph(root)
    need_graph(root, load_params(root / "params.yaml").graph)


@pytest.mark.parametrize(
    ("recipe", "stage"),
    [("demo-gguf", "merge"), ("demo-gguf", "tuned"), ("demo-scales", "lora"), ("demo", "lora")],
)
def test_a_stage_of_another_graph_says_so(root: Path, recipe: str, stage: str) -> None:
    use(recipe, root)
    with pytest.raises(ConfigError, match="Q-WORKFLOW-021"):
        run(stage, root, None)


def test_snakemake_refuses_the_other_graph_before_it_plans(root: Path) -> None:
    shutil.copy(PROJECT / "recipes/demo-gguf.yaml", root / "params.yaml")
    (root / "data/raw").mkdir(parents=True)
    (root / "data/raw/a.jsonl").write_text("{}\n")
    code = "from pipeline.workflow.prepare import prepare; prepare()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(PROJECT), "PATH": ""},
    )
    assert done.returncode == 2
    assert "Q-WORKFLOW-004" in done.stderr


def test_each_graph_has_a_stage_of_its_own_and_a_folder_without_one_is_nobodys_concern(
    tmp_path: Path,
) -> None:
    stages = {name: set(yaml.safe_load(dvc_text(name))["stages"]) for name in OWN}
    for name, own in OWN.items():
        assert [other for other, found in stages.items() if own in found] == [name]
    need_graph(tmp_path, "adapter")
    assert put_graph(tmp_path, "adapter") and not put_graph(tmp_path, "adapter")

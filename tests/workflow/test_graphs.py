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


def test_an_edited_graph_is_written_again_and_a_dvc_yaml_in_a_subfolder_stays(root: Path) -> None:
    wanted, mine = (root / "dvc.yaml").read_bytes(), b"stages:\n  mine: {cmd: echo mine}\n"
    (root / "plots").mkdir()
    (root / "plots/dvc.yaml").write_bytes(mine)
    for edited in (wanted + b"# mine\n", b"vars:\n  - mine.yaml\n" + wanted, wanted[:-9], mine):
        (root / "dvc.yaml").write_bytes(edited)
        graph(root)
        assert (root / "dvc.yaml").read_bytes() == wanted
    (root / "dvc.yaml").write_bytes(mine)
    use("demo-gguf", root)
    assert (root / "dvc.yaml").read_bytes() == dvc_text("adapter").encode()
    assert (root / "plots/dvc.yaml").read_bytes() == mine
    assert "written again: your own stages belong in a subfolder's dvc.yaml" in wanted.decode()


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

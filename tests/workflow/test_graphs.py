"""Three graphs of stages: each settings file needs one, dvc.yaml is for one, and nothing runs on another."""

import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from make import ended
from user_project import quench

from pipeline.__main__ import main
from pipeline.config.sections import Graph
from pipeline.core.places import PROJECT
from pipeline.workflow.dvc_yaml import dvc_text


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with the demo's settings and graph."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(PROJECT / name, tmp_path)
    return tmp_path


def refusal(root: Path, stage: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The id of the error by which a stage refuses these settings; "" for any other end."""
    code, said = main([stage, "--root", str(root)]), capsys.readouterr().err
    return re.findall(r"Q-\w+-\d+", said)[0] if code == 2 else ""


def do(root: Path, *words: str) -> None:
    done = quench(root, *words)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("recipe", "name"), [("demo", "merged"), ("demo-gguf", "adapter"), ("demo-scales", "tuned")]
)
def test_a_recipe_brings_its_graph_and_a_stage_refuses_any_other(
    root: Path, recipe: str, name: Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    do(root, "config", "use", recipe)
    assert (root / "dvc.yaml").read_text() == dvc_text(name)
    others: dict[Graph, str] = {"merged": "merge", "adapter": "lora", "tuned": "tuned"}
    del others[name]
    for other, stage in others.items():
        assert refusal(root, stage, capsys) == "Q-WORKFLOW-021"
        (root / "dvc.yaml").write_text(dvc_text(other))
        assert refusal(root, "curate", capsys) == "Q-WORKFLOW-004"
        do(root, "config", "graph")
        assert (root / "dvc.yaml").read_text() == dvc_text(name)
    (root / "dvc.yaml").unlink()
    assert refusal(root, "curate", capsys) == ""  # a folder without a graph has no wrong one


def test_an_edited_graph_is_written_again_and_a_dvc_yaml_in_a_subfolder_stays(root: Path) -> None:
    wanted, mine = (root / "dvc.yaml").read_bytes(), b"stages:\n  mine: {cmd: echo mine}\n"
    (root / "plots").mkdir()
    (root / "plots/dvc.yaml").write_bytes(mine)
    for edited in (wanted + b"# mine\n", b"vars:\n  - mine.yaml\n" + wanted, wanted[:-9], mine):
        (root / "dvc.yaml").write_bytes(edited)
        do(root, "config", "graph")
        assert (root / "dvc.yaml").read_bytes() == wanted
    (root / "dvc.yaml").write_bytes(mine)
    do(root, "config", "use", "demo-gguf")
    assert (root / "dvc.yaml").read_text() == dvc_text("adapter")
    assert (root / "plots/dvc.yaml").read_bytes() == mine


def test_whether_dvc_keeps_the_base_is_written_in_the_graph_and_stays(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uncached = yaml.safe_load((root / "dvc.yaml").read_text())
    do(root, "config", "graph", "--cache-base")
    cached = yaml.safe_load((root / "dvc.yaml").read_text())
    assert cached["stages"]["base"].pop("outs") == ["models/base", "models/base.json"]
    assert uncached["stages"]["base"].pop("outs") == [{"models/base": {"cache": False}}, "models/base.json"]
    assert cached == uncached  # so no stage runs for it
    graphs: dict[str, Graph] = {"demo-gguf": "adapter", "demo-scales": "tuned", "demo": "merged"}
    for recipe, name in graphs.items():
        do(root, "config", "use", recipe)
        do(root, "config", "graph")
        assert (root / "dvc.yaml").read_text() == dvc_text(name, cache_base=True)
        assert refusal(root, "curate", capsys) == ""
    do(root, "config", "graph", "--no-cache-base")
    assert (root / "dvc.yaml").read_bytes() == (PROJECT / "dvc.yaml").read_bytes()


def test_snakemake_refuses_the_other_graph_before_it_plans(root: Path) -> None:
    shutil.copy(PROJECT / "recipes/demo-gguf.yaml", root / "params.yaml")
    (root / "data/raw").mkdir(parents=True)
    (root / "data/raw/a.jsonl").write_text("{}\n")
    code = "from pipeline.workflow.prepare import prepare; prepare()"
    done = ended([sys.executable, "-c", code], cwd=root, env={"PYTHONPATH": str(PROJECT), "PATH": ""})
    assert done.returncode == 2 and "Q-WORKFLOW-004" in done.stderr

"""Three graphs of stages: each settings file needs one, dvc.yaml is for one, and nothing runs on another."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from graph_settings import RECIPES, graph_text, settings_of
from make import ended
from user_project import quench

from pipeline.__main__ import main
from pipeline.config.params import Params, load_params
from pipeline.config.sections import Graph
from pipeline.core.errors import ConfigError
from pipeline.core.places import PROJECT
from pipeline.workflow.dvc_yaml import follow_settings
from pipeline.workflow.stages import rules


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with the demo's settings and graph."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(PROJECT / name, tmp_path)
    return tmp_path


def refusal(root: Path, stage: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The id of the error by which a stage refuses these settings; "" for any other end."""
    code, said = main([stage, "--root", str(root)]), capsys.readouterr().err
    return re.findall(r"(Q-\w+-\d+): ", said)[0] if code == 2 else ""


def do(root: Path, *words: str) -> None:
    done = quench(root, *words)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(("recipe", "name"), [(recipe, name) for name, recipe in RECIPES.items()])
def test_a_recipe_brings_its_graph_and_a_stage_refuses_any_other(
    root: Path, recipe: str, name: Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    do(root, "config", "use", recipe)
    assert (root / "dvc.yaml").read_text() == graph_text(name)
    others: dict[Graph, str] = {"merged": "merge", "adapter": "lora", "tuned": "tuned"}
    del others[name]
    for other, stage in others.items():
        assert refusal(root, stage, capsys) == "Q-WORKFLOW-021"
        (root / "dvc.yaml").write_text(graph_text(other))
        assert refusal(root, "curate", capsys) == "Q-WORKFLOW-004"
        do(root, "config", "graph")
        assert (root / "dvc.yaml").read_text() == graph_text(name)
    (root / "dvc.yaml").unlink()
    assert refusal(root, "curate", capsys) == ""  # a folder without a graph has no wrong one


def ask(root: Path, **sections: Any) -> None:
    """Add settings to the demo's."""
    settings = yaml.safe_load((root / "params.yaml").read_text())
    for section, values in sections.items():
        settings[section] = settings.get(section, {}) | values
    (root / "params.yaml").write_text(yaml.safe_dump(settings))


ASKED = {
    "imatrix": {"quantize": {"levels": ["Q4_K_M", "Q5_K_M", "base-Q4_K_M", "base-Q5_K_M", "IQ2_M-imatrix"]}},
    "distill": {"quantize": {"distill": ["Q4_K_M"]}},
    "compare": {"compare": {"seeds": [42]}},
}


@pytest.mark.parametrize("stage", ASKED)
def test_a_stage_that_no_setting_asks_for_has_no_job(
    root: Path, stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    item = "@Q4_K_M" if stage == "distill" else ""
    plain = (root / "dvc.yaml").read_text()
    assert stage not in yaml.safe_load(plain)["stages"]
    assert stage not in {rule.name for rule in rules(load_params(root / "params.yaml"), 1)}
    assert refusal(root, f"{stage}{item}", capsys) == "Q-WORKFLOW-021"
    ask(root, **ASKED[stage])
    params = load_params(root / "params.yaml")
    assert stage in {rule.name for rule in rules(params, 1)}
    assert refusal(root, "base", capsys) == "Q-WORKFLOW-004"  # DVC doesn't know of the stage yet.
    assert follow_settings(root, params, is_dry_run=True) is False
    assert (root / "dvc.yaml").read_text() == plain
    assert follow_settings(root, params, is_dry_run=False) is True
    assert stage in yaml.safe_load((root / "dvc.yaml").read_text())["stages"]
    shutil.copy(PROJECT / "params.yaml", root)
    assert refusal(root, "base", capsys) == "Q-WORKFLOW-004"
    assert follow_settings(root, load_params(root / "params.yaml"), is_dry_run=False) is True
    assert (root / "dvc.yaml").read_text() == plain


def test_a_graph_with_edits_is_not_written_again_unasked(root: Path) -> None:
    ask(root, compare={"seeds": [42]})
    edited = (root / "dvc.yaml").read_text() + "# mine\n"
    (root / "dvc.yaml").write_text(edited)
    with pytest.raises(ConfigError, match="no stage compare"):
        follow_settings(root, load_params(root / "params.yaml"), is_dry_run=False)
    assert (root / "dvc.yaml").read_text() == edited


def test_the_demo_has_ten_stages_in_their_order() -> None:
    assert [rule.name for rule in rules(settings_of("merged"), 1)] == [
        *("base", "curate", "preprocess", "train", "merge", "convert", "quantize"),
        *("parity", "evaluate", "report"),
    ]


# command | methods of training | inputs | outputs | jobs | threads
RULES = """
curate || data/raw data/guard models/base.json models/base | data/final/train.jsonl data/final/val.jsonl
  data/final/test.jsonl data/rejects.jsonl data/changes.jsonl data/clusters.jsonl reports/data.html
  reports/data.json || 8

train | sft | data/tokens models/base | reports/train.json reports/train.jsonl reports/train.csv
  models/adapter/ || 8

quantize@{item} || models/gguf/m-F16.gguf models/gguf/m-base-F16.gguf
  | models/gguf/m-{item}.gguf | item=Q4_K_M,Q5_K_M | 3

compare || reports/compare/merged_16-1.json reports/compare/merged_16-2.json
  reports/compare/merged_16-Q4_K_M-1.json reports/compare/merged_16-Q4_K_M-2.json
  reports/compare/lora_nf4-Q4_K_M-1.json reports/compare/lora_nf4-Q4_K_M-2.json
  | reports/strategies.json || 1
"""


def test_a_rule_is_a_stage_with_names_and_levels_filled_in() -> None:
    compare = {"seeds": [1, 2], "levels": ["Q4_K_M"], "strategies": ["merged_16", "lora_nf4"]}
    sections = {"compare": compare, "machine": {"threads": 3}, "convert": {"name": "m"}}
    made = {rule.stage: rule for rule in rules(Params.model_validate(sections), 8)}
    for paragraph in RULES.strip().split("\n\n"):
        stage, methods, deps, outputs, items, threads = (field.strip() for field in paragraph.split("|"))
        name, at, item = stage.partition(" ")[0].partition("@")
        assert made[stage] == (
            name,
            stage,
            [f".quench/code/{key}.key" for key in (name, *(f"train.{method}" for method in methods.split()))],
            deps.split(),
            [path for path in outputs.split() if path[-1] != "/"],
            [path[:-1] for path in outputs.split() if path[-1] == "/"],
            dict(each.replace(",", "|").split("=") for each in items.split()),
            int(threads),
            f"logs/{name}-{item}.log" if at else f"logs/{name}.log",
        )


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
    assert (root / "dvc.yaml").read_text() == graph_text("adapter")
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
    for name, recipe in reversed(RECIPES.items()):  # The merged graph, which was there, comes last.
        do(root, "config", "use", recipe)
        do(root, "config", "graph")
        assert (root / "dvc.yaml").read_text() == graph_text(name, cache_base=True)
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

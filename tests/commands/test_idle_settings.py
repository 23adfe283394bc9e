"""Settings that do nothing are reported by `quench config show --idle`, by `quench config plan`, before
Snakemake plans, and by a stage that somebody runs.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from make import ended, quench, script

from pipeline.__main__ import main
from pipeline.core.owner import RUN
from pipeline.core.places import PROJECT

RECIPE = "qwen2.5-7b-gguf-8gb"


def llama_cpp(home: Path, devices: str) -> Path:
    """A llama.cpp whose server lists these devices."""
    script(home / "build/bin/llama-server", f"printf 'Available devices:\\n  {devices}\\n'")
    (home / "convert_hf_to_gguf.py").touch()
    return home


def project(root: Path, recipe: str = RECIPE, **sections: Any) -> Path:
    """A folder with a recipe as params.yaml, changed."""
    values = yaml.safe_load((PROJECT / "recipes" / f"{recipe}.yaml").read_text(encoding="utf-8"))
    for section, keys in sections.items():
        values[section] = values.get(section, {}) | keys
    root.mkdir(exist_ok=True)
    (root / "params.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return root


def test_params_lists_them_with_what_each_would_need(tmp_path: Path) -> None:
    root = project(tmp_path, merge={"base": "nf4"}, distill={"max_steps": 50})
    named = json.loads(quench("config", "show", "--idle", "--json", "--root", root).stdout)
    assert list(named) == ["merge.base", "distill.max_steps"]
    assert quench("config", "show", "merge", "--idle", "--root", root).stdout == f"{named['merge.base']}\n"
    assert json.loads(quench("config", "show", "serve", "--idle", "--json", "--root", root).stdout) == {}


@pytest.mark.parametrize(
    ("devices", "named"), [("(none)", ["machine.n_gpu_layers"]), ("CUDA0: A (8188 MiB, 7800 MiB free)", [])]
)
def test_layers_that_llama_cpp_would_ignore_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: str, named: list[str]
) -> None:
    monkeypatch.delenv("LLAMA_CPP_HOME", raising=False)
    home = llama_cpp(tmp_path / "llama.cpp", devices)
    root = project(tmp_path / "project", machine={"llama_cpp": str(home), "n_gpu_layers": 99})
    assert list(json.loads(quench("config", "show", "--idle", "--json", "--root", root).stdout)) == named


def test_the_plan_says_them_and_is_silent_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.commands.plan.first_gpu", lambda: None)
    words = ["config", "plan", "--vram", "8", "--root", project(tmp_path, merge={"base": "nf4"})]
    (sentence,) = json.loads(quench(*words, "--json").stdout)["idle"].values()
    assert sentence in quench(*words).stdout
    project(tmp_path)
    assert json.loads(quench(*words, "--json").stdout)["idle"] == {}


def test_snakemake_says_them_before_it_plans(tmp_path: Path) -> None:
    root = project(tmp_path, "demo-gguf", merge={"base": "nf4"})
    code = "from pipeline.workflow.prepare import prepare; prepare()"
    done = ended([sys.executable, "-c", code], cwd=root, env={"PYTHONPATH": str(PROJECT), "PATH": ""})
    assert "Q-WORKFLOW-013" in done.stderr  # no data: nothing else kept it from planning
    assert "merge.base" in done.stderr


@pytest.mark.parametrize(
    ("stage", "said"), [("base", ["merge.base"]), ("lora", []), ("parity", ["parity.max_kld_level"])]
)
def test_a_stage_says_those_of_its_section_and_the_first_those_of_no_stage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stage: str,
    said: list[str],
) -> None:
    monkeypatch.delenv(RUN, raising=False)
    base = {"model": "missing.gguf", "quantization": "gguf"}
    root = project(tmp_path, "demo-gguf", base=base, merge={"base": "nf4"}, parity={"max_kld_level": 2.0})
    assert main([stage, "--root", str(root)]) != 0  # nothing is there to work on
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if "acts only if" in line] == said
    monkeypatch.setenv(RUN, "Snakemake's, which has said it")
    main([stage, "--root", str(root)])
    assert "acts only if" not in capsys.readouterr().out

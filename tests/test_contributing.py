"""The changes that CONTRIBUTING shows: each is short, applies to the project as it is now, keeps its style,
and does what it says.
"""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import typer
import yaml
from typer.core import TyperGroup

from pipeline.cli import app
from pipeline.config.params import Params
from pipeline.config.sections.values import keys_of
from pipeline.core.places import PROJECT
from pipeline.llamacpp.tools import DEFAULT_HOME
from pipeline.workflow.stages import table

PAGE = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROMISES = (PROJECT / "docs/tests.md").read_text(encoding="utf-8")
SHOWN = dict(re.findall(r"^## Add an? (.*?)\n.*?```diff\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))
PROMISED = re.findall(
    r"^\| (.*?) \| (.*?) \| `(.*?)` \|$", PROMISES.partition("# What the project promises")[2], re.MULTILINE
)
MOST_LINES, MOST_FILES = 30, 3  # of a diff, headers and context included

# what the change is good for, as a program that ends in an AssertionError without it
USES = {
    "scorer": """
from pathlib import Path
from pipeline.config.params import load_params
from pipeline.config.scorers import SPELLINGS
from pipeline.metrics.scorers import parse
text = Path("params.yaml").read_text()
Path("mine.yaml").write_text(text.replace("scorers: [json_fields, exact_match]", "scorers: [starts_with]"))
assert load_params(Path("mine.yaml")).evaluate.scorer == "starts_with"
measure = parse("starts_with").measure
assert (measure("Paris", "Paris, of course.", {}).points, measure("Paris", "In Paris.", {}).points) == (1.0, 0.0)
assert all(f"| `{name}` |" in Path("docs/evaluation.md").read_text() for name in SPELLINGS.replace(" or ", ", ").split(", "))
""",  # noqa: E501
    "curation rule": """
import json
from pathlib import Path
from pipeline.stages.curate.stage import curate
from pipeline.config.params import load_params
rows = [["Where?", "https://example.org/map"], ["Where?", "Here: https://example.org/map"], ["Why?", "Because."]]
Path("data/raw").mkdir(parents=True)
Path("data/raw/chats.jsonl").write_text("".join(json.dumps({"prompt": ask, "completion": answer}) + "\\n" for ask, answer in rows))
Path("models").mkdir()
Path("models/base.json").write_text('{"added_tokens": []}')
settings = load_params(Path("params.yaml")).curating.model_copy(update={"val_fraction": 0.0, "test_fraction": 0.0})
assert curate(Path(), settings, 1).rejected == {}
counts = curate(Path(), settings.model_copy(update={"reject": ["garbage"]}), 1)
assert counts.rejected == {"garbage": 1} and counts.rows_kept == 2
assert [rule for rule in counts.rules if rule["rejected"]] == [{"rule": "links", "rows_in": 3, "rows_out": 2, "rejected": 1, "changed": 0}]
assert "nothing but a link" in Path("reports/data.html").read_text()
""",  # noqa: E501
    "input format": """
from pipeline.config.params import Params
from pipeline.intake.rows.formats import to_row
row = to_row({"turns": ["2 + 2?", "4"]}, source="file", domain="all")
assert [tuple(turn.values()) for turn in row["messages"]] == [("user", "2 + 2?"), ("assistant", "4")]
Params.model_validate({"curate": {"formats": {"*.jsonl": "alternating"}}})
""",
    "preference loss": """
from pathlib import Path
import torch
from pipeline.config.params import Params
from pipeline.models.preference_losses import Likelihoods, pair_losses
assert Params.model_validate({"train": {"method": "slic"}}).train.method == "slic"
zeros, tokens = torch.zeros(2), torch.ones(2)
sides = torch.tensor([[-1.0, -30.0], [-2.0, -10.0]])
chosen, rejected = (Likelihoods(logps, zeros, tokens) for logps in sides)
losses, margins = pair_losses("slic", chosen, rejected, beta=0.1, gamma=0.0, sft_weight=0.0)
assert torch.allclose(losses, torch.tensor([0.9, 3.0])) and torch.allclose(margins, torch.tensor([0.1, -2.0]))
""",
    "report section": f"""
import sys
from functools import partial
from pathlib import Path
sys.path.append({str(PROJECT / "tests/support")!r})
import report_inputs
from pipeline.stages.report import stage
stage.main(report_inputs.demo_params(), report_inputs.write_inputs(Path("finished")))
page = Path("finished/reports/index.html").read_text()
assert 'id="libraries"' in page and "<p>torch " in page
""",
    "level": f"""
import re, subprocess, sys
from pathlib import Path
sys.path.append({str(PROJECT / "tests/support")!r})
from shaped_gguf import VOCABULARY, shaped, written
from pipeline.config.levels import level_problem
from pipeline.llamacpp.tools import find_toolchain
from pipeline.planning.model.level_bytes import HEADER_PER_TOKEN, level_bytes
shape = shaped(256, 320, tied=True, kv_heads=2)
command = [find_toolchain().tool("llama-quantize"), "--dry-run", written(Path("x.gguf"), shape), "Q2_0"]
done = subprocess.run(command, capture_output=True, text=True)
mebibytes = float(re.search(r"quant size += +([\\d.]+) MiB", done.stdout + done.stderr)[1])
assert level_problem("q2_0") is None
assert abs((level_bytes(shape, "Q2_0") - HEADER_PER_TOKEN * VOCABULARY) / 2**20 - mebibytes) <= 0.006
""",
    "family": f"""
import sys
from pathlib import Path
sys.path.append({str(PROJECT / "tests/support")!r})
import torch
from families import SIZES, write_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM
from pipeline.config.sections import Base
from pipeline.llamacpp.converters import HeaderFields, to_gguf
from pipeline.llamacpp.tools import find_toolchain
from pipeline.models.quantized_model import load_gguf
from pipeline.stages.base.stage import base
source, tools = Path("source"), find_toolchain()
sizes = SIZES | write_tokenizer("glm4", source, tools) | dict(vocab_size=49_152)
sizes |= dict(head_dim=64, rms_norm_eps=1e-5, tie_word_embeddings=False)  # as its converter takes for granted
model = AutoModelForCausalLM.from_config(AutoConfig.for_model("glm", **sizes)).to(torch.bfloat16)
model.save_pretrained(source)
to_gguf(tools, source, Path("tiny.gguf"), "F16", HeaderFields("tiny", "smollm"))
folder, ids = Path("models/base"), torch.arange(24)[None] * 37
base(Base(model="tiny.gguf", quantization="gguf"), target=folder, record=Path("models/base.json"))
trained_on = load_gguf(folder, compute_dtype=torch.float32, device="cpu")
assert torch.allclose(trained_on(input_ids=ids).logits, model.float().eval()(input_ids=ids).logits, atol=1e-3)
""",
    "cluster": """
import os
from pathlib import Path
import yaml
from pipeline.workflow.cluster_jobs import jobs_at_work
from pipeline.workflow.stages import table
profile, default = (yaml.safe_load(Path(f"profiles/{name}/config.yaml").read_text()) for name in ("lsf", "default"))
assert profile == profile | default | {"cores": profile["cores"]} and profile["set-resources"].keys() <= table().stages.keys()
assert {name for name, stage in table().stages.items() if name == "train" or "train" in stage.starts} == profile["set-resources"].keys()
job = f"17|RUN|Snakemake_rule_train___(0b9c2f0e-6f1e-4c1d-9a43-6f1f0f6f3a11)|{Path().resolve()}"
Path("bjobs").write_text(f"#!/bin/sh\\necho '{job}'\\necho '18|RUN|bash|{Path().resolve()}'\\n")
Path("bjobs").chmod(0o755)
os.environ["PATH"] = f"{Path().resolve()}:{os.environ['PATH']}"
assert jobs_at_work(Path()) == []
Path(".snakemake/lsf_logs").mkdir(parents=True)
assert jobs_at_work(Path()) == ["train (LSF job 17, run)"]
""",  # noqa: E501
    "tuner": f"""
import sys, pytest, torch
from pathlib import Path
sys.path.append({str(PROJECT / "tests/support")!r})
from qlora import sixteen
from tiny import untied_qwen2
from pipeline.config.params import Params
from pipeline.models.qlora import load_quantized
from pipeline.models.tuners import TUNERS, put_tuner, restored, tuner_on
recipe = sixteen(tuner="norms", modules_to_save=["input_layernorm", "norm"], layers="1-")
base, ids, adapter = untied_qwen2(Path("base"), layers=3), torch.arange(24)[None], Path("adapter")
model = put_tuner(load_quantized(base, recipe), recipe)
weights = [weight for weight in model.parameters() if weight.requires_grad]
assert TUNERS["norms"].check(model, recipe) == sum(weight.numel() for weight in weights) == 3 * 64
optimizer, losses = torch.optim.AdamW(weights, lr=0.01), []
for _ in range(4):
    losses.append(model(input_ids=ids, labels=ids).loss)
    losses[-1].backward()
    optimizer.step()
assert losses[-1] < losses[0] and all(change.any() for _, change, _ in tuner_on(model).numbers(model))
tuner_on(model).save(model, adapter)
again = restored(load_quantized(base, recipe), adapter)
assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits)
for settings, why in ((dict(tuner="norms"), "name what trains there"), (dict(modules_to_save=["norm"]), "trained whole")):
    with pytest.raises(ValueError, match=why):
        Params.model_validate(dict(train=dict(tuner="norms") | settings, base=dict(quantization="gguf"), evaluate=dict(models=["base", "adapter"])))
""",  # noqa: E501
    "verb": """
from typer.testing import CliRunner
from pipeline.cli import app
listed = CliRunner().invoke(app, ["config", "recipes"]).stdout
assert "demo-gguf " in listed and "any machine" in listed
assert "recipes" in CliRunner().invoke(app, ["config", "--help"]).stdout
""",
    "key": """
from pathlib import Path
from types import SimpleNamespace
from pipeline.config.params import Params, load_params
from pipeline.llamacpp.server_command import Served, server_command
from pipeline.workflow.state.settings import lock_text
params = Params.model_validate({"serve": {"batch_size": 64}})
tools = SimpleNamespace(tool=lambda name: name)
command = server_command(tools, Served(Path("model.gguf")), params.serving, Path("key"))
assert command[command.index("--batch-size") + 1] == "64"
assert Path("params.lock.yaml").read_text() == lock_text(load_params(Path("params.yaml")))
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_a_change_that_contributing_shows_applies_and_works(tmp_path: Path, name: str) -> None:
    diff = SHOWN[name]
    assert len(diff.splitlines()) <= MOST_LINES and diff.count("\n+++ b/") <= MOST_FILES
    for folder in ("pipeline", "docs", "recipes", "graphs", "profiles"):
        shutil.copytree(
            PROJECT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.png")
        )
    for file in ("params.yaml", "params.lock.yaml", "pyproject.toml"):
        shutil.copy(PROJECT / file, tmp_path)

    place = {"PYTHONPATH": str(tmp_path), "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    place |= {"LLAMA_CPP_HOME": os.environ.get("LLAMA_CPP_HOME", str(DEFAULT_HOME))}
    run = partial(subprocess.run, cwd=tmp_path, env=os.environ | place, capture_output=True, text=True)
    applied = run(["git", "apply"], input=diff)
    assert applied.returncode == 0, applied.stderr
    used = run([sys.executable, "-c", USES[name]])
    assert used.returncode == 0, used.stderr
    changed = [file for file in re.findall(r"^\+\+\+ b/(.*)$", diff, re.MULTILINE) if file.endswith(".py")]
    checked = run([sys.executable, "-m", "ruff", "check", *changed])
    assert checked.returncode == 0, checked.stdout


def test_contributing_shows_these_changes_and_no_others() -> None:
    assert set(SHOWN) == set(USES)


@pytest.mark.parametrize(("feature", "has_it", "test"), PROMISED, ids=[row[0] for row in PROMISED])
def test_what_is_promised_has_its_key_or_command_and_its_test(feature: str, has_it: str, test: str) -> None:
    named = re.findall("`(.*?)`", has_it)
    assert named
    assert not [name for name in named if not is_there(name)]
    assert there_is_test(test)


def test_what_is_not_there_is_not_found() -> None:
    for name in (
        "train.clip",
        "train.loss: fused",
        "quench server",
        "quench config drop",
        "python -m pipeline x",
    ):
        assert not is_there(name), name
    assert not there_is_test("tests/test_contributing.py::test_nothing")
    assert not there_is_test("tests/test_nothing.py")
    assert len(PROMISED) >= 30  # the table is read


def is_there(name: str) -> bool:
    """Return True if a key, `key: value`, `quench VERB` or `python -m pipeline STAGE` exists."""
    words = shlex.split(name)
    if words[0] == "quench":
        return is_verb(words[1:])
    if words[:3] == ["python", "-m", "pipeline"]:
        return words[3] in table().stages
    key, _, value = name.partition(": ")
    place = tuple(key.split("."))
    known = dict(keys_of(Params))
    if place not in known:
        return False
    return not value or is_value(place, value)


def is_value(place: tuple[str, ...], value: str) -> bool:
    """Return True if the section that holds the key at `place` takes `value`, as YAML reads it."""
    section = Params()
    for part in place[:-1]:
        section = getattr(section, part)
    try:
        type(section).model_validate(section.model_dump() | {place[-1]: yaml.safe_load(value)})
    except ValueError:
        return False
    return True


def is_verb(words: list[str]) -> bool:
    """Return True if `quench` followed by `words` names a command."""
    command = typer.main.get_command(app)
    for word in words:
        if not isinstance(command, TyperGroup) or word not in command.commands:
            return False
        command = command.commands[word]
    return True


def there_is_test(node: str) -> bool:
    """Return True if a test file, or a test in it, exists."""
    file, _, name = node.partition("::")
    if not (PROJECT / file).is_file():
        return False
    functions = ast.walk(ast.parse((PROJECT / file).read_text(encoding="utf-8")))
    return not name or name in {item.name for item in functions if isinstance(item, ast.FunctionDef)}

"""Recipes: each changes few defaults; `use` writes the full, commented file, never over edits unasked."""

import json
import re

import pytest
from make import quench

from pipeline.config.overrides import override
from pipeline.config.params import Params, load_params, read_params
from pipeline.config.params_text import as_yaml, left_out
from pipeline.config.sections.values import group_of, keys_of
from pipeline.core.errors import ConfigError, MachineError, QuenchError
from pipeline.core.places import PROJECT
from pipeline.core.yaml_readers import read_strict
from pipeline.workflow.state.settings import lock_text, read_by_dvc

ALL = sorted((PROJECT / "recipes").glob("*.yaml"))
LONGEST = 70  # lines of a params.yaml that a recipe is written as
QWEN = [path for path in ALL if path.stem.startswith("qwen")]
SEEN = (PROJECT / "recipes/sources.md").read_text(encoding="utf-8").splitlines()
OTHERS = [path for path in ALL if not path.stem.startswith(("qwen", "demo"))]
KEYS = {".".join(place): field for place, field in keys_of(Params) if not group_of(field)}


def shown(root, *words):
    """`quench config show --json` of the project."""
    return json.loads(quench("config", "show", *words, "--root", root, "--json").stdout)


def use(recipe, root, *words):
    """Put a recipe in place by `quench config use`, and return what that prints."""
    done = quench("config", "use", recipe, "--root", root, *words)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(recipe, root, error: type[QuenchError], *words):
    """Check that `quench config use` ends with this error's exit code, and return its words on stderr."""
    done = quench("config", "use", recipe, "--root", root, *words)
    assert done.exit_code == error.exit_code
    return done.stderr


def test_a_fresh_clone_holds_the_demo(tmp_path):
    use("demo", tmp_path)
    assert (PROJECT / "params.yaml").read_bytes() == (tmp_path / "params.yaml").read_bytes()
    demo = lock_text(load_params(PROJECT / "params.yaml"))
    assert (PROJECT / "params.lock.yaml").read_text(encoding="utf-8") == demo


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_a_recipe_is_short_says_what_for_and_changes_every_key_that_it_names(path, tmp_path):
    text = path.read_text(encoding="utf-8")
    assert re.match(r"# \S.{20,}\.\n\w", text)
    lines = text.splitlines()
    assert 8 <= len(lines) <= 30
    assert max(map(len, lines)) <= 100
    (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
    named = {name: one["from"] for name, one in shown(tmp_path).items() if one["line"] is not None}
    assert [name for name, origin in named.items() if origin == "default"] == []


@pytest.mark.parametrize("path", QWEN, ids=lambda path: path.stem)
def test_a_qwen_recipe_names_its_licence_a_commit_that_was_seen_and_a_level_with_a_matrix(path):
    assert re.search(r"^base:  # Apache-2\.0; ChatML.+thin?k", path.read_text(encoding="utf-8"), re.MULTILINE)
    params = load_params(path)
    base = params.base
    if base.quantization != "gguf":
        assert {"Q4_K_M", "Q4_K_M-imatrix"} <= {*params.quantize.levels} & {*params.evaluate.models}
    if base.source != "hub":
        return  # the user's own file
    assert re.fullmatch("[0-9a-f]{40}", base.revision)
    seen = [line for line in SEEN if line.startswith(f"| {base.model} | {base.revision} | {base.file or ''}")]
    assert len(seen) == 1
    if base.file:
        (sha256,) = re.findall(r" \| ([0-9a-f]{64}) \| ", seen[0])
        assert base.sha256 == (None if "-of-" in base.file else sha256)  # of a joined file nobody names one


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_a_recipe_of_another_family_names_licence_template_and_a_commit_that_was_seen(path):
    purpose, notes = path.read_text(encoding="utf-8").splitlines()[:2]
    assert purpose.endswith(" Not run yet.")
    base = load_params(path).base
    (seen,) = (line.split(" | ") for line in SEEN if f"| {base.model} |" in line)
    assert base.revision == seen[1]
    licence = seen[3].replace(" (gated)", ", gated")
    assert re.match(rf"base:  # {re.escape(licence)}; .+thin?k", notes)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_the_written_file_is_short_and_reads_back_the_same(tmp_path, path):
    use(path.stem, tmp_path)
    text = (tmp_path / "params.yaml").read_text(encoding="utf-8")
    read = read_params(tmp_path / "params.yaml")
    assert read.params == load_params(path)
    assert left_out(read.values, read_by_dvc(read.params)) == []
    assert max(map(len, text.splitlines())) <= 100 and len(text.splitlines()) <= LONGEST
    assert not [line for line in text.splitlines() if line.endswith("…")]  # comments end with a clause
    changed = [one for one in shown(tmp_path).values() if one["line"] and one["from"] != "default"]
    assert changed and all(one["from"] == "recipe" for one in changed)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("on", '"on"'),
        ("1e5", '"1e5"'),
        ("0o17", '"0o17"'),
        ("2020-01-01", '"2020-01-01"'),
        ("null", '"null"'),
        ("", '""'),
        ("a: b", '"a: b"'),
        ("Q4_K_M", "Q4_K_M"),
        ("7ae557604adf67be50417f59c2c2f167def9a775", "7ae557604adf67be50417f59c2c2f167def9a775"),
        ("a/b", "a/b"),
        (2e-4, "2.0e-4"),
        (1.25e-5, "1.25e-5"),
        (0.05, "0.05"),
        (3.0, "3.0"),
        (-1, "-1"),
        (None, "null"),
        (True, "true"),
        (["a", "no"], '[a, "no"]'),
        ({"*.csv": 0.2, "b": {}}, '{"*.csv": 0.2, b: {}}'),
    ],
)
def test_a_value_is_written_as_every_reader_of_yaml_takes_it(tmp_path, value, text):
    assert as_yaml(value) == text
    (tmp_path / "x.yaml").write_text(f"a: {text}\n", encoding="utf-8")
    assert read_strict(tmp_path / "x.yaml")[0] == {"a": value}


def test_use_installs_into_an_empty_folder_and_over_another_recipe(tmp_path):
    use("demo", tmp_path)
    changes = use("qwen2.5-0.5b", tmp_path)
    assert load_params(tmp_path / "params.yaml") == load_params(PROJECT / "recipes/qwen2.5-0.5b.yaml")
    signs = [line[0] for line in changes.splitlines() if line[1:].startswith("  model: ")]
    assert signs == ["-", "+"]
    assert use("qwen2.5-0.5b", tmp_path).count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]


@pytest.mark.parametrize("edit", [b"# mine\n", b" ", b"\xff"])
def test_use_keeps_edits_unless_forced(tmp_path, edit):
    target = tmp_path / "params.yaml"
    mine = (PROJECT / "params.yaml").read_bytes() + edit
    target.write_bytes(mine)
    said = refused("qwen2.5-0.5b", tmp_path, ConfigError)
    assert "Q-COMMANDS-003" in said
    assert "\n+  model: Qwen" in said
    assert ("\n\\ No newline" in said) == (not edit.endswith(b"\n"))
    assert target.read_bytes() == mine
    use("qwen2.5-0.5b", tmp_path, "--force")
    assert use("qwen2.5-0.5b", tmp_path).count("\n") == 1  # nothing differs


def test_use_keeps_what_the_project_set_of_its_data(tmp_path):
    use("demo-distill", tmp_path)
    file = tmp_path / "params.yaml"
    fields = {"tickets.csv": {"user": "Question", "assistant": "Answer"}}
    override(file, {("curate", "fields"): fields})
    use("qwen2.5-0.5b", tmp_path)  # A mapping alone is no edit.
    params = load_params(file)
    assert (params.curate.fields, params.base.model) == (fields, "Qwen/Qwen2.5-0.5B-Instruct")
    assert params.curate.source_weights == {}  # the other recipe's
    override(file, {("curate", "source_weights"): {"notes.txt": 0}, ("train", "r"): 8})
    assert "Q-COMMANDS-003" in refused("demo", tmp_path, ConfigError)
    use("demo", tmp_path, "--force")
    params = load_params(file)
    assert (params.curate.fields, params.curate.source_weights) == (fields, {"notes.txt": 0})
    assert params.train.r != 8
    assert use("demo", tmp_path).count("\n") == 1


@pytest.mark.parametrize(
    ("asked", "meant"), [("qwen2.5-7b-8GB", "qwen2.5-7b-8gb"), ("dmo", "demo"), ("qwen-0.5b", "qwen2.5-0.5b")]
)
def test_an_unknown_recipe_lists_the_known_with_the_nearest(tmp_path, asked, meant):
    said = refused(asked, tmp_path, ConfigError)
    assert "Q-COMMANDS-002" in said and f" {meant}?" in said
    assert all(path.stem in said for path in ALL)
    assert not (tmp_path / "params.yaml").exists()


@pytest.mark.parametrize("name", ["../params", "/etc/passwd", "", "demo.yaml"])
def test_a_recipe_is_a_name_not_a_path(tmp_path, name):
    assert "Q-COMMANDS-002" in refused(name, tmp_path, ConfigError)


def test_a_params_file_that_is_a_folder_is_one_sentence(tmp_path):
    (tmp_path / "params.yaml").mkdir()
    assert "Q-COMMANDS-004" in refused("demo", tmp_path, MachineError, "--force")


def test_params_shows_what_is_in_effect_and_where_each_comes_from(tmp_path):
    use("qwen2.5-0.5b", tmp_path)
    file = tmp_path / "params.yaml"
    text = file.read_text(encoding="utf-8").replace("\ntrain:\n", "\ntrain:\n  seed: 42\n  r: 8\n")
    file.write_text(text, encoding="utf-8")
    found = shown(tmp_path)
    assert list(found) == list(KEYS)
    assert {name: one["value"] for name, one in found.items()}["report.gate.max_forgetting"] == 10.0
    wanted = {
        "train.r": "params.yaml",
        "train.lora_alpha": "default",
        "train.save_steps": "recipe",
        "train.seed": "default",
        "base.file": "recipe",
    }
    assert {name: found[name]["from"] for name in wanted} == wanted
    assert found["train.lora_alpha"] == {"value": 32, "from": "default", "line": None}
    assert text.splitlines()[found["train.r"]["line"] - 1] == "  r: 8"
    one = quench("config", "show", "train.r", "--root", tmp_path)
    line = found["train.r"]["line"]
    assert re.fullmatch(rf"train\.r +8 +params\.yaml:{line}\n  # .*rank.*\n", one.stdout)
    wrong = quench("config", "show", "nix", "--root", tmp_path)
    assert (wrong.exit_code, wrong.stdout) == (2, "")


def test_params_writes_what_is_left_out_into_the_file(tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text("# mine\ntrain:\n  r: 8  # small\n", encoding="utf-8")
    assert quench("config", "show", "--root", tmp_path, "--write").exit_code == 0
    assert file.read_text(encoding="utf-8").startswith("# mine\n")
    read = read_params(file)
    assert left_out(read.values) == [] and read.params == Params.model_validate({"train": {"r": 8}})

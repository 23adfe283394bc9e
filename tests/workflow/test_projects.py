"""`quench new` makes a project that holds no code; another version of the code runs nothing there before an
upgrade has said what would run again.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from graph_settings import settings_of
from make import change_params, ended, ran
from make import quench as invoke
from user_project import BIN, quench

from pipeline.__main__ import main
from pipeline.commands.recipes import name_for
from pipeline.config.params import Params, read_params
from pipeline.config.params_text import left_out
from pipeline.core.locks import RUN, lock_file, take
from pipeline.core.places import PROJECT
from pipeline.workflow import source_cache
from pipeline.workflow.stages import stages_in
from pipeline.workflow.state.settings import read_by_dvc


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new project; read only."""
    folder = tmp_path_factory.mktemp("projects") / "my assistant"
    done = invoke("new", folder)
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "project"))


def test_a_new_project_has_settings_a_graph_git_and_dvc_and_no_code(made: Path) -> None:
    staged = ran(["git", "ls-files"], cwd=made).stdout.splitlines()
    assert {"params.yaml", "dvc.yaml", "Snakefile", ".dvc/config", ".dvcignore", ".gitignore"} <= set(staged)
    # a clone of it has the keys of the code too
    assert {f".quench/code/{stage}.key" for stage in stages_in(settings_of("merged"))} <= set(staged)
    assert not list(made.rglob("*.py"))
    assert "code" not in yaml.safe_load((made / "dvc.yaml").read_text())["stages"]
    assert (made / "data/raw").is_dir()
    # DVC has every setting, and what dvc.yaml is made of
    assert not left_out(yaml.safe_load((made / "params.lock.yaml").read_text()))
    assert "params.lock.yaml" in staged
    read = read_params(made / "params.yaml")
    assert not left_out(read.values, read_by_dvc(read.params))


def test_a_function_of_the_users_is_code_that_a_clone_has(root: Path) -> None:
    (root / "params.yaml").write_text("curate: {transform: 'python:clean.py:f'}\n", encoding="utf-8")
    (root / "data/raw/a.jsonl").write_text('{"prompt": "2 + 2?", "completion": "4"}\n')
    (root / "data/guard/clean.py").write_text("def f(row):\n    return row\n")
    (root / "data/guard/names.txt").write_text("Zaphod\n")
    checked = invoke("data", "check", root / "data/raw", "--root", root)
    assert "git add -f data/guard/clean.py" in checked.stderr
    ran(["git", "add", "--all"], cwd=root)
    assert ran(["git", "ls-files", "data/guard"], cwd=root).stdout.split() == [
        "data/guard/.gitkeep",
        "data/guard/clean.py",
    ]
    assert "clean.py" not in invoke("data", "check", root / "data/raw", "--root", root).stderr
    (root / "data/guard/clean.py").unlink()
    (root / "data/guard/clean.py.dvc").touch()
    lacking = invoke("data", "check", root / "data/raw", "--root", root)
    assert "Q-CORE-013" in lacking.stderr and "dvc pull" in lacking.stderr


def test_a_new_project_is_called_as_its_folder_and_scored_as_any_chat(made: Path) -> None:
    params = read_params(made / "params.yaml").params
    assert params.convert.name == "my-assistant"
    assert params.evaluate.scorers == ["rouge_l"]
    assert yaml.safe_load((made / "params.lock.yaml").read_text())["convert"]["name"] == "my-assistant"


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("bashbot", "bashbot"),
        ("Übung 2", "Ubung-2"),
        (".hidden", "hidden"),
        ("日本", "model"),
        ("a" * 90, "a" * 40),
        ("50%: {draft}", "50-draft"),
    ],
)
def test_a_folders_name_becomes_one_that_every_file_system_takes(folder: str, name: str) -> None:
    assert name_for(folder) == name
    assert Params.model_validate({"convert": {"name": name}})


def test_another_recipe_leaves_a_project_its_name(root: Path) -> None:
    done = quench(root, "config", "use", "demo-small")
    assert done.exit_code == 0, done.output
    params = read_params(root / "params.yaml").params
    assert (params.convert.name, params.evaluate.scorers) == ("my-assistant", ["rouge_l"])
    change_params(root, train={"r": 4})
    assert "Q-COMMANDS-003" in quench(root, "config", "use", "demo").output


def test_a_folder_with_content_is_left_alone(made: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "mine.txt", tmp_path / "mine.txt" / "below" / "it"):
        done = invoke("new", folder)
        assert done.exit_code == 2 and "Q-COMMANDS-035" in done.output
    done = invoke("new", tmp_path / "other", "--recipe", "dem")
    assert done.exit_code == 2 and "Q-COMMANDS-002" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_link_to_an_empty_folder_stays_one(tmp_path: Path) -> None:
    (disk := tmp_path / "disk").mkdir()
    (tmp_path / "mine").symlink_to(disk)
    done = invoke("new", tmp_path / "mine")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "mine").is_symlink() and (disk / "params.yaml").is_file()


@pytest.mark.slow
def test_inside_a_repository_no_other_one_is_made(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    assert invoke("new", tmp_path / "models" / "one").exit_code == 0
    assert not (tmp_path / "models/one/.git").exists() and (tmp_path / "models/one/.dvc").is_dir()
    staged = ran(["git", "ls-files"], cwd=tmp_path).stdout.splitlines()
    assert {line.partition("one/")[0] for line in staged} == {"models/"}
    # in a folder that Git ignores, DVC's reason is the user's, and nothing is left
    (tmp_path / ".gitignore").write_text("ignored/\n")
    done = invoke("new", tmp_path / "ignored" / "one")
    assert done.exit_code == 4 and "ignored" in done.output
    assert not (tmp_path / "ignored" / "one").exists()


@pytest.mark.parametrize("name", ["pipeline.py", "pipeline/__init__.py"])
def test_a_module_called_as_quench_s_package_is_refused(root: Path, name: str) -> None:
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text("print('mine')\n")
    assert "Q-WORKFLOW-027" in quench(root, "run", "curate").stderr
    planned = ended(["snakemake", "-n", "curate"], cwd=root)
    assert planned.returncode == 2 and "Q-WORKFLOW-027" in planned.stderr
    checks = json.loads(quench(root, "doctor", "--json").stdout)
    assert {check["id"] for check in checks} >= {"Q-WORKFLOW-027"}


def test_modules_of_a_project_hide_no_package(root: Path) -> None:
    (root / "yaml.py").write_text("raise SystemExit('mine')\n")
    (root / "data/raw/chats.jsonl").write_text('{"text": "a"}\n')
    for words in (["quench", "run", "-n", "curate"], ["python", "-m", "pipeline", "settings"]):
        done = ended(words, cwd=root)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [["quench", "run"], ["snakemake"]])
def test_where_the_home_can_not_be_written_snakemake_has_its_cache_in_the_project(
    root: Path, words: list[str]
) -> None:
    (root / "data/raw/chats.jsonl").write_text('{"text": "a"}\n')
    # Nothing can be made in this home, not even by root.
    environment = {name: value for name, value in os.environ.items() if name != source_cache.VARIABLE}
    done = ended([*words, "-n", "curate"], cwd=root, env=environment | {"HOME": "/proc"})
    assert done.returncode == 0, done.stderr
    assert (root / source_cache.PLACE).is_dir()


def test_without_git_nothing_is_left_of_a_new_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    shown = invoke("new", tmp_path / "mine")
    assert shown.exit_code == 4 and "Q-CORE-016" in shown.stderr
    assert not [*tmp_path.iterdir()]


def test_one_command_at_a_time_works_in_a_project(root: Path) -> None:
    with take(lock_file(RUN, root)):
        shown = invoke("doctor", "upgrade", "--root", root)
    assert shown.exit_code == 6 and "Q-WORKFLOW-009" in shown.stderr


def test_the_folder_one_is_in_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "Q-COMMANDS-035" in invoke("new", ".").output


def again(root: Path, *words: str) -> dict[str, str]:
    """{stage that has run: why `quench doctor upgrade` would run it again}."""
    done = quench(root, "doctor", "upgrade", *words)
    assert done.exit_code == 0, done.output
    lines = done.stdout.partition("again:\n")[2].splitlines()
    return dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))


def have_run(root: Path, *stages: str) -> None:
    (root / "dvc.lock").write_text(yaml.safe_dump({"stages": {stage: {} for stage in stages}}))


@pytest.mark.slow
def test_other_code_runs_nothing_before_an_upgrade(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused() -> bool:
        code, said = main(["code", "--root", str(root)]), capsys.readouterr().err
        assert (code, "Q-WORKFLOW-023" in said) in ((0, False), (2, True))
        return code == 2

    assert not refused()
    have_run(root, *stages_in(settings_of("merged")))
    key = root / ".quench/code/merge.key"
    first, *others = key.read_text().splitlines()
    key.write_text("\n".join([f"0{first[1:]}", *others, ""]))
    assert refused()
    reasons = again(root)
    assert next(iter(reasons)) == "merge" and first.split()[-1] in reasons["merge"]
    # at any distance, and nothing before it
    assert {"convert", "quantize", "parity", "evaluate", "report"} <= reasons.keys() and not {
        "train",
        "base",
    } & reasons.keys()
    assert refused()  # it has only been asked
    again(root, "--yes")
    assert not refused() and again(root) == {}


def test_an_upgrade_names_what_has_run_and_what_follows_it(root: Path) -> None:
    (root / ".quench/code/train.key").unlink()
    have_run(root, "train", "merge", "curate")
    assert list(again(root)) == ["train", "merge"]


def test_an_upgrade_sees_other_defaults_and_an_edited_graph(root: Path) -> None:
    settings = yaml.safe_load((root / "params.lock.yaml").read_text())
    stages = {name: dict[str, Any]() for name in stages_in(settings_of("merged"))}
    del settings["merge"]["base"]
    settings["train"] |= {"r": 7, "former": 1}
    for name in ("merge", "train"):
        stages[name] = {"params": {"params.lock.yaml": {name: settings[name]}}}
    stages["merge"]["params"]["params.lock.yaml"]["derived.deciding_level"] = "Q8_0"
    (root / "dvc.lock").write_text(yaml.safe_dump({"stages": stages}))
    graph = yaml.safe_load((root / "dvc.yaml").read_text())
    graph["stages"]["convert"]["deps"].pop()
    (root / "dvc.yaml").write_text(yaml.safe_dump(graph))
    reasons = again(root, "--yes")
    assert "merge.base" in reasons["merge"] and "derived.deciding_level" in reasons["merge"]
    assert "train.r" in reasons["train"] and "train.former" in reasons["train"]
    assert "dvc.yaml" in reasons["convert"] and "curate" not in reasons
    assert "dvc.yaml" not in again(root).get("convert", "")


def test_an_older_quench_doesnt_tell_one_to_remove_newer_settings(root: Path) -> None:
    (root / ".quench/code/version").write_text("9.9\n")
    with (root / "params.yaml").open("a") as file:
        file.write("novelty: {}\n")
    done = invoke("doctor", "upgrade", "--root", root)
    assert done.exit_code == 2 and "Quench 9.9" in done.output


def test_a_key_that_cannot_be_read_is_named(root: Path) -> None:
    (root / ".quench/code/train.key").write_bytes(b"\xff")
    done = invoke("doctor", "upgrade", "--root", root)
    assert done.exit_code == 3 and "Q-WORKFLOW-024" in done.output


def test_a_checkout_is_not_upgraded(tmp_path: Path) -> None:
    done = invoke("doctor", "upgrade", "--root", tmp_path)
    assert done.exit_code == 2 and "Q-WORKFLOW-025" in done.output


def test_a_checkout_takes_its_keys_from_the_code_at_every_start(root: Path) -> None:
    whole = (root / ".quench/code/train.key").read_text()
    (root / ".quench/code/train.key").write_text("0 stages/train/stage.py\n")
    (root / ".quench/code/version").unlink()  # which makes it a project
    assert main(["code", "--root", str(root)]) == 0
    assert (root / ".quench/code/train.key").read_text() == whole


@pytest.mark.slow
def test_what_jobs_on_other_machines_left_is_taken_at_the_end(root: Path, tiny_qwen2: Path) -> None:
    """Of a project's own Snakefile, which alone has the words for it: Snakemake asks no included one."""

    def base_of(model: Path) -> "subprocess.CompletedProcess[str]":
        none = dict.fromkeys(("revision", "file", "sha256")) | {"places": []}
        change_params(root, base={"model": str(model)} | none)
        environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "QUENCH_REMOTE": "1"}
        environment |= {"PYTHONPATH": str(PROJECT)}
        command = [BIN / "snakemake", "base"]
        return ended(command, cwd=root, env=environment)

    (root / "data/raw/chats.jsonl").write_text("{}\n")
    failed = base_of(root / "nowhere")
    assert failed.returncode == 3, failed.stderr  # the stage's, where Snakemake's own is 1
    done = base_of(tiny_qwen2)
    assert done.returncode == 0, done.stderr
    assert "  base:" in (root / "dvc.lock").read_text()
    assert not list((root / ".quench/finished").iterdir())

"""Every verb runs once on a finished project by its command line: exit code, printed words, a JSON field."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from make import change_params, quench, ran
from user_project import user_project
from verbs import verb_names

from pipeline.config.sections import Gate
from pipeline.core.errors import MachineError
from pipeline.core.places import PROJECT
from pipeline.llamacpp.server import free_port
from pipeline.llamacpp.tools import Toolchain
from pipeline.serve.port import PORT_FILE

BASE, TUNED, LEVEL = (f"{{project}}/models/gguf/tiny-{name}.gguf" for name in ("base-F16", "F16", "Q4_K_M"))


class Line(NamedTuple):
    """A command line, of which the last after && is judged, and what comes of it. {project} is the finished
    one, which nothing changes; {copy} one of its own without models, {whole} with them, {out} an empty
    folder.
    """

    words: str
    says: str = ""
    code: int = 0
    field: tuple[Any, ...] = ()  # the way to a value in the JSON that is printed, and the value
    makes: str = ""


LINES = {
    "doctor setup": Line("quench doctor setup", "Q-COMMANDS-037", 2),  # of an installed Quench: test_wheel.py
    "doctor env": Line("quench doctor env", "PATH="),
    "doctor upgrade": Line("quench doctor upgrade --root {copy}", "Nothing would run again."),
    "config use": Line(
        "quench config use demo --force --root {copy}", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"
    ),
    "config show": Line("quench config show train.r --json --root {project}", field=("train.r", "value", 4)),
    "config graph": Line("quench config graph --root {copy}", "dvc.yaml"),
    "config methods": Line("quench config methods --json", field=("methods", 0, "NF4", "yes")),
    "doctor": Line(
        "quench doctor --root {project} && quench doctor --json --root {project}", field=(0, "name", "Python")
    ),
    "config plan": Line("quench config plan --json --root {project}", field=("tokens_per_forward", 160)),
    "doctor docs": Line(
        "quench doctor docs --write {project}", "Q-MANUAL-003", 2
    ),  # it builds: extras/manual
    "doctor explain": Line("quench doctor explain Q-BASE-001", "Q-BASE-001 (exit code 3)"),
    "status": Line("quench status --json --root {project}", field=("jobs", 0, "state", "fresh")),
    "watch": Line("quench watch {project} --plain", "finished · step 2"),
    "model norms": Line(
        "quench model norms {project}/models/adapter --base {project}/models/base --json",
        field=(0, "tensor", "model.layers.0.mlp.down_proj.weight"),
    ),
    "judge": Line(f"quench judge {LEVEL} {TUNED} --rows 2 --json --root {{whole}}", field=("rows", 2)),
    "data pairs": Line(
        "quench data pairs {whole}/data/raw/own.jsonl Q4_K_M -k 2 --rows 2 --root {whole}",
        "0 pairs of 2 requests",
        3,
    ),
    "model parity": Line("quench model parity --json --root {project}", field=("verdict", "pass")),
    "doctor report": Line("quench doctor report --root {project}", "### Last error"),
    "doctor clean": Line("quench doctor clean --json --root {whole}", field=("frees", "10", 0)),
    "model verify": Line(
        "quench model verify --root {project} && quench model verify --json --root {project}",
        field=("damaged_objects", []),
    ),
    "model patch": Line(f"quench model patch {BASE} {TUNED} {{out}}/patch", "proven by sha256"),
    "model apply": Line(
        f"quench model patch {BASE} {TUNED} {{out}}/patch && "
        f"quench model apply {BASE} {{out}}/patch {{out}}/same.gguf",
        "with the sha256",
    ),
    "ship": Line(
        "quench ship Q4_K_M --to {out} --root {project} && quench ship --check {out}/tiny-Q4_K_M && "
        "quench ship --check {out}/tiny-Q4_K_M --json",
        field=("verdict", "pass"),
    ),
    "data check": Line("quench data check {project}/data/raw", "40 usable"),
    "data get": Line(
        "quench data get chats.jsonl --root {copy}", "Q-GET-001", 2
    ),  # it gets: test_data_get.py
    "data demo": Line("quench data demo --kind chats --root {copy}", makes="{copy}/data/raw/pydoc.jsonl"),
    "data diff": Line(
        "quench data diff HEAD --root {project} && quench data diff HEAD --json --root {project}",
        field=("same", 40),
    ),
    "data show": Line("quench data show --row 1 --root {project}", "<|im_start|>assistant"),
    "data export": Line(
        "quench data export {out}/chats.jsonl --to sharegpt --json --root {project}",
        field=("rows", 28),
        makes="{out}/chats.jsonl",
    ),
    "data schema": Line("quench data schema", field=("$defs", "Chat", "additionalProperties", False)),
    "remote train": Line("quench remote train nowhere.invalid --root {whole}", "Q-REMOTE-", 4),
    "remote status": Line("quench remote status nowhere.invalid", "Q-REMOTE-", 4),
    "remote stop": Line("quench remote stop nowhere.invalid", "Q-REMOTE-", 4),
    "remote clean": Line("quench remote clean nowhere.invalid", "Q-REMOTE-", 4),
}
# what is run below, or in a test file of its own because it trains or needs another machine
# by the tests below that are named after them
BY_THEIR_OWN_TEST = {"new", "run", "serve", "chat"}


@pytest.fixture(scope="module")
def project(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    gate = dict.fromkeys(Gate.model_fields)  # two steps teach it nothing
    server = {"port": free_port(), "ctx_size": 512, "n_predict": 8}
    root = tmp_path_factory.mktemp("verbs") / "my project"
    return user_project(root, finished, report={"gate": gate}, serve=server)


@pytest.fixture(autouse=True)
def _free(monkeypatch: pytest.MonkeyPatch) -> None:
    # the lock of a project lasts until nobody holds its file
    monkeypatch.setattr("pipeline.workflow.prepare._held", deque(maxlen=0))


@pytest.mark.parametrize("verb", LINES)
def test_a_verb_on_a_finished_project(verb: str, project: Path, tmp_path: Path) -> None:
    line = LINES[verb]
    places = {
        "project": project,
        "copy": tmp_path / "copy",
        "whole": tmp_path / "whole",
        "out": tmp_path / "out",
    }
    places["out"].mkdir()
    if "{copy}" in line.words:
        shutil.copytree(project, places["copy"], ignore=shutil.ignore_patterns("models"))
    if "{whole}" in line.words:
        shutil.copytree(project, places["whole"], ignore=shutil.ignore_patterns("cache"))
    for command in line.words.split(" && "):
        done = quench(*(word.format(**places) for word in shlex.split(command)[1:]))
        assert not isinstance(done.exception, Exception), done.exception
    assert done.exit_code == line.code, done.output
    assert line.says in done.output
    assert not line.makes or Path(line.makes.format(**places)).stat().st_size
    if line.field:
        *way, value = line.field
        found = json.loads(done.stdout)
        for part in way:
            found = found[part]
        assert found == value
    assert ran(["git", "status", "--porcelain"], cwd=project).stdout == ""


def test_the_pipeline_is_run_through_snakemake(project: Path) -> None:
    """On the finished project: nothing is to do."""
    command = [sys.executable, "-m", "pipeline.cli", "run", "--root", project, "-n"]
    done = ran(command, env=os.environ | {"PYTHONPATH": str(PROJECT)})
    assert "othing to be done" in done.stdout + done.stderr


@pytest.fixture
def online(served: Path, tools: Toolchain, tmp_path: Path) -> Iterator[Path]:
    """A finished project of a base with an adapter beside it, that `quench serve` serves on a port that is
    not that of its settings.
    """
    root = Path(shutil.copytree(served, tmp_path / "project"))
    change_params(root, serve={"port": free_port(), "ctx_size": 512, "n_predict": 4})
    command = [sys.executable, "-m", "pipeline.cli", "serve", "--port", str(free_port()), "--root", root]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(PROJECT)}
    ) as process:
        try:
            assert process.stdout and any("127.0.0.1" in line for line in process.stdout)
            yield root
        finally:
            process.send_signal(signal.SIGINT)
            assert process.stdout and "stopped" in process.stdout.read()
    assert process.returncode == 0 and not (root / PORT_FILE).exists()


@pytest.mark.slow
def test_the_served_model_is_asked_and_its_adapter_weakened(online: Path) -> None:
    listed = quench("status", "--root", online)
    assert listed.exit_code == 0
    served, adapter = listed.stdout.splitlines()[-2:]
    assert served.startswith("tiny-adapter is served at http://127.0.0.1:")
    assert adapter == "  tiny-lora  1"
    changed = quench("serve", "--scale", "tiny-lora=0.5", "--root", online)
    assert (changed.exit_code, changed.stdout.split()[-2:]) == (0, ["tiny-lora", "0.5"])
    said = quench("chat", "--root", online, input="What is 2 plus 2?\n/quit\n")
    assert said.exit_code == 0 and "tiny-adapter" in said.stdout and "[4 tokens, " in said.stdout
    port = (online / PORT_FILE).read_text().strip()
    second = quench("serve", "--port", port, "--root", online)
    assert second.exit_code == MachineError.exit_code and "tiny-adapter of this project" in second.stderr


def test_every_verb_is_here() -> None:
    assert LINES.keys() | BY_THEIR_OWN_TEST == set(verb_names())

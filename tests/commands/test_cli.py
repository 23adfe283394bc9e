"""The command line: instant help that imports nothing heavy, an example per command, one sentence and a
stable code per mistake.
"""

import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from make import quench, ran, script
from verbs import verb_names

from pipeline.commands import doctor
from pipeline.core.errors import MachineError, ToolError
from pipeline.core.places import PROJECT
from pipeline.llamacpp.tools import TOOLS

HEAVY = ("torch", "transformers", "dvc", "matplotlib", "pydantic", "httpx")


def test_output_on_a_full_disk_is_one_sentence() -> None:
    command = [sys.executable, "-m", "pipeline.cli", "doctor", "explain", "Q-BASE-001"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == MachineError.exit_code
    assert "Q-CORE-012" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("module", ["pipeline.cli", "pipeline"])
def test_help_imports_nothing_heavy(module: str) -> None:
    code = f"""
import runpy, sys
sys.argv = ["x", "--help"]
try:
    runpy.run_module({module!r}, run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
print("HEAVY", *(name for name in {HEAVY!r} if name in sys.modules))
"""
    assert ran([sys.executable, "-c", code], cwd=PROJECT).stdout.splitlines()[-1:] == ["HEAVY"]


@pytest.mark.parametrize("root", ["nowhere", "file"])
@pytest.mark.parametrize(
    "words",
    [
        "run",
        "run sweep space.yaml",
        "status",
        "config use demo",
        "config graph",
        "config plan --recipe demo",
        "config plan --serve",
        "serve",
        "chat",
        "doctor",
        "model parity --depth quick",
        "ship F16",
        "data check x",
        "data diff HEAD",
        "data show",
        "data export x --to messages",
    ],
)
def test_a_root_that_is_no_folder_is_one_sentence(words: str, root: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shown = quench(*words.split(), "--root", tmp_path / root)
    assert shown.exit_code == 2
    assert "Q-CORE-003" in shown.stderr and str(tmp_path / root) in shown.stderr
    assert shown.stderr.count("\n") == 1
    assert not (tmp_path / "nowhere").exists()


def test_help_is_instant() -> None:
    def seconds() -> float:
        """CPU time, not wall time: another program on the machine must not fail this."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "pipeline.cli", "--help"], capture_output=True, cwd=PROJECT, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.35


@pytest.mark.parametrize("command", verb_names())
def test_help_of_every_command_shows_an_example(command: str) -> None:
    shown = quench(*command.split(), "--help")
    assert shown.exit_code == 0
    assert f"example: quench {command}" in shown.output


@pytest.mark.parametrize(
    "verb",
    [
        *("doctor", "doctor clean", "config show", "config plan", "config methods", "judge"),
        *(
            "model parity",
            "model norms",
            "model verify",
            "serve",
            "ship",
            "run",
            "remote status",
        ),
        *("data check", "data diff", "data export", "data pairs"),
    ],
)
def test_what_prints_figures_prints_json(verb: str) -> None:
    assert "--json" in quench(*verb.split(), "--help").stdout


def test_the_line_for_the_shell_puts_these_programs_on_its_path() -> None:
    line = quench("doctor", "env").stdout
    here = str(Path(sys.executable).parent)
    found = subprocess.check_output(
        ["sh", "-c", f'{line} echo "$PATH"'], env={"PATH": "/usr/bin:/bin"}, text=True
    )
    assert found.strip() == f"{here}:/usr/bin:/bin"


@pytest.mark.parametrize(
    ("words", "code", "id"),
    [
        (["serve"], 2, "Q-CONFIG-001: "),
        (["chat"], 2, "Q-CONFIG-001: "),
        (["serve", "--smoke", "-1"], 2, "--smoke"),
        (["config", "show", "training", "--params", "recipes/demo.yaml"], 2, "Q-COMMANDS-001: "),
        (
            ["config", "show", "train.lerning_rate", "--params", "recipes/demo.yaml"],
            2,
            "mean train.learning_rate?",
        ),
        (["model", "verify"], 2, "Q-COMMANDS-015: "),
        (["config", "methods", "--json", "--markdown"], 2, "Q-COMMANDS-005: "),
        (["run", "sweep", "space.yaml", "--name", "../x"], 2, "Q-SWEEP-010: "),
        (["ship", "--check", "nowhere"], 3, "Q-SHIP-010: "),
        (["ship"], 2, "--check DIR"),
        (["ship", "F16", "--check", "nowhere"], 2, "--check DIR"),
        (["ship", "F16", "--key", "pub.pem"], 2, "--key is for --check DIR"),
        (["ship", "--check", "nowhere", "--sign", "quench.key"], 2, "no --to, --sign or --params"),
        (["serve", "Q4_K_M", "--scale", "a=0"], 2, "--scale starts no server"),
        (["serve", "--scale", "a=0", "--port", "8082"], 2, "--scale starts no server"),
        (["serve", "--port", "80"], 2, "--port"),
        (["serve", "--json"], 2, "--json is for --smoke"),
        (["run", "sweep"], 2, "give one SPACE"),
        (["run", "train", "-n"], 2, "Q-CONFIG-001: "),
        (["doctor", "explian"], 2, "No such command"),
        (["bake"], 2, "No such command"),
        (["statsu"], 2, "Did you mean 'status'?"),
        (["trian"], 2, "`quench run train`"),
        (["plan"], 2, "Did you mean `quench config plan`?"),
    ],
)
def test_a_mistake_is_one_sentence_and_its_code(tmp_path: Path, words: list[str], code: int, id: str) -> None:
    unknown = words[0] in ("bake", "statsu", "trian", "plan")
    root = [] if unknown or "methods" in words else ["--root", str(tmp_path)]
    shown = quench(*words, *root)
    assert shown.exit_code == code
    assert id in " ".join(shown.stderr.split())
    assert "Traceback" not in shown.stderr
    assert not shown.stdout


def test_a_bug_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "main", lambda root, **options: 1 / 0)
    shown = quench("doctor", "--root", tmp_path)
    assert isinstance(shown.exception, ZeroDivisionError)


def test_thirteen_verbs_and_no_more() -> None:
    first = {verb.split()[0] for verb in verb_names()}
    listed = set(re.findall(r"^  ([a-z]+)  ", quench("--help").stdout, re.MULTILINE))
    assert len(first) == 13 and listed == first


def test_status_prints_where_the_report_is_and_what_is_served(tmp_path: Path) -> None:
    def status(*words: str, code: int = 0) -> list[str]:
        shown = quench("status", *words, "--root", tmp_path)
        assert shown.exit_code == code, shown.output
        return shown.output.splitlines()

    assert "Q-CORE-001" in status("--open", code=3)[0]
    page = tmp_path / "reports" / "index.html"
    page.parent.mkdir()
    page.write_text("<p>report</p>")
    assert "Q-CONFIG-001" in status(code=2)[0]
    shutil.copy(PROJECT / "params.yaml", tmp_path)
    *_, report, served = status()
    assert str(page) in report
    assert served == "nothing is served: `quench serve` does"


def test_doctor_finds_this_set_up_whole() -> None:
    checks = {check.name: check for check in doctor.doctor(root=PROJECT, lock=PROJECT / "requirements.lock")}
    assert [checks[name].verdict for name in ("Python", "packages", "torch", "llama.cpp")] == ["pass"] * 4
    assert all(check.remedy for check in checks.values() if check.verdict != "pass")


def test_doctor_names_a_wrong_package_and_a_missing_toolchain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = (PROJECT / "requirements.lock").read_text()
    other = tmp_path / "requirements.lock"
    other.write_text(lock.replace("\npeft==", "\npeft==99."))
    found = doctor.packages(other)
    assert found.verdict == "fail" and "peft" in found.sentence and "make setup" in found.remedy
    monkeypatch.setenv("LLAMA_CPP_HOME", str(tmp_path))
    with pytest.raises(ToolError) as failed:
        doctor.main(PROJECT)
    assert failed.value.id == "Q-DOCTOR-001"
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fail")]
    assert "llama.cpp" in line and str(tmp_path) in line


@pytest.mark.parametrize(
    ("variable", "home", "used"),
    [(None, None, None), (None, "mine", "mine"), ("theirs", "mine", "theirs"), ("theirs", None, "theirs")],
)
def test_doctor_checks_the_llama_cpp_that_stages_will_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, home: str | None, used: str | None
) -> None:
    """`LLAMA_CPP_HOME`, then `machine.llama_cpp`, then our own build, as `find_toolchain` takes them; a build
    that lacks a tool is no build.
    """
    if variable:
        monkeypatch.setenv("LLAMA_CPP_HOME", str(tmp_path / variable))
    else:
        monkeypatch.delenv("LLAMA_CPP_HOME", raising=False)
    text = f"machine:\n  llama_cpp: {tmp_path / home if home else 'null'}\n"
    (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
    for name in filter(None, (variable, home)):
        fake_build(tmp_path / name)
    settings, found = doctor.configuration(tmp_path)
    assert (settings.verdict, found) == ("pass", str(tmp_path / home) if home else None)
    check = doctor.llama_cpp(found)
    assert (check.verdict, str(tmp_path / used) in check.sentence if used else True) == ("pass", True)
    if used:
        (tmp_path / used / "build/bin/llama-imatrix").unlink()
        broken = doctor.llama_cpp(found)
        assert broken.verdict == "fail" and "llama-imatrix" in broken.sentence
        assert broken.remedy == ("correct LLAMA_CPP_HOME" if variable else "correct machine.llama_cpp")


def fake_build(home: Path) -> None:
    for name in TOOLS:
        script(home / "build/bin" / name, "echo version: 1 '(abcdef0)'")
    (home / "convert_hf_to_gguf.py").touch()


def test_doctor_says_what_is_wrong_with_params_yaml(tmp_path: Path) -> None:
    check, home = doctor.configuration(tmp_path)
    assert (check.verdict, home) == ("warn", None)
    (tmp_path / "params.yaml").write_text("base: [\n")
    check, home = doctor.configuration(tmp_path)
    assert (check.verdict, home) == ("fail", None) and "line 2" in check.sentence


def test_doctor_wants_a_repository(tmp_path: Path) -> None:
    check = doctor.git(tmp_path)
    assert check.verdict != "pass" and "git init" in check.remedy

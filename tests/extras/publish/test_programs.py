"""`quench ship LEVEL --to ollama` and `--to lmstudio`: with a small program called ollama that notes how it
was called (the real one is not measured here), and LM Studio's folders.
"""

import json
from pathlib import Path

import adapter_inputs
import pytest
import shipping
from make import quench, script

from pipeline.commands import ship as command
from pipeline.commands.project import Project
from pipeline.commands.ship import Destination
from pipeline.core.errors import ConfigError, ToolError
from pipeline.core.hashing import file_hash

Q4 = "demo-Q4_K_M.gguf"
OLLAMA = """\
printf '%s ' "$@" >> "{notes}"
printf 'in %s%s\\n' "$PWD" "$HF_TOKEN" >> "{notes}"
case "$1" in
create) test -f Modelfile || exit 1;;
show) printf 'FROM /blobs/sha256-{sha256}\\nTEMPLATE x\\n';;
esac
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return shipping.write_project(tmp_path / "project")


def install_ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """Put a shell script called ollama at the front of PATH. Return the file of its notes."""
    notes = tmp_path / "notes"
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin/ollama", text.replace("{notes}", str(notes)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return notes


def ship(root: Path, program: str) -> int:
    destination = Destination(program=program)
    return command.main(Project(shipping.params(), root), "Q4_K_M", None, None, destination)


def test_ollama_is_given_the_modelfile_of_the_bundle_and_the_bytes_are_proven(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "which it does not get")
    sha256 = file_hash(project / "models/gguf" / Q4)
    notes = install_ollama(tmp_path, monkeypatch, OLLAMA.replace("{sha256}", sha256))
    assert ship(project, "ollama") == 0
    folder = project / "models/bundle/demo-Q4_K_M"
    assert notes.read_text().splitlines() == [
        f"create demo:q4_k_m -f Modelfile in {folder}",
        f"show --modelfile demo:q4_k_m in {folder}",
    ]
    said = capsys.readouterr().out
    assert "ollama run demo:q4_k_m" in said and "proven:" in said


def test_an_ollama_that_rewrites_the_file_is_said_to_prove_nothing(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install_ollama(tmp_path, monkeypatch, OLLAMA.replace("{sha256}", "0" * 64))
    assert ship(project, "ollama") == 0
    said = capsys.readouterr().out
    assert "not proven" in said and "proven:" not in said


def test_an_ollama_that_fails_is_quoted(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_ollama(tmp_path, monkeypatch, "echo 'could not connect to ollama app' >&2\nexit 1\n")
    with pytest.raises(ToolError, match=r"Q-SHIP-020: .*could not connect.*ollama serve"):
        ship(project, "ollama")


def test_a_missing_program_is_noticed_before_anything_is_made(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for program in ("ollama", "lmstudio"):
        with pytest.raises(ToolError, match="Q-SHIP-019: "):
            ship(project, program)
    assert not (project / "models/bundle").exists()


def test_lm_studio_finds_the_file_in_its_folder(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home/.lmstudio").mkdir()
    assert ship(project, "lmstudio") == 0
    placed = tmp_path / "home/.lmstudio/models/quench/demo" / Q4
    assert file_hash(placed) == file_hash(project / "models/gguf" / Q4)
    assert placed.samefile(project / "models/bundle/demo-Q4_K_M" / Q4)
    assert not placed.samefile(project / "models/gguf" / Q4)
    assert f"{placed} (a hard link" in capsys.readouterr().out
    assert ship(project, "lmstudio") == 0  # again
    assert [file.name for file in placed.parent.iterdir()] == [Q4]


def test_on_another_disk_lm_studio_gets_a_copy(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    (tmp_path / "home/.lmstudio").mkdir()
    monkeypatch.setattr("os.link", refuse)
    assert ship(project, "lmstudio") == 0
    placed = tmp_path / "home/.lmstudio/models/quench/demo" / Q4
    assert file_hash(placed) == file_hash(project / "models/gguf" / Q4)
    assert f"{placed} (a copy" in capsys.readouterr().out


@pytest.mark.parametrize("settings", ["{", "[]", '{"downloadsFolder": 3}', '{"downloadsFolder": "here"}'])
def test_settings_of_lm_studio_that_say_nothing_are_passed_over(
    project: Path, tmp_path: Path, settings: str
) -> None:
    (tmp_path / "home/.lmstudio").mkdir()
    (tmp_path / "home/.lmstudio/settings.json").write_text(settings)
    assert ship(project, "lmstudio") == 0
    assert (tmp_path / "home/.lmstudio/models/quench/demo" / Q4).is_file()


def test_lm_studio_may_have_its_models_elsewhere(project: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "home/.lmstudio-home-pointer").write_text(f"{tmp_path}/elsewhere\n")
    settings = {"downloadsFolder": str(tmp_path / "big disk")}
    (tmp_path / "elsewhere/settings.json").write_text(json.dumps(settings))
    assert ship(project, "lmstudio") == 0
    assert (tmp_path / "big disk/quench/demo" / Q4).is_file()


def test_an_adapter_goes_to_ollama_and_not_to_lm_studio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = adapter_inputs.write_project(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".lmstudio").mkdir()
    project = Project(adapter_inputs.params(), root)
    with pytest.raises(ConfigError, match="Q-SHIP-021: "):
        command.main(project, "adapter", None, None, Destination(program="lmstudio"))
    notes = install_ollama(tmp_path, monkeypatch, OLLAMA)
    assert command.main(project, "adapter", None, None, Destination(program="ollama")) == 0
    assert ":adapter -f Modelfile" in notes.read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["Q4_K_M", "--public"],
        ["--check", "x", "--push", "owner/name"],
        ["--check", "x", "--to", "ollama"],
    ],
)
def test_options_that_mean_nothing_together_are_refused(words: list[str]) -> None:
    assert quench("ship", *words).exit_code == 2

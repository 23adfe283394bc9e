"""The command that installs what an extra needs, for every kind of installation."""

import re
import sys
from pathlib import Path

import pytest

from pipeline.commands.doctor import extras
from pipeline.core.extra_packages import install_command
from pipeline.core.places import PROJECT


@pytest.mark.parametrize(
    ("prefix", "beginning"),
    [
        ("/home/me/.local/share/pipx/venvs/quench", "pipx inject quench "),
        ("/home/me/.local/share/uv/tools/quench", "uv pip install --python "),
        ("/elsewhere", f"{sys.executable} -m pip install "),
    ],
)
def test_the_command_is_that_of_the_installation(
    monkeypatch: pytest.MonkeyPatch, prefix: str, beginning: str
) -> None:
    monkeypatch.setattr(sys, "prefix", prefix)
    command = install_command("watch", packages=["aim"])
    assert command.startswith(beginning)
    assert re.search(r" textual==\S+ aim$", command)


def test_doctor_says_what_optional_parts_need_before_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.commands.doctor.find_spec", lambda name: None)
    check = extras()
    assert "`quench watch`" in check.sentence and "`quench doctor docs`" in check.sentence
    assert "textual==" in check.remedy and "zensical" in check.remedy


def test_no_message_installs_the_project_that_has_our_name_on_the_registry() -> None:
    said = re.compile(r"install `?'?quench\[")
    for file in [*PROJECT.glob("pipeline/**/*.py"), *PROJECT.glob("pipeline/**/*.yaml"), *_pages()]:
        assert not said.search(file.read_text(encoding="utf-8")), file


def _pages() -> list[Path]:
    return [PROJECT / "README.md", *PROJECT.glob("docs/*.md")]

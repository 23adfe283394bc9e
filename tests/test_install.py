"""What uv is told of pip's configuration, and the lock files themselves."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from pipeline.install import lines_of, uv_environment
from pipeline.llamacpp.tools import PROJECT

STRATEGY = {"UV_INDEX_STRATEGY": "unsafe-best-match"}


@pytest.mark.parametrize(
    ("config", "environment", "told"),
    [
        ("", {}, STRATEGY),
        ("global.index-url='https://mirror/simple'", {}, STRATEGY | {"UV_DEFAULT_INDEX": "https://mirror/simple"}),
        ("global.index-url='https://a'\ninstall.index-url='https://b'", {}, STRATEGY | {"UV_DEFAULT_INDEX": "https://b"}),
        (":env:.index-url='https://c'\nglobal.index-url='https://a'", {}, STRATEGY | {"UV_DEFAULT_INDEX": "https://c"}),
        ("global.index-url='https://a'", {"UV_DEFAULT_INDEX": "https://mine"}, STRATEGY),
        ("global.extra-index-url='https://a https://b'", {}, STRATEGY | {"UV_INDEX": "https://a https://b"}),
        ("global.extra-index-url='\\nhttps://a\\nhttps://b'", {}, STRATEGY | {"UV_INDEX": "https://a https://b"}),
        ("global.find-links='/a /b'", {}, STRATEGY | {"UV_FIND_LINKS": "/a,/b"}),
        ("global.cert='/ca.pem'\n:env:.proxy='http://p:1'", {}, STRATEGY | {"SSL_CERT_FILE": "/ca.pem", "ALL_PROXY": "http://p:1"}),
        ("global.quiet='1'\nfreeze.timeout='10'", {}, STRATEGY),
    ],
)
def test_uv_is_told_what_pip_knows(config: str, environment: dict[str, str], told: dict[str, str]) -> None:
    assert uv_environment(config, environment) == told


def test_lines_of_one_package() -> None:
    lock = "uvloop==1 \\\n    --hash=sha256:00\nuv==0.13.8 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\nvine==5 \\\n    --hash=sha256:cc\n"
    assert lines_of("uv", lock) == "uv==0.13.8 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
    assert lines_of("pip", lock) == ""


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-demo.lock"])
def test_locks_are_pinned_by_hash_and_name_no_index(name: str) -> None:
    text = (PROJECT / name).read_text(encoding="utf-8")
    requirements = [line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line and not line.startswith("#")]
    assert requirements
    assert all(re.match(r"[A-Za-z0-9._-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line) for line in requirements)
    assert "://" not in text and "index-url" not in text


def test_torch_stands_apart_from_the_lock() -> None:
    lock = (PROJECT / "requirements.lock").read_text(encoding="utf-8")
    assert not re.search(r"^(torch|nvidia-|cuda-)\S*==", lock, re.MULTILINE)
    pinned = re.search(r'"torch==([^"]+)"', (PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    assert pinned and f"torch=={pinned[1]}+cpu" in (PROJECT / "Makefile").read_text(encoding="utf-8")


def test_what_set_up_installs_is_compiled() -> None:
    """Where Python may not write bytecode (`PYTHONDONTWRITEBYTECODE`, as in containers), nobody else would, and every start would compile anew."""
    for package in ("requests", "snakemake", "dvc", "transformers"):
        (folder,) = importlib.util.find_spec(package).submodule_search_locations  # type: ignore[union-attr]
        assert list(Path(folder).glob(f"__pycache__/__init__.{sys.implementation.cache_tag}.pyc")), package

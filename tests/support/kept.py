"""Folders that take minutes to make, made once for all test processes and kept between runs, in pytest's
cache.

Each is kept under a key over all that it is made by: what its stages and the conversion to GGUF reach of the
project's code (`Package`; a comment changes nothing, nor do report, ship, serve and the commands), what the
stages read beside it, its own maker and those in tests/, the packages, llama.cpp. A folder that a test has
changed is made again.
"""

import fcntl
import functools
import hashlib
import inspect
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from pipeline.core.places import PROJECT
from pipeline.llamacpp.stamp import stamp
from pipeline.workflow.keys.imports import Package, read_source
from pipeline.workflow.stages import code_of_stages

READ = ("recipes/demo.yaml", "graphs/stages.yaml", "requirements.lock")
MAKERS = ("kept.py", "qwen2_variants.py", "tiny.py")
CONVERSION = ("pipeline.llamacpp.converters", "pipeline.gguf.header")
STORE = "QUENCH_TESTS_KEPT"  # set by conftest.py, for the processes of xdist too
_held: list[TextIO] = []  # locks for as long as this process lives


def kept(
    name: str,
    make: Callable[[Path], object],
    stages: Iterable[str] = (),
    *,
    store: Path | None = None,
    key: str | None = None,
) -> Path:
    """The folder `name`, made by `make`, which runs `stages`, unless it is there as it was made; other
    processes wait for it. Read only.
    """
    home = _entered((store or _store()) / name, key or made_by(tuple(stages), _text(make)))
    folder, record = home / name, home / f"{name}.json"
    with (home / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not record.exists() or json.loads(record.read_text()) != contents(folder):
            record.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            aside = record.with_suffix(".aside")
            aside.write_text(json.dumps(contents(folder)))
            aside.rename(record)
    return folder


def _store() -> Path:
    return Path(os.environ[STORE])


def contents(folder: Path) -> dict[str, Any]:
    """Size and date of every file below `folder`."""
    found = (
        (path, path.lstat()) for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()
    )
    return {str(path.relative_to(folder)): [state.st_size, state.st_mtime_ns] for path, state in found}


@functools.cache
def made_by(stages: tuple[str, ...], maker: str) -> str:
    """The key of everything that a folder is made by. Who trains by another method than "train.sft" names it
    among the stages, as `code_of_stages` does.
    """
    digest = hashlib.sha256(json.dumps([_everywhere(), stages, maker]).encode())
    names = {stage.partition("@")[0] for stage in stages}
    if "train" in names and not any(name.startswith("train.") for name in names):
        names.add("train.sft")
    modules = {module for name in names for module in code_of_stages()[name]}
    digest.update(
        _package().key(*sorted({*CONVERSION, *modules, *(["pipeline.__main__"] if names else [])})).encode()
    )
    return digest.hexdigest()[:16]


def _text(make: Callable[[Path], object]) -> str:
    """A maker, and what it is given: the folders among that have their keys in their paths."""
    given = inspect.getclosurevars(make).nonlocals
    said = (
        f"{name} {value}" for name, value in sorted(given.items()) if isinstance(value, (str, dict, Path))
    )
    return "\n".join([inspect.getsource(make), *said])


@functools.cache
def _everywhere() -> str:
    """Return, as JSON, what every folder depends on: the store, versions, and the sources that make it."""
    state = [str(_store()), stamp(), platform.python_version(), version("torch")]
    for path in (*(PROJECT / "tests/support" / name for name in MAKERS), *(PROJECT / name for name in READ)):
        source = read_source(path.read_bytes(), is_python=path.suffix == ".py")
        state.append(f"{path.name} {source.digest}")
    return json.dumps(state, sort_keys=True)


@functools.cache
def _package() -> Package:
    return Package()


@functools.cache
def _entered(store: Path, key: str) -> Path:
    """The folder of a key, held until this process ends; other keys' folders that none holds are deleted."""
    store.mkdir(parents=True, exist_ok=True)
    with (store / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (store / key).mkdir(exist_ok=True)
        _held.append((store / key / "held").open("w"))
        fcntl.flock(_held[-1], fcntl.LOCK_SH)
        for other in _unheld(store):
            shutil.rmtree(other, ignore_errors=True)
    return store / key


def _unheld(store: Path) -> Iterator[Path]:
    for other in [path for path in store.iterdir() if path.is_dir()]:
        with (other / "held").open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            yield other

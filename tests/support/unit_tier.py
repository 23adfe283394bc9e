"""`pytest --unit` (`make unit`): every test that needs no PyTorch, Transformers, DVC or Snakemake and no
process of its own. Nobody lists them.

A test, or a file of tests, is skipped at the moment when it imports one of them or starts a process; what
is not skipped has run without.
"""

import importlib.machinery
import importlib.util
import multiprocessing.process
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

import pytest

EVENTS = {
    "subprocess.Popen",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.system",
    "os.exec",
}  # of `sys.addaudithook`
SLOW_TO_IMPORT = ("torch", "transformers", "dvc", "snakemake")


def _leave(why: str) -> NoReturn:
    raise pytest.skip.Exception(f"not a unit test: {why}", allow_module_level=True)


class _Refused:
    """The loader of a module that no unit test has."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        _leave(f"it imports {module.__name__}")


class _Finder:
    """Finds the module, for who only asks whether it is installed, with a loader that refuses."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name in SLOW_TO_IMPORT else None
        if spec:
            spec.loader = _Refused()  # type: ignore[assignment]
        return spec


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event in EVENTS:
        _leave(f"it starts a process ({event})")


def begin() -> None:
    """From now on this process imports neither and starts no other."""
    assert not any(name in sys.modules for name in SLOW_TO_IMPORT)
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
    sys.addaudithook(_hear)
    multiprocessing.process.BaseProcess.start = lambda self: _leave("it starts a process (multiprocessing)")  # type: ignore[method-assign]

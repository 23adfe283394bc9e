"""Functions that the user wrote, loaded from a file of the project."""

import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError


def load_function(file: Path, name: str, purpose: str) -> Callable[..., Any]:
    """Return the function `name` of the Python file. `purpose` is its use for errors ("score answers").

    It runs with the rights of whoever runs Quench, not in a sandbox. Raises `ConfigError` if it is missing or
    can't be loaded.
    """
    if not file.is_file():
        raise ConfigError(
            "Q-CORE-013",
            f"{file} is missing, and its function {name} is to {purpose}: {_where(file)}",
        )
    spec = spec_from_file_location(f"quench_user_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError("Q-CORE-014", f"{file} can't be loaded as Python: correct it")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # Dataclasses look their module up there.
    quiet = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # The graph watches the folder, so no __pycache__ may appear in it.
    try:
        spec.loader.exec_module(module)
    # A script's sys.exit() would end the stage as if it had succeeded.
    except (Exception, SystemExit) as error:
        raise ConfigError(
            "Q-CORE-014", f"{file} can't be loaded ({type(error).__name__}: {error}): correct it"
        ) from error
    finally:
        sys.dont_write_bytecode = quiet
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(
            "Q-CORE-015", f"{file} has no function {name}, which is to {purpose}: correct the name"
        )
    return function  # type: ignore[no-any-return]


def _where(file: Path) -> str:
    """Return where to get a file that is missing: a clone has what Git or DVC tracks."""
    tracked = file.with_name(f"{file.name}.dvc")
    if tracked.is_file():
        return f"`dvc pull {tracked}` fetches it"
    return (
        f"in a clone, run `git add -f {file}` and commit it where the project was made; else write it, or "
        "take it out of the settings"
    )

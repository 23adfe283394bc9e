"""A scorer of the user's own: `python:FILE.py:FUNCTION` below data/evaluation.

    def close_enough(reference: str, answer: str, row: dict) -> float:  # 0 to 1, or a bool
        return float(answer.strip().lower() == reference.strip().lower())

It is the user's code, so it runs here and not in the sandbox. `row` is a copy of the answer's row: id,
domain, prompt, stopped, refused …
"""

import sys
from collections.abc import Callable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from pipeline.config.scorers import NAME
from pipeline.core.errors import ConfigError, DataError
from pipeline.metrics.score import Measure, Score


def function(name: str, folder: Path, shown: Path | None = None) -> Measure:
    """The measure that calls FUNCTION of `folder`/FILE.py; `name` is FILE.py:FUNCTION. If the file
    is a copy there, errors name the folder `shown`.

    Raises `ConfigError` if it is missing. The measure raises `DataError` if the function fails or gives no
    points.
    """
    match = NAME.fullmatch(name)
    if not match:
        raise ConfigError(
            "Q-METRICS-008",
            f"python:{name} names no function: write python:FILE.py:FUNCTION, the file below data/evaluation",
        )
    score = _load(folder / match["file"], match["function"])

    def measure(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
        where = f"python:{name}, row {row.get('id')}"
        try:
            points = score(reference, answer, dict(row))
            points = points.item() if hasattr(points, "item") else points  # a number of numpy's or torch's
        # whatever it is, it is the user's, and the row is what he needs to find it
        except (Exception, SystemExit) as error:
            raise DataError(
                "Q-METRICS-009",
                f"{where}: it raised {type(error).__name__}: {error}: correct the function in "
                f"{(shown or folder) / match['file']}",
            ) from error
        if not isinstance(points, bool | int | float) or not 0 <= points <= 1:
            raise DataError(
                "Q-METRICS-009",
                f"{where}: it gave {points!r}: a number from 0 to 1 is wanted, or True or False",
            )
        return Score(float(points), bool(answer.strip()))

    return measure


def _load(file: Path, name: str) -> Callable[[str, str, dict[str, Any]], Any]:
    if not file.is_file():
        raise ConfigError(
            "Q-METRICS-010",
            f"{file} is missing, and its function {name} is to score answers: write it, or leave the "
            "scorer out",
        )
    spec = spec_from_file_location(f"quench_scorer_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError("Q-METRICS-011", f"{file} can't be loaded as Python: correct it")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    quiet, sys.dont_write_bytecode = (
        sys.dont_write_bytecode,
        True,
    )  # the graph watches the folder: no __pycache__ in it
    try:
        spec.loader.exec_module(module)
    # a script's sys.exit() would end the evaluation as if it had gone well
    except (Exception, SystemExit) as error:
        raise ConfigError(
            "Q-METRICS-011", f"{file} can't be loaded ({type(error).__name__}: {error}): correct it"
        ) from error
    finally:
        sys.dont_write_bytecode = quiet
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(
            "Q-METRICS-012", f"{file} has no function {name}, which is to score answers: correct the name"
        )
    return function  # type: ignore[no-any-return]

"""A scorer of the user's own: `python:FILE.py:FUNCTION` below data/evaluation.

    def close_enough(reference: str, answer: str, row: dict) -> float:  # 0 to 1, or a bool
        return float(answer.strip().lower() == reference.strip().lower())

It is the user's code, so it runs here and not in the sandbox. `row` is a copy of the answer's row: id,
domain, prompt, stopped, refused …
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.scorers import NAME
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.user_code import load_function
from pipeline.metrics.score import Measure, Score


def function(name: str, folder: Path, shown: Path | None = None) -> Measure:
    """Return the measure that calls FUNCTION of `folder`/FILE.py; `name` is FILE.py:FUNCTION. If the file is
    a copy there, errors name the folder `shown`.

    Raises `ConfigError` if it is missing. The measure raises `DataError` if the function fails or returns no
    points.
    """
    match = NAME.fullmatch(name)
    if not match:
        raise ConfigError(
            "Q-METRICS-008",
            f"python:{name} names no function: write python:FILE.py:FUNCTION, the file below data/evaluation",
        )
    score = load_function(folder / match["file"], match["function"], "score answers")

    def measure(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
        where = f"python:{name}, row {row.get('id')}"
        try:
            points = score(reference, answer, dict(row))
            points = points.item() if hasattr(points, "item") else points  # a number of numpy or torch
        # Any error is the user's own, and the row helps to find it.
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

"""The trackers that `train.report_to` can name: a row each with what has to be installed for it.

`pipeline.extras.trackers` sends a run to them, except to TensorBoard, which the training writes itself.
"""

import difflib
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import NamedTuple

from pipeline.core.errors import ToolError
from pipeline.core.extra_packages import install_command
from pipeline.core.text import quoted

TENSORBOARD = "tensorboard"


class Needed(NamedTuple):
    """Module that a tracker imports, and the extra or the package that has it."""

    module: str
    extra: str = ""
    package: str = ""


TRACKERS: Mapping[str, Needed] = {
    TENSORBOARD: Needed("tensorboard", package="tensorboard"),
    "wandb": Needed("wandb", "wandb"),
    "mlflow": Needed("mlflow", "mlflow"),
    "trackio": Needed("trackio", "trackio"),
    "comet_ml": Needed("comet_ml", "comet"),
    "clearml": Needed("clearml", "clearml"),
    "dvclive": Needed("dvclive", "dvclive"),
    # They ask for other versions of what Quench needs, so they have no extra.
    "swanlab": Needed("swanlab", package="swanlab"),
    "aim": Needed("aim", package="aim"),
}


def known_tracker(name: str) -> str:
    """Return the name. Raise `ValueError` with the nearest one if there is no such tracker."""
    if name in TRACKERS:
        return name
    near = difflib.get_close_matches(name.lower(), TRACKERS, n=1, cutoff=0.5)
    meant = f"did you mean {near[0]}? " if near else ""
    raise ValueError(f"{quoted(name)} is not a tracker: {meant}It can be {', '.join(TRACKERS)}")


def missing_trackers(names: Iterable[str]) -> str:
    """Return a sentence on the named trackers that are not installed, with the remedy; "" if all are."""
    missing = [name for name in names if not _is_installed(TRACKERS[name].module)]
    if not missing:
        return ""
    needed = [TRACKERS[name] for name in missing]
    command = install_command(
        *[row.extra for row in needed if row.extra], packages=[row.package for row in needed if row.package]
    )
    are = "is" if len(missing) == 1 else "are"
    return (
        f"train.report_to names {', '.join(missing)}, which {are} not installed: `{command}`, or "
        "take it out of train.report_to"
    )


def _is_installed(module: str) -> bool:
    """Return True for an installed package. A mere folder of its name, as W&B leaves, has no origin."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


def need_trackers(names: Iterable[str]) -> None:
    """Raise `ToolError` if one of the named trackers is not installed."""
    sentence = missing_trackers(names)
    if sentence:
        raise ToolError("Q-TRACKERS-001", sentence)

"""The errors that a user can meet: one class per kind with its stable exit code, one id per problem.

An error is raised with its id and one sentence (value, reason, remedy): `raise DataError("Q-TRAIN-004",
f"...")`. The ids are in `pipeline/core/catalog/`, one file per area. `quench doctor explain ID` and
the manual's page are generated from it. Any other exception is a bug and keeps its traceback.
"""

import signal
from pathlib import Path

# Only an installed package has this folder (`pipeline.core.places`).
IS_CHECKOUT = not (Path(__file__).resolve().parents[1] / "resources").is_dir()


def of_this_installation(text: str) -> str:
    """Return `text` with the set-up command of a checkout replaced by that of this installation."""
    return text if IS_CHECKOUT else text.replace("`make setup`", "`quench doctor setup`")


class QuenchError(Exception):
    """A mistake or condition the user can act on: `id` in the catalog, `sentence` with this case's values."""

    exit_code = 1

    def __init__(self, id: str, sentence: str) -> None:
        sentence = of_this_installation(sentence)
        super().__init__(id, sentence)  # both, so that an error can be pickled between processes
        self.id = id
        self.sentence = sentence

    def __str__(self) -> str:
        return f"{self.id}: {self.sentence}"


class ConfigError(QuenchError):
    """`params.yaml`, a recipe or the command line contains an invalid value."""

    exit_code = 2


class DataError(QuenchError):
    """The data, the model's files or an artifact are not what they should be."""

    exit_code = 3


class ToolError(QuenchError):
    """A tool, a library or a piece of hardware is missing, or a tool failed."""

    exit_code = 4


class GateError(QuenchError):
    """A gate (parity, quality, training) was measured and failed."""

    exit_code = 5


class MachineError(QuenchError):
    """The machine can't do it now: disk, memory, or a lock that another process holds."""

    exit_code = 6


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGINT stopped the work. The exit code is the shell's: 128 + the signal's number.

    It is not an `Exception`, like Python's own KeyboardInterrupt, because some libraries (a model's loader,
    for one) swallow those.
    """

    def __init__(self, number: int, text: str = "the same command resumes it") -> None:
        self.exit_code = 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}: {text}")

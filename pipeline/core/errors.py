"""What can go wrong for a user: one class per kind, each with its stable exit code.

A message is one sentence with the value, the reason and the remedy. Anything else that is raised is a bug and
keeps its traceback.
"""

import signal


class QuenchError(Exception):
    """A mistake or a condition that the user can act on."""

    exit_code = 1


class ConfigError(QuenchError):
    """`params.yaml`, a recipe or the command line says something that can't be."""

    exit_code = 2


class DataError(QuenchError):
    """The data, the model's files or an artifact are not what they should be."""

    exit_code = 3


class ToolError(QuenchError):
    """A tool, a library or a piece of hardware is missing, or a tool failed."""

    exit_code = 4


class GateError(QuenchError):
    """A gate (parity, quality, health) was measured and failed."""

    exit_code = 5


class MachineError(QuenchError):
    """The machine can't do it now: disk, memory, or a lock that someone else holds."""

    exit_code = 6


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGINT ended the work; the exit code is the shell's, 128 + the signal's number.

    Like Python's own, no `Exception`: libraries swallow those, a model's loader for one.
    """

    def __init__(self, number: int, text: str = "the same command goes on from here") -> None:
        self.exit_code = 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}: {text}")

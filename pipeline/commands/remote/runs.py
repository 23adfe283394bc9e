"""The trainings on a host: show, stop and remove them."""

import re

from pipeline.commands.remote.answers import Runs, State
from pipeline.commands.remote.line import FOLDER, Line
from pipeline.core.errors import ConfigError
from pipeline.core.text import quoted, safe
from pipeline.core.units import size_text

RUN = re.compile(r"[0-9a-f]{16}")


def status(line: Line) -> None:
    """Print every run there with its state, and how much disk all take."""
    found: Runs = line.ask("runs")
    for run, state in found.runs.items():
        code = "" if state.code is None else f" ({state.code})"
        print(f"{run}  {state.state}{code}  {safe(state.line, 120)}")
    if not found.runs:
        print(f"no training is on {line.name}")
    print(f"{line.name}:{FOLDER} takes {size_text(found.bytes)}")


def stop(line: Line, run: str | None) -> None:
    """End `run`, or the only one that runs, and wait for its checkpoint."""
    chosen = run and _checked(run)
    if chosen is None:
        at_work = [name for name, found in line.ask("runs").runs.items() if found.state == "running"]
        if len(at_work) != 1:
            named = f"name one of {', '.join(at_work)}" if at_work else "there is nothing to stop"
            raise ConfigError(
                "Q-REMOTE-013",
                f"{len(at_work) or 'no'} trainings run on {line.name}: {safe(named, 200)}",
            )
        chosen = at_work[0]
    state: State = line.ask("stop", run=chosen)
    print(f"{chosen} is {state.state}: `quench remote train {line.name}` goes on with it")


def clean(line: Line, run: str | None) -> None:
    """Remove `run`, or all that don't run."""
    for left in line.ask("clean", run=run and _checked(run), keep=False).running:
        print(f"{left} runs on {line.name}, so it stays: `quench remote stop {line.name} {left}` ends it")


def _checked(run: str) -> str:
    if not RUN.fullmatch(run):
        raise ConfigError("Q-REMOTE-013", f"{quoted(run)} is no run: `quench remote status HOST` lists them")
    return run

"""The command line of `quench remote …`."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.commands.topics.options import Json, Root, topic
from pipeline.core.errors import ConfigError
from pipeline.core.text import quoted, safe
from pipeline.core.units import size_text

group = topic("Train on another machine that you reach by SSH: start or attach, status, stop, clean.")


def _is_run(run: str | None) -> str | None:
    if run and not re.fullmatch(r"[0-9a-f]{16}", run):
        raise ConfigError("Q-REMOTE-013", f"{quoted(run)} is not a run: see `quench remote status HOST`")
    return run


Host = Annotated[str, typer.Argument(metavar="HOST", help="A name of ~/.ssh/config, or USER@NAME.")]
Run = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        callback=_is_run,
        help="One of those that status lists; default: the only one.",
    ),
]
Python = Annotated[
    str, typer.Option("--python", metavar="PATH", help="The Python there that has the packages.")
]
Config = Annotated[
    Path | None, typer.Option("--ssh-config", "-F", metavar="FILE", help="Instead of ~/.ssh/config.")
]


def _connection(host: str, python: str, config: Path | None) -> Any:
    from pipeline.extras.remote.ssh import SshConnection

    return SshConnection(host, python, config)


@group.command(epilog="example: quench remote train my-card --python venv/bin/python")
def train(
    host: Host,
    python: Python = "python3",
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave what was sent there, for the next training.")
    ] = False,
    no_resume: Annotated[
        bool, typer.Option("--no-resume", help="Start again from nothing; checkpoints are deleted.")
    ] = False,
    ssh_config: Config = None,
    root: Root = Path(),
) -> None:
    """Run stage train there with this project's inputs, code and settings, and bring all that it makes home;
    the same command attaches to a training that runs, and resumes one that was killed.
    """
    from pipeline.extras.remote.train import main

    main(_connection(host, python, ssh_config), root, resume=not no_resume, keep=keep)


@group.command(epilog="example: quench remote status my-card")
def status(host: Host, python: Python = "python3", ssh_config: Config = None, as_json: Json = False) -> None:
    """Show the trainings there: which run, the last line of each, the disk that they take."""
    from pipeline.extras.remote.ssh import FOLDER

    connection = _connection(host, python, ssh_config)
    answer = connection.ask("runs")
    if as_json:
        runs = {
            run: {"state": state.state, "code": state.code, "line": state.line}
            for run, state in answer.runs.items()
        }
        print(json.dumps({"host": connection.name, "bytes": answer.bytes, "runs": runs}, indent=2))
        return
    for run, state in answer.runs.items():
        code = "" if state.code is None else f" ({state.code})"
        print(f"{run}  {state.state}{code}  {safe(state.line, 120)}")
    if not answer.runs:
        print(f"no training is on {connection.name}")
    print(f"{connection.name}:{FOLDER} takes {size_text(answer.bytes)}")


@group.command(epilog="example: quench remote stop my-card")
def stop(host: Host, run: Run = None, python: Python = "python3", ssh_config: Config = None) -> None:
    """End a training there, with a checkpoint; `train` brings that home, and resumes from it."""
    connection = _connection(host, python, ssh_config)
    if run is None:
        at_work = [name for name, state in connection.ask("runs").runs.items() if state.state == "running"]
        if len(at_work) != 1:
            remedy = f"name one of {', '.join(at_work)}" if at_work else "there is nothing to stop"
            raise ConfigError(
                "Q-REMOTE-013",
                f"{len(at_work) or 'no'} trainings run on {connection.name}: {safe(remedy, 200)}",
            )
        run = at_work[0]
    state = connection.ask("stop", run=run)
    print(f"{run} is {state.state}: `quench remote train {connection.name}` resumes it")


@group.command(epilog="example: quench remote clean my-card")
def clean(host: Host, run: Run = None, python: Python = "python3", ssh_config: Config = None) -> None:
    """Remove all of ours there: data, weights, checkpoints, code; what runs stays (`stop` it first)."""
    connection = _connection(host, python, ssh_config)
    for left in connection.ask("clean", run=run, keep=False).running:
        name = connection.name
        print(f"{left} runs on {name}, so it stays: `quench remote stop {name} {left}` ends it")


app = topic()
app.add_typer(group, name="remote")

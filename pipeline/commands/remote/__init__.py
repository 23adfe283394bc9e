"""`quench remote …`: stage train on another machine, by SSH."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.commands.topics.options import Root, topic
from pipeline.core.errors import Stopped

app = topic("Train on another machine that you reach by SSH: start or attach, status, stop, clean.")

Host = Annotated[str, typer.Argument(metavar="HOST", help="A name of ~/.ssh/config, or USER@NAME.")]
Run = Annotated[
    str | None, typer.Argument(metavar="RUN", help="One of those that status lists; default: the only one.")
]
Python = Annotated[
    str, typer.Option("--python", metavar="PATH", help="The Python there that has the packages.")
]
Config = Annotated[
    Path | None, typer.Option("--ssh-config", "-F", metavar="FILE", help="Instead of ~/.ssh/config.")
]


def _line(host: str, python: str, config: Path | None) -> Any:
    from pipeline.commands.remote.line import Line

    return Line(host, python, config)


@app.command(epilog="example: quench remote train my-card --python venv/bin/python")
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
    the same command attaches to a training that runs, and goes on with one that was killed.
    """
    from pipeline.commands.remote.train import main

    try:
        main(_line(host, python, ssh_config), root, resume=not no_resume, keep=keep)
    except Stopped as stopped:
        print(f"quench: {stopped}", file=sys.stderr)
        raise typer.Exit(stopped.exit_code) from None


@app.command(epilog="example: quench remote status my-card")
def status(host: Host, python: Python = "python3", ssh_config: Config = None) -> None:
    """Show the trainings there: which run, the last line of each, the disk that they take."""
    from pipeline.commands.remote.runs import status

    status(_line(host, python, ssh_config))


@app.command(epilog="example: quench remote stop my-card")
def stop(host: Host, run: Run = None, python: Python = "python3", ssh_config: Config = None) -> None:
    """End a training there, with a checkpoint; `train` brings that home, and goes on from it."""
    from pipeline.commands.remote.runs import stop

    stop(_line(host, python, ssh_config), run)


@app.command(epilog="example: quench remote clean my-card")
def clean(host: Host, run: Run = None, python: Python = "python3", ssh_config: Config = None) -> None:
    """Remove all of ours there: data, weights, checkpoints, code; what runs stays (`stop` it first)."""
    from pipeline.commands.remote.runs import clean

    clean(_line(host, python, ssh_config), run)

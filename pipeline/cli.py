"""Run the command `quench` with its thirteen verbs. Stages are run by `quench run`, `snakemake`, `dvc repro`
or `python -m pipeline STAGE`.

The command lines are in `pipeline.commands.topics`, those of extras in `pipeline.extras`. Each imports what
it needs when it is run, so `quench --help` is instant.
"""

import sys
from typing import Any, ClassVar

import typer

from pipeline.commands import data
from pipeline.commands.topics import config, doctor, model, running, serving
from pipeline.commands.topics.options import WholeLines
from pipeline.core.errors import QuenchError, Stopped
from pipeline.core.publish import printing
from pipeline.core.text import screen
from pipeline.extras.table import load_extra, own_verbs
from pipeline.models.runtime import silence_libraries


class Sentences(WholeLines):
    """Command group that prints a `QuenchError` or `Stopped` as one sentence on stderr and exits with its
    code. Any other exception is a bug and keeps its traceback.
    """

    sections: ClassVar = {
        "A project": ("new", "run", "status", "watch", "config", "data"),
        "Its model": ("model", "judge", "serve", "chat", "ship"),
        "Machines": ("remote", "doctor"),
    }

    def main(self, *given: Any, **named: Any) -> Any:
        """Parse the command line and run it (called by Typer)."""
        with screen():
            return super().main(*given, **named)

    def invoke(self, ctx: Any) -> Any:
        """Run the command (called by Typer)."""
        silence_libraries()
        try:
            with printing():
                return super().invoke(ctx)
        except (QuenchError, Stopped) as error:
            print(f"quench: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None


app = typer.Typer(
    cls=Sentences,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # Plain help and one-line errors take half the time.
    pretty_exceptions_enable=False,
    help="From a folder of chat logs to a local model one can trust.",
    epilog="`quench run` is Snakemake with settings; `snakemake train` and `dvc repro` do the same work.",
)
for verbs in (running, serving, *map(load_extra, own_verbs())):
    app.add_typer(verbs.app)
for group in (config, data, doctor, model):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2])

if __name__ == "__main__":
    app()

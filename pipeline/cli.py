"""The command `quench`: everything beside the stages, which `snakemake`, `dvc repro` or `python -m pipeline
STAGE` run.

The command lines are in `pipeline.commands.topics`. Each imports what it needs when it is run, so `quench
--help` is instant.
"""

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from pipeline.commands import data, remote
from pipeline.commands.topics import checking, configuring, projects, serving, sharing
from pipeline.core.errors import QuenchError
from pipeline.core.publish import printing
from pipeline.core.text import screen
from pipeline.models.runtime import silence_libraries


class Sentences(TyperGroup):
    """A `QuenchError` is its id and sentence on stderr and its exit code; any other exception is a bug and
    keeps its traceback.
    """

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
        except QuenchError as error:
            print(f"quench: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None


app = typer.Typer(
    cls=Sentences,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help and one-line errors, in half the time
    pretty_exceptions_enable=False,
    help="From a folder of chat logs to a local model one can trust.",
    epilog="The pipeline itself is run by `snakemake` (all of it), `snakemake train` (up to a stage) or "
    "`dvc repro`.",
)
for topic in (projects, configuring, serving, checking, sharing):
    app.add_typer(topic.app)
app.add_typer(data.app, name="data")
app.add_typer(remote.app, name="remote")

if __name__ == "__main__":
    app()

"""Run the command `quench` with its thirteen verbs. Stages are run by `quench run`, `snakemake`, `dvc repro`
or `python -m pipeline STAGE`.

The command lines are in `pipeline.commands.topics`, those of extras in `pipeline.extras`. Each imports what
it needs when it is run, so `quench --help` is instant.
"""

import sys
from difflib import get_close_matches
from itertools import chain
from typing import Any, ClassVar

import typer

from pipeline.commands import data
from pipeline.commands.topics import candidates, config, doctor, model, running, serving
from pipeline.commands.topics.options import WholeLines
from pipeline.core.errors import QuenchError, Stopped
from pipeline.core.extras import missing, verb_modules
from pipeline.core.text import screen


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
        """Parse the command line and run it, or complete it (called by Typer)."""
        candidates.split_at_equals_signs()
        with screen():
            return super().main(*given, **named)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that `args` begin with (called by Typer)."""
        if args and args[0] not in self.commands and not ctx.resilient_parsing:
            if args[0] in chain.from_iterable(self.sections.values()):
                raise missing(f"`quench {args[0]}`")
            meant = self.longer_names(args[0])
            if meant:
                ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(meant)}?")
        return super().resolve_command(ctx, args)

    def longer_names(self, word: str) -> list[str]:
        """Return what a stage or a verb of a group is called: `quench run train`, `quench config plan`.
        There are none for a word that is closer to a verb.
        """
        if get_close_matches(word, self.commands):
            return []
        from pipeline.workflow.graph_source import graph_source

        longer = [(stage, f"quench run {stage}") for stage in graph_source()["stages"]]
        for group, command in self.commands.items():
            longer += [(verb, f"quench {group} {verb}") for verb in getattr(command, "commands", ())]
        near = get_close_matches(word, {last for last, _ in longer}, n=1)
        return [f"`{name}`" for last, name in longer if last in near]

    def invoke(self, ctx: Any) -> Any:
        """Run the command (called by Typer)."""
        from pipeline.core.publish import printing
        from pipeline.models.runtime import let_threads_give_way, silence_libraries

        silence_libraries()
        let_threads_give_way()
        try:
            with printing():
                return super().invoke(ctx)
        except (QuenchError, Stopped) as error:
            print(f"quench: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None


app = typer.Typer(
    cls=Sentences,
    no_args_is_help=True,
    rich_markup_mode=None,  # Plain help and one-line errors take half the time.
    pretty_exceptions_enable=False,
    help="From a folder of chat logs to a local model one can trust.",
    epilog="`quench run` is Snakemake with settings; `snakemake train` and `dvc repro` do the same work.",
)
for verbs in (running, serving, *verb_modules()):
    app.add_typer(verbs.app)
for group in (config, data, doctor, model):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2])

if __name__ == "__main__":
    app()

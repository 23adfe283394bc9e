"""The command line of `quench watch`, and the page of `quench status --live`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.topics.options import topic
from pipeline.core.extra_packages import install_command

app = topic()


@app.command(epilog="example: quench watch; quench watch my-card:projects/assistant --plain")
def watch(
    place: Annotated[
        str,
        typer.Argument(
            metavar="[DIR|HOST:DIR]",
            help="The project, or its folder of checkpoints; HOST is a name of ~/.ssh/config, or USER@NAME.",
        ),
    ] = ".",
    plain: Annotated[
        bool, typer.Option("--plain", help="Print lines of text, as without a terminal; for screen readers.")
    ] = False,
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", help="The Python on that machine.")
    ] = "python3",
    ssh_config: Annotated[
        Path | None, typer.Option("--ssh-config", "-F", metavar="FILE", help="Instead of ~/.ssh/config.")
    ] = None,
) -> None:
    """Watch a training that runs or ran: curves, checks, sample answers.

    By its keys, ask for a checkpoint, an evaluation or a clean stop.

    Only files of the run are read. Attach and leave as you like: the training does not notice.
    """
    from pipeline.extras.watch.plain import show
    from pipeline.extras.watch.source import source_of
    from pipeline.extras.watch.watched import Watched

    source = source_of(place, python, ssh_config)
    try:
        watched = Watched(source)
        if not plain and _is_terminal() and _has_textual():
            from pipeline.extras.watch.app import WatchApp

            watched.read_all()
            watched.need_training()
            raise typer.Exit(WatchApp(watched).run() or 0)
        show(watched)
    except KeyboardInterrupt:
        print("no longer watching: the run goes on", file=sys.stderr)
    finally:
        source.close()


def _is_terminal() -> bool:
    """Return True if a screen can be drawn and keys can be read. Textual draws on standard error."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def _has_textual() -> bool:
    """Return True if the package for the plots is installed. If not, say once what is missing."""
    from importlib.util import find_spec

    if find_spec("textual"):
        return True
    print(
        f"watch: plots need `{install_command('watch')}`; here are lines of text",
        file=sys.stderr,
    )
    return False


def live(root: Path, *, in_browser: bool) -> None:
    """Serve the report of the project with its growing curves on the loopback, until Ctrl-C."""
    from pipeline.extras.watch.live import LivePage
    from pipeline.extras.watch.source import LocalRun
    from pipeline.extras.watch.watched import Watched

    page = LivePage(Watched(LocalRun(root)))
    print(f"{page.url}  (Ctrl-C ends it; the training goes on)", flush=True)
    if in_browser:
        typer.launch(page.url)
    try:
        page.serve_forever()
    except KeyboardInterrupt:
        print("no longer serving: the run goes on", file=sys.stderr)
    finally:
        page.close()

"""Verbs of a project's life: new, run (and run sweep), status."""

import gc
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.commands.topics import candidates
from pipeline.commands.topics.options import Json, ParamsFile, Root, load, topic
from pipeline.core.extras import provider

# A setting such as train.r=8; an option begins with a dash.
SETTING = re.compile(r"[a-z][\w]*(\.\w+)+=.*", re.DOTALL)

app = topic()


@app.command(
    epilog="example: quench new my-assistant --recipe qwen2.5-7b-8gb; quench new next --from my-assistant"
)
def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make.")],
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="NAME",
            autocompletion=candidates.recipes,
            show_default="demo",
            help="Recipe to begin with; `quench config use` takes another.",
        ),
    ] = None,
    previous: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="PROJECT",
            help="Instead: the settings of this project, to go on from what it trained (docs/going-on.md).",
        ),
    ] = None,
) -> None:
    """Make a project: a folder for data, settings and results, with Git and DVC, and no code in it."""
    from pipeline.commands.new import main

    main(folder, recipe, previous)


@app.command(
    epilog="example: quench run train train.learning_rate=1e-4 -c2; quench run sweep space.yaml",
    context_settings={"ignore_unknown_options": True},
)
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STAGE | sweep SPACE | SECTION.KEY=VALUE | SNAKEMAKE'S OPTION",
            autocompletion=candidates.words_of_run,
            help="Values are YAML; SPACE names the keys to search, and how (space.yaml).",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="run sweep: the sweep's name (default: the file's)."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print events, one a line (docs/run-events.schema.json); run sweep: print JSON.",
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print plain lines, and all that Snakemake says.")
    ] = False,
    root: Root = Path(),
) -> None:
    """Run the pipeline, up to a stage if one is named, with settings (SECTION.KEY=VALUE), which are written
    into params.yaml. Everything else is given to Snakemake. With -n nothing is written: it says what would
    run, also with other settings.

    On a terminal it shows the stages as they run; else, and with NO_COLOR or CI in the environment, lines.

    `run sweep SPACE` searches the best settings of training: trials chosen by Optuna, each a job of
    Snakemake's; the best few again with other seeds. The same command resumes it, and shows the
    result.
    """
    from pipeline.config.overrides import from_words, put, settings_with
    from pipeline.workflow.project import read_settings

    settings = [word for word in words or [] if SETTING.fullmatch(word)]
    rest = [word for word in words or [] if not SETTING.fullmatch(word)]
    targets = [word for word in rest if not word.startswith("-")]
    if targets[:1] == ["sweep"]:
        if len(targets) == 1 or settings:
            raise typer.BadParameter("give one SPACE and no settings: quench run sweep space.yaml")
        sweep = provider("run sweep")
        space = Path(targets[1])
        options = [word for word in rest if word not in ("sweep", targets[1])]
        sweep.main(root, space, sweep.name_of(space, name), options, as_json=as_json)
        return
    if name:
        raise typer.BadParameter("--name is for quench run sweep SPACE")
    sections: dict[str, Any] = {}
    given = from_words(settings)
    for place, value in given.items():
        put(sections, place, value)
    from pipeline.commands import run
    from pipeline.commands.targets import in_snakemakes_words
    from pipeline.workflow.prepare import is_dry_run

    params = settings_with(given, read_settings(root), root / "params.yaml")
    if given and is_dry_run(rest):
        run.preview(root, params, rest, as_json=as_json)
        return
    rest = in_snakemakes_words(rest, params, root)
    rest += run.view_options(rest, as_json=as_json, verbose=verbose)
    if sections:  # The Snakefile's first lines write them into params.yaml.
        rest += ["--config", *(f"{section}={json.dumps(keys)}" for section, keys in sections.items())]
    raise typer.Exit(run.main(root, rest))


@app.command(epilog="example: quench status; quench status --diff train; quench status --compare HEAD .")
def status(
    in_browser: Annotated[bool, typer.Option("--open", help="Show the report in the browser.")] = False,
    diff: Annotated[
        str | None,
        typer.Option("--diff", metavar="STAGE", help="Show all that makes this stage out of date."),
    ] = None,
    history: Annotated[
        bool,
        typer.Option("--history", help="Show the runs that Git has: when, what changed, and the figures."),
    ] = False,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare",
            metavar="A B",
            help="Compare two runs row by row (commits, branches, project folders; . is what is here): "
            "settings, data, scores, answers.",
        ),
    ] = None,
    accept: Annotated[
        str | None,
        typer.Option(
            "--accept",
            metavar="STAGE",
            help="Declare that what changed in its settings or code has no effect on what it wrote: it "
            "doesn't run again, and report and card say so.",
        ),
    ] = None,
    why: Annotated[str | None, typer.Option("--why", metavar="TEXT", help="--accept: the reason.")] = None,
    no_accept: Annotated[
        str | None,
        typer.Option("--no-accept", metavar="STAGE", help="Take that back, so that the stage runs again."),
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Serve the report on 127.0.0.1, with the training's curves as they grow."
        ),
    ] = False,
    as_json: Json = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Print every stage's state and why, what a run would do, the newest figures, and what is served."""
    with _no_search_for_garbage():
        from pipeline.commands import status as command

    if sum(map(bool, (in_browser or live, diff, history, compare, accept, no_accept))) > 1:
        raise typer.BadParameter("give one of --open, --diff, --history, --compare, --accept and --no-accept")
    if as_json and (in_browser or live or accept or no_accept):
        raise typer.BadParameter("--json is for what is printed: the status, --diff, --history and --compare")
    if bool(accept) != bool(why):
        raise typer.BadParameter("--accept STAGE and --why TEXT go together")
    if params and (accept or no_accept):
        raise typer.BadParameter("a change is accepted for the project's own params.yaml: leave --params out")
    if live:
        provider("status --live").live(root, in_browser=in_browser)
        return
    if in_browser:
        command.open_page(root)
        return
    if compare:
        provider("status --compare").main(root, *compare, as_json=as_json)
        return
    if history:
        command.print_history(root, as_json=as_json)
        return
    if accept and why:
        command.accept(root, accept, why)
        return
    if no_accept:
        command.take_back(root, no_accept)
        return
    with _no_search_for_garbage():
        settings = load(params, root)
        if diff:
            command.diff(settings, root, diff, as_json=as_json)
        else:
            command.main(settings, root, as_json=as_json)


@contextmanager
def _no_search_for_garbage() -> Iterator[None]:
    """Leave garbage alone while the body runs: the search takes an eighth of a short verb's time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

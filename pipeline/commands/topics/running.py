"""Verbs of a project's life: new, run (and run sweep), status."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.commands.topics.options import ParamsFile, Root, load, topic
from pipeline.core.errors import DataError
from pipeline.extras.table import load_extra

# A setting such as train.r=8; an option begins with a dash.
SETTING = re.compile(r"[a-z][\w]*(\.\w+)+=.*", re.DOTALL)

app = topic()


@app.command(epilog="example: quench new my-assistant --recipe qwen2.5-7b-8gb")
def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make.")],
    recipe: Annotated[
        str,
        typer.Option(
            "--recipe", metavar="NAME", help="Recipe to begin with; `quench config use` takes another."
        ),
    ] = "demo",
) -> None:
    """Make a project: a folder for data, settings and results, with Git and DVC, and no code in it."""
    from pipeline.commands.new import main

    main(folder, recipe)


@app.command(
    epilog="example: quench run train train.learning_rate=1e-4 -c2; quench run sweep space.yaml",
    context_settings={"ignore_unknown_options": True},
)
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STAGE | sweep SPACE | SECTION.KEY=VALUE | SNAKEMAKE'S OPTION",
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
        sweep = load_extra("sweep")
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


@app.command(epilog="example: quench status --open")
def status(
    in_browser: Annotated[bool, typer.Option("--open", help="Show the report in the browser.")] = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Print where the report is, and what is served with which adapters."""
    from pipeline.commands.status import print_server

    page = (root / "reports" / "index.html").resolve()
    missing = f"{page} is missing: run `snakemake`, whose stage report makes it"
    if in_browser and not page.exists():
        raise DataError("Q-CORE-001", missing)
    print(page if page.exists() else missing)
    if in_browser:
        typer.launch(str(page))
    print_server(load(params, root), root)

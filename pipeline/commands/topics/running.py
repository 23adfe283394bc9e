"""Verbs of a project's life: new, run (and run sweep), status."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.commands.topics.options import Json, ParamsFile, Root, WithDefault, load, topic
from pipeline.core.errors import DataError

SETTING = re.compile(r"[a-z][\w]*(\.\w+)+=.*", re.DOTALL)  # train.r=8; an option begins with a dash

app = topic()
run = topic(
    "Run the pipeline, up to a stage if one is named, with settings (SECTION.KEY=VALUE), which are written "
    "into params.yaml. Everything else is given to Snakemake.",
    cls=WithDefault,
    no_args_is_help=False,
    subcommand_metavar="[STAGE | SECTION.KEY=VALUE | SNAKEMAKE'S OPTION]... | sweep SPACE",
    epilog="example: quench run train train.learning_rate=1e-4 -c2",
)
app.add_typer(run, name="run")


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


@run.command(hidden=True, context_settings={"ignore_unknown_options": True})
def stages(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STAGE | SECTION.KEY=VALUE | SNAKEMAKE'S OPTION] ...", help="Values are YAML."
        ),
    ] = None,
    root: Root = Path(),
) -> None:
    """Run the pipeline."""
    from pipeline.config.overrides import from_words, put

    settings = [word for word in words or [] if SETTING.fullmatch(word)]
    rest = [word for word in words or [] if not SETTING.fullmatch(word)]
    sections: dict[str, Any] = {}
    for place, value in from_words(settings).items():
        put(sections, place, value)
    if sections:  # the Snakefile's first lines write them into params.yaml
        rest += ["--config", *(f"{name}={json.dumps(keys)}" for name, keys in sections.items())]
    os.chdir(root)
    os.execv(sys.executable, [sys.executable, "-m", "snakemake", *rest])  # noqa: S606 (no shell)


@run.command(
    epilog="example: quench run sweep space.yaml -c2",
    context_settings={"ignore_unknown_options": True},
)
def sweep(
    space: Annotated[Path, typer.Argument(metavar="SPACE", help="The keys to search, and how: space.yaml.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[SNAKEMAKE'S OPTION] ...", help="Given to Snakemake.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The sweep's name (default: the file's).")
    ] = None,
    as_json: Json = False,
    root: Root = Path(),
) -> None:
    """Search the best settings of training: trials chosen by Optuna, each a job of Snakemake's; the best few
    again with other seeds. The same command goes on where it was ended, and shows the result.
    """
    from pipeline.commands.sweep.command import main, name_of
    from pipeline.core.errors import Stopped

    try:
        main(root, space, name_of(space, name), words or [], as_json=as_json)
    except Stopped as stopped:
        print(f"quench: {stopped}", file=sys.stderr)
        raise typer.Exit(stopped.exit_code) from None


@app.command(epilog="example: quench status --open")
def status(
    in_browser: Annotated[bool, typer.Option("--open", help="Show the report in the browser.")] = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Print where the report is, and what is served with which adapters."""
    from pipeline.commands.status import main

    page = main(load(params, root), root)
    if in_browser:
        if page is None:
            raise DataError("Q-CORE-001", f"{root} has no report: run `snakemake`, whose last stage makes it")
        typer.launch(str(page))

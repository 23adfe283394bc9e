"""`quench config …`: the settings of a project, the recipes they come from, and the resources they need."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.topics import candidates
from pipeline.commands.topics.options import Json, ParamsFile, Root, topic

app = topic("Show and choose the settings of params.yaml; plan what they need.")


@app.command(epilog="example: quench config show train")
def show(
    section: Annotated[
        str | None,
        typer.Argument(
            metavar="SECTION",
            autocompletion=candidates.keys,
            help="Show this section, or this key (train.r), alone.",
        ),
    ] = None,
    write: Annotated[
        bool,
        typer.Option("--write", help="Put the keys that the file leaves out into it, with their comments."),
    ] = False,
    idle: Annotated[
        bool,
        typer.Option("--idle", help="Only settings that do nothing here, and what each would need."),
    ] = False,
    as_json: Json = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Show the settings in effect and where each comes from: params.yaml, its recipe, a default."""
    from pipeline.commands.params import main

    file = params or root / "params.yaml"
    main(file, section, as_json=as_json, complete=write, only_idle=idle)


@app.command(epilog="example: quench config use qwen2.5-7b-8gb")
def use(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            autocompletion=candidates.recipes,
            help="Name of a file in recipes/, without .yaml.",
        ),
    ],
    force: Annotated[bool, typer.Option("--force", help="Overwrite a params.yaml that was edited.")] = False,
    root: Root = Path(),
) -> None:
    """Install a recipe as params.yaml, with its graph of stages, and show what changes."""
    from pipeline.commands import recipes

    recipes.use(recipe, root, force)


@app.command(epilog="example: quench config graph")
def graph(
    cache_base: Annotated[
        bool | None,
        typer.Option(
            "--cache-base/--no-cache-base",
            help="Whether DVC keeps models/base, for clones that can't fetch it; as before without.",
        ),
    ] = None,
    root: Root = Path(),
) -> None:
    """Make dvc.yaml the graph of stages that params.yaml needs, after base.quantization or train.tuner was
    changed by hand.
    """
    from pipeline.commands import recipes

    recipes.graph(root, cache_base)


@app.command(epilog="example: quench config methods")
def methods(
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="As docs/methods.md has it.")] = False,
) -> None:
    """Show the training methods: the rows they learn from, their bases and settings, and why not others."""
    from pipeline.commands.methods import main

    main(as_json=as_json, as_markdown=as_markdown)


@app.command(epilog="example: quench config plan --recipe qwen2.5-7b-8gb --vram 8")
def plan(
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="NAME",
            autocompletion=candidates.recipes,
            help="Plan this recipe instead of params.yaml.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The base's config.json, if the base is not here."),
    ] = None,
    vram: Annotated[
        float | None,
        typer.Option(
            "--vram",
            metavar="GB",
            min=0.1,
            max=1e6,
            help="Memory of the card as sold (8: 8 GiB); default: this machine's.",
        ),
    ] = None,
    tflops: Annotated[
        float | None,
        typer.Option("--tflops", metavar="N", min=0.001, max=1e9, help="TFLOP/s that training reaches."),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", min=1, max=999, help="Processes, each with such a card."),
    ] = None,
    serving: Annotated[
        bool, typer.Option("--serve", help="Plan serving, level by level, instead of training.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The plan as JSON, in bytes, tokens and seconds.")
    ] = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Plan training's memory, disk and time before downloading weights, or serving's memory; exit 6 if it
    does not fit.
    """
    from pipeline.commands.plan import Hardware, main, settings_of

    hardware = Hardware(vram, tflops, processes)
    settings = settings_of(params, root, recipe)
    main(settings, root, hardware, config=config, serve=serving, as_json=as_json)

"""Commands about the configuration and this machine: use, params, run, sweep, graph, methods, doctor,
plan, explain.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.commands.topics.options import Json, ParamsFile, Root, topic

SETTING = re.compile(r"[a-z][\w]*(\.\w+)+=.*", re.DOTALL)  # train.r=8; an option begins with a dash

app = topic()


@app.command(epilog="example: quench use qwen2.5-7b-8gb")
def use(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="Name of a file in recipes/, without .yaml.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Overwrite a params.yaml that was edited.")] = False,
    root: Root = Path(),
) -> None:
    """Install a recipe as params.yaml, with its graph of stages, and show what changes."""
    from pipeline.commands import recipes

    recipes.use(recipe, root, force)


@app.command(epilog="example: quench params train")
def params(
    section: Annotated[
        str | None,
        typer.Argument(metavar="[SECTION]", help="Show this section, or this key (train.r), alone."),
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


@app.command(
    epilog="example: quench run train train.learning_rate=1e-4 -c2",
    context_settings={"ignore_unknown_options": True},
)
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STAGE | SECTION.KEY=VALUE | SNAKEMAKE'S OPTION] ...", help="Values are YAML."
        ),
    ] = None,
    root: Root = Path(),
) -> None:
    """Run the pipeline, up to a stage if one is named, with settings (SECTION.KEY=VALUE), which are written
    into params.yaml. Everything else is given to Snakemake.
    """
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


@app.command(
    epilog="example: quench sweep space.yaml -c2",
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


@app.command(epilog="example: quench graph")
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


@app.command(epilog="example: quench methods")
def methods(
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="As docs/methods.md has it.")] = False,
) -> None:
    """Show the methods of training: the rows they learn from, the bases and settings they take, and why
    not others.
    """
    from pipeline.commands.methods import main

    main(as_json=as_json, as_markdown=as_markdown)


@app.command(epilog="example: quench doctor")
def doctor(root: Root = Path()) -> None:
    """Check compiler, packages, llama.cpp, disk, memory and GPU; exit 4 if something is missing."""
    from pipeline.commands.doctor import main

    main(root)


@app.command(epilog="example: quench plan --recipe qwen2.5-7b-8gb --vram 8")
def plan(
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", metavar="NAME", help="Plan this recipe instead of params.yaml."),
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
    from pipeline.commands.plan import main

    main(
        params,
        root,
        recipe=recipe,
        config=config,
        vram=vram,
        tflops=tflops,
        as_json=as_json,
        serve=serving,
        processes=processes,
    )


@app.command(epilog="example: quench explain Q-CONFIG-001")
def explain(
    id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="The id of an error, or of an area (TRAIN); default: list all."),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE", help="Write docs/troubleshooting.md: all errors, by area."),
    ] = None,
) -> None:
    """Explain an error: when it comes, what to do, its exit code."""
    from pipeline.commands.explain import main

    main(id, write)

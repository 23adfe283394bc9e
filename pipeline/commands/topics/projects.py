"""Commands about projects and the installation: new, setup, env, upgrade."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.topics.options import Root, topic

app = topic()


@app.command(epilog="example: quench new my-assistant --recipe qwen2.5-7b-8gb")
def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make.")],
    recipe: Annotated[
        str,
        typer.Option("--recipe", metavar="NAME", help="Recipe to begin with; `quench use` takes another."),
    ] = "demo",
) -> None:
    """Make a project: a folder for data, settings and results, with Git and DVC, and no code in it."""
    from pipeline.commands.new import main

    main(folder, recipe)


@app.command(epilog="example: quench setup --demo")
def setup(
    demo: Annotated[
        bool, typer.Option("--demo", help="Install SmolLM2 too, the base of the small demos.")
    ] = False,
    llama: Annotated[
        str | None,
        typer.Option(
            "--llama",
            metavar="BACKEND",
            help="Build llama.cpp for auto, cpu, cuda, hip or vulkan. Default: as it is built, else auto.",
        ),
    ] = None,
    torch: Annotated[
        str | None,
        typer.Option(
            "--torch",
            metavar="BUILD",
            help="Install PyTorch for auto, cpu, cu130, rocm7.2 or in pip's words. Default: leave it.",
        ),
    ] = None,
) -> None:
    """Build llama.cpp for this machine, once for all projects; does nothing the second time."""
    from pipeline.commands.setup import main

    main(demo=demo, llama=llama, torch=torch)


@app.command(epilog='example: quench env; in a shell: eval "$(quench env)"')
def env() -> None:
    """Print the line that puts this installation's snakemake, dvc and python on your shell's PATH."""
    from pipeline.commands.environment import main

    main()


@app.command(epilog="example: quench upgrade --yes")
def upgrade(
    yes: Annotated[bool, typer.Option("--yes", help="Do it, without a question.")] = False,
    root: Root = Path(),
) -> None:
    """Say what would run again in this project with the installed version, then take it over."""
    from pipeline.commands.upgrade import main

    main(root, yes=yes)

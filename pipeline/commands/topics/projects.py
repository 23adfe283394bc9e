"""Commands about projects and the installation: new, setup, env, upgrade."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.topics.options import Root, topic
from pipeline.core.errors import ConfigError
from pipeline.core.places import IS_CHECKOUT, resource

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
    from pipeline.commands.doctor import gpu, packages
    from pipeline.commands.install import install, install_torch
    from pipeline.llamacpp.build import set_up

    if IS_CHECKOUT:
        raise ConfigError(
            "Q-COMMANDS-037", "this Quench is a checkout of its repository: `make setup` sets it up"
        )
    if torch:
        install_torch(torch)
    set_up(llama)
    if demo:
        install(resource("requirements-demo.lock"))
    print("set up: llama.cpp is ready")
    if (card := gpu()).verdict == "warn":
        print(card, file=sys.stderr)
    pins = packages(resource("requirements.lock"))
    if pins.verdict == "fail":
        remedy = "install Quench again with the constraints of requirements.lock"
        print(f"{pins.sentence}: {remedy}", file=sys.stderr)


@app.command(epilog='example: quench env; in a shell: eval "$(quench env)"')
def env() -> None:
    """Print the line that puts this installation's snakemake, dvc and python on your shell's PATH."""
    print(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')


@app.command(epilog="example: quench upgrade --yes")
def upgrade(
    yes: Annotated[bool, typer.Option("--yes", help="Do it, without a question.")] = False,
    root: Root = Path(),
) -> None:
    """Say what would run again in this project with the installed version, then take it over."""
    from pipeline.commands.upgrade import main

    main(root, yes=yes)

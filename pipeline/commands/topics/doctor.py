"""`quench doctor …`: this machine and this installation."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.topics import candidates
from pipeline.commands.topics.options import Json, Root, topic
from pipeline.core.errors import ConfigError
from pipeline.core.extras import provider
from pipeline.core.places import IS_CHECKOUT, resource

app = topic(
    "Check this machine, set up, explain errors, upgrade a project; exit 4 if something is missing.\n\n"
    "Without a command: compiler, packages, llama.cpp, disk, memory and GPU are checked.",
    no_args_is_help=False,
    epilog="example: quench doctor",
)


@app.callback(invoke_without_command=True)
def doctor(context: typer.Context, as_json: Json = False, root: Root = Path()) -> None:
    """Check the machine, unless a command is given."""
    if context.invoked_subcommand is None:
        from pipeline.commands.doctor import main

        main(root, as_json=as_json)


@app.command(epilog="example: quench doctor explain Q-CONFIG-001")
def explain(
    id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            autocompletion=candidates.explained,
            help="An error's id, an area (TRAIN), or the reason of a rejected row (unknown_format); default: "
            "all errors.",
        ),
    ] = None,
) -> None:
    """Explain an error, or why a row is rejected: when it comes, what to do."""
    from pipeline.commands.explain import main

    main(id)


@app.command(epilog="example: quench doctor setup --demo")
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
    gpu_check = gpu()
    if gpu_check.verdict == "warn":
        print(gpu_check, file=sys.stderr)
    pins = packages(resource("requirements.lock"))
    if pins.verdict == "fail":
        remedy = "install Quench again with the constraints of requirements.lock"
        print(f"{pins.sentence}: {remedy}", file=sys.stderr)


@app.command(epilog='example: quench doctor env; in a shell: eval "$(quench doctor env)"')
def env() -> None:
    """Print the line that puts this installation's snakemake, dvc and python on your shell's PATH."""
    print(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')


@app.command(epilog="example: quench doctor docs --open")
def docs(
    in_browser: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="DIR", help="Instead: write the site into this new folder."),
    ] = None,
) -> None:
    """Show the manual, with every setting, command and error, on 127.0.0.1 until Ctrl-C; needs no network."""
    provider("doctor docs").main(write, in_browser=in_browser)


@app.command(epilog="example: quench doctor upgrade --yes")
def upgrade(
    yes: Annotated[bool, typer.Option("--yes", help="Do it, without a question.")] = False,
    root: Root = Path(),
) -> None:
    """Say what would run again in this project with the installed version, then take it over."""
    from pipeline.commands.upgrade import main

    main(root, yes=yes)


@app.command(epilog="example: quench doctor clean --keep 2")
def clean(
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="N",
            min=1,
            help="Delete what the last N runs don't need; default: say what that would free.",
        ),
    ] = None,
    as_json: Json = False,
    root: Root = Path(),
) -> None:
    """Free disk in DVC's cache; what the working tree, a branch, a tag or a kept run needs stays."""
    from pipeline.commands.clean import main

    main(root, keep, as_json=as_json)


@app.command(epilog="example: quench doctor report > report.md")
def report(root: Root = Path()) -> None:
    """Print a text for a bug report: versions, machine, settings, stages, the last error; without names,
    secrets, paths and rows.
    """
    from pipeline.commands.bug_report import main

    main(root)

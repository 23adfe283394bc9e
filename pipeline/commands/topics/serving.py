"""Commands about the server: serve, adapters, chat."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.topics.options import Model, ParamsFile, Root, load, topic

app = topic()


@app.command(epilog="example: quench serve Q4_K_M --smoke 8")
def serve(
    model: Model = None,
    smoke: Annotated[
        int,
        typer.Option(
            "--smoke",
            metavar="K",
            min=0,
            help="Ask K test prompts, check that answers stop by themselves, end.",
        ),
    ] = 0,
    lora: Annotated[
        bool,
        typer.Option(
            "--lora", help="Apply this project's adapter to a level of the untuned base (base-Q4_K_M)."
        ),
    ] = False,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            "--adapter",
            metavar="FILE[=SCALE]",
            help="Apply this adapter's GGUF, at half its strength with =0.5; may be given again.",
        ),
    ] = None,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Serve a model on 127.0.0.1 behind a key until Ctrl-C; a crash restarts it."""
    from pipeline.commands.serve import main

    main(load(params, root), root, model, smoke, lora=lora, adapters=adapter or [], file=params)


@app.command(epilog="example: quench adapters tone=0 facts=0.5")
def adapters(
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=SCALE]...", help="1 is what was trained, 0 is off."),
    ] = None,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Show the adapters of the running server, or give them other scales."""
    from pipeline.commands.adapters import main

    main(load(params, root), root, changes or [])


@app.command(epilog="example: quench chat")
def chat(model: Model = None, params: ParamsFile = None, root: Root = Path()) -> None:
    """Talk to the model that `quench serve` serves."""
    from pipeline.commands.chat import main

    main(load(params, root), root, model)

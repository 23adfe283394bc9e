"""Verbs of a model that is ready: serve, chat, ship."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.topics import candidates
from pipeline.commands.topics.options import (
    Model,
    ParamsFile,
    Root,
    load,
    project_of,
    topic,
    working,
)

app = topic()


@app.command(epilog="example: quench serve Q4_K_M --smoke 8; quench serve --port 8082")
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
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="N",
            min=1024,
            max=65535,
            help="Port on 127.0.0.1 (default: serve.port); `quench chat` finds it.",
        ),
    ] = None,
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
    scale: Annotated[
        list[str] | None,
        typer.Option(
            "--scale",
            metavar="NAME=SCALE",
            help="Serve nothing, and give an adapter of the running server another scale (1: as trained, "
            "0: off); may be given again.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="--smoke: print the figures as JSON.")] = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Serve a model on 127.0.0.1 behind a key until Ctrl-C; a crash restarts it."""
    if scale:
        if model or smoke or lora or adapter or port:
            raise typer.BadParameter(
                "--scale starts no server: give no MODEL, --smoke, --lora, --adapter or --port"
            )
        from pipeline.commands.served import change_scales

        change_scales(load(params, root), root, scale)
        return
    if as_json and not smoke:
        raise typer.BadParameter("--json is for --smoke K: without it nothing is measured")
    from pipeline.commands.serve import Options, main

    main(project_of(params, root), model, Options(smoke, lora, adapter or (), port, as_json))


@app.command(epilog="example: quench chat")
def chat(model: Model = None, params: ParamsFile = None, root: Root = Path()) -> None:
    """Talk to the model that `quench serve` serves."""
    from pipeline.commands.chat import main

    main(load(params, root), root, model)


@app.command(epilog="example: quench ship Q4_K_M --push OWNER/NAME")
def ship(
    level: Annotated[
        str | None,
        typer.Argument(
            metavar="LEVEL",
            autocompletion=candidates.models,
            help="Q4_K_M, F16, … in any case; with base.quantization gguf: adapter or tuned.",
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR|ollama|lmstudio",
            help="Folder in which NAME-LEVEL is made (default: models/bundle), or the program here that gets "
            "the model too.",
        ),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(
            "--push",
            metavar="OWNER/NAME",
            help="Add the level to this repository on the Hugging Face hub, which is made, private, if it is "
            "missing.",
        ),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="--push: everybody may have the repository.")
    ] = False,
    sign: Annotated[
        Path | None,
        typer.Option("--sign", metavar="KEY", help="Sign with this private elliptic key (PEM)."),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            "--check",
            metavar="DIR",
            help="Instead: check this bundle: checksums, nothing missing or extra, card and bill against the "
            "GGUF, signature.",
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="PUB", help="--check: public key (PEM) that must have signed it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="--check: print JSON.")] = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Make a level a bundle to give away, or check one; exit 5 with the reasons if it is refused.

    A level is refused by the gate (report.gate), a bundle whose files, card or signature do not agree.
    """
    from pipeline.commands.ship import PROGRAMS, Destination, check_bundle, main

    if (level is None) == (check is None):
        raise typer.BadParameter("give a LEVEL to ship, or --check DIR")
    if as_json and not check:
        raise typer.BadParameter("--json is for --check DIR")
    if key and not check:
        raise typer.BadParameter("--key is for --check DIR; --sign KEY signs")
    if check and (to or sign or params or push):
        raise typer.BadParameter(
            "--check DIR goes with no --push, and no --to, --sign or --params; --key PUB is who signed"
        )
    if public and not push:
        raise typer.BadParameter("--public is for --push OWNER/NAME")
    if check:
        raise typer.Exit(check_bundle(check, key, as_json=as_json))
    assert level is not None
    program = str(to) if str(to) in PROGRAMS else None
    destination = Destination(push, public, program) if push or program else None
    with working(root):
        code = main(project_of(params, root), level, None if program else to, sign, destination)
    raise typer.Exit(code)

"""Commands that make files to give away, or check them: diff, apply, ship, verify-bundle."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.topics.options import ParamsFile, Root, load, topic, working

app = topic()


@app.command(epilog="example: quench diff base-Q4_0.gguf tuned-Q4_0.gguf tuned.patch")
def diff(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="The GGUF that others have already.")],
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="The GGUF that was made from it.")],
    patch: Annotated[Path, typer.Argument(metavar="PATCH", help="The file to write.")],
) -> None:
    """Write what makes one GGUF of another as a small patch, bound to the first one's sha256."""
    from pipeline.commands.patch import diff

    diff(base, other, patch)


@app.command(epilog="example: quench apply base-Q4_0.gguf tuned.patch tuned-Q4_0.gguf")
def apply(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="The GGUF that the patch was made for.")],
    patch: Annotated[Path, typer.Argument(metavar="PATCH", help="What `quench diff` wrote.")],
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The GGUF to write.")],
) -> None:
    """Make a GGUF of another one and a patch, proven by its sha256."""
    from pipeline.commands.patch import apply

    apply(base, patch, target)


@app.command(epilog="example: quench ship Q4_K_M")
def ship(
    level: Annotated[
        str,
        typer.Argument(
            metavar="LEVEL",
            help="Q4_K_M, F16, … in any case; with base.quantization gguf: adapter or tuned.",
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="DIR", help="Folder in which NAME-LEVEL is made (default: models/bundle)."
        ),
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option("--sign", metavar="KEY", help="Sign with this private elliptic key (PEM)."),
    ] = None,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Make a level a bundle to give away, or exit 5 with the reasons why not: the gate of report.gate."""
    from pipeline.commands.ship import main

    with working(root):
        code = main(load(params, root), root, level, to, sign, file=params)
    raise typer.Exit(code)


@app.command(epilog="example: quench verify-bundle models/bundle/demo-Q4_K_M")
def verify_bundle(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The bundle.")],
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="PUB", help="Public key (PEM) that must have signed it."),
    ] = None,
) -> None:
    """Check a bundle: checksums, nothing missing or extra, card and bill against the GGUF, signature; exit 5
    if it does not verify.
    """
    from pipeline.commands.verify_bundle import main

    raise typer.Exit(main(folder, key))

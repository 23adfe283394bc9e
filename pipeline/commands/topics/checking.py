"""Commands that show or measure whether the model and the files are good: report, quantization check, parity,
verify.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.commands.topics.options import Json, ParamsFile, Root, load, topic, working
from pipeline.core.errors import DataError

app = topic()


@app.command(epilog="example: quench report --open")
def report(
    in_browser: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    root: Root = Path(),
) -> None:
    """Print where the report is."""
    page = (root / "reports" / "index.html").resolve()
    if not page.exists():
        raise DataError("Q-CORE-001", f"{page} is missing: run `snakemake`, whose stage report makes it")
    typer.echo(page)
    if in_browser:
        typer.launch(str(page))


@app.command(epilog="example: quench quantization-check --prompts 8")
def quantization_check(
    prompts: Annotated[
        int, typer.Option("--prompts", metavar="N", min=1, help="Held-out rows whose logits are compared.")
    ] = 8,
    adapters: Annotated[
        list[Path] | None,
        typer.Option(
            "--adapter",
            metavar="DIR",
            help="Switch between these two (default: the trained one and a checkpoint).",
        ),
    ] = None,
    as_json: Json = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Compare the NF4 model that is trained with its 16-bit base, by checks with limits; exit 5 if one
    fails.
    """
    from pipeline.commands.quantization_check.command import main

    with working(root):
        main(load(params, root), root, prompts, as_json=as_json, adapters=adapters or [])


@app.command(epilog="example: quench parity --depth full")
def parity(
    depth: Annotated[
        Literal["quick", "standard", "full"] | None,
        typer.Option("--depth", help="Measure again, this deep (to keep it: parity.depth in params.yaml)."),
    ] = None,
    as_json: Json = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Show what the parity checks said last, or measure them again; exit 5 if one failed."""
    from pipeline.commands.parity import main, measure
    from pipeline.core.locks import inputs_below

    with inputs_below(root):
        if depth:
            measure(params, root, depth)
        code = main(root, as_json=as_json)
    raise typer.Exit(code)


@app.command(epilog="example: quench verify")
def verify(root: Root = Path()) -> None:
    """Read every recorded file and all of DVC's cache, and name what is damaged, with its remedy; exit 3 if
    anything is.
    """
    from pipeline.commands.verify import main

    raise typer.Exit(main(root))

"""The command `quench`: what hangs off the artifacts. Stages are run by `snakemake`, `dvc repro` or `python -m pipeline STAGE`.

Every command imports what it needs itself, so that `quench --help` is instant.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from pipeline.errors import DataError, QuenchError


class Sentences(TyperGroup):
    """A `QuenchError` is its sentence on stderr and its exit code; any other exception is a bug and keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command (called by Typer)."""
        try:
            return super().invoke(ctx)
        except QuenchError as error:
            typer.echo(f"quench: {error}", err=True)
            raise typer.Exit(error.exit_code) from None


app = typer.Typer(
    cls=Sentences,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help and one-line errors, in half the time
    pretty_exceptions_enable=False,
    help="From a folder of chat logs to a local model one can trust.",
    epilog="The pipeline itself is run by `snakemake` (all of it), `snakemake train` (up to a stage) or `dvc repro`.",
)

data = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at the data: check files, compare versions, see rows, export.")
app.add_typer(data, name="data")

Root = Annotated[Path, typer.Option("--root", metavar="DIR", help="Folder that holds data/, models/, reports/.")]
ParamsFile = Annotated[Path | None, typer.Option("--params", metavar="FILE", help="Configuration (default: ROOT/params.yaml).")]
Split = Annotated[Literal["train", "val", "test"], typer.Option("--split", help="Which rows of data/final.")]
Model = Annotated[str | None, typer.Argument(metavar="MODEL", help="Q4_K_M, F16, base-F16, … in any case; default: the recommended level.")]


@app.command(epilog="example: quench use qwen2.5-7b-8gb")
def use(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a file in recipes/, without .yaml.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite a params.yaml that was edited.")] = False,
    root: Root = Path(),
) -> None:
    """Install a recipe as params.yaml and show what changes."""
    from pipeline.commands.recipes import use as install

    install(recipe, root, force)


@app.command(epilog="example: quench serve Q4_K_M --smoke 8")
def serve(
    model: Model = None,
    smoke: Annotated[int, typer.Option("--smoke", metavar="K", min=0, help="Ask K test prompts, check that each answer stops by itself, end.")] = 0,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Serve a model on 127.0.0.1 behind a key until Ctrl-C."""
    from pipeline.commands.serve import main
    from pipeline.params import load_params

    main(load_params(params or root / "params.yaml"), root, model, smoke)


@app.command(epilog="example: quench chat")
def chat(model: Model = None, params: ParamsFile = None, root: Root = Path()) -> None:
    """Talk to the model that `quench serve` serves."""
    from pipeline.commands.chat import main
    from pipeline.params import load_params

    main(load_params(params or root / "params.yaml"), root, model)


@app.command(epilog="example: quench report --open")
def report(
    in_browser: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    root: Root = Path(),
) -> None:
    """Print where the report is."""
    page = (root / "reports" / "index.html").resolve()
    if not page.exists():
        raise DataError(f"{page} is not there: stage report makes it, so run `snakemake`")
    typer.echo(page)
    if in_browser:
        typer.launch(str(page))


@app.command(epilog="example: quench doctor")
def doctor(root: Root = Path()) -> None:
    """Check compiler, packages, llama.cpp, disk, memory and GPU; exit 4 where something is missing."""
    from pipeline.commands.doctor import main

    main(root)


@app.command(epilog="example: quench plan --recipe qwen2.5-7b-8gb --vram 8")
def plan(
    recipe: Annotated[str | None, typer.Option("--recipe", metavar="NAME", help="Plan this recipe instead of params.yaml.")] = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The base's config.json, where the base is not here.")] = None,
    vram: Annotated[
        float | None,
        typer.Option("--vram", metavar="GB", min=0.1, max=1e6, help="Memory of the card as sold (8: 8 GiB); default: this machine's."),
    ] = None,
    tflops: Annotated[float | None, typer.Option("--tflops", metavar="N", min=0.001, max=1e9, help="TFLOP/s that training reaches.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The plan as JSON, in bytes, tokens and seconds.")] = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Plan training's memory, disk and time before any weight is there; exit 6 if it does not fit."""
    from pipeline.commands.plan import main

    main(params, root, recipe=recipe, config=config, vram=vram, tflops=tflops, as_json=as_json)


@app.command(epilog="example: quench fidelity --prompts 8")
def fidelity(
    prompts: Annotated[int, typer.Option("--prompts", metavar="N", min=1, help="Held-out rows whose logits are compared.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Compare the NF4 model that is trained with its 16-bit base, by checks with limits; exit 5 if one fails."""
    from pipeline.commands.fidelity import main
    from pipeline.params import load_params

    main(load_params(params or root / "params.yaml"), root, prompts, as_json=as_json)


@data.command(epilog="example: quench data check data/raw")
def check(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files, or folders of files.")],
    everything: Annotated[bool, typer.Option("--all", help="Name every rejected row, not only the first 50.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Rejected rows as JSON lines.")] = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Name the rows that can't be used, and why; exit 3 if there is any. Writes nothing."""
    from pipeline.commands.data.check import main

    raise typer.Exit(main(params, root, paths, everything=everything, as_json=as_json))


@data.command(epilog="example: quench data diff HEAD~1 --rows 3")
def diff(
    first: Annotated[str, typer.Argument(metavar="REV", help="Git revision to compare from.")],
    second: Annotated[str | None, typer.Argument(metavar="REV2", help="Git revision to compare to; default: the workspace.")] = None,
    rows: Annotated[int, typer.Option("--rows", metavar="N", min=0, help="Show N rows of each kind of change.")] = 0,
    root: Root = Path(),
) -> None:
    """Say what changed in data/final between two versions."""
    from pipeline.commands.data.diff import main

    main(root, first, second, rows)


@data.command(epilog="example: quench data show --split test --row 3")
def show(
    split: Split = "train",
    row: Annotated[str | None, typer.Option("--row", metavar="ROW", help="A row's id, its source (FILE:LINE) or its number from 1.")] = None,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="How many rows, from that one on.")] = 3,
    root: Root = Path(),
) -> None:
    """Show rows as the model will see them: the base's template, and which text is trained."""
    from pipeline.commands.data.show import main

    main(root, split, row, count)


@data.command(epilog="example: quench data export chats.jsonl --to sharegpt")
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")],
    to: Annotated[Literal["sharegpt", "alpaca", "messages"], typer.Option("--to", help="Format.")],
    split: Split = "train",
    skip: Annotated[bool, typer.Option("--skip", help="Exit 0 though rows were left out that the format can't say.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    root: Root = Path(),
) -> None:
    """Write a split as JSONL in another tool's format; exit 3 if rows had to be left out."""
    from pipeline.commands.data.export import main

    raise typer.Exit(main(root, file, to, split, skip=skip, force=force))


@data.command(epilog="example: quench data schema > row.schema.json")
def schema() -> None:
    """Print the JSON Schema of a row of data/final."""
    import json

    from pipeline.rows import json_schema

    typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    app()

"""The command `quench`: what hangs off the artifacts. Stages are run by `snakemake`, `dvc repro` or `python -m pipeline STAGE`.

Every command imports what it needs itself, so that `quench --help` is instant.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from pipeline.core.errors import DataError, QuenchError


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


def _existing(root: Path) -> Path:
    from pipeline.core.publish import need_folder

    need_folder(root)
    return root


Root = Annotated[Path, typer.Option("--root", metavar="DIR", callback=_existing, help="Folder that holds data/, models/, reports/.")]
ParamsFile = Annotated[Path | None, typer.Option("--params", metavar="FILE", help="Configuration (default: ROOT/params.yaml).")]
Split = Annotated[Literal["train", "val", "test"], typer.Option("--split", help="Which rows of data/final.")]
MODEL_HELP = "Q4_K_M, F16, base-F16, … in any case; with base.quantization gguf: adapter, base. Default: the recommended one."
Model = Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP)]

Adapters = Annotated[
    list[str] | None,
    typer.Option("--adapter", metavar="FILE[=SCALE]", help="Apply this adapter's GGUF, at half its strength with =0.5; may be given again."),
]


@app.command(epilog="example: quench use qwen2.5-7b-8gb")
def use(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a file in recipes/, without .yaml.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite a params.yaml that was edited.")] = False,
    root: Root = Path(),
) -> None:
    """Install a recipe as params.yaml, with its graph of stages, and show what changes."""
    from pipeline.commands.recipes import use as install

    install(recipe, root, force)


@app.command("params", epilog="example: quench params train")
def params_(
    section: Annotated[str | None, typer.Argument(metavar="[SECTION]", help="Show this section, or this key (train.r), alone.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Put the keys that the file leaves out into it, with their comments.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Show the settings in effect and where each comes from: params.yaml, its recipe, a default."""
    from pipeline.commands.params import main

    main(params or root / "params.yaml", section, as_json=as_json, complete=write)


@app.command(epilog="example: quench graph")
def graph(
    force: Annotated[bool, typer.Option("--force", help="Replace a dvc.yaml with edits or of an older version; a copy stays.")] = False,
    root: Root = Path(),
) -> None:
    """Make dvc.yaml the graph of stages that params.yaml needs, after base.quantization was changed by hand."""
    from pipeline.commands.recipes import graph as put

    put(root, force)


@app.command(epilog="example: quench serve Q4_K_M --smoke 8")
def serve(
    model: Model = None,
    smoke: Annotated[int, typer.Option("--smoke", metavar="K", min=0, help="Ask K test prompts, check that answers stop by themselves, end.")] = 0,
    lora: Annotated[bool, typer.Option("--lora", help="Apply this project's adapter to a level of the untuned base (base-Q4_K_M).")] = False,
    adapter: Adapters = None,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Serve a model on 127.0.0.1 behind a key until Ctrl-C; a crash restarts it."""
    from pipeline.commands.serve import main
    from pipeline.config.params import load_params

    main(load_params(params or root / "params.yaml"), root, model, smoke, lora=lora, adapters=adapter or [], file=params)


@app.command(epilog="example: quench adapters tone=0 facts=0.5")
def adapters(
    changes: Annotated[list[str] | None, typer.Argument(metavar="[NAME=SCALE]...", help="1 is what was trained, 0 is off.")] = None,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Show the adapters of the running server, or give them other scales."""
    from pipeline.commands.adapters import main
    from pipeline.config.params import load_params

    main(load_params(params or root / "params.yaml"), root, changes or [])


@app.command("export-lora", epilog="example: quench export-lora --type Q8_0")
def export_lora(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="The untuned base (default: base, or base-F16).")] = None,
    adapter: Annotated[str | None, typer.Option("--adapter", metavar="FILE[=SCALE]", help="This adapter instead of the project's own.")] = None,
    type: Annotated[str, typer.Option("--type", metavar="TYPE", help="F16, or a level of llama.cpp, which rounds once more.")] = "F16",
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Add the adapter to the weights of its base, for whoever wants one file."""
    from pipeline.commands.export_lora import main
    from pipeline.config.params import load_params
    from pipeline.workflow.scraps import working

    with working(root):
        main(load_params(params or root / "params.yaml"), root, model, adapter, type)


@app.command(epilog="example: quench chat")
def chat(model: Model = None, params: ParamsFile = None, root: Root = Path()) -> None:
    """Talk to the model that `quench serve` serves."""
    from pipeline.commands.chat import main
    from pipeline.config.params import load_params

    main(load_params(params or root / "params.yaml"), root, model)


@app.command(epilog="example: quench load --clients 8 --requests 64")
def load(
    clients: Annotated[int, typer.Option("--clients", metavar="N", min=1, max=256, help="Clients that ask at the same time.")] = 4,
    requests: Annotated[int, typer.Option("--requests", metavar="N", min=1, max=10_000, help="Requests in all.")] = 32,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", min=1, max=3600, help="Break off after so long.")] = 600,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Load the server that `quench serve` runs: latencies, tokens/s, errors; exit 5 if a request was not answered."""
    from pipeline.commands.load import main
    from pipeline.config.params import load_params

    main(load_params(params or root / "params.yaml"), root, clients=clients, requests=requests, seconds=seconds, as_json=as_json)


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
    serving: Annotated[bool, typer.Option("--serve", help="Plan serving, level by level, instead of training.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The plan as JSON, in bytes, tokens and seconds.")] = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Plan training's memory, disk and time before any weight is there, or serving's memory; exit 6 if it does not fit."""
    from pipeline.commands.plan import main

    main(params, root, recipe=recipe, config=config, vram=vram, tflops=tflops, as_json=as_json, serve=serving)


@app.command(epilog="example: quench fidelity --prompts 8")
def fidelity(
    prompts: Annotated[int, typer.Option("--prompts", metavar="N", min=1, help="Held-out rows whose logits are compared.")] = 8,
    adapters: Annotated[
        list[Path] | None, typer.Option("--adapter", metavar="DIR", help="Switch between these two (default: the trained one and a checkpoint).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Compare the NF4 model that is trained with its 16-bit base, by checks with limits; exit 5 if one fails."""
    from pipeline.commands.fidelity.command import main
    from pipeline.config.params import load_params
    from pipeline.workflow.scraps import working

    with working(root):
        main(load_params(params or root / "params.yaml"), root, prompts, as_json=as_json, adapters=adapters or [])


@app.command(epilog="example: quench parity --depth full")
def parity(
    depth: Annotated[
        Literal["quick", "standard", "full"] | None,
        typer.Option("--depth", help="Measure anew, this deep (parity.depth in params.yaml keeps it so)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Show what the seams said last, or measure them anew; exit 5 if one failed."""
    from pipeline.commands.parity import main, measured_anew
    from pipeline.core.locks import inputs_below

    with inputs_below(root):
        code = main(root, as_json=as_json, measure=measured_anew(params, root, depth) if depth else None)
    raise typer.Exit(code)


@app.command(epilog="example: quench split F16 --max-size 4G")
def split(
    model: Model = None,
    max_size: Annotated[str, typer.Option("--max-size", metavar="SIZE", help="Largest part, in M or G (10⁶ or 10⁹ bytes).")] = "4G",
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Folder for the parts (default: models/split).")] = None,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Split a GGUF into parts, for disks and hosts that take no large file; the parts are proven to hold every byte."""
    from pipeline.commands.split import main
    from pipeline.config.params import load_params
    from pipeline.workflow.scraps import working

    with working(root):
        main(load_params(params or root / "params.yaml"), root, model, max_size, to)


@app.command(epilog="example: quench ship Q4_K_M")
def ship(
    level: Annotated[str, typer.Argument(metavar="LEVEL", help="Q4_K_M, F16, … in any case; with base.quantization gguf: adapter.")],
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Folder in which NAME-LEVEL is made (default: models/bundle).")] = None,
    sign: Annotated[Path | None, typer.Option("--sign", metavar="KEY", help="Sign with this private elliptic key (PEM).")] = None,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Make a level a bundle that can leave, or exit 5 with the reasons why it may not: the gate of report.gate."""
    from pipeline.commands.ship import main
    from pipeline.config.params import load_params
    from pipeline.workflow.scraps import working

    with working(root):
        code = main(load_params(params or root / "params.yaml"), root, level, to, sign, file=params)
    raise typer.Exit(code)


@app.command(epilog="example: quench verify")
def verify(root: Root = Path()) -> None:
    """Read every recorded file and all of DVC's cache, and name what is damaged, with its remedy; exit 3 if anything is."""
    from pipeline.commands.verify import main

    raise typer.Exit(main(root))


@app.command("verify-bundle", epilog="example: quench verify-bundle models/bundle/demo-Q4_K_M")
def verify_bundle(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The bundle.")],
    key: Annotated[Path | None, typer.Option("--key", metavar="PUB", help="Public key (PEM) that must have signed it.")] = None,
) -> None:
    """Check a bundle: checksums, nothing missing or extra, card and bill against the GGUF, signature; exit 5 if it does not verify."""
    from pipeline.commands.verify_bundle import main

    raise typer.Exit(main(folder, key))


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

    from pipeline.chat.rows import json_schema

    typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    app()

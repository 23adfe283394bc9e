"""`quench data …`: look at rows before, in and between the versions of `data/final`."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.commands.topics.options import Json, Model, ParamsFile, Root, Split, project_of, topic, working
from pipeline.core.errors import ToolError
from pipeline.core.extras import provider
from pipeline.core.places import resource

app = topic("Get data, and look at it: check files, compare versions, see rows, export; make preferences.")


@app.command(epilog="example: quench data check data/raw")
def check(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files, or folders of files.")],
    everything: Annotated[
        bool,
        typer.Option("--all", help="Name every rejected row, not only the first of each reason in a file."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Rejected rows and proposed mappings as JSON lines.")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Put the proposed mapping into params.yaml, then check again.")
    ] = False,
    guess: Annotated[
        int | None,
        typer.Option(
            "--guess", metavar="N", min=1, max=2, help="Guess that --write takes if none is certain."
        ),
    ] = None,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Name the rows that can't be used, and why; exit 3 if there is any. For rows with other key names it
    proposes a mapping.
    """
    from pipeline.commands.data.check import Options, main

    options = Options(everything=everything, as_json=as_json, write=write, guess=guess)
    raise typer.Exit(main(params, root, paths, options))


@app.command(epilog="example: quench data demo --kind preferences")
def demo(
    kind: Annotated[
        Literal["chats", "rewards", "preferences"], typer.Option("--kind", help="What a row holds.")
    ] = "chats",
    root: Root = Path(),
) -> None:
    """Write the demo's data into data/raw: chats about Python's own standard library."""
    script = resource("examples/pydoc.py")
    file = root / "data/raw/pydoc.jsonl"
    done = subprocess.run([sys.executable, script, "--out", file, "--kind", kind], check=False)
    if done.returncode:
        raise ToolError(
            "Q-COMMANDS-038", f"{script.name} failed with exit status {done.returncode}, see above"
        )


@app.command(epilog="example: quench data get OWNER/NAME@COMMIT --split train")
def get(
    address: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS", help="OWNER/NAME or OWNER/NAME@COMMIT on the hub, https://… or s3://…"
        ),
    ],
    config: Annotated[
        str | None, typer.Option("--config", metavar="C", help="The data set's config (default: its own).")
    ] = None,
    part: Annotated[
        str | None, typer.Option("--split", metavar="SPLIT", help="Default: train; all: every split.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="NAME", help="Name below data/raw (default: the data set's, or the file's)."
        ),
    ] = None,
    root: Root = Path(),
) -> None:
    """Bring a data set into data/raw: pinned, checked, resumed; NAME.source.json says where it comes from."""
    from pipeline.commands.data.get.command import Options, main

    with working(root):
        main(root, address, Options(config, part, to))


@app.command(epilog="example: quench data diff HEAD~1 --rows 3")
def diff(
    first: Annotated[str, typer.Argument(metavar="REV", help="Git revision to compare from.")],
    second: Annotated[
        str | None,
        typer.Argument(metavar="REV2", help="Git revision to compare to; default: the workspace."),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", min=0, help="Show N rows of each kind of change.")
    ] = 0,
    as_json: Json = False,
    root: Root = Path(),
) -> None:
    """Say what changed in data/final between two versions."""
    from pipeline.commands.data.diff import main

    main(root, first, second, rows, as_json=as_json)


@app.command(epilog="example: quench data show --split test --row 3")
def show(
    split: Split = "train",
    row: Annotated[
        str | None,
        typer.Option("--row", metavar="ROW", help="A row's id, its source (FILE:LINE) or its number from 1."),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            metavar="N",
            min=1,
            help="How many rows, from that one on. Default: 3; with an id or a source only its rows.",
        ),
    ] = None,
    root: Root = Path(),
) -> None:
    """Show rows as the model will see them: the base's template, and which text is trained."""
    from pipeline.commands.data.show import main

    main(root, split, row, count)


@app.command(epilog="example: quench data export chats.jsonl --to sharegpt")
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")],
    to: Annotated[Literal["sharegpt", "alpaca", "messages"], typer.Option("--to", help="Format.")],
    split: Split = "train",
    skip: Annotated[
        bool, typer.Option("--skip", help="Exit 0 even if rows were left out that the format can't say.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    as_json: Json = False,
    root: Root = Path(),
) -> None:
    """Write a split as JSONL in another tool's format; exit 3 if rows had to be left out."""
    from pipeline.commands.data.export import Options, main

    raise typer.Exit(main(root, file, Options(to, split, skip, force, as_json)))


@app.command(epilog="example: quench data schema > row.schema.json")
def schema() -> None:
    """Print the JSON Schema of a row of data/final."""
    import json

    from pipeline.chat.rows import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))


@app.command(epilog="example: quench data pairs data/raw/own.jsonl Q4_K_M -k 8 --rows 500")
def pairs(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new .jsonl file below data/raw.")],
    model: Model = None,
    answers: Annotated[
        int, typer.Option("-k", "--answers", metavar="K", min=2, max=1000, help="Answers to each request.")
    ] = 8,
    rows: Annotated[
        int | None,
        typer.Option("--rows", metavar="N", min=1, help="Requests to ask (default: evaluate.task_rows)."),
    ] = None,
    scorer: Annotated[
        str | None,
        typer.Option("--scorer", metavar="NAME", help="Default: the first of evaluate.scorers."),
    ] = None,
    temperature: Annotated[
        float, typer.Option("--temperature", metavar="T", min=0.01, max=10, help="1: as the model has it.")
    ] = 1.0,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", min=0, help="Of rows and answers (default: 42)."),
    ] = None,
    min_gap: Annotated[
        float, typer.Option("--min-gap", metavar="D", min=0, max=1, help="Least difference of the scores.")
    ] = 0.0,
    chosen: Annotated[
        Literal["best", "reference"],
        typer.Option(
            "--chosen", help="What the worst answer is held against: the best of K, or the row's own."
        ),
    ] = "best",
    as_json: Json = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Make preferences of the model's own answers to training rows: best and worst of K, in data/raw."""
    extra = provider("data pairs")
    options = extra.Options(answers, rows, seed, temperature, scorer, min_gap, chosen)
    with working(root):
        extra.main(project_of(params, root), file, model, options, as_json=as_json)

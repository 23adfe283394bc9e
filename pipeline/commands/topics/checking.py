"""Commands that show or measure whether the model and the files are good: report, judge, pairs, quantization
check, parity, verify.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.commands.topics.options import Json, Model, ParamsFile, Root, load, topic, working
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
    print(page)
    if in_browser:
        typer.launch(str(page))


@app.command("adapter-norms", epilog="example: quench adapter-norms models/adapter --base models/base")
def adapter_norms(
    adapter: Annotated[Path, typer.Argument(metavar="DIR|FILE", help="A PEFT folder or an adapter's GGUF.")],
    base: Annotated[
        Path | None,
        typer.Option("--base", metavar="DIR|FILE", help="The base's folder, or GGUF, to compare with."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how much an adapter changes each layer and module."""
    from pipeline.commands.adapter_norms import main

    main(adapter, base, as_json=as_json)


@app.command(epilog='example: quench judge 14b-Q2_K.gguf 7b-Q4_K_M.gguf 4b-Q8_0.gguf --memory "8 GB"')
def judge(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="GGUF files, anybody's.")],
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="Held-out chats (default: data/final/test.jsonl)."),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            "--rows", metavar="N", min=1, help="Rows that each file answers (default: compare.rows)."
        ),
    ] = None,
    scorers: Annotated[
        list[str] | None,
        typer.Option(
            "--scorer",
            metavar="NAME",
            help="The first decides; may be given again (default: evaluate.scorers).",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="SIZE", help="Where it is to fit: '8 GB' (default: what there is)."),
    ] = None,
    ctx_size: Annotated[
        int | None,
        typer.Option("--ctx-size", metavar="N", min=32, help="Context, in tokens (default: serve.ctx_size)."),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            "--reference",
            metavar="FILE",
            help="Also measure the divergence from this GGUF, of one vocabulary.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", metavar="N", min=1, help="CPU threads (default: evaluate.threads)."),
    ] = None,
    gpu_layers: Annotated[
        int | None,
        typer.Option("--gpu-layers", metavar="N", min=0, help="Default: evaluate.n_gpu_layers."),
    ] = None,
    as_json: Json = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Judge any GGUF files on your own held-out chats: which is best and fits; needs no params.yaml."""
    from pipeline.commands.judge.command import Asked, main

    asked = Asked(data, rows, tuple(scorers or ()), reference, memory, ctx_size, threads, gpu_layers)
    with working(root):
        main(params, root, files, asked, as_json=as_json)


@app.command(epilog="example: quench pairs data/raw/own.jsonl Q4_K_M -k 8 --rows 500")
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
        typer.Option("--seed", metavar="N", min=0, help="Of rows and answers (default: evaluate.seed)."),
    ] = None,
    min_gap: Annotated[
        float, typer.Option("--min-gap", metavar="D", min=0, max=1, help="Least difference of the scores.")
    ] = 0.0,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Make preferences of the model's own answers to training rows: the best and the worst of K, as a file
    of data/raw.
    """
    from pipeline.commands.pairs.command import Asked, main

    asked = Asked(answers, rows, seed, temperature, scorer, min_gap)
    with working(root):
        main(load(params, root), root, file, model, asked, file=params)


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

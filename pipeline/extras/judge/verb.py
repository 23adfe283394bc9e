"""The command line of `quench judge`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.commands.topics.options import Json, ParamsFile, Root, topic, working

app = topic()


@app.command(
    epilog='example: quench judge 14b-Q2_K.gguf 7b-Q4_K_M.gguf 4b-Q8_0.gguf --memory "8 GB"; quench judge '
    "--base meta-llama/Llama-3.2-1B-Instruct --adapter my-lora --gguf my-model-Q4_K_M.gguf"
)
def judge(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE...]", help="GGUF files from any source.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="Held-out chats, in any file that curate reads (default: data/final/test.jsonl).",
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option("--rows", metavar="N", min=1, help="Rows that each file answers (default: 200)."),
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
        typer.Option("--threads", metavar="N", min=1, help="CPU threads (default: machine.threads)."),
    ] = None,
    gpu_layers: Annotated[
        int | None,
        typer.Option("--gpu-layers", metavar="N", min=0, help="Default: machine.n_gpu_layers."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="DIR",
            help="Name the hand-over that differs instead, of base, adapter, merged folder and GGUFs: the "
            "base's folder in 16 bit, or a repository's name that the hub's cache has.",
        ),
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option("--adapter", metavar="DIR", help="The adapter's folder, as PEFT saves it.")
    ] = None,
    merged: Annotated[
        Path | None, typer.Option("--merged", metavar="DIR", help="The merged model's folder.")
    ] = None,
    gguf: Annotated[
        list[Path] | None,
        typer.Option(
            "--gguf", metavar="FILE", help="A GGUF that was made of them, at any level; may be given again."
        ),
    ] = None,
    files_only: Annotated[
        bool, typer.Option("--files-only", help="With --base and the like: run no model.")
    ] = False,
    as_json: Json = False,
    params: ParamsFile = None,
    root: Root = Path(),
) -> None:
    """Judge any GGUF files on your own held-out chats: which is best and fits; needs no params.yaml. With
    --base, --adapter, --merged or --gguf: which hand-over between these differs.
    """
    if base or adapter or merged or gguf:
        _need_nothing_else(
            files,
            {
                "--data": data,
                "--rows": rows,
                "--scorer": scorers,
                "--memory": memory,
                "--ctx-size": ctx_size,
                "--reference": reference,
                "--threads": threads,
                "--gpu-layers": gpu_layers,
            },
        )
        from pipeline.extras.judge.hand_overs.command import main as name_difference
        from pipeline.extras.judge.hand_overs.inputs import need_files

        named = need_files(base, adapter, merged, gguf or [])
        raise typer.Exit(name_difference(named, params, root, files_only=files_only, as_json=as_json))
    if files_only:
        raise typer.BadParameter("--files-only is for --base, --adapter, --merged or --gguf: leave it out")
    from pipeline.extras.judge.command import Options, main

    options = Options(data, rows, tuple(scorers or ()), reference, memory, ctx_size, threads, gpu_layers)
    with working(root):
        main(params, root, files or [], options, as_json=as_json)


def _need_nothing_else(files: list[Path] | None, options: Mapping[str, Any]) -> None:
    """Raise `BadParameter` if files or options are given that only a comparison of GGUFs reads."""
    if files:
        raise typer.BadParameter(
            "GGUFs to be compared with each other, and --base, --adapter, --merged or --gguf: give either"
        )
    unread = next((option for option, value in options.items() if value not in (None, [])), None)
    if unread:
        raise typer.BadParameter(
            f"{unread} is for GGUFs that answer your chats: leave it out with --base, --adapter, "
            "--merged or --gguf"
        )

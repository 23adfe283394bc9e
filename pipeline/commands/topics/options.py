"""Options that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from pipeline.config.params import Params

JSON_HELP = "Print JSON."


def topic(help: str | None = None) -> typer.Typer:
    """A group of commands, with plain help."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=help)


def load(file: Path | None, root: Path) -> "Params":
    """The settings in `file`, by default in `root`'s params.yaml."""
    from pipeline.config.params import load_params

    return load_params(file or root / "params.yaml")


def working(root: Path) -> Any:
    """A context in which this process writes below `root` (`pipeline.workflow.scraps.working`)."""
    from pipeline.workflow import scraps

    return scraps.working(root)


def _existing(root: Path) -> Path:
    from pipeline.core.publish import need_folder

    need_folder(root)
    return root


Root = Annotated[
    Path,
    typer.Option(
        "--root", metavar="DIR", callback=_existing, help="Folder that holds data/, models/, reports/."
    ),
]
ParamsFile = Annotated[
    Path | None,
    typer.Option("--params", metavar="FILE", help="Configuration (default: ROOT/params.yaml)."),
]
Split = Annotated[Literal["train", "val", "test"], typer.Option("--split", help="Which rows of data/final.")]
Json = Annotated[bool, typer.Option("--json", help=JSON_HELP)]
Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="Q4_K_M, F16, base-F16, … in any case; with base.quantization gguf: adapter or tuned, base. "
        "Default: the recommended one.",
    ),
]

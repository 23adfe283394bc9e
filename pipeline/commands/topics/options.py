"""Options that several commands share."""

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer
from typer.core import TyperGroup

from pipeline.commands.topics import candidates

if TYPE_CHECKING:
    from pipeline.commands.project import Project
    from pipeline.config.params import Params

JSON_HELP = "Print JSON."
PROJECT_FILES = ("params.yaml", "dvc.yaml")  # A folder with both is a project.


class WholeLines(TyperGroup):
    """Group with the first sentence of each command in full in its help, by sections if it has some."""

    sections: ClassVar[dict[str, tuple[str, ...]]] = {}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands (called by Typer)."""
        shown = [name for name, command in self.commands.items() if not command.hidden]
        placed = set(chain.from_iterable(self.sections.values()))
        sections = {**self.sections, "Commands": [name for name in shown if name not in placed]}
        for section, names in sections.items():
            lines = [(name, self.commands[name].get_short_help_str(200)) for name in names if name in shown]
            if lines:
                with formatter.section(section):
                    formatter.write_dl(lines)


def topic(help: str | None = None, **more: Any) -> typer.Typer:
    """Return a group of commands with plain help."""
    return typer.Typer(**{"no_args_is_help": True} | more, cls=WholeLines, rich_markup_mode=None, help=help)


def load(file: Path | None, root: Path) -> "Params":
    """Load the settings in `file`, by default in `root`'s params.yaml.

    Raises `ConfigError` if they are missing, with the projects in the folders of `root`.
    """
    from pipeline.config.params import load_params

    if not file and not (root / "params.yaml").exists():
        _need_project(root)
    return load_params(file or root / "params.yaml")


def _need_project(root: Path) -> None:
    """Raise `ConfigError` for a folder without settings if there are projects in its folders."""
    from pipeline.core.errors import ConfigError
    from pipeline.core.text import listed, safe

    below = sorted(place.parent.name for place in root.glob("*/params.yaml"))
    if below:
        names = safe(listed(below, "or"), 200)
        raise ConfigError("Q-CONFIG-001", f"{root.resolve()} has no params.yaml: run in {names}")


def project_of(file: Path | None, root: Path) -> "Project":
    """Return the project in `root` with the settings in `file`, by default its own."""
    from pipeline.commands.project import Project

    return Project(load(file, root), root, file)


def working(root: Path) -> Any:
    """Return a context in which this process writes below `root` (`workflow.state.cleanup.working`)."""
    from pipeline.workflow.state import cleanup

    return cleanup.working(root)


def _existing(context: typer.Context, option: typer.CallbackParam, root: Path) -> Path:
    from pipeline.core.publish import need_folder

    source = context.get_parameter_source(option.name or "")
    if source is None or source.name != "COMMANDLINE":
        root = _around(root)
    need_folder(root)
    return root


def _around(folder: Path) -> Path:
    """Return the project that `folder` is in, as Git would; `folder` itself if it is one, or in none."""
    try:
        depth = len(Path.cwd().parts)
    except OSError:  # The folder was deleted meanwhile.
        return folder
    places = (Path(*[".."] * steps) for steps in range(depth))
    return next(
        (place for place in places if all((place / name).is_file() for name in PROJECT_FILES)), folder
    )


Root = Annotated[
    Path,
    typer.Option(
        "--root",
        metavar="DIR",
        callback=_existing,
        help="Folder that holds data/, models/, reports/ (default: this one, or the project that it is in).",
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
        autocompletion=candidates.models,
        help="Q4_K_M, F16, base-F16, … in any case; with base.quantization gguf: adapter or tuned, base. "
        "Default: the recommended one.",
    ),
]

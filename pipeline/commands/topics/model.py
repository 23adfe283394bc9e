"""`quench model …`: measure and verify models, and make small patches of GGUF files."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.commands.topics.options import Json, ParamsFile, Root, topic
from pipeline.core.errors import ConfigError

app = topic("Measure and verify models and files, and patch GGUF files.")


@app.command(epilog="example: quench model parity --depth full")
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


@app.command(epilog="example: quench model norms models/adapter --base models/base")
def norms(
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


@app.command(epilog="example: quench model verify")
def verify(as_json: Json = False, root: Root = Path()) -> None:
    """Read every recorded file and all of DVC's cache. Name damage and its remedy; exit 3 if there is any."""
    from pipeline.commands.verify import main

    raise typer.Exit(main(root, as_json=as_json))


@app.command(epilog="example: quench model patch base-Q4_0.gguf tuned-Q4_0.gguf tuned.patch")
def patch(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="The GGUF that others have already.")],
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="The GGUF that was made from it.")],
    target: Annotated[Path, typer.Argument(metavar="PATCH", help="The file to write.")],
) -> None:
    """Write the difference of two GGUFs as a small patch, bound to the first one's sha256."""
    from pipeline.core.units import size_text
    from pipeline.gguf.patch import write_patch

    _need_free(target)
    made_of = write_patch(base, other, target)
    print(
        f"patch: {target}, {size_text(target.stat().st_size)} instead of "
        f"{size_text(other.stat().st_size)}: the scales of {made_of['scales']} tensors and "
        f"{made_of['tensors']} entire tensors; applied to {base.name} it gives {other.name}, proven by sha256"
    )


@app.command(epilog="example: quench model apply base-Q4_0.gguf tuned.patch tuned-Q4_0.gguf")
def apply(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="The GGUF that the patch was made for.")],
    patch: Annotated[Path, typer.Argument(metavar="PATCH", help="What `quench model patch` wrote.")],
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The GGUF to write.")],
) -> None:
    """Make a GGUF of another one and a patch, proven by its sha256."""
    from pipeline.core.units import size_text
    from pipeline.gguf.patch import apply_patch

    _need_free(target)
    apply_patch(base, patch, target)
    print(f"apply: {target}, {size_text(target.stat().st_size)}, with the sha256 that the patch announces")


def _need_free(target: Path) -> None:
    if os.path.lexists(target):  # pathlib's function raises for a name that is too long.
        raise ConfigError(
            "Q-COMMANDS-034",
            f"{target} is there already and is not replaced: give another name, or delete it",
        )

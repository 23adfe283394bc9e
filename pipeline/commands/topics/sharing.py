"""Commands that make files to give away, or check them: diff, apply, ship, verify-bundle."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.topics.options import ParamsFile, Root, load, topic, working
from pipeline.core.errors import ConfigError, GateError

app = topic()


@app.command(epilog="example: quench diff base-Q4_0.gguf tuned-Q4_0.gguf tuned.patch")
def diff(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="The GGUF that others have already.")],
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="The GGUF that was made from it.")],
    patch: Annotated[Path, typer.Argument(metavar="PATCH", help="The file to write.")],
) -> None:
    """Write what makes one GGUF of another as a small patch, bound to the first one's sha256."""
    from pipeline.core.units import size_text
    from pipeline.gguf.patch import write_patch

    _need_free(patch)
    found = write_patch(base, other, patch)
    print(
        f"diff: {patch}, {size_text(patch.stat().st_size)} instead of {size_text(other.stat().st_size)}: the "
        f"scales of {found['scales']} tensors and {found['tensors']} entire tensors; applied to {base.name} "
        f"it gives {other.name}, proven by sha256"
    )


@app.command(epilog="example: quench apply base-Q4_0.gguf tuned.patch tuned-Q4_0.gguf")
def apply(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="The GGUF that the patch was made for.")],
    patch: Annotated[Path, typer.Argument(metavar="PATCH", help="What `quench diff` wrote.")],
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The GGUF to write.")],
) -> None:
    """Make a GGUF of another one and a patch, proven by its sha256."""
    from pipeline.core.units import size_text
    from pipeline.gguf.patch import apply_patch

    _need_free(target)
    apply_patch(base, patch, target)
    print(f"apply: {target}, {size_text(target.stat().st_size)}, with the sha256 that the patch announces")


def _need_free(target: Path) -> None:
    if os.path.lexists(target):  # pathlib's raises for a name that is too long
        raise ConfigError(
            "Q-COMMANDS-034",
            f"{target} is there already and is not replaced: give another name, or delete it",
        )


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
    from pipeline.ship.bundle import SCRIPT, UNIT
    from pipeline.ship.signature import SIGNATURE
    from pipeline.ship.verification import bundle_faults

    if faults := bundle_faults(folder, key):
        print(f"{folder} does not verify:", *faults, sep="\n  ", file=sys.stderr)
        raise typer.Exit(GateError.exit_code)
    print(
        f"{folder} verifies: checksums, card, bill of materials and evidence agree with the "
        f"GGUF{', and so does the signature' if key else ''}"
    )
    if not key:
        signed = (folder / SIGNATURE).exists()
        unchecked = "it is signed, but no --key tells by whom" if signed else "it is not signed"
        print(
            f"  But {unchecked}: whoever made it may have written {SCRIPT}, {UNIT} and Modelfile. Read them "
            "before you run them."
        )

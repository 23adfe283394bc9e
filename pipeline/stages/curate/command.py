"""The option of `python -m pipeline curate`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.stages.curate.options import Options as Options

if TYPE_CHECKING:
    from pipeline.config.params import Params


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the option to the parser of `python -m pipeline`."""
    parser.add_argument(
        "--shards",
        metavar="N",
        type=int,
        help="curate: publish what this many jobs have made (docs/curation-at-scale.md)",
    )


def read_options(arguments: argparse.Namespace) -> Options:
    """Return the option that was given."""
    return Options(arguments.shards)


def misuse(options: Options) -> str:
    """Return why the option, if given, is for no other stage, as half a sentence; "" if it was not."""
    return "" if options.shards is None else "--shards is about curate alone"


def check(params: "Params", root: Path, options: Options) -> None:
    """Do nothing: the stage makes its own checks."""

"""The options of `python -m pipeline train`, and the checks that are made before its libraries are imported.

Stage train does not import this module, so an edit here trains nothing again.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.ranks import PROCESSES
from pipeline.stages.train.options import Options as Options

if TYPE_CHECKING:
    from pipeline.config.params import Params

REPLAY = "replay"  # value of `resume` after --replay, so that the last of these options counts


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of `python -m pipeline`."""
    parser.add_argument(
        "--resume",
        metavar="CHECKPOINT",
        nargs="?",
        type=Path,
        const=True,
        default=True,
        help="train: resume from the newest checkpoint of the same run (the default), or from this one",
    )
    parser.add_argument(
        "--no-resume",
        dest="resume",
        action="store_false",
        help="train: start again from nothing; checkpoints are deleted",
    )
    parser.add_argument(
        "--replay",
        dest="resume",
        action="store_const",
        const=REPLAY,
        help="train.method grpo: train again on the last run's rollouts, to the same bytes; none is drawn",
    )
    parser.add_argument(
        "--processes",
        metavar="N",
        help=f"train: as N processes, one a card (default: {PROCESSES} in the environment, else 1)",
    )


def read_options(arguments: argparse.Namespace) -> Options:
    """Return the options that were given. In `--resume train`, the word becomes the stage."""
    if arguments.stage is None and isinstance(arguments.resume, Path):
        arguments.stage = str(arguments.resume)
        arguments.resume = True
    if arguments.resume == REPLAY:
        return Options(resume=False, replay=True)
    return Options(resume=arguments.resume)


def misuse(options: Options) -> str:
    """Return why an option that was given is for no other stage, as half a sentence; "" if none was."""
    if options.replay:
        option = "--replay"
    elif options.resume is True:
        return ""
    else:
        option = f"--resume {options.resume}" if options.resume else "--no-resume"
    return f"{option} is about checkpoints, and only train has any"


def check(params: "Params", root: Path, options: Options) -> None:
    """Print every check of the training below `root`. Raise the first failure."""
    from pipeline.stages.train.preflight import check_beforehand

    check_beforehand(params, root, processes=options.group.count if options.group else 1)

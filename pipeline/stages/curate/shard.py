"""One job of stage curate, as Snakemake's rules run it for `snakemake --set-scatter curate=7`.

    python -m pipeline.stages.curate.shard plan of-7          then, each when those before it are done:
    python -m pipeline.stages.curate.shard clean 3-of-7       reads and cleans the third of seven shards
    python -m pipeline.stages.curate.shard sample of-7        boilerplate, exact duplicates, data/guard
    python -m pipeline.stages.curate.shard sketch 3-of-7      features of the third shard's rows
    python -m pipeline.stages.curate.shard join 3-of-7        a seventh of the keys, of all rows
    python -m pipeline.stages.curate.shard cluster of-7       all decisions
    python -m pipeline.stages.curate.shard write 3-of-7       the third shard's rows and rejects

Then `python -m pipeline curate --shards 7` publishes it: the same bytes as `python -m pipeline curate` in one
process.
"""

import argparse
import signal
import sys
from pathlib import Path

from pipeline.config.params import read_params
from pipeline.config.sections import Curate
from pipeline.core.errors import QuenchError, Stopped
from pipeline.core.hardware import usable_cores
from pipeline.core.locks import inputs_below
from pipeline.core.publish import need_folder
from pipeline.core.text import screen
from pipeline.stages.curate.clean import Cleaner
from pipeline.stages.curate.inputs import cleaner_arguments
from pipeline.stages.curate.phases.cleaning import clean, make_plan, read_plan
from pipeline.stages.curate.phases.cluster import cluster
from pipeline.stages.curate.phases.compare import join, sample, sketch
from pipeline.stages.curate.phases.publish import write
from pipeline.stages.curate.phases.work import Work
from pipeline.stages.curate.workers import Workers
from pipeline.workflow.cluster.jobs import leave_failure
from pipeline.workflow.cluster.shards import FOLDER, PHASES, drop, key_of_inputs, parse_item
from pipeline.workflow.state.record import running


def work_of(root: Path, settings: Curate, shards: int) -> Work:
    """Return the folders of a run of this many shards, for the present files below `root`."""
    return Work(root / FOLDER, shards, key_of_inputs(root, settings, shards))


def run(phase: str, item: str, root: Path, settings: Curate) -> None:
    """Run one job ("clean", "3-of-7"). Raises `QuenchError`, also if its inputs have changed meanwhile."""
    shard, shards = parse_item(phase, item)
    number = shard or 0
    work = work_of(root, settings, shards)
    if phase == "plan":
        drop(root, work.shards)  # results of other inputs
        make_plan(root, settings, work, threads=usable_cores() or 1)
    elif phase == "clean":
        cleaner = Cleaner(*cleaner_arguments(root, settings))
        clean(root, settings, work, read_plan(work), number, Workers(None, 1, cleaner))
    elif phase == "sample":
        sample(root, settings, work)
    elif phase == "sketch":
        sketch(settings, work, number, Workers(None, 1))
    elif phase == "join":
        join(settings, work, number)
    elif phase == "cluster":
        cluster(root, settings, work, read_plan(work))
    else:
        write(work, number)


@screen()
def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the job, turn a `QuenchError` into its sentence and exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.stages.curate.shard", description="Run one job of stage curate."
    )
    parser.add_argument("phase", metavar="PHASE", choices=PHASES, help=", ".join(PHASES))
    parser.add_argument("item", metavar="ITEM", help="3-of-7; of a phase that is one job, of-7")
    parser.add_argument(
        "--root", type=Path, default=Path(), metavar="DIR", help="folder that holds data/ (default: this one)"
    )
    args = parser.parse_args(argv)
    try:
        parse_item(args.phase, args.item)
        need_folder(args.root)
        settings = read_params(args.root / "params.yaml").params.curating
        with running(f"curate_{args.phase}@{args.item}", args.root), inputs_below(args.root):
            run(args.phase, args.item, args.root, settings)
    except (QuenchError, KeyboardInterrupt) as interruption:
        error = interruption if isinstance(interruption, QuenchError | Stopped) else Stopped(signal.SIGINT)
        print(f"curate_{args.phase}: {error}", file=sys.stderr)
        leave_failure(f"curate_{args.phase}@{args.item}", str(error), error.exit_code, args.root)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

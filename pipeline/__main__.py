"""Run one stage: `python -m pipeline STAGE [--params FILE] [--root DIR]`, for a level `quantize@Q4_K_M`.

Used by Snakemake's rules and DVC's stages alike. Exit codes: see `pipeline.core.errors`.
"""

import argparse
import importlib
import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.errors import ConfigError, MachineError, QuenchError, Stopped

if TYPE_CHECKING:
    from pipeline.config.params import Params

STAGES = (
    "base",
    "curate",
    "preprocess",
    "train",
    "lora",
    "tuned",
    "merge",
    "convert",
    "imatrix",
    "quantize",
    "distill",
    "budget",
    "compare_nf4",
    "compare_level",
    "compare_scales",
    "compare_distilled",
    "compare_unquantized",
    "compare_measure",
    "compare_measure_level",
    "compare_measure_scales",
    "compare_measure_distilled",
    "compare",
    "parity",
    "evaluate",
    "report",
)
REPLAY = "replay"  # what is given as `resume` by --replay
CODE = "code"  # no stage of Snakemake's: DVC's first one (pipeline/workflow/code_keys.py)


def run(stage: str, root: Path, params_file: Path | None, *, resume: bool | Path | str = True) -> None:
    """Run `stage` ("train", "quantize@Q4_K_M") on the data below `root`, then record its outputs with DVC.

    In a job of Snakemake's, outputs come back from DVC's cache instead where nothing that they depend on has
    changed. Raises `QuenchError` for what a user can fix.
    """
    from pipeline.config.params import read_params
    from pipeline.core.publish import need_folder
    from pipeline.workflow.complete import need_all_keys
    from pipeline.workflow.graphs import need_graph
    from pipeline.workflow.integrity import verify_inputs
    from pipeline.workflow.leftovers import remove_leftovers
    from pipeline.workflow.record import inputs_state, is_about, record, refresh_keys, running
    from pipeline.workflow.settle import reuse
    from pipeline.workflow.stages import items_of, table

    name, item = _parsed(stage, resume)
    need_folder(root)
    read = read_params(params_file or root / "params.yaml")
    known = table().stages[name]
    if known.only not in (None, read.params.graph):
        raise ConfigError(
            "Q-WORKFLOW-021",
            f"stage {name} has nothing to do if base.quantization is {read.params.base.quantization} and "
            f"train.tuner is {read.params.train.tuner}: `snakemake` runs those that have",
        )
    if name.startswith("compare_") and item not in dict(
        items_of(known.each, read.params.model_dump(mode="json"))
    ):
        raise ConfigError(
            "Q-COMPARE-001",
            f"compare.seeds, levels and strategies ask for no job {stage}: `snakemake -n` lists the jobs",
        )
    if not is_about(params_file, root):
        with running(stage, root):
            _work(name, item, read.params, root, resume)
        return
    need_graph(root, read.params.graph)
    need_all_keys(root, read)
    with running(stage, root):
        refresh_keys(stage, root)
        reused = reuse(stage, root)
        if not reused:
            verify_inputs(stage, root)
            before = inputs_state(stage, root)
            _work(name, item, read.params, root, resume)
            if inputs_state(stage, root) != before:
                raise MachineError(
                    "Q-WORKFLOW-022",
                    f"params.yaml, data/raw or code changed while {stage} ran, so its outputs are not "
                    "recorded: run the same command again",
                )
    if not reused:
        record(stage, root)
    if name == "compare":
        remove_leftovers(root, read.params)


def _parsed(stage: str, resume: bool | Path | str) -> tuple[str, str]:
    """The stage's name, and the level or model behind its "@" ("" without). Raises `ConfigError` for what is
    no stage, or can't be resumed.
    """
    from pipeline.core.printable import printable
    from pipeline.workflow.stages import table

    name, _, item = stage.partition("@")
    if name not in STAGES:
        raise ConfigError("Q-WORKFLOW-019", f"no stage is called {stage!r}: it is one of {', '.join(STAGES)}")
    each = table().stages[name].each
    if bool(each) != bool(item):
        wanted = f"{name}@NAME, {name}@F16 for example" if each else f"just {name}"
        raise ConfigError("Q-WORKFLOW-019", f"{stage!r} is not how stage {name} is named: write {wanted}")
    if item and not re.fullmatch(r"[\w.-]{1,100}", item):  # it is part of the names of files
        raise ConfigError(
            "Q-WORKFLOW-019",
            f"{printable(item, 80)} is no name of a level or a model: write {name}@F16 for example",
        )
    if resume is not True and name != "train":
        option = f"--{REPLAY}" if resume == REPLAY else f"--resume {resume}" if resume else "--no-resume"
        raise ConfigError(
            "Q-WORKFLOW-020",
            f"{option} is about checkpoints, and only train has any: leave it out for {name}",
        )
    return name, item


def _work(name: str, item: str, params: "Params", root: Path, resume: bool | Path | str) -> None:
    """Call the stage's `main`."""
    from pipeline.core.locks import inputs_below
    from pipeline.workflow.code_keys import stage_module

    extra = {"resume": resume != REPLAY and resume, "replay": resume == REPLAY} if name == "train" else {}
    module = importlib.import_module(stage_module(name))
    with inputs_below(root):
        module.main(params, root, *([item] if item else []), **extra)


def write_code(root: Path) -> None:
    """Write the keys of all stages' code: DVC's first stage."""
    from pipeline.core.publish import need_folder
    from pipeline.workflow.code_keys import write_keys
    from pipeline.workflow.stages import code_of_stages

    need_folder(root)
    changed = write_keys(root, code_of_stages())
    print(f"code has changed of {', '.join(changed)}" if changed else "no stage's code has changed")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline",
        description="Run one stage.",
        epilog="example: python -m pipeline quantize@Q4_K_M",
    )
    parser.add_argument(
        "stage",
        metavar="STAGE",
        nargs="?",
        help=f"{', '.join(STAGES)}; some take an item: quantize@Q4_K_M",
    )
    parser.add_argument(
        "--params", type=Path, metavar="FILE", help="configuration (default: ROOT/params.yaml)"
    )
    parser.add_argument(
        "--root",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder that holds data/, models/, reports/ (default: this one)",
    )
    parser.add_argument(
        "--resume",
        metavar="CHECKPOINT",
        nargs="?",
        type=Path,
        const=True,
        default=True,
        help="train: go on from the newest checkpoint of the same run (the default), or from this one",
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
    return parser


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the stage, turn a `QuenchError` into its sentence and exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.stage is None and isinstance(arguments.resume, Path):  # --resume train
        arguments.stage, arguments.resume = str(arguments.resume), True
    if arguments.stage is None:
        parser.error("name a STAGE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal without UTF-8 shows "?" for "±", not a traceback
            stream.reconfigure(errors="replace")
    try:
        if arguments.stage == CODE:
            write_code(arguments.root)
        else:
            run(arguments.stage, arguments.root, arguments.params, resume=arguments.resume)
    except (QuenchError, Stopped) as error:
        print(f"{arguments.stage}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{arguments.stage}: stopped by hand; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

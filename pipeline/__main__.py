"""Run one stage: `python -m pipeline STAGE [--params FILE] [--root DIR]`, for a level `quantize@Q4_K_M`.

Snakemake's rules and DVC's stages both use it. Exit codes: see `pipeline.core.errors`.
"""

import os
import sys

if sys.path and os.path.isfile(os.path.join(sys.path[0], ".quench/code/version")):  # noqa: PTH113, PTH118
    # `python -m pipeline` in a project: the user's own yaml.py there would hide a package that is needed.
    sys.path.append(sys.path.pop(0))

import argparse
import importlib
import io
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import ConfigError, MachineError, QuenchError, Stopped
from pipeline.core.launch import launch
from pipeline.core.publish import printing
from pipeline.core.ranks import Rank, take_rank, wanted_processes
from pipeline.core.text import screen
from pipeline.models.runtime import let_threads_give_way, silence_libraries
from pipeline.stages.train import command as train_command
from pipeline.workflow.stage_command import StageCommand, idle_of, need_work, parsed, parser

if TYPE_CHECKING:
    from pipeline.config.params import Params

# Not Snakemake stages: DVC runs these first (`pipeline/workflow/keys/code_keys.py`).
CODE = "code"
SETTINGS = "settings"
# the stages that are told more than their settings, in the order of the help
COMMANDS: Mapping[str, StageCommand] = {"train": train_command}


def run(stage: str, root: Path, params_file: Path | None, given: Mapping[str, Any] | None = None) -> None:
    """Run `stage` ("train", "quantize@Q4_K_M") on the data below `root`, then record its outputs with DVC.
    `given` has the options of each stage in `COMMANDS`; without it they have their defaults.

    In a Snakemake job the outputs come back from DVC's cache instead if nothing that they depend on has
    changed. A job on another machine leaves a receipt for the one that records. Raises `QuenchError` for what
    a user can fix.
    """
    from pipeline.config.params import read_params
    from pipeline.core.locks import inputs_below
    from pipeline.core.owner import RUN
    from pipeline.core.publish import need_folder
    from pipeline.workflow.cluster_jobs import is_remote
    from pipeline.workflow.dvc_yaml import need_graph
    from pipeline.workflow.graph_source import LAST
    from pipeline.workflow.project import need_usable_path
    from pipeline.workflow.remote import finish, inputs_read
    from pipeline.workflow.settle import reuse
    from pipeline.workflow.state.cleanup import remove_obsolete
    from pipeline.workflow.state.integrity import verify_inputs
    from pipeline.workflow.state.lockfile import inputs_of, need_inputs
    from pipeline.workflow.state.record import inputs_state, is_project_config, refresh_keys_for, running
    from pipeline.workflow.state.settings import need_settings

    name, item = parsed(stage)
    options = _own_options(name, given or {})
    need_folder(root)
    need_usable_path(root)
    read = read_params(params_file or root / "params.yaml")
    need_work(name, item, read.params)
    if not is_project_config(params_file, root):
        with running(stage, root), inputs_below(root):
            _work(name, item, read.params, root, options)
        return
    need_graph(root, read.params)
    need_settings(root, read, stage)
    # Snakemake has already said this for all stages. The settings of a sub-project, which passes its own
    # params file, come from a stage.
    if params_file is None and RUN not in os.environ:
        for sentence in idle_of(name, read.params):
            print(f"{name}: {sentence}")
    inputs_now = [root / path for path in inputs_of(stage, root)]
    with running(stage, root), inputs_below(root, inputs_now):
        if not is_remote():
            refresh_keys_for(stage, root)
        reused = reuse(stage, root)
        if not reused:
            need_inputs(stage, root)
            verify_inputs(stage, root)
            before = inputs_state(stage, root)
            inputs = inputs_read(stage, root)
            _work(name, item, read.params, root, options)
            if inputs_state(stage, root) != before:
                raise MachineError(
                    "Q-WORKFLOW-022",
                    f"params.yaml, data/raw or code changed while {stage} ran, so its outputs are not "
                    "recorded: run the same command again",
                )
    if not reused:
        finish(stage, root, before, inputs)
    if name == LAST and not is_remote():
        remove_obsolete(root, read.params)


def _own_options(name: str, given: Mapping[str, Any]) -> Any:
    """Return the options of stage `name`, None if it has none. Raises `ConfigError` for those of another."""
    for other, options in given.items():
        misuse = COMMANDS[other].misuse(options)
        if misuse and other != name:
            raise ConfigError("Q-WORKFLOW-020", f"{misuse}: leave it out for {name}")
    if name not in COMMANDS:
        return None
    return given.get(name, COMMANDS[name].Options())


def _work(name: str, item: str, params: "Params", root: Path, options: Any) -> None:
    """Call the stage's `main` with the `options` if it has any, and record what it used."""
    from pipeline.core.extras import observed
    from pipeline.core.progress import recorded
    from pipeline.core.usage import noted
    from pipeline.planning.stages import plan_stage
    from pipeline.workflow.keys.code_keys import stage_module

    stage = f"{name}@{item}" if item else name
    disk = partial(_written_bytes, name, item, params, root)
    plan = partial(plan_stage, stage, params, root)
    with recorded(root, stage), noted(stage, root, disk, plan):
        if options:
            COMMANDS[name].check(params, root, options)
        module = importlib.import_module(stage_module(name))
        with observed(name, params, root):
            module.main(params, root, *filter(None, (item, options)))


def _written_bytes(name: str, item: str, params: "Params", root: Path) -> int:
    """Return the bytes on disk that the job `item` ("" if there is only one) of stage `name` wrote below
    `root`.
    """
    from pipeline.workflow.stages import items_of, table, values_of

    values = values_of(params)
    stage = table().stages[name]
    job_values = values.of(dict(items_of(stage.each, values)).get(item))
    size = 0
    for output in stage.written:
        path = root / job_values.fill(output)
        files = path.rglob("*") if path.is_dir() else [path]
        size += sum(file.stat().st_size for file in files if file.is_file())
    return size


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the stage, turn a `QuenchError` into its sentence and exit code."""
    options = parser()
    for command in COMMANDS.values():
        command.add_options(options)
    arguments = options.parse_args(argv)
    given = {stage: command.read_options(arguments) for stage, command in COMMANDS.items()}
    if arguments.stage is None:
        options.error("name a STAGE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without UTF-8 shows "?" for "±" instead of a traceback.
            stream.reconfigure(errors="replace")
    silence_libraries()
    let_threads_give_way()
    with screen(lasting=True):
        return _run(arguments, given, sys.argv[1:] if argv is None else argv)


def _run(arguments: argparse.Namespace, given: Mapping[str, Any], words: list[str]) -> int:
    rank = None
    try:
        rank = take_rank()
        work = partial(run, arguments.stage, arguments.root, arguments.params)
        if arguments.stage == CODE:
            from pipeline.workflow.project import write_code

            write_code(arguments.root)
        elif arguments.stage == SETTINGS:
            from pipeline.workflow.state.settings import write_settings

            write_settings(arguments.root)
        elif rank:
            from pipeline.config.params import load_params
            from pipeline.stages.train.worker import run_rank

            settings = partial(load_params, arguments.params or arguments.root / "params.yaml")
            run_rank(rank, arguments.stage, arguments.root, settings, given, work)
        else:
            count = wanted_processes(arguments.stage, arguments.processes)
            if count > 1:
                return launch(words, count)
            with printing():
                work(given)
    except (QuenchError, Stopped) as error:
        _say(error, rank, arguments.stage, arguments.root)
        return error.exit_code
    except KeyboardInterrupt:
        _say(Stopped(signal.SIGINT), rank, arguments.stage, arguments.root)
        return 130
    return 0


def _say(error: QuenchError | Stopped, rank: Rank | None, stage: str, root: Path) -> None:
    """Print why the stage stopped, and leave it for the machine on which Snakemake runs. In distributed
    training only the first process leaves it. A process that only misses another one prints nothing if
    our launcher started it, because the launcher or that other process reports the failure.
    """
    from pipeline.workflow.cluster_jobs import leave_failure

    if rank is None or rank.leads:
        leave_failure(stage, str(error), error.exit_code, root)
    elif rank.launched and isinstance(error, QuenchError) and error.id == "Q-TRAIN-037":
        return
    print(f"{stage}: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

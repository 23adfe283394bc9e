"""Stages that Snakemake runs as jobs on other machines, on a cluster's nodes for example.

Only the machine on which Snakemake itself runs records them with DVC.

A job leaves a receipt (`pipeline.workflow.cluster_jobs`). Receipts are recorded when the workflow is done,
and before the next one is planned, so that no finished stage is lost if Snakemake was killed.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from pipeline.config.params import Params, load_params
from pipeline.core.errors import QuenchError
from pipeline.core.owner import RUN
from pipeline.core.text import screen
from pipeline.workflow import source_cache
from pipeline.workflow.cluster_jobs import REMOTE, Receipt, forget, is_remote, leave, receipts, take_failures
from pipeline.workflow.graph_source import LAST
from pipeline.workflow.keys.code_keys import FOLDER as KEYS
from pipeline.workflow.settle import REUSE
from pipeline.workflow.state.cleanup import remove_obsolete
from pipeline.workflow.state.dvc_project import check_record, open_project, update_dvc_state
from pipeline.workflow.state.hashes import Hashes
from pipeline.workflow.state.lockfile import changed_paths, md5s_of, stages_of
from pipeline.workflow.state.record import inputs_state, record, record_all, refresh_keys_for

VIEW = "QUENCH_VIEW"  # in a job's environment: QUIET if its output goes into its log only
QUIET = "quiet"
# Ctrl-C sends SIGINT, and SLURM SIGTERM, to every process of a job. The shell and `tee` wait for the stage,
# which saves its work. If they exited first, its last output would be lost, and SLURM would kill the stage.
# A view of the run that reads the logs wants no other output (`pipeline.workflow.view.handler`), and a
# terminal that is full or gone fails no stage. Snakemake formats this text, so it has no braces.
SHELL = (
    'set -euo pipefail; trap : INT TERM; tee() ( set +u; trap "" INT TERM PIPE; '
    f'[ "${VIEW}" != {QUIET} ] || exec > /dev/null; command tee "$@" || : ); '
)


def job_settings(root: Path = Path(), *, remote: bool) -> Params:
    """Return the project's settings for a process other than Snakemake's main one.

    `remote` is True if it runs on another machine.
    """
    source_cache.use_home()
    if remote:
        os.environ[REMOTE] = "1"
        # A scheduler copies the environment of the machine that submits.
        os.environ.pop(RUN, None)
        os.environ.pop(REUSE, None)
        os.environ.pop(VIEW, None)
        use_this_python()
    return load_params(root / "params.yaml")


def use_this_python() -> None:
    """Make `python` in rules mean this one, even if the virtual environment is not activated."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def inputs_read(stage: str, root: Path) -> dict[str, str]:
    """Return {path: md5} of what `stage` is about to read in a job on another machine; empty elsewhere,
    because DVC hashes it later.
    """
    if not is_remote():
        return {}
    stages = stages_of(root)
    if stage not in stages:
        return {}
    with Hashes(root) as hashes:
        deps = [dep for dep in stages[stage].deps if not dep.startswith(KEYS)]
        return md5s_of(deps, root, hashes)


def finish(stage: str, root: Path, state: Any, read: dict[str, str]) -> None:
    """Record a stage that has just run with DVC. In a job on another machine, leave a receipt instead.

    `state` and `read` are the results of `inputs_state` and `inputs_read` before it ran.
    """
    if not is_remote():
        record(stage, root)
    elif state is not None:
        with Hashes(root) as hashes:
            wrote = md5s_of(stages_of(root)[stage].outs, root, hashes)
        leave(Receipt(stage, _settings(state), read, wrote), root)


def record_finished(root: Path) -> None:
    """Record with DVC the stages that jobs on other machines finished.

    A stage whose settings, code, inputs or outputs have changed since is not recorded, so it runs again.
    Raises `ToolError` with DVC's words.
    """
    waiting = receipts(root)
    if not waiting:
        return
    refresh_keys_for(waiting[0].stage, root)
    with open_project(root, wait=True) as repo, Hashes(root) as hashes:
        with repo.lock:
            check_record(repo)
        changed = {receipt.stage: _changed(receipt, root, hashes) for receipt in waiting}
        update_dvc_state(repo, hashes)
    for stage, change in changed.items():
        if change:
            print(f"{stage} is done, but {change} changed since, so it runs again", file=sys.stderr)
    record_all([stage for stage, change in changed.items() if not change], root)
    for stage in changed:
        forget(stage, root)
    if changed.get(LAST) == "":
        remove_obsolete(root, load_params(root / "params.yaml"))


@screen()
def finish_workflow(root: Path = Path(), *, failed: bool) -> None:
    """Record what jobs finished when a workflow is done, on the machine on which Snakemake runs.

    If it failed, print the errors of the failed jobs and exit with the exit code of the first of these.
    """
    try:
        record_finished(root)
    except QuenchError as error:
        print(f"snakemake: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    failures = take_failures(root) if failed else []
    for failure in failures:
        print(f"{failure.stage}: {failure.error}", file=sys.stderr)
    if failures:
        raise SystemExit(failures[0].exit_code)


def _changed(receipt: Receipt, root: Path, hashes: Hashes) -> str:
    """Return in words what differs from `receipt`; "" if nothing does."""
    if receipt.stage not in stages_of(root):
        return "dvc.yaml"
    if _settings(inputs_state(receipt.stage, root)) != receipt.settings:
        return "its settings or its code"
    noted = {root.resolve() / path: md5 for path, md5 in (receipt.inputs | receipt.outputs).items()}
    missing = [path for path in noted if not path.exists()]
    other = missing or changed_paths(noted, hashes)
    return ", ".join(str(path.relative_to(root.resolve())) for path in other)


def _settings(state: Any) -> str:
    """Return a hash of a stage's parameters and code in the result of `inputs_state`."""
    tracked, code, _ = state
    return hashlib.sha256(json.dumps([tracked, code], sort_keys=True, default=str).encode()).hexdigest()

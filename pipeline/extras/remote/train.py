"""Run stage train on another machine by SSH. Its inputs are sent by hash; its journal, checkpoints and
adapter are fetched, and DVC records it as if it had run here.

    quench remote train HOST

A lost connection is made again. A training that was killed resumes from its newest checkpoint at home, on the
same host or, by the same command, on another.
"""

import sys
from importlib.metadata import version
from pathlib import Path

from pipeline.config.methods import METHODS
from pipeline.config.params import Params, read_params
from pipeline.config.sections import Train
from pipeline.config.trackers import need_trackers
from pipeline.core.errors import ConfigError, DataError, MachineError, QuenchError, Stopped, ToolError
from pipeline.core.extras import observed
from pipeline.core.hashing import tree_hash
from pipeline.core.interruption import SIGNALS, Interruption
from pipeline.core.progress import recorded
from pipeline.core.publish import read_json, remove, write_json
from pipeline.extras.remote.answers import Installed
from pipeline.extras.remote.mirror import Mirror
from pipeline.extras.remote.payload import SCRATCH, STAGE, inputs, run_id
from pipeline.extras.remote.ssh import SshConnection
from pipeline.extras.remote.watch import watched
from pipeline.planning.duration import work_in
from pipeline.stages.train.run import LIBRARIES, git_state
from pipeline.subprojects.processes import ERRORS
from pipeline.workflow.dvc_yaml import need_graph
from pipeline.workflow.settle import reuse
from pipeline.workflow.state.integrity import verify_inputs
from pipeline.workflow.state.record import inputs_state, record, refresh_keys_for, running
from pipeline.workflow.state.settings import need_settings

NEEDED = ("pydantic", "pyyaml", "psutil", "pyarrow", "safetensors", "gguf", "tensorboard", "orjson")
REPORT = "reports/train.json"
ADAPTER = "models/adapter"


def main(connection: SshConnection, root: Path, *, resume: bool = True, keep: bool = False) -> None:
    """Train on the host of `connection` for the project at `root`. With `keep`, what was sent stays there.

    Without `resume`, nothing is resumed, here or there. With it, nothing is done if nothing has changed since
    the last training. Raises the error that train exited with, `ConfigError` for a method that needs more
    than its inputs, `ToolError` for a host that can't train to the same bytes, and `Stopped` after a signal:
    the training continues there.
    """
    read = read_params(root / "params.yaml")
    why = refusal(read.params.train)
    if why:
        raise ConfigError("Q-REMOTE-009", f"{why}, or run `snakemake train` on that machine itself")
    need_graph(root, read.params)
    need_settings(root, read, STAGE)
    need_trackers(read.params.train.trackers)
    with running(STAGE, root):
        refresh_keys_for(STAGE, root)
        # A plain `snakemake train` would have nothing to do either.
        if resume and reuse(STAGE, root, allowed=True):
            print(
                "remote: what an earlier run left on the host, "
                f"`quench remote clean {connection.name}` removes"
            )
            return
        verify_inputs(STAGE, root)
        before = inputs_state(STAGE, root)
        need_host(connection)
        # What follows the run reads the files that are fetched, and knows the tokens of this machine.
        with recorded(root, STAGE), observed(STAGE, read.params, root):
            run = _trained(connection, root, read.params, resume, keep)
        if inputs_state(STAGE, root) != before or run_id(inputs(root, read.params), read.params) != run:
            raise MachineError(
                "Q-WORKFLOW-022",
                f"params.yaml, what {STAGE} reads or its code changed while it ran on {connection.name}, so "
                "its outputs are not recorded: run the same command again",
            )
    record(STAGE, root)
    connection.ask("clean", run=run, keep=keep)
    after = "keeps what was sent" if keep else "is clean"
    print(f"remote: {ADAPTER} is here, and verified; {connection.name} {after}")


def refusal(train: Train) -> str | None:
    """Return the setting of `train` that needs more than what is sent to the host, with a remedy. Returns
    None if there is none.
    """
    if METHODS[train.method].prompts and train.grpo.rollouts == "llama-server":
        return (
            "train.grpo.rollouts is llama-server, and no llama.cpp is sent: set it to in-process, which "
            "needs none"
        )
    if METHODS[train.method].prompts and train.grpo.external:
        return (
            "train.grpo.rewards names external, and no program is sent: write the reward as a function "
            "(python:FILE.py:FUNCTION), which is"
        )
    if train.shares_base:
        return "train.offload is shared, and `quench remote` starts one process there: set it to none"
    return None


def need_host(connection: SshConnection) -> None:
    """Raise `ToolError` unless the host has Python 3.11, rsync, and the packages of this machine. Their
    versions determine the adapter's bytes and the checkpoints that a run may resume from.
    """
    installed: Installed = connection.ask("check", names=[*LIBRARIES, *NEEDED])
    local: dict[str, str | None] = {"rsync": "", "Python": ".".join(map(str, sys.version_info[:2]))}
    remote = {"rsync": "" if installed.rsync else None, "Python": installed.python.rpartition(".")[0]}
    for name in LIBRARIES:
        local[name] = _public(version(name))
        remote[name] = _public(installed.versions.get(name))
    for name in NEEDED:
        remote[name] = installed.versions.get(name)
    lacking = [name for name, value in remote.items() if value is None]
    others = [
        f"{name} {remote[name]} instead of {local[name]}"
        for name in local
        if remote[name] not in (None, local[name])
    ]
    if lacking or others:
        gaps = []
        if lacking:
            gaps.append(f"lacks {', '.join(lacking)}")
        if others:
            gaps.append(f"has {', '.join(others)}")
        raise ToolError(
            "Q-REMOTE-010",
            f"{connection.name} {' and '.join(gaps)}, so it can't train to the same bytes: install that "
            "there, or name another Python with --python",
        )


def _public(full_version: str | None) -> str | None:
    """Return a version without the build ("+cu128"), in which machines may differ."""
    return full_version and full_version.partition("+")[0]


def _trained(connection: SshConnection, root: Path, params: Params, resume: bool, keep: bool) -> str:
    """Train there, however many attempts it needs. Return the run's id. Its outputs are here then."""
    print(f"remote: hashing what {STAGE} reads", flush=True)
    payload = inputs(root, params)
    run = run_id(payload, params)
    work = work_in(root, params.train)
    mirror = Mirror(connection, root, run, work.steps if work else 0)
    try:
        with Interruption():
            code = watched(mirror, payload, params, resume)
            if code == 0:
                _finish(connection, root)
            else:
                connection.ask("clean", run=run, keep=keep)
            remove(root / SCRATCH)
    except Stopped as stopped:
        raise Stopped(
            SIGNALS[0] if stopped.exit_code == 128 + SIGNALS[0] else SIGNALS[1],
            f"{STAGE} continues on {connection.name}, if it had started: the same command attaches to it, "
            f"`quench remote stop {connection.name} {run}` ends it with a checkpoint",
        ) from None
    if code:
        raise _verdict(connection, code)
    return run


def _finish(connection: SshConnection, root: Path) -> None:
    """Raise `DataError` unless the adapter is the one that train hashed there.

    Record the commit that it belongs to.
    """
    report = read_json(root / REPORT, "run the same command again")
    try:
        is_whole = report["run"]["hashes"]["adapter"] == tree_hash(root / ADAPTER)
    except (TypeError, LookupError, OSError):
        is_whole = False
    if not is_whole:
        raise DataError(
            "Q-REMOTE-008",
            f"{root / ADAPTER} is not what {connection.name} trained: run the same command again",
        )
    report["run"]["git"] = git_state(root)  # The host has no repository.
    write_json(root / REPORT, report)


def _verdict(connection: SshConnection, code: int) -> BaseException:
    """Return the exception for a training that exited with `code`."""
    if code - 128 in SIGNALS:
        return Stopped(code - 128, f"{STAGE} was stopped on {connection.name}; the same command resumes it")
    kind: type[QuenchError] = ERRORS.get(code, ToolError)
    return kind(
        "Q-REMOTE-012",
        f"{STAGE} failed on {connection.name} (exit status {code}; its reason stands above): correct that, "
        "then run the same command again",
    )

"""Start train on the host, or attach to it, and stay until it has exited by itself."""

import time
import uuid

from pipeline.config.params import Params
from pipeline.core.errors import ConfigError, ToolError
from pipeline.core.interruption import SIGNALS
from pipeline.core.publish import remove
from pipeline.extras.remote.answers import Started, State
from pipeline.extras.remote.host.files import CHECKPOINTS
from pipeline.extras.remote.mirror import Mirror, RunRemoved
from pipeline.extras.remote.payload import STAGE, STALLED, STATE, Upload, send, state, unfinished
from pipeline.stages.train.checkpoints import checkpoints_in, defect, step_of
from pipeline.workflow.stages import stages_in

DEATHS = 2  # number of kills without a checkpoint in between, after which a host is not tried again
LOOKS = 5  # number of looks at an incomplete folder before it counts as permanently so
PAUSE_SECONDS = 1.0  # seconds between two looks


def watched(mirror: Mirror, payload: Upload, params: Params, resume: bool) -> int:
    """Return the exit code of train. It is started unless it runs, and started again if it was killed. Its
    outputs are here then.

    Raises `ConfigError` for a run that must not be attached to. Raises `ToolError` for a host on which train
    is killed repeatedly, or whose folder is incomplete.
    """
    connection = mirror.connection
    folder = mirror.root / CHECKPOINTS
    began = False
    deaths = 0  # kills in a row without a new checkpoint
    newest = -1  # step of the newest checkpoint at the last start
    incomplete_looks = 0  # looks in a row at an incomplete folder of the run
    while True:
        state: State = connection.ask("look", run=mirror.run)
        is_done = state.code == 0
        is_wanted = (
            state.state != "none" and (resume or began) and (is_done or not _is_ahead(mirror, state.step))
        )
        try:
            if state.state == "running":
                if not began:
                    _need_wanted(mirror, is_wanted, resume)
                    print(f"remote: run {mirror.run} is at work on {connection.name}", flush=True)
                began = True
                mirror.follow()
                incomplete_looks = 0
                continue
            if is_wanted:
                mirror.follow()  # its last output
                mirror.bring(_outputs(params) if is_done else STATE)
        except RunRemoved:
            incomplete_looks += 1
            _need_complete(mirror, incomplete_looks)
            continue
        if is_wanted and state.code is not None and _is_verdict(state.code, began):
            return state.code
        reached = max(map(step_of, checkpoints_in(folder)), default=-1)
        deaths = deaths + 1 if began and reached <= newest else 0
        if deaths >= DEATHS:
            raise ToolError(
                "Q-REMOTE-011",
                f"{STAGE} was killed on {connection.name} {deaths} times without a checkpoint in between: "
                "look at its memory, or lower train.save_steps",
            )
        newest = reached
        _begin(mirror, payload, resume=resume or began)
        began = True
        incomplete_looks = 0


def _is_ahead(mirror: Mirror, step: int) -> bool:
    """Return True if the training resumes from a local checkpoint that is newer than `step`, the newest one
    there. It may come from another host, or from this machine.
    """
    checkpoints = checkpoints_in(mirror.root / CHECKPOINTS) if unfinished(mirror.root) else []
    return any(step_of(checkpoint) > step and not defect(checkpoint) for checkpoint in checkpoints)


def _need_wanted(mirror: Mirror, is_wanted: bool, resume: bool) -> None:
    """Raise `ConfigError` unless the run there may be followed. To follow it replaces the local files."""
    if not is_wanted:
        why = "is behind the checkpoints here" if resume else "is at work, and --no-resume is to start again"
        name = mirror.connection.name
        raise ConfigError(
            "Q-REMOTE-014",
            f"run {mirror.run} on {name} {why}: end it with `quench remote stop {name} {mirror.run}`, then "
            "run the same command again",
        )


def _need_complete(mirror: Mirror, looks: int) -> None:
    """Wait a moment. Raise `ToolError` if the run's folder was incomplete too often."""
    if looks >= LOOKS:
        name = mirror.connection.name
        raise ToolError(
            "Q-REMOTE-015",
            f"the folder of run {mirror.run} on {name} is incomplete: remove it with `quench remote clean "
            f"{name} {mirror.run}`, then run the same command again",
        )
    time.sleep(PAUSE_SECONDS)


def _begin(mirror: Mirror, payload: Upload, *, resume: bool) -> None:
    """Send what is missing there, and start train."""
    connection = mirror.connection
    root = mirror.root
    upload = state(root) if resume else Upload()
    attempt = uuid.uuid4().hex
    for _ in range(STALLED):
        send(connection, root, [payload, upload])
        if not upload.places:
            for path in STATE:
                # These belong to a finished run, or to one that is not wanted. Train removes them in the same
                # way.
                remove(root / path)
        started: Started = connection.ask(
            "start",
            run=mirror.run,
            attempt=attempt,
            inputs=payload.places,
            state=upload.places,
            words=[STAGE] if resume else [STAGE, "--no-resume"],
        )
        if not started.damaged:
            print(f"remote: {STAGE} starts on {connection.name}, as run {mirror.run}", flush=True)
            return
    raise ToolError(
        "Q-REMOTE-006",
        f"what arrived at {connection.name} has other bytes, {STALLED} times in a row: look at its disk",
    )


def _outputs(params: Params) -> list[str]:
    """Return train's outputs, as listed in the table of stages, and its checkpoints."""
    return [*STATE, *(path.rstrip("/") for path in stages_in(params)[STAGE].written)]


def _is_verdict(code: int, watched: bool) -> bool:
    """Return True if train itself exited so, and the machine did not kill it. A run that was stopped while
    nobody watched is resumed.
    """
    return code >= 0 and (watched or code - 128 not in SIGNALS)

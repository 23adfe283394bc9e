"""Upload to the host: the code, params.yaml, the inputs of train, and the checkpoints that it resumes from.
Each file is named by its SHA-256, and a run by the hash of all.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import distribution
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.core.errors import DataError, ToolError
from pipeline.core.hashing import NO_PART, file_hash, json_hash
from pipeline.core.locks import absent
from pipeline.core.places import PACKAGE, PROJECT
from pipeline.core.publish import read_json, remove, write_json, write_text
from pipeline.core.units import size_text
from pipeline.extras.remote.host.files import CHECKPOINTS
from pipeline.extras.remote.ssh import SshConnection
from pipeline.extras.ssh import ConnectionLost, foreign
from pipeline.stages.train.checkpoints import LATER, METRICS_LOG, TORN
from pipeline.stages.train.run import RUN
from pipeline.workflow.dvc_yaml import param_keys
from pipeline.workflow.graph_source import TABLE
from pipeline.workflow.keys.code_keys import method_module
from pipeline.workflow.keys.imports import Package
from pipeline.workflow.stages import stage_modules, stages_in, values_of

STAGE = "train"
TENSORBOARD = "reports/tensorboard"
STATE = (CHECKPOINTS, TENSORBOARD)  # outputs that train writes as it runs
JOURNAL = f"{CHECKPOINTS}/{METRICS_LOG}"
NO_STATE = (TORN, LATER)
SCRATCH = ".quench/remote"  # folder on this machine
STALLED = 5  # number of times that rsync may bring nothing before that is an error


@dataclass
class Upload:
    """Files for the host: `places` {path in the run's folder: sha256}, and `sources` {sha256: local path}."""

    places: dict[str, str] = field(default_factory=dict)
    sources: dict[str, Path] = field(default_factory=dict)

    def add(self, place: str, path: Path) -> None:
        """Add the file `path` at `place`."""
        self.places[place] = digest = file_hash(path)
        self.sources[digest] = path.absolute()


def inputs(root: Path, params: Params) -> Upload:
    """Return the code, the settings and train's inputs below `root`.

    Raises `DataError` if an input is missing.
    """
    upload = Upload()
    scratch = root / SCRATCH / "made"
    for name in Package().sources:
        upload.add(f"code/{PACKAGE.name}/{name}", PACKAGE / name)
    if TABLE.is_relative_to(PROJECT):
        upload.add(f"code/{TABLE.relative_to(PROJECT).as_posix()}", TABLE)
    # The run record finds the packages that Quench requires in this file.
    package = distribution("quench")
    write_text(scratch / "METADATA", package.read_text("METADATA") or "")
    upload.add(f"code/quench-{package.version}.dist-info/METADATA", scratch / "METADATA")
    write_json(scratch / "params.yaml", _settings(params))
    upload.add("project/params.yaml", scratch / "params.yaml")
    for dep in stages_in(params)[STAGE].deps:
        files = list(_files(root / dep))
        if not files:
            raise absent(root / dep, root)
        for path in files:
            upload.add(f"project/{path.relative_to(root).as_posix()}", path)
    return upload


def run_id(payload: Upload, params: Params) -> str:
    """Return an id that is the same for the same inputs, settings of train and code of train.

    A comment does not change it.
    """
    values = values_of(params)
    data = {
        place: digest
        for place, digest in payload.places.items()
        if place.startswith("project/") and place != "project/params.yaml"
    }
    params_read = chain.from_iterable(map(param_keys, stages_in(params)[STAGE].params))
    settings = {key: values.at(key) for key in params_read}
    code = Package().key(*stage_modules(STAGE), method_module(params.train.method))
    return json_hash([data, settings, code])[:16]


def unfinished(root: Path) -> bool:
    """Return True if a run here can be resumed."""
    record = root / CHECKPOINTS / RUN
    if not record.is_file():
        return False
    state = read_json(record, "remove it")
    return isinstance(state, dict) and not state.get("finished")


def state(root: Path) -> Upload:
    """Return what an unfinished run left here. The result is empty if there is none."""
    upload = Upload()
    if unfinished(root):
        for top in STATE:
            for path in _files(root / top):
                place = path.relative_to(root)
                if not any(part.startswith(".") or part in NO_STATE for part in place.parts):
                    upload.add(f"project/{place.as_posix()}", path)
    return upload


def _settings(params: Params) -> dict[str, Any]:
    """Return params.yaml for the host, without local paths (llama.cpp, a judge): they mean nothing there.

    The trackers follow the run here, where its curves arrive.
    """
    values = params.model_dump(mode="json")
    values["machine"]["llama_cpp"] = None
    values["train"]["report_to"] = [
        name for name in params.train.report_to if name not in params.train.trackers
    ]
    values["evaluate"] |= {"judge": None, "external": None, "scorers": ["exact_match"]}
    Params.model_validate(values)
    return values


def _files(top: Path) -> Iterator[Path]:
    """Yield `top` if it is a file, otherwise all files below it."""
    below = sorted(top.rglob("*")) if top.is_dir() else [top]
    yield from (path for path in below if path.is_file() and path.name not in NO_PART)


def send(connection: SshConnection, root: Path, payloads: list[Upload]) -> None:
    """Send to the host what it lacks of `payloads`. Raises `ToolError` if nothing arrives, and `DataError` if
    a file changed meanwhile.
    """
    sources = {name: path for payload in payloads for name, path in payload.sources.items()}
    sizes = {name: path.stat().st_size for name, path in sources.items()}
    folder = root / SCRATCH / "sending"
    remove(folder)
    folder.mkdir(parents=True)
    least = float("inf")  # fewest bytes that were missing so far
    stalled = 0  # tries in a row without fewer missing bytes
    shown = False
    while missing := connection.ask("wanted", files=sizes).missing:
        if not missing.keys() <= sizes.keys():
            raise foreign(connection.name, "it wants files that were not offered")
        left = sum(max(sizes[name] - received, 0) for name, received in missing.items())
        stalled = stalled + 1 if left >= least else 0
        least = min(left, least)
        if not shown:
            print(f"remote: sending {len(missing)} files, {size_text(left)}", flush=True)
        shown = True
        for name in missing:
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(sources[name])
        try:
            connection.push(folder, missing)
            trouble = "what arrives has other bytes"
        except ConnectionLost as cut:
            trouble = str(cut)
        if stalled >= STALLED:
            _need_unchanged({name: sources[name] for name in missing})
            raise ToolError(
                "Q-REMOTE-006", f"nothing more arrives at {connection.name} ({trouble}): make room there"
            )
        time.sleep(stalled)
    remove(folder)


def _need_unchanged(sources: Mapping[str, Path]) -> None:
    for name, path in sources.items():
        if file_hash(path) != name:
            raise DataError("Q-REMOTE-007", f"{path} changed while it was sent: run the same command again")

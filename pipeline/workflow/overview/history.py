"""The runs of a project, from the commits of `dvc.lock` in Git: what differed from the run before, and the
figures that DVC's cache has of each.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.git import ask_git
from pipeline.core.yaml_readers import UNREADABLE, parse_fast
from pipeline.workflow.graph_source import LAST
from pipeline.workflow.keys.code_keys import CODE, FOLDER, SETTINGS
from pipeline.workflow.overview.causes import setting_causes
from pipeline.workflow.overview.contents import cache_folder
from pipeline.workflow.stages import users
from pipeline.workflow.state.dvc_project import place

MOST = 30  # commits
RECORD = "dvc.lock"
METRICS = "reports/metrics.json"


@dataclass(frozen=True)
class Run:
    """A record of the pipeline: `commit` is "" if it is not in Git yet, `when` is in seconds since 1970.

    `changed` says in words what differs from the run before. `metrics` are None if DVC's cache lacks them.
    """

    when: float
    commit: str
    subject: str
    changed: list[str]
    metrics: dict[str, Any] | None


def history(root: Path) -> list[Run]:
    """Return the last `MOST` runs, newest first; the first is the present one if it is not committed.

    Raises `ToolError` if Git fails.
    """
    commits = list(_commits(root))
    records = [_stages(text) for text in _contents(root, [commit for commit, *_ in commits])]
    rows = [(float(when), commit, subject) for commit, when, subject in commits]
    file = root / RECORD
    if file.is_file():
        now = _stages(file.read_bytes())
        if not records or now != records[0]:
            rows.insert(0, (file.stat().st_mtime, "", ""))
            records.insert(0, now)
    cache = cache_folder(root)
    before = [*records, {}][1:]
    return [
        Run(*row, [*changes(old, new)] if old else [], _metrics(cache, new))
        for row, old, new in zip(rows, before, records, strict=True)
    ]


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words what differs between two records of all stages: settings, the user's data, code."""
    old, new = _settings(before), _settings(after)
    for key in {**old, **new}:
        if key in old and key in new:
            yield from (cause.text() for cause in setting_causes(key, old[key], new[key]))
    old_inputs, new_inputs = _inputs(before), _inputs(after)
    differing = [path for path in new_inputs if old_inputs.get(path) not in (None, new_inputs[path])]
    yield from (path for path in differing if path in users())
    code = [Path(path).stem for path in differing if path.startswith(f"{FOLDER}/")]
    if code:
        yield f"code of {', '.join(sorted(code))}"
    jobs = [name for name in after if name not in before]
    if jobs:
        yield f"new: {', '.join(jobs)}"
    gone = [name for name in before if name not in after]
    if gone:
        yield f"gone: {', '.join(gone)}"


def _settings(stages: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for entry in stages.values()
        for keys in entry.get("params", {}).values()
        for key, value in keys.items()
    }


def _inputs(stages: Mapping[str, Any]) -> dict[str, str]:
    return {
        dep["path"]: dep.get("md5", "")
        for name, entry in stages.items()
        if name not in (CODE, SETTINGS)
        for dep in entry.get("deps", [])
    }


def _metrics(cache: Path, stages: Mapping[str, Any]) -> dict[str, Any] | None:
    for out in stages.get(LAST, {}).get("outs", []):
        if out["path"] == METRICS:
            try:
                values = json.loads(place(cache, out.get("md5", "")).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                return None
            return values if isinstance(values, dict) else None
    return {}


def _stages(text: bytes) -> dict[str, Any]:
    """Return the stages of a dvc.lock; none of one that can't be read, such as one with merge conflicts."""
    try:
        return dict(parse_fast(text).get("stages") or {})
    except (*UNREADABLE, AttributeError):
        return {}


def _commits(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (commit, seconds since 1970, subject) of the commits that changed the record, newest first."""
    log = ask_git(root, "log", f"--max-count={MOST}", "--format=%H%x00%ct%x00%s", "--", RECORD)
    for line in (log or b"").decode(errors="replace").splitlines():
        commit, when, subject = line.split("\0")
        yield commit, when, subject


def _contents(root: Path, commits: list[str]) -> Iterator[bytes]:
    """Yield the record as it is in each commit; nothing of one that deleted it."""
    names = "".join(f"{commit}:./{RECORD}\n" for commit in commits)
    answer = ask_git(root, "cat-file", "--batch", given=names.encode()) or b""
    for _ in commits:
        head, _, answer = answer.partition(b"\n")
        words = head.split()
        size = int(words[2]) if len(words) == 3 and words[1] == b"blob" else None
        yield b"" if size is None else answer[:size]
        answer = answer if size is None else answer[size + 1 :]

"""Steps that are run only where something still needs them, once, and whose outputs go as soon as nothing does.

A step is done where its outputs lie there with its mark. A killed run leaves marks of what it finished, so the next one goes on from there.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.publish import publishing, read_json, remove, write_json

MARKS = "steps"  # folder of a sub-project


@dataclass(frozen=True, eq=False)
class Step:
    """`run` makes the files and folders `made` below `project`, from what the steps `needs` made; `scrap` may go as soon as it is done.

    `key` is a hash of what it depends on beside the sub-project's own key; a mark of another one does not count.
    """

    name: str
    project: Path
    made: tuple[Path, ...]
    run: Callable[[], object]
    needs: tuple["Step", ...] = ()
    scrap: tuple[Path, ...] = field(default=())
    key: str = ""

    @property
    def mark(self) -> Path:
        """The file that says that the step is done, and how large its outputs are."""
        return self.project / MARKS / f"{self.name.replace(' ', '-').replace('@', '-')}.json"

    @property
    def done(self) -> bool:
        """Whether it was run to its end under `key` and its outputs are there still."""
        try:
            marked = json.loads(self.mark.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return marked.get("key", "") == self.key and all(path.exists() for path in self.made)

    def bytes_of(self, path: Path) -> int:
        """Bytes that one of `made` had when the step was done, also after it was removed."""
        return int(read_json(self.mark, "run `python -m pipeline compare` once more")["bytes"][path.name])


@dataclass(frozen=True, eq=False)
class Measurement:
    """`run` gives the figures of one way, level and seed, which are kept in `record` under `key`, a hash of what they depend on."""

    name: str
    record: Path
    key: str
    run: Callable[[], dict[str, Any]]
    needs: tuple[Step, ...]

    def known(self) -> dict[str, Any] | None:
        """The figures of an earlier run, None where there are none of this key."""
        try:
            found = json.loads(self.record.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found["figures"] if isinstance(found, dict) and found.get("key") == self.key else None


def measure_all(measurements: Sequence[Measurement], tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """The figures of each measurement, in order; those whose record is there are not measured again.

    `tell` hears what is about to run and how much is left. What a measurement or a step raises ends it all; what was finished stays.
    """
    every = steps_of(measurements)
    pending = [one for one in measurements if one.known() is None]
    while pending:
        sweep(every, pending)
        first, *rest = pending

        def say(name: str, waiting: Sequence[Measurement] = pending) -> None:
            tell(f"{name}; {left(waiting)} to go")

        for need in first.needs:
            ensure(need, say)
        say(first.name)
        write_json(first.record, {"key": first.key, "figures": first.run()})
        pending = rest
    sweep(every, [])
    return [figures for one in measurements if (figures := one.known()) is not None]


def ensure(step: Step, say: Callable[[str], None]) -> None:
    """Run `step` unless it is done, and before it whatever it needs."""
    if step.done:
        return
    for need in step.needs:
        ensure(need, say)
    say(step.name)
    step.run()
    with publishing(step.mark) as aside:
        aside.write_text(json.dumps({"key": step.key, "bytes": {path.name: size_of(path) for path in step.made}}), encoding="utf-8")
    for path in step.scrap:
        remove(path)


def left(pending: Sequence[Measurement]) -> int:
    """Steps and measurements that are to be run still."""
    return len(pending) + sum(not step.done for step in needed(pending))


def needed(pending: Iterable[Measurement]) -> set[Step]:
    """Every step whose outputs are needed for `pending`, now or by a step that is not done yet."""
    found: set[Step] = set()
    waiting = [step for one in pending for step in one.needs]
    while waiting:
        step = waiting.pop()
        if step not in found:
            found.add(step)
            waiting += [] if step.done else step.needs
    return found


def steps_of(measurements: Iterable[Measurement]) -> list[Step]:
    """All steps below `measurements`, done or not, each once."""
    found: dict[Step, None] = {}
    waiting = [step for one in measurements for step in one.needs]
    while waiting:
        step = waiting.pop()
        found[step] = None
        waiting += step.needs
    return list(found)


def sweep(every: Iterable[Step], pending: Sequence[Measurement]) -> None:
    """Remove what `pending` doesn't need: a sub-project of which nothing is needed as a whole."""
    kept = needed(pending)
    projects = {step.project for step in kept}
    for step in every:
        if step.project not in projects:
            remove(step.project)
        elif step not in kept:
            for path in step.made:
                remove(path)


def size_of(path: Path) -> int:
    """Bytes of a file; of a folder its weights (safetensors), or all it holds where it has none."""
    if path.is_file():
        return path.stat().st_size
    files = list(path.glob("*.safetensors")) or [one for one in path.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files)

"""Edits of a finished project, with the jobs that follow and the cause in words: `quench status`,
`quench run -n`, `snakemake -n`, `dvc status` and a real run agree on each.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from toy_project import ALL, Toy, lose

from pipeline.config.params import load_params
from pipeline.workflow.overview.causes import Kind, in_words
from pipeline.workflow.overview.states import overview

pytest_plugins = ("toy_fixtures",)
Q4 = "models/demo-Q4_K_M.gguf"
F16 = "models/demo-F16.gguf"
LEVELS = ["quantize", "quantize"]
FROM_MERGE = ["merge", *LEVELS, "report"]
FROM_TRAIN = ["train", *FROM_MERGE]
FROM_CURATE = ["curate", *FROM_TRAIN]
NO_RECORD = "no run of it is recorded"


class Edit(NamedTuple):
    """An edit of the built toy: the jobs that a run would run, and the first one's cause.

    `ran` are those of the jobs that do run, if a stage writes the bytes that were there before and the others
    come back from DVC's cache. `planned` is what a dry run shows if it can't know the result of a job that
    DVC makes first. `left` are stages that stay without a record, because no job reads what they would make.
    """

    make: Callable[[Toy], object]
    jobs: list[str] = []  # noqa: RUF012
    cause: str = ""
    ran: list[str] | None = None
    planned: list[str] | None = None
    left: frozenset[str] = frozenset()


def _shuffle_dates(toy: Toy) -> None:
    dice = random.Random(5)  # noqa: S311
    for path in (*toy.root.glob("*.txt"), *toy.root.glob("models/**/*"), *toy.root.glob("data/**/*")):
        os.utime(path, (1e9 * dice.uniform(1, 3), 1e9 * dice.uniform(1, 3)))


def _forget(toy: Toy, *stages: str) -> None:
    """Remove the records of stages from dvc.lock."""
    import yaml

    lock = toy.root / "dvc.lock"
    content = yaml.safe_load(lock.read_text())
    for stage in stages:
        del content["stages"][stage]
    lock.write_text(yaml.safe_dump(content))


def _edit_graph(toy: Toy, before: str, after: str) -> None:
    text = (toy.root / "dvc.yaml").read_text()
    assert text.count(before) == 1
    (toy.root / "dvc.yaml").write_text(text.replace(before, after))


EDITS = {
    "none": Edit(lambda toy: None),
    # settings
    "a setting of merge": Edit(
        lambda toy: toy.change("\n  base: auto", "\n  base: nf4"), FROM_MERGE, "merge.base: auto → nf4"
    ),
    "a setting of the report": Edit(
        lambda toy: toy.change("max_task_drop: 10.0", "max_task_drop: 8.0"),
        ["report"],
        "report.gate.max_task_drop: 10.0 → 8.0",
    ),
    "a setting of training": Edit(
        lambda toy: toy.change("\n  r: 16", "\n  r: 8"), FROM_TRAIN, "train.r: 16 → 8"
    ),
    "a setting that no stage reads": Edit(lambda toy: toy.change("task_rows: ", "task_rows: 1")),
    "a comment in params.yaml": Edit(
        lambda toy: toy.put("params.yaml", (toy.root / "params.yaml").read_text() + "# note\n")
    ),
    "two settings": Edit(
        lambda toy: (
            toy.change("max_task_drop: 10.0", "max_task_drop: 8.0"),
            toy.change("\n  base: auto", "\n  base: nf4"),
        ),
        FROM_MERGE,
        "merge.base: auto → nf4",
    ),
    "a level more, which the toy's report does not read": Edit(
        lambda toy: toy.change("levels: [Q4_K_M, Q5_K_M]", "levels: [Q4_K_M, Q5_K_M, Q6_K]"),
        left=frozenset({"quantize@Q6_K"}),
    ),
    # code
    "code of train": Edit(
        lambda toy: toy.put("train.txt", "code of train, another\n"),
        FROM_TRAIN,
        "train.txt changed",
        ["train"],
    ),
    "code of curate": Edit(
        lambda toy: toy.put("curate.txt", "another\n"), FROM_CURATE, "curate.txt changed", ["curate"]
    ),
    "code of base": Edit(
        lambda toy: toy.put("base.txt", "another\n"), sorted(ALL), "base.txt changed", ["base"]
    ),
    "code that is touched": Edit(lambda toy: os.utime(toy.root / "train.txt")),
    "a command": Edit(
        lambda toy: _edit_graph(toy, "cmd: python run.py merge", "cmd: python  run.py merge"),
        FROM_MERGE,
        "its command in dvc.yaml",
        ["merge"],
    ),
    # data
    "a file of rows more": Edit(
        lambda toy: toy.put("data/raw/b.jsonl", "more\n"), FROM_CURATE, "data/raw changed"
    ),
    "another row": Edit(lambda toy: toy.put("data/raw/a.jsonl", "others\n"), FROM_CURATE, "data/raw changed"),
    "a file of rows under another name": Edit(
        lambda toy: (toy.root / "data/raw/a.jsonl").rename(toy.root / "data/raw/c.jsonl"),
        FROM_CURATE,
        "data/raw changed",
        ["curate"],
    ),
    "a file of rows more, with the same rows": Edit(
        lambda toy: toy.put("data/raw/b.jsonl", "rows\n"), FROM_CURATE, "data/raw changed", ["curate"]
    ),
    "all dates": Edit(_shuffle_dates),
    # outputs
    "a lost output": Edit(lambda toy: lose(toy.root / "models/adapter")),
    "a lost report": Edit(lambda toy: lose(toy.root / "reports/index.html")),
    "a report lost for good": Edit(
        lambda toy: toy.lose_for_good("reports/index.html"), ["report"], "reports/index.html is missing"
    ),
    "a model lost for good that nobody needs": Edit(lambda toy: toy.lose_for_good(F16)),
    "two lost for good that nobody needs": Edit(
        lambda toy: (toy.lose_for_good(F16), toy.lose_for_good("models/adapter"))
    ),
    "two lost for good, one needed": Edit(
        lambda toy: (
            toy.lose_for_good(F16),
            toy.lose_for_good(Q4),
            toy.change("max_task_drop: 10.0", "max_task_drop: 8.0"),
        ),
        FROM_MERGE,
        f"{F16} is missing",
        ["merge", "quantize", "report"],
    ),
    "base lost": Edit(lambda toy: lose(toy.root / "models/base")),
    "base lost, and a setting of merge": Edit(
        lambda toy: (lose(toy.root / "models/base"), toy.change("\n  base: auto", "\n  base: nf4")),
        ["base", *FROM_MERGE],
        "models/base is missing",
        FROM_MERGE,  # DVC's cache of runs has the base.
        sorted(ALL),
    ),
    # DVC's cache has what was there before.
    "an edited model": Edit(
        lambda toy: toy.put(Q4, "damaged\n"), ["quantize", "report"], f"{Q4} is not what it wrote", []
    ),
    "a model damaged under its date": Edit(
        lambda toy: toy.damage(F16), FROM_MERGE, f"{F16} is not what it wrote", []
    ),
    "a file more in a folder": Edit(
        lambda toy: toy.put("models/adapter/more.txt", "more\n"),
        FROM_TRAIN,
        "models/adapter is not what it wrote (more.txt new)",
        [],
    ),
    "a file of a folder lost": Edit(
        lambda toy: lose(toy.root / "models/adapter/a.txt"),
        FROM_TRAIN,
        "models/adapter is not what it wrote (a.txt gone)",
        [],
    ),
    "an empty output with content": Edit(
        lambda toy: toy.put("data/rejects.jsonl", "x"),
        FROM_CURATE,
        "data/rejects.jsonl is not what it wrote",
        [],
    ),
    # records
    "no record": Edit(lambda toy: lose(toy.root / "dvc.lock"), sorted(ALL), NO_RECORD),
    "no record of merge": Edit(lambda toy: _forget(toy, "merge"), FROM_MERGE, NO_RECORD, ["merge"]),
    "the cache emptied": Edit(lambda toy: shutil.rmtree(toy.root / ".dvc/cache/files")),
    "Quench's own folder lost": Edit(lambda toy: shutil.rmtree(toy.root / ".quench")),
}


def _verdicts(findings: object) -> Iterator[str]:
    """Yield the words in nested findings of `dvc status`."""
    match findings:
        case str():
            yield findings
        case list():
            for finding in findings:
                yield from _verdicts(finding)
        case dict():
            for finding in findings.values():
                yield from _verdicts(finding)


def _differing(toy: Toy) -> set[str]:
    """Return the stages of which `dvc status` says more than that a file is missing, or not in the cache."""
    return {
        stage
        for stage, findings in toy.status().items()
        if not stage.endswith(".dvc") and not {*_verdicts(findings)} <= {"deleted", "not in cache"}
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_every_tool_says_the_same_of_an_edit(toy: Toy, name: str) -> None:
    edit = EDITS[name]
    edit.make(toy)
    seen = overview(toy.root, load_params(toy.root / "params.yaml"))
    assert sorted(job.partition("@")[0] for job in seen.would_run) == sorted(edit.jobs)
    if edit.jobs:
        first = seen.job(seen.would_run[0])
        assert first and edit.cause in in_words(first.causes)
    other = {Kind.FOLLOWS, Kind.MISSING}
    assert _differing(toy) == {job.name for job in seen.jobs if {cause.kind for cause in job.causes} - other}
    assert toy.plan() == sorted(edit.jobs if edit.planned is None else edit.planned)
    before = toy.ran()
    toy.build()
    assert sorted(toy.ran()[len(before) :]) == sorted(edit.jobs if edit.ran is None else edit.ran)
    assert toy.plan() == []
    assert _differing(toy) == edit.left

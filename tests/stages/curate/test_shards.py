"""Any number of shards gives one process's bytes: rows, rejects, changes, clusters, account, page."""

import gzip
import io
import json
import os
import random
import shutil
import signal
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from curating import Project, chat, lines
from curating import given as settings_with
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_folders import smollm_folder

from pipeline.config.sections import Curate
from pipeline.core.errors import ConfigError, DataError, MachineError
from pipeline.core.jsonl import BadLine
from pipeline.intake.files.containers import raw_lines
from pipeline.stages.curate import account, shard
from pipeline.stages.curate.phases import cleaning, work
from pipeline.stages.curate.phases.publish import publish
from pipeline.workflow.cluster.shards import FOLDER, PHASES, drop_stale, parse_item

EXPORTS = Path(__file__).parents[2] / "world/rows"
EXAM = " ".join(f"secret{number}" for number in range(20))


def words(seed: int, count: int = 40) -> str:
    return " ".join(f"w{seed * 7919 % 10007}x{number * seed % 97}" for number in range(count))


def chats(first: int, last: int) -> Iterator[dict[str, Any]]:
    """Rows of which many repeat an earlier one, exactly or nearly, here and in other files."""
    for i in range(first, last):
        base = i % 150
        yield chat(
            f"question {base % 70} about {words(base % 70, 12)}",
            f"{words(base)}{' and more' if i % 3 else ''} mail{i % 50}@firm.com",
            **({"domain": f"domain {i % 9}"} if i % 4 else {}),
            **({"reward": (i * 37 % 11) / 10} if i % 5 == 0 else {}),
        )


def nasty_files() -> dict[str, bytes]:
    """Every container, and lines of every kind; what is alike lies far apart."""
    import pyarrow
    import zstandard
    from pyarrow import parquet

    table = io.BytesIO()
    rows = [
        {"prompt": f"parquet {i % 9} asks {words(i % 9)}", "completion": words(i % 13)} for i in range(30)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), table)
    broken = b'{"messages": \n\n\xff\xfe\n[1]\n{"a": 1, "a": 2}\n   \nnot json\n{"text": "'
    broken += b"x" * 40_000 + b'"}\n'
    mark = "\ufeff".encode()
    cells = "".join(f'"csv {i % 7}, asks","{words(i % 7)}"\n' for i in range(20))
    answers = lines(
        *(chat("best tea of all", f"answer {i % 4} {words(i % 4)}", score=i % 6) for i in range(24))
    )
    return {
        "a/first.jsonl": mark + lines(*chats(0, 120)) + mark + lines(chat("marked", "line")) + broken,
        "a/unix.jsonl": lines(*chats(60, 200)).replace(b"\n", b"\r\n") + answers + b"no break at the end",
        "array.json": json.dumps([*chats(20, 50)]).encode(),
        "b.csv": f"prompt,completion\n{cells}".encode() + b'"one cell"\n',
        "c.parquet": table.getvalue(),
        "d.jsonl.gz": gzip.compress(lines(*chats(100, 160))),
        "e.jsonl.zst": zstandard.compress(lines(*chats(10, 40)) + broken),
        "empty.jsonl": b"",
        "exam.jsonl": lines(*(chat(words(i, 9), f"{words(i + 900)} {EXAM}!") for i in range(700, 706))),
        "long.jsonl": lines({"text": " ".join(f"Sentence {i} says {i * 7919 % 1000}." for i in range(300))}),
        "object.json": json.dumps(chat("one", "object"), indent=1).encode(),
        "refused.doc": b"x",
        "z.jsonl": lines(*chats(0, 60), *(chat(f"thumb {i}", words(i), label=i % 2 == 0) for i in range(8))),
    }


def make_project(root: Path, files: dict[str, bytes]) -> Project:
    return Project(root, files, guard={"exam.txt": f"{EXAM}\n\n{words(500)}\n"})


def run_jobs(project: Project, asked: Curate, shards: int, phases: tuple[str, ...] = tuple(PHASES)) -> None:
    """The jobs of these phases, as Snakemake runs them but in this process."""
    for phase in phases:
        items = [f"{number}-of-{shards}" for number in range(1, shards + 1)]
        for item in reversed(items) if PHASES[phase][0] else [f"of-{shards}"]:
            shard.run(phase, item, project.root, asked)


def sharded(project: Project, asked: Curate, shards: int) -> dict[str, bytes]:
    run_jobs(project, asked, shards)
    publish(project.root, asked, shard.work_of(project.root, asked, shards))
    return project.outputs()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Nasty files, and a base whose tokenizer counts tokens."""
    made = make_project(tmp_path_factory.mktemp("shards"), nasty_files())
    smollm_folder(made.root / "models/base")
    return made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code's key is looked up once and not by each job; disks needn't be ready for a power failure."""
    monkeypatch.setattr(
        "pipeline.workflow.cluster.shards.Package", lambda: type("Key", (), {"key": lambda *_: "code"})()
    )
    monkeypatch.setattr("pipeline.core.publish._fsync", lambda _: None)


MANY_RULES: dict[str, Any] = {
    "val_fraction": 0.1,
    "test_fraction": 0.2,
    "max_line_bytes": 30_000,
    "max_tokens": 700,
    "decontaminate": ["exam.txt"],
    "pairs": "rewards",
    "temperature": 0.7,
    "source_weights": {"a/*": 0.8},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        MANY_RULES,
        {"drop_duplicates": "none", "val_fraction": 0.0, "test_fraction": 0.3},
        {"drop_duplicates": "exact", "near_threshold": 0.6, "val_fraction": 0.03, "test_fraction": 0.12}
        | {"source_weights": {"a/": 2.5}, "temperature": 0.9, "balance": "up", "pairs": "rewards"},
    ],
)
def test_any_number_of_shards_gives_the_same_bytes(
    project: Project, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account, "MOST_DOMAINS", 6)  # so that there are more of them
    monkeypatch.setattr(cleaning, "BLOCK_BYTES", 3000)
    asked = settings_with(**changed)
    if changed is not MANY_RULES and (project.root / "models/base").is_dir():
        shutil.rmtree(project.root / "models/base")  # each shard would read the tokenizer again
    counts = project.run(**changed)
    expected = project.outputs()
    assert len(expected) == 8 and counts["duplicates"]["clusters"] > 50
    assert "(other)" in counts["domains"]
    if changed is MANY_RULES:  # nothing that is to be compared is missing
        compared = {"duplicate", "near_duplicate", "contaminated", "sampled_out"}
        assert counts["rejected"].keys() >= compared | {"too_long", "not_json"}
        assert counts["pairs"]["made"] > 1 and counts["parts_added"] > 2 and all(counts["splits"].values())
        assert counts["contamination"]["sources"].keys() == {"exam.txt", "test"}
    for shards in (7,) if changed is MANY_RULES else (2, 5):
        assert sharded(project, asked, shards) == expected, shards
        assert sum(map(len, read_plan(project, asked, shards).shards)) > len(counts["files"])  # some were cut


def test_exports_archives_and_documents_are_the_same_in_any_number_of_shards(tmp_path: Path) -> None:
    files = {
        f"{folder.name}/{file.name}": file.read_bytes()
        for folder in sorted(EXPORTS.glob("exports-*"))
        for file in sorted(folder.iterdir())
        if file.is_file() and file.name != "cases.yaml"
    }
    members = lines({"nl": "how many", "bash": "ls"}, {"nl": "how big", "bash": "du"})
    tarred, zipped = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w:gz") as tar, zipfile.ZipFile(zipped, "w") as archive:
        for name in ("a.jsonl", "b.jsonl"):
            entry = tarfile.TarInfo(name)
            entry.size = len(members)
            tar.addfile(entry, io.BytesIO(members))
            archive.writestr(name, members)
    text = "".join(f"Line {number} says {number * 7919 % 1000}.\n" for number in range(20_000)).encode()
    files |= {"mapped.tgz": tarred.getvalue(), "mapped.zip": zipped.getvalue()}
    files |= {"book.txt": text, "src/code.py": b"print(1)\n" * 50, "mapped.jsonl": members * 100}
    files["twice.jsonl"] = lines(*chats(0, 90))
    twice = "def twice(row):\n    return [row, {**row, 'domain': 'again'}]\n"
    project = Project(tmp_path, files, guard={"twice.py": twice})
    changed: dict[str, Any] = {
        "fields": {"mapped.*": {"user": "nl", "assistant": "bash"}},
        "documents": {"src/": "named"},
        "transform": {"twice.jsonl": "python:twice.py:twice"},
        "source_weights": {"exports-chatgpt/": 2.5},
        "drop_duplicates": "exact",
        "test_fraction": 0.1,
    }
    counts = project.run(**changed)
    assert counts["transform"]["rows_added"] == 90 and counts["rows_repeated"]
    expected = project.outputs()
    for shards in (3, 7):
        assert sharded(project, settings_with(**changed), shards) == expected, shards


def read_plan(project: Project, asked: Curate, shards: int) -> cleaning.Plan:
    return cleaning.read_plan(shard.work_of(project.root, asked, shards))


@pytest.mark.parametrize("shards", [3, 20])
def test_more_shards_than_rows(tmp_path: Path, shards: int) -> None:
    files = {"a.jsonl": lines(chat("one", "row")), "b.jsonl": b"", "c.jsonl": lines(chat("another", "line"))}
    project = make_project(tmp_path, files)
    project.run()
    expected = project.outputs()
    assert sharded(project, settings_with(), shards) == expected
    assert [] in read_plan(project, settings_with(), shards).shards


def test_no_file_that_can_be_read_is_the_same_sentence_for_any_number_of_shards(tmp_path: Path) -> None:
    project = make_project(tmp_path, {})
    (project.raw / "link.jsonl").symlink_to(tmp_path)
    said = []
    for use in (project.run, lambda: sharded(project, SMALL, 3)):
        with pytest.raises(DataError, match="Q-CURATE-013") as caught:
            use()
        said.append(str(caught.value))
    assert said[0] == said[1] and project.outputs() == {}


def test_a_file_of_which_no_row_can_be_read_is_the_same_sentence_for_any_number_of_shards(
    tmp_path: Path,
) -> None:
    """The file is cut, and the first shard's part of it has the row that is named."""
    files = {"a.jsonl": lines(chat("one", "row")), "b.jsonl": lines(*({"nl": "x" * 50} for _ in range(40)))}
    project = make_project(tmp_path, files)
    said = []
    for use in (project.run, lambda: sharded(project, SMALL, 3)):
        with pytest.raises(DataError, match=r"Q-CURATE-019: .* none of 40 rows .*; line 1: ") as caught:
            use()
        said.append(str(caught.value))
    assert said[0] == said[1] and project.outputs() == {}


SHARES = {"val_fraction": 0.03, "test_fraction": 0.12}
SMALL = settings_with(**SHARES)
PIECES = st.lists(
    st.sampled_from(
        [b"", b"\n", b"\r\n", b"{}\n", b'{"a": 1}\n', "\ufeff".encode(), b"x" * 40, b"x" * 90 + b"\n"]
    )
    | st.binary(max_size=20)
)


@settings(max_examples=draws(150), deadline=None)
@given(files=st.lists(PIECES.map(b"".join), min_size=1, max_size=4), shards=st.integers(1, 9))
def test_shards_read_every_line_once_under_its_number(
    tmp_path_factory: pytest.TempPathFactory, files: list[bytes], shards: int
) -> None:
    names = {f"{i}.jsonl": data for i, data in enumerate(files)}
    root = make_project(tmp_path_factory.mktemp("cut"), names).root
    with patch("pipeline.intake.files.files.SNIFFED", 64):
        made = work.Work(root / "work", shards)
        cleaning.make_plan(root, settings_with(max_line_bytes=1024), made)
        planned = cleaning.read_plan(made)

        def read(name: str, part: Any = None) -> list[Any]:
            found = raw_lines(root / "data/raw" / name, name, max_line_bytes=50, notes=notes, part=part)
            return [
                (name, number, offset, (data.code, str(data)) if isinstance(data, BadLine) else data)
                for number, offset, data, _ in found
            ]

        notes = Counter[str]()
        whole = [line for name in planned.files for line in read(name)]
        noted = +notes
        notes = Counter[str]()
        assert [line for one in planned.shards for name, part in one for line in read(name, part)] == whole
        assert +notes == noted
        assert len(planned.shards) == shards


def test_a_shards_bytes_are_nearly_equal(tmp_path: Path) -> None:
    files = {"a.jsonl": lines(*chats(0, 300)), "b.jsonl": lines(*chats(0, 500))}
    root = make_project(tmp_path, files).root
    total = sum(path.stat().st_size for path in (root / "data/raw").iterdir())
    made = work.Work(root / "work", 5)
    cleaning.make_plan(root, SMALL, made)
    sizes = {path.name: path.stat().st_size for path in (root / "data/raw").iterdir()}
    for one in cleaning.read_plan(made).shards:
        read = sum(part.stop - part.start if part else sizes[name] for name, part in one)
        assert abs(read - total / 5) < 1000


def test_plain_lines_alone_are_cut(tmp_path: Path) -> None:
    text = lines(*chats(0, 60))
    files = {"a.jsonl": text, "b.jsonl.gz": gzip.compress(text), "d.csv": b"prompt,completion\n" + text}
    files["c.json"] = b"[%s]" % text.replace(b"\n", b",\n")
    project = make_project(tmp_path, files)
    run_jobs(project, SMALL, 9, ("plan",))
    planned = [place for one in read_plan(project, SMALL, 9).shards for place in one]
    assert {name for name, _ in planned} == files.keys()
    assert {name for name, part in planned if part} == {"a.jsonl"}


@pytest.fixture
def small(tmp_path: Path) -> Project:
    return make_project(tmp_path, {"a.jsonl": lines(*chats(0, 90))})


def test_a_job_whose_inputs_are_missing_says_what_makes_them(small: Project) -> None:
    run_jobs(small, SMALL, 2, ("plan",))
    shard.run("clean", "2-of-2", small.root, SMALL)
    with pytest.raises(DataError, match="Q-CURATE-016"):
        shard.run("sample", "of-2", small.root, SMALL)
    with pytest.raises(DataError, match="Q-CURATE-016"):
        publish(small.root, SMALL, shard.work_of(small.root, SMALL, 2))
    assert small.outputs() == {}


@pytest.mark.parametrize("changed", ["settings", "raw", "guard", "base"])
def test_what_was_made_of_other_inputs_is_not_used_and_goes(small: Project, changed: str) -> None:
    run_jobs(small, SMALL, 2)
    run_jobs(small, SMALL, 3, ("plan",))
    drop_stale(small.root, SMALL)
    assert (small.root / FOLDER / "write-2-of-2").is_dir() and (small.root / FOLDER / "plan-of-3").is_dir()
    now = SMALL
    if changed == "settings":
        now = SMALL.model_copy(update={"seed": 7})
    elif changed == "base":
        (small.root / "models/base.json").write_text('{"added_tokens": ["<x>"]}')
    else:
        file = small.root / "data" / changed / {"raw": "a.jsonl", "guard": "exam.txt"}[changed]
        file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(MachineError, match="Q-CURATE-017"):
        shard.run("write", "1-of-2", small.root, now)
    with pytest.raises(MachineError, match="Q-CURATE-017"):
        publish(small.root, now, shard.work_of(small.root, now, 2))
    assert small.outputs() == {}
    drop_stale(small.root, now)
    assert not list((small.root / FOLDER).iterdir())
    small.run(**SHARES, seed=now.seed)
    expected = small.outputs()
    assert sharded(small, now, 2) == expected


@pytest.mark.slow
def test_whichever_job_is_killed_the_same_command_goes_on_to_the_same_bytes(small: Project) -> None:
    small.run(**SHARES)
    expected = small.outputs()
    for phase, (scattered, _) in PHASES.items():
        for item in ("2-of-2", "1-of-2") if scattered else ("of-2",):
            for when in ("at any moment", "before it is published"):
                _killed(phase, item, small.root, when)
            shard.run(phase, item, small.root, SMALL)
    publish(small.root, SMALL, shard.work_of(small.root, SMALL, 2))
    assert small.outputs() == expected


def _killed(phase: str, item: str, root: Path, when: str) -> None:
    """Run a job in a process of its own that is killed."""
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (phase, when)
        return
    try:
        if when == "at any moment":
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, random.Random(phase + item).uniform(0.001, 0.02))  # noqa: S311
        else:
            patch("pipeline.core.publish._fsync_tree", lambda _: os.kill(os.getpid(), signal.SIGKILL)).start()
        for _ in range(100):
            shard.run(phase, item, root, SMALL)
    finally:
        os._exit(1)


@pytest.mark.parametrize(
    "job", ["clean@of-7", "clean@0-of-7", "clean@8-of-7", "plan@1-of-7", "plan@of-257", "join@"]
)
def test_a_job_that_there_is_not_is_refused(job: str) -> None:
    phase, _, item = job.partition("@")
    with pytest.raises(ConfigError, match="Q-CURATE-018: "):
        parse_item(phase, item)
    assert parse_item("plan", "of-256") == (None, 256) and parse_item("clean", "256-of-256") == (255, 256)

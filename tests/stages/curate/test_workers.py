"""Any number of workers gives the bytes of one process, for every container, export and rule."""

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from curating import Project, chat, lines
from tokenizer_folders import smollm_folder

from pipeline.stages.curate import account
from pipeline.stages.curate.phases import cleaning

EXPORTS = Path(__file__).parents[2] / "world/rows"
EXAM = " ".join(f"secret{number}" for number in range(20))


def words(seed: int, count: int = 40) -> str:
    """Return so many words, the same for the same seed."""
    return " ".join(f"w{seed * 7919 % 10007}x{number * seed % 97}" for number in range(count))


def chats(first: int, last: int) -> Iterator[dict[str, Any]]:
    """Yield rows of which many repeat an earlier one, exactly or nearly, here and in other files."""
    for i in range(first, last):
        base = i % 150
        yield chat(
            f"question {base % 70} about {words(base % 70, 12)}",
            f"{words(base)}{' and more' if i % 3 else ''} mail{i % 50}@firm.com",
            **({"domain": f"domain {i % 9}"} if i % 4 else {}),
            **({"reward": (i * 37 % 11) / 10} if i % 5 == 0 else {}),
        )


def nasty_files() -> dict[str, bytes]:
    """Return every container, and lines of every kind; what is alike lies far apart."""
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
    """Return a project of these files, with texts that training must not share words with."""
    return Project(root, files, guard={"exam.txt": f"{EXAM}\n\n{words(500)}\n"})


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Nasty files, and a base whose tokenizer counts tokens."""
    made = make_project(tmp_path_factory.mktemp("workers"), nasty_files())
    smollm_folder(made.root / "models/base")
    return made


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
def test_any_number_of_workers_gives_the_same_bytes(
    project: Project, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account, "MOST_DOMAINS", 6)  # so that there are more of them
    monkeypatch.setattr(cleaning, "BLOCK_BYTES", 3000)
    counts = project.run(1, **changed)
    expected = project.outputs()
    assert len(expected) == 8 and counts["duplicates"]["clusters"] > 50
    assert "(other)" in counts["domains"]
    if changed is MANY_RULES:  # nothing that is to be compared is missing
        compared = {"duplicate", "near_duplicate", "contaminated", "sampled_out"}
        assert counts["rejected"].keys() >= compared | {"too_long", "not_json"}
        assert counts["pairs"]["made"] > 1 and counts["parts_added"] > 2 and all(counts["splits"].values())
        assert counts["contamination"]["sources"].keys() == {"exam.txt", "test"}
    for processes in (2, 3):
        project.run(processes, **changed)
        assert project.outputs() == expected, processes


def test_exports_archives_and_documents_are_the_same_with_any_number_of_workers(tmp_path: Path) -> None:
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
    counts = project.run(1, **changed)
    assert counts["transform"]["rows_added"] == 90 and counts["rows_repeated"]
    expected = project.outputs()
    project.run(3, **changed)
    assert project.outputs() == expected

"""A file of which no row can be read stops the stage, and the sentence says which, why and what to do."""

import gzip
import io
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from curating import Project, chat, lines

from pipeline.core.errors import DataError

GOOD = lines(chat("hi"), chat("hello"))
COMMANDS = lines(*({"nl": f"list {number}", "bash": "ls"} for number in range(600)))


def table() -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"nl": ["list"], "bash": ["ls"]}), sink)
    return sink.getvalue()


UNREADABLE = {
    "commands.jsonl": (COMMANDS, ("none of 600 rows", "600 unknown_format", "keys nl, bash")),
    "folder/commands.csv": (b"Frage,Befehl\na,b\nc,d\n", ("none of 2 rows", "keys Frage, Befehl")),
    "no_header.csv": (b"list files,ls\nlist all,ls -a\n", ("none of 1 row ", "keys list files, ls")),
    "commands.parquet": (table(), ("none of 1 row ", "keys nl, bash")),
    "windows.jsonl": ('{"text": "café"}\n'.encode("cp1252"), ("not_utf8", "iconv -f CP1252 -t UTF-8")),
    "no_mark.csv": ("question,answer\na,b\n".encode("utf-16-le"), ("iconv -f UTF-16LE -t UTF-8",)),
    "paper.json": (b"%PDF-1.7\n\n%\xe2\xe3\n", ("not_json",)),
    "cut.jsonl.gz": (gzip.compress(GOOD)[:12], ("broken_container",)),
    "null.jsonl": (lines({"prompt": "a", "completion": None}, {"a": 1}), ("completion (null)",)),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_of_which_no_row_can_be_read_stops_the_stage(tmp_path: Path, name: str) -> None:
    content, words = UNREADABLE[name]
    project = Project(tmp_path, {"good.jsonl": GOOD, name: content})
    with pytest.raises(DataError, match="Q-CURATE-019: ") as caught:
        project.run()
    said = caught.value.sentence
    assert str(project.raw / name) in said and "good.jsonl" not in said and "\n" not in said
    for word in (*words, f"curate.source_weights: {{{name}: 0}}"):
        assert word in said
    assert ("quench data check" in said) == ("unknown_format" in said)  # Only keys can be mapped.
    assert project.outputs() == {}


def test_a_messengers_chat_is_a_file_that_is_not_read(tmp_path: Path) -> None:
    messages = b"12/03/2024, 10:15 - Ann: Is it here?\n12/03/2024, 10:16 - Bob: At pier two.\n"
    project = Project(tmp_path, {"good.jsonl": GOOD, "chat.txt": messages})
    report = project.run()
    assert (report["rows_kept"], [*report["files_unread"]]) == (2, ["chat.txt"])
    assert [entry["line"] for entry in project.rejects()] == [None]


def test_a_share_of_nothing_leaves_the_file_out(tmp_path: Path) -> None:
    project = Project(tmp_path, {"good.jsonl": GOOD, "commands.jsonl": COMMANDS})
    report = project.run(source_weights={"comm*": 0.0})
    assert report["files"]["commands.jsonl"]["rejected"] == len(project.rejects()) == 600
    assert len(project.rows()) == 2


def test_every_such_file_is_named(tmp_path: Path) -> None:
    project = Project(tmp_path, {f"{number}.jsonl": b"\n{\n" for number in range(8)})
    with pytest.raises(DataError, match="Q-CURATE-019: ") as caught:
        project.run()
    said = caught.value.sentence
    assert [f"{number}.jsonl: none of 2 rows" in said for number in range(8)] == [True] * 5 + [False] * 3
    assert "line 2: " in said and "3 more files" in said


def test_a_file_whose_rows_are_read_and_then_rejected_does_not_stop_it(tmp_path: Path) -> None:
    """An empty line is no row either."""
    rejected = lines(chat("how?", "I'm sorry, but I can't assist with that."), {"x": 1})
    project = Project(tmp_path, {"good.jsonl": GOOD, "refusals.jsonl": rejected, "blank.jsonl": b"\n\n"})
    project.run()
    assert [entry["reason"] for entry in project.rejects()] == ["blank", "blank", "refusal", "unknown_format"]


def test_a_secret_that_is_a_key_is_not_shown(tmp_path: Path) -> None:
    secret = "AKIA" + "Z7Q2M4K9X1B3C5D8"
    project = Project(tmp_path, {"good.jsonl": GOOD + lines({secret: 1, "eve@acme.dev": 2})})
    project.run()
    (entry,) = project.rejects()
    assert entry["detail"].startswith("the row has the keys [") and secret not in json.dumps(entry)
    assert "acme.dev" not in json.dumps(entry)

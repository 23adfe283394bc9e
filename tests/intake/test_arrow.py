"""Arrow files, folders of `save_to_disk`, and columns that are nested."""

import io
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.feather
import pytest
from curating import Project, chat, lines

from pipeline.core.errors import DataError
from pipeline.core.jsonl import BadLine
from pipeline.intake.files import files
from pipeline.intake.files.containers import raw_lines
from pipeline.intake.files.files import refusal

ROWS: list[dict[str, Any]] = [chat(f"hi {number}", f"yes {number}") for number in range(70)]


def read(path: Path) -> list[object]:
    found = raw_lines(path, path.name, max_line_bytes=10_000, notes=Counter())
    return [line.data.code if isinstance(line.data, BadLine) else json.loads(line.data) for line in found]


def read_bytes(folder: Path, data: bytes, name: str = "a.arrow") -> list[object]:
    (folder / name).write_bytes(data)
    return read(folder / name)


def ipc(rows: list[dict[str, Any]], schema: pyarrow.Schema | None = None, *, stream: bool = True) -> bytes:
    sink = io.BytesIO()
    table = pyarrow.Table.from_pylist(rows, schema)
    with (pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=20)
    return sink.getvalue()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    datasets.disable_progress_bars()
    return Project(tmp_path, {})


@pytest.fixture
def saved(project: Project) -> Path:
    """A folder of `save_to_disk` in data/raw, with two shards."""
    folder = project.raw / "mine"
    datasets.Dataset.from_list(ROWS).save_to_disk(folder, num_shards=2)
    return folder


def test_a_stream_and_a_file_have_the_same_rows(tmp_path: Path) -> None:
    for data in (ipc(ROWS), ipc(ROWS, stream=False)):
        assert read_bytes(tmp_path, data) == ROWS
    for compression in ("uncompressed", "lz4", "zstd"):
        table = pyarrow.Table.from_pylist(ROWS)
        pyarrow.feather.write_feather(table, str(tmp_path / "a.feather"), compression=compression)
        assert read(tmp_path / "a.feather") == ROWS


def test_an_old_feather_file_is_named(tmp_path: Path) -> None:
    table = pyarrow.table({"question": ["a"], "answer": ["b"]})
    pyarrow.feather.write_feather(table, str(tmp_path / "a.feather"), version=1)
    assert read(tmp_path / "a.feather") == ["unknown_container"]


def test_an_arrow_file_that_is_cut_off_anywhere_says_so(tmp_path: Path) -> None:
    """Also between two batches, where Arrow sees a complete stream."""
    stream = ipc(ROWS)
    reader = pyarrow.ipc.MessageReader.open_stream(source := pyarrow.BufferReader(stream))
    ends = []
    while True:
        try:
            reader.read_next_message()
        except StopIteration:
            break
        ends.append(source.tell())
    for data, cuts in (
        (stream, [*range(1, len(stream), 97), *ends[1:]]),
        (ipc(ROWS, stream=False), range(1, 9000, 97)),
    ):
        for cut in (cut for cut in cuts if cut < len(data)):
            *rows, last = read_bytes(tmp_path, data[:cut])
            assert last == "broken_container", cut
            assert rows == ROWS[: len(rows)]
    assert len(ends) == 5 and read_bytes(tmp_path, stream + stream) == [*ROWS, "broken_container"]


def test_damage_in_a_batch_is_found_before_it_is_used(tmp_path: Path) -> None:
    """Offsets that lead out of the buffer of texts."""
    data = bytearray(ipc([{"text": "abcdefgh"}] * 3))
    at = data.index(bytes([0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0, 0]))
    data[at + 6] = 127
    assert read_bytes(tmp_path, bytes(data)) == ["broken_container"]


def test_a_bomb_of_arrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ALWAYS_ALLOWED", 1 << 20)
    monkeypatch.setattr(files, "MAX_GROWTH", 2)
    table = pyarrow.Table.from_pylist([{"a": "x" * 900}] * 30_000)
    pyarrow.feather.write_feather(table, str(tmp_path / "a.feather"), compression="zstd", chunksize=1000)
    rows = read(tmp_path / "a.feather")
    assert rows[-1] == "expands_too_much" and len(rows) < 3000


COUNTS = pyarrow.map_(pyarrow.string(), pyarrow.int64())
NAMES = pyarrow.map_(pyarrow.int64(), pyarrow.string())
NESTED = {  # a row, its type, and what is read
    "structs": ({"a": {"b": {"c": 1}}}, None, {"a": {"b": {"c": 1}}}),
    "lists of structs": ({"a": [{"b": [1]}, {"b": None}]}, None, {"a": [{"b": [1]}, {"b": None}]}),
    "a map": ({"a": [("x", 1)]}, COUNTS, {"a": {"x": 1}}),
    "a map of numbers": ({"a": [(7, "x")]}, NAMES, {"a": {"7": "x"}}),
    "an empty map": ({"a": []}, COUNTS, {"a": {}}),
    "a key twice": ({"a": [("x", 1), ("x", 2)]}, COUNTS, "duplicate_key"),
    "maps in structs in lists": (
        {"a": [{"m": [("k", {"n": [("l", None)]})]}]},
        pyarrow.list_(
            pyarrow.struct(
                {
                    "m": pyarrow.map_(
                        pyarrow.string(),
                        pyarrow.struct({"n": pyarrow.map_(pyarrow.string(), pyarrow.string())}),
                    )
                }
            )
        ),
        {"a": [{"m": {"k": {"n": {"l": None}}}}]},
    ),
    "a category": ({"a": "x"}, pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), {"a": "x"}),
}


@pytest.mark.parametrize("case", NESTED)
@pytest.mark.parametrize("name", ["a.arrow", "a.parquet"])
def test_nested_columns_are_objects_and_lists(tmp_path: Path, case: str, name: str) -> None:
    row, kind, expected = NESTED[case]
    schema = pyarrow.schema({"a": kind}) if kind else None
    if name.endswith("parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row] * 2, schema), tmp_path / name)
        assert read(tmp_path / name) == [expected] * 2
    else:
        assert read_bytes(tmp_path, ipc([row] * 2, schema)) == [expected] * 2


@pytest.mark.parametrize("how", ["save_to_disk", "to_parquet"])
def test_tools_and_arguments_that_datasets_stores_as_json_are_read(project: Project, how: str) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": {"c": [1]}}}}
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    turns = [
        {"role": "user", "content": "2 + 2?", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_calls": None},
        {"role": "assistant", "content": "It is 4.", "tool_calls": None},
    ]
    text = datasets.Value("string")
    function = {"name": text, "arguments": datasets.Json()}
    turn = {
        "role": text,
        "content": text,
        "tool_calls": datasets.List({"type": text, "function": function}),
    }
    features = datasets.Features({"messages": datasets.List(turn), "tools": datasets.List(datasets.Json())})
    made = datasets.Dataset.from_list([{"messages": turns, "tools": [tool]}], features=features)
    getattr(made, how)(str(project.raw / ("mine" if how == "save_to_disk" else "mine.parquet")))
    project.run()
    (row,) = project.rows()
    assert row["tools"] == [tool]
    (written,) = row["messages"][1]["tool_calls"]
    arguments = written["function"]["arguments"]
    assert (json.loads(arguments) if isinstance(arguments, str) else arguments) == {"a": 2, "b": {"c": [1]}}


@pytest.mark.parametrize("how", ["save_to_disk", "to_parquet"])
def test_numbers_of_classes_are_read_as_the_names_in_the_file(tmp_path: Path, how: str) -> None:
    kind = datasets.ClassLabel(names=["rope", "sail"])
    features = datasets.Features(
        {"Text": datasets.Value("string"), "class": kind, "all": datasets.List(kind)}
    )
    rows = [{"Text": "a", "class": 1, "all": [0, 1]}, {"Text": "b", "class": -1, "all": []}]
    getattr(datasets.Dataset.from_list(rows, features=features), how)(str(tmp_path / "mine.parquet"))
    (file,) = [path for path in (tmp_path, *tmp_path.rglob("*")) if path.is_file() and path.suffix != ".json"]
    assert read(file) == [{"text": "a", "class": "sail", "all": ["rope", "sail"]}, {"text": "b", "all": []}]


@pytest.mark.usefixtures("saved")
def test_a_saved_folder_is_read_and_its_descriptions_are_not_rows(project: Project) -> None:
    report = project.run()
    assert report["rows_read"] == len(ROWS)
    assert {name: file["rows"] for name, file in report["files"].items()} == {
        "mine/data-00000-of-00002.arrow": 35,
        "mine/data-00001-of-00002.arrow": 35,
        "mine/dataset_info.json": 0,
        "mine/state.json": 0,
    }
    assert report["files"]["mine/state.json"]["notes"] == {"description": 1}
    assert report["files_unread"] == {}


def test_a_saved_dict_is_read(project: Project) -> None:
    splits = {name: datasets.Dataset.from_list(ROWS[:9]) for name in ("train", "test")}
    datasets.DatasetDict(splits).save_to_disk(project.raw / "mine")
    report = project.run()
    assert report["rows_read"] == 18
    described = [name for name, file in report["files"].items() if file["notes"].get("description")]
    assert described == [
        "mine/dataset_dict.json",
        *(f"mine/{split}/{file}.json" for split in ("test", "train") for file in ("dataset_info", "state")),
    ]


def test_caches_beside_the_data_are_not_rows(saved: Path, project: Project) -> None:
    """`map` and `filter` of a loaded folder keep their results in it."""
    shutil.copy(saved / "data-00000-of-00002.arrow", saved / "cache-015718cb5896689f.arrow")
    report = project.run()
    assert report["rows_read"] == len(ROWS)
    assert [*report["files_unread"]] == ["mine/cache-015718cb5896689f.arrow"]


def test_rows_selected_by_an_index_are_refused(saved: Path) -> None:
    state = json.loads((saved / "state.json").read_text())
    (saved / "state.json").write_text(
        json.dumps(state | {"_indices_data_files": [{"filename": "indices.arrow"}]})
    )
    why = refusal(saved / "data-00000-of-00002.arrow")
    assert why and why.code == "unknown_container" and "index" in str(why)


def test_a_shard_that_is_missing_is_named(saved: Path, project: Project) -> None:
    (saved / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(DataError, match=r"Q-CURATE-019: .*state\.json: .*data-00001-of-00002\.arrow"):
        project.run()


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json", "dataset_dict.json"])
def test_rows_in_a_file_of_such_a_name_are_rows(tmp_path: Path, name: str) -> None:
    project = Project(tmp_path, {name: lines(*ROWS[:2])})
    project.run()
    assert len(project.rows()) == 2

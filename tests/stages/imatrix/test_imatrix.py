"""imatrix: measured on training rows only, in the same bytes for any number of threads, used and recorded by
the levels that ask for it.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from curating import chat
from make import script
from qwen2_variants import cut_models
from tiny import tiny_gguf

from pipeline.chat.tokens import load_tokenizer
from pipeline.core.errors import DataError
from pipeline.core.hashing import file_hash
from pipeline.core.jsonl import write_rows
from pipeline.gguf.header import read_header
from pipeline.llamacpp.converters import Quantizing, quantize_gguf
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.stages.imatrix.stage import imatrix


@pytest.fixture
def made(tools: Toolchain) -> Path:
    return cut_models(tools)


def write_chats(file: Path, count: int) -> Path:
    write_rows(file, [chat(f"Row {n}: C:\\new", f"{n} –") for n in range(count)])
    return file


def measure(
    made: Path, rows: Path, folder: Path, tools: Toolchain, tokens: int = 1500, threads: int = 1
) -> dict[str, Any]:
    return imatrix(
        rows=rows,
        tokenizer=made / "hf",
        model=made / "tiny-F16.gguf",
        folder=folder,
        tokens=tokens,
        llama=Llama(tools, threads),
    )


@pytest.mark.slow
def test_the_matrix_its_record_and_the_levels_that_use_it(
    made: Path, tools: Toolchain, tmp_path: Path
) -> None:
    rows = write_chats(tmp_path / "train.jsonl", 100)
    record = measure(made, rows, tmp_path / "one", tools)
    assert json.loads((tmp_path / "one/imatrix.json").read_text()) == record
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["imatrix.gguf", "imatrix.json"]
    assert 0 < record["rows"] < 100
    assert 1500 <= record["tokens"] < 1600
    assert (record["chunks"], record["split"]) == (record["tokens"] // 512, "train")
    assert record["data_sha256"] == file_hash(rows)
    assert record["model_sha256"] == file_hash(made / "tiny-F16.gguf")
    # the same for another number of threads and in another place
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert measure(made, rows, tmp_path / "two", tools, threads=2) == record
    matrix = tmp_path / "one/imatrix.gguf"
    assert file_hash(tmp_path / "two/imatrix.gguf") == file_hash(matrix)
    assert str(tmp_path) not in str(read_header(matrix).fields)
    hashes = set()
    for threads in (1, 2):
        level = tmp_path / f"level-{threads}.gguf"
        options = Quantizing(imatrix=matrix)
        quantize_gguf(Llama(tools, threads), made / "tiny-F16.gguf", level, "IQ2_M", options)
        hashes.add(file_hash(level))
    assert len(hashes) == 1
    fields = read_header(level).fields
    assert fields["quench.imatrix.sha256"] == file_hash(matrix)
    assert fields["quantize.imatrix.file"] == "imatrix.gguf"
    assert str(tmp_path) not in str(fields)


def test_held_out_rows_are_never_taken(made: Path, tools: Toolchain, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"val\.jsonl is not the training split"):
        measure(made, write_chats(tmp_path / "val.jsonl", 60), tmp_path / "imatrix", tools)


def test_too_few_rows_are_an_error(made: Path, tools: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("")
    with pytest.raises(DataError, match="Q-IMATRIX-001"):
        measure(made, tmp_path / "train.jsonl", tmp_path / "imatrix", tools)
    assert not (tmp_path / "imatrix").exists()


@pytest.fixture
def text_of(made: Path, tmp_path: Path) -> Callable[[list[dict[str, Any]], int], str]:
    """Return a function that gives what llama-imatrix (a stand-in) reads of rows, for some tokens."""
    matrix = tiny_gguf(tmp_path / "matrix.gguf", imatrix__chunk_count=1)
    script(tmp_path / "bin/llama-imatrix", f'cp "$4" {tmp_path}/text; cp {matrix} "$6"')

    def run(rows: list[dict[str, Any]], tokens: int) -> str:
        write_rows(tmp_path / "train.jsonl", rows)
        tools = Toolchain(tmp_path / "bin", tmp_path)
        record = measure(made, tmp_path / "train.jsonl", tmp_path / "imatrix", tools, tokens)
        text = (tmp_path / "text").read_bytes()
        assert record["text_sha256"] == hashlib.sha256(text).hexdigest()
        return text.decode()

    return run


@pytest.mark.parametrize(("tokens", "step"), [(10**9, 1), (3000, 2), (60, 113)])
def test_rows_are_spread_over_the_file_and_each_comes_once(
    text_of: Callable[..., str], tokens: int, step: int
) -> None:
    """Check that this holds if few tokens are wanted, and if many bytes of a row are not part of its text."""
    text = text_of([chat(f"Row {n}: why?", "So.") | {"source": "x" * 1500} for n in range(50)], tokens)
    order = [n for start in range(step) for n in range(start, 50, step)]
    found = [int(n) for n in re.findall(r"Row (\d+)", text)]
    assert found == order[: len(found)] and (len(found) == 50) == (tokens > 60)


def test_rows_are_what_training_saw(made: Path, text_of: Callable[..., str]) -> None:
    turns = chat("2?" * 9, "2." * 9)["messages"]
    rows: list[dict[str, Any]] = [
        {"messages": turns},
        {"kind": "text", "segments": [{"text": "a ", "train": False}, {"text": "b", "train": True}]},
        {"messages": turns[:1]},  # nothing to train
    ]
    rendered = load_tokenizer(made / "hf").apply_chat_template(turns, tokenize=False)
    assert text_of(rows, 1000) == rendered + "a b<|im_end|>"
    assert text_of(rows, 1) == rendered

"""Clones without Git LFS: where large files should be lie small texts (huggingface/transformers#27923)."""

from collections import Counter
from pathlib import Path

import pytest

from pipeline.core.jsonl import BadLine
from pipeline.intake.files.containers import raw_lines

TEXT = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0123abcd' * 8}\nsize 271234567\n"


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet", "a.jsonl.gz", "a.tsv.zst"])
def test_a_pointer_for_data_is_no_file_of_bad_rows(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(TEXT)
    (line,) = raw_lines(tmp_path / name, name, max_line_bytes=1 << 20, notes=Counter())
    assert isinstance(line.data, BadLine)
    assert line.data.code == "broken_container" and "git lfs pull" in str(line.data)


def test_a_row_about_pointers_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\nversion https://git-lfs.github.com/spec/v1\n")
    (line,) = raw_lines(tmp_path / "a.csv", "a.csv", max_line_bytes=1 << 20, notes=Counter())
    assert isinstance(line.data, bytes)

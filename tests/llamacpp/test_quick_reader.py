"""quick_reader: the same fields, parts and tensors as the package's own reader."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny

from pipeline.llamacpp.quick_reader import quick_reader

ARRAYS = {
    "test__floats": [0.5, 1.5],
    "test__flags": [True, False],
    "test__empty_text": ["", "ü"],
    "test__one": ["x"],
}


@pytest.mark.parametrize("endian", ["little", "big"])
def test_it_reads_what_the_packages_reader_reads(tmp_path: Path, endian: str) -> None:
    file = tiny.tiny_gguf(tmp_path / "tiny.gguf", **ARRAYS)
    if endian == "big":
        writer = gguf.GGUFWriter(file, "llama", endianess=gguf.GGUFEndian.BIG)
        writer.add_array("tokens", ["a", "bc"])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
    slow = gguf.GGUFReader(file)
    with quick_reader():
        assert gguf.GGUFReader is not type(slow)
        quick = gguf.GGUFReader(file)
    assert gguf.GGUFReader is type(slow)
    assert list(quick.fields) == list(slow.fields)
    for name, field in slow.fields.items():
        ours = quick.fields[name]
        assert (ours.offset, ours.data, ours.types, len(ours.parts)) == (
            field.offset,
            field.data,
            field.types,
            len(field.parts),
        )
        assert all(
            part.dtype == other.dtype and np.array_equal(part, other)
            for part, other in zip(ours.parts, field.parts, strict=True)
        )
        assert ours.contents() == field.contents()
    assert [(one.name, one.data_offset, one.tensor_type) for one in quick.tensors] == [
        (one.name, one.data_offset, one.tensor_type) for one in slow.tensors
    ]

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


@pytest.mark.parametrize("kind", ["F16", "Q5_0", "Q8_0", "Q4_K", "IQ2_S"])
def test_it_dequantizes_to_the_packages_bits(kind: str) -> None:
    type = gguf.GGMLQuantizationType[kind]
    values = np.random.default_rng(0).normal(size=(40, 512)).astype(np.float32)
    if kind == "F16":
        stored = values.astype(np.float16)
    else:
        stored = np.zeros(gguf.quant_shape_to_byte_shape(values.shape, type), np.uint8)
        stored[:] = np.random.default_rng(1).integers(0, 60, stored.shape)  # scales stay finite
    expected = gguf.dequantize(stored, type)
    with quick_reader():
        found = gguf.dequantize(stored, type)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, 2)
        assert names is gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, 2)
    assert found.dtype == np.float32 and np.array_equal(found, expected)

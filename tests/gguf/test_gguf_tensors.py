"""A GGUF's tensors: rows and experts as numbers, a matrix that is stored twice, scales put into a copy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GgmlType
from gguf.quants import dequantize, quantize
from gguf_edit import write_gguf

from pipeline.core.errors import DataError
from pipeline.gguf.scales import stored_scales
from pipeline.gguf.tensors import GgufTensor, gguf_tensors
from pipeline.gguf.tied import one_matrix
from pipeline.gguf.tuned_file import write_tuned

F16, Q4_0, Q4_1, Q5_0, Q8_0, Q2_K, Q4_K, Q8_K = 1, 2, 3, 6, 8, 10, 12, 15
NUMBERS = np.random.default_rng(0).normal(0, 9, (40, 64)).astype(np.float32)


def rounded(numbers: Any, kind: int) -> Any:
    """Return the numbers as they are read back after being stored as this type."""
    return dequantize(quantize(numbers, GgmlType(kind)), GgmlType(kind))


def test_rows_and_experts_are_read_as_numbers(tmp_path: Path) -> None:
    experts, one_row = NUMBERS.reshape(4, 10, 64), NUMBERS[:1]
    stored = {"experts": (experts, Q8_0), "halves": (NUMBERS, F16), "one": (one_row, Q4_0)}
    k_quants = {
        "of 256": (np.zeros((2, 144), np.uint8), Q4_K),
        "unknown": (np.zeros((1, 292), np.uint8), Q8_K),
    }
    _, tensors = gguf_tensors(write_gguf(tmp_path / "x.gguf", k_quants | stored))
    assert np.array_equal(tensors["experts"].part(2).values(1, 3), rounded(experts[2, 1:3], Q8_0))
    assert np.array_equal(tensors["halves"].values(0, 40), rounded(NUMBERS, F16))
    assert {name: tensor.block for name, tensor in tensors.items()} == {
        "of 256": 256,
        "unknown": 256,
        "experts": 32,
        "halves": 64,
        "one": 32,
    }
    assert [name for name, tensor in tensors.items() if not tensor.readable] == ["unknown"]
    with pytest.raises(DataError, match="Q-GGUF-005: "):
        tensors["unknown"].values(0, 1)


HEAD, EMBEDDINGS = "output.weight", "token_embd.weight"
TABLE = np.vstack([NUMBERS[:-1], np.zeros((1, 64), np.float32)])  # a row of zeros differs by nothing
BROKEN = quantize(TABLE, GgmlType.Q8_0)
BROKEN[38, :2] = 0, 126  # the scale of a block is NaN
SWAPPED = np.vstack([TABLE[:7], TABLE[8:9], TABLE[8:]])  # a row is another's


@pytest.mark.parametrize(("head", "embeddings"), [(Q8_0, Q5_0), (Q5_0, Q8_0), (Q4_0, Q8_0)])
def test_a_matrix_that_was_rounded_twice_is_one(head: int, embeddings: int, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", {HEAD: (TABLE, head), EMBEDDINGS: (TABLE, embeddings)})
    one = one_matrix(*gguf_tensors(path))
    assert one and (one.finer.type, one.finer.name) == ("Q8_0", HEAD if head == Q8_0 else EMBEDDINGS)
    coarser = min(head, embeddings)
    assert one.coarser.type == GgmlType(coarser).name
    lengths = np.linalg.norm([rounded(TABLE, coarser) - rounded(TABLE, Q8_0), rounded(TABLE, Q8_0)], axis=2)
    assert one.difference == pytest.approx(float((lengths[0, :-1] / lengths[1, :-1]).max()), rel=1e-6)


@pytest.mark.parametrize(
    ("tensors", "fields"),
    [
        ({HEAD: (TABLE, Q8_0), EMBEDDINGS: (SWAPPED, Q5_0)}, {}),
        ({HEAD: (BROKEN, Q8_0), EMBEDDINGS: (TABLE, Q5_0)}, {}),
        ({HEAD: (TABLE[:39], Q8_0), EMBEDDINGS: (TABLE, Q5_0)}, {}),
        ({HEAD: (TABLE[:0], Q8_0), EMBEDDINGS: (np.zeros((0, 84), np.uint8), Q2_K)}, {}),
        ({HEAD: (TABLE, Q8_0)}, {}),
        ({HEAD: (TABLE, Q8_0), EMBEDDINGS: (TABLE, Q5_0)}, {"general.architecture": "falcon"}),
    ],
    ids=["a row", "not a number", "rows", "too coarse a type", "no other", "not known to tie"],
)
def test_what_differs_by_more_is_two_matrices(
    tensors: dict[str, Any], fields: dict[str, Any], tmp_path: Path
) -> None:
    assert one_matrix(*gguf_tensors(write_gguf(tmp_path / "x.gguf", tensors, fields))) is None


BASE = {"general.name": "base", "general.base_model.0.name": "older", "quench.a": "old", "quench.b": "old"}


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, BASE),
        ({"quench.a": "ü" * 70, "quench.count": 3}, {"general.name": "base"}),
        ({"general.name": "other", "quench.a": ""}, {}),
    ],
)
def test_a_tuned_file_is_its_base_but_for_scales_and_provenance(
    fields: dict[str, Any], wanted: dict[str, str], tmp_path: Path
) -> None:
    """Check that only the tuned file's own fields say where the base came from."""
    base, target = tmp_path / "base.gguf", tmp_path / "tuned.gguf"
    tensors = {"a": (NUMBERS, Q8_0), "b": (NUMBERS[:3], Q4_1), "c": (NUMBERS, Q5_0), "d": (NUMBERS, F16)}
    write_gguf(base, tensors, BASE)
    write_tuned(base, target, [], fields)
    assert gguf_tensors(target)[0].fields == {"general.architecture": "llama", **wanted, **fields}
    assert (target.read_bytes() == base.read_bytes()) == (not fields)
    before = {name: stored(tensor) for name, tensor in gguf_tensors(base)[1].items()}
    scales = {name: stored_scales(before[name], kind) * 2 for name, kind in (("b", Q4_1), ("c", Q5_0))}
    write_tuned(base, target, scales.items(), fields)
    for name, tensor in gguf_tensors(target)[1].items():
        if name in scales:
            assert torch.equal(stored_scales(stored(tensor), tensor.ggml_type), scales[name])
            assert np.array_equal(
                tensor.values(0, tensor.rows), 2 * rounded(tensors[name][0], tensor.ggml_type)
            )
        else:
            assert torch.equal(stored(tensor), before[name])


def stored(tensor: GgufTensor) -> torch.Tensor:
    return torch.from_numpy(tensor.stored(0, tensor.rows))

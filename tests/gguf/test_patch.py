"""Patches: how a GGUF differs from another, applied to the same bytes; a wrong base and damage are named."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType
from gguf_edit import write_gguf
from hypothesis import given
from hypothesis import strategies as st
from killed import kill_at
from make import quench
from safetensors.numpy import save_file

from pipeline.core.errors import DataError
from pipeline.core.hashing import file_hash
from pipeline.gguf.patch import apply_patch, read_patch, write_patch
from pipeline.gguf.tensors import SCALES, gguf_tensors

TYPES = {"blk.0.a": GgmlType.Q4_0, "blk.0.b": GgmlType.Q4_K, "blk.1.a": GgmlType.Q6_K, "norm": GgmlType.F32}


def write(path: Path, fields: dict[str, str] | None = None, seed: int = 0, **changed: Any) -> Path:
    """A GGUF of random bytes; `changed` tensors get what the function makes of theirs."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, kind in TYPES.items():
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows = random.integers(0, 256, (5, 512 // block * size), dtype=np.uint8)
        if name in changed:
            rows = changed[name](rows.reshape(5, -1, size)).reshape(5, -1)
        tensors[name] = rows, int(kind)
    words = [f"word {number}" for number in range(300)]
    return write_gguf(path, tensors, {"tokenizer.ggml.tokens": words, **(fields or {})})


def tuned(kind: GgmlType) -> Any:
    """Other scales in all blocks of this type."""

    def change(blocks: Any) -> Any:
        for at in SCALES[int(kind)]:
            blocks[:, :, at : at + 2] ^= 3
        return blocks

    return change


def zeroed(blocks: Any) -> Any:
    return blocks * 0


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write(tmp_path / "base.gguf")


def both_ways(base: Path, other: Path, patch: Path) -> dict[str, int]:
    """A patch of the two files, applied; what it says is in it."""
    found = write_patch(base, other, patch)
    made = patch.with_suffix(".made")
    apply_patch(base, patch, made)
    assert made.read_bytes() == other.read_bytes()
    return found


def test_a_tuned_file_is_its_scales(base: Path, tmp_path: Path) -> None:
    other = write(
        tmp_path / "other.gguf",
        {"quench.tuned": "yes", "quench.base": "x" * 100},
        **{"blk.0.a": tuned(GgmlType.Q4_0), "blk.0.b": tuned(GgmlType.Q4_K), "blk.1.a": tuned(GgmlType.Q6_K)},
    )
    assert both_ways(base, other, tmp_path / "patch") == {"scales": 3, "tensors": 0}
    arrays = read_patch(tmp_path / "patch")["arrays"]
    assert arrays["scales:blk.0.b"].shape == (5, 2, 4)
    assert arrays["header"].nbytes < 600  # not the vocabulary


def test_what_differs_in_more_than_scales_is_there_as_a_tensor(base: Path, tmp_path: Path) -> None:
    other = write(
        tmp_path / "other.gguf", **{"blk.0.a": zeroed, "norm": zeroed, "blk.1.a": tuned(GgmlType.Q6_K)}
    )
    assert both_ways(base, other, tmp_path / "patch") == {"scales": 1, "tensors": 2}


def test_equal_files_have_an_empty_patch(base: Path, tmp_path: Path) -> None:
    assert both_ways(base, write(tmp_path / "same.gguf"), tmp_path / "patch") == {"scales": 0, "tensors": 0}


@given(
    st.dictionaries(st.sampled_from("abc"), st.text("xyz", max_size=40)),
    st.dictionaries(st.sampled_from("abc"), st.text("xyz", max_size=40)),
)
def test_any_metadata_comes_back(
    tmp_path_factory: pytest.TempPathFactory, old: dict[str, str], new: dict[str, str]
) -> None:
    folder = tmp_path_factory.mktemp("patch")
    both_ways(write(folder / "base.gguf", old), write(folder / "other.gguf", new), folder / "patch")


def test_other_tensors_are_refused(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TYPES, "blk.0.a", GgmlType.Q8_0)
    with pytest.raises(DataError, match=r"Q-GGUF-016: tensor blk\.0\.a"):
        write_patch(base, write(tmp_path / "other.gguf"), tmp_path / "patch")
    monkeypatch.setitem(TYPES, "more", GgmlType.Q8_0)
    with pytest.raises(DataError, match="Q-GGUF-016: tensor more"):
        write_patch(base, write(tmp_path / "more.gguf"), tmp_path / "patch")
    assert not (tmp_path / "patch").exists()


def test_a_wrong_base_is_named_before_anything_is_written(base: Path, tmp_path: Path) -> None:
    write_patch(base, write(tmp_path / "other.gguf", norm=zeroed), tmp_path / "patch")
    wrong = write(tmp_path / "wrong.gguf", seed=1)
    with pytest.raises(DataError, match=f"Q-GGUF-017: .*{file_hash(base)[:12]}"):
        apply_patch(wrong, tmp_path / "patch", tmp_path / "made")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("place", "call"), [("pipeline.gguf.tensors:GgufTensor.stored", 2), ("pipeline.core.publish:_swap", 1)]
)
def test_what_a_kill_leaves_is_not_taken_for_whole(base: Path, tmp_path: Path, place: str, call: int) -> None:
    """Neither of `diff` nor of `apply`, while it is written or when it is to be published."""
    other, patch, made = write(tmp_path / "other.gguf", norm=zeroed), tmp_path / "patch", tmp_path / "made"
    for work, source, target in ((write_patch, other, patch), (apply_patch, patch, made)):
        kill_at(place, call, work, base, source, target)
        assert not target.exists()
        work(base, source, target)
    assert made.read_bytes() == other.read_bytes()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("left", [0, 5, 200, -1])
def test_a_patch_that_is_cut_off_is_named(base: Path, tmp_path: Path, left: int) -> None:
    patch = tmp_path / "patch"
    write_patch(base, write(tmp_path / "other.gguf", norm=zeroed), patch)
    patch.write_bytes(patch.read_bytes()[:left])
    with pytest.raises(DataError, match="Q-GGUF-018"):
        apply_patch(base, patch, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_every_flipped_byte_is_found(base: Path, tmp_path: Path) -> None:
    patch = tmp_path / "patch"
    write_patch(base, write(tmp_path / "other.gguf", **{"blk.1.a": tuned(GgmlType.Q6_K)}), patch)
    whole = patch.read_bytes()
    for at in range(8, len(whole)):
        patch.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            apply_patch(base, patch, tmp_path / "made")
        except DataError:
            assert not (tmp_path / "made").exists()
        else:  # a space in the patch's own header, say: what was made is right all the same
            assert file_hash(tmp_path / "made") == file_hash(tmp_path / "other.gguf")
            (tmp_path / "made").unlink()


@pytest.mark.parametrize("trailing", [b"x" * 100, b"\0" * 64])
def test_bytes_behind_the_last_tensor_come_back(base: Path, tmp_path: Path, trailing: bytes) -> None:
    other = write(tmp_path / "other.gguf", norm=zeroed)
    other.write_bytes(other.read_bytes() + trailing)
    both_ways(base, other, tmp_path / "patch")


def test_a_last_tensor_without_padding_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TYPES, "last", GgmlType.Q6_K)  # 2,100 bytes: 12 short of the alignment
    base, other = write(tmp_path / "one.gguf"), write(tmp_path / "two.gguf", last=zeroed)
    other.write_bytes(other.read_bytes()[:-12])
    both_ways(base, other, tmp_path / "patch")


@pytest.mark.parametrize("kind", ["BF16", "F8_E4M3", "F64", "F32"])
def test_entries_of_other_types_are_no_patch(base: Path, tmp_path: Path, kind: str) -> None:
    write_patch(base, write(tmp_path / "other.gguf", norm=zeroed), tmp_path / "patch")
    whole = (tmp_path / "patch").read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header, size = json.loads(whole[8 : 8 + length]), {"BF16": 2, "F8_E4M3": 1, "F64": 8, "F32": 4}[kind]
    header["tensor:more"] = {"dtype": kind, "shape": [2], "data_offsets": [len(whole) - 8 - length] * 2}
    header["tensor:more"]["data_offsets"][1] += 2 * size
    text = json.dumps(header).encode()
    patch = len(text).to_bytes(8, "little") + text + whole[8 + length :] + bytes(2 * size)
    (tmp_path / "patch").write_bytes(patch)
    with pytest.raises(DataError, match="Q-GGUF-018"):
        apply_patch(base, tmp_path / "patch", tmp_path / "made")


@pytest.mark.parametrize("digits", ["9" * 400, "9" * 5000, "", "-1", "x"])
def test_a_size_that_no_file_has_is_no_patchs(base: Path, tmp_path: Path, digits: str) -> None:
    write_patch(base, write(tmp_path / "other.gguf", norm=zeroed), tmp_path / "patch")
    details = read_patch(tmp_path / "patch")
    save_file(details.pop("arrays"), tmp_path / "hostile", details | {"bytes": digits})
    with pytest.raises(DataError, match="Q-GGUF-018"):
        apply_patch(base, tmp_path / "hostile", tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_base_that_is_not_there_is_named(base: Path, tmp_path: Path) -> None:
    write_patch(base, write(tmp_path / "other.gguf", norm=zeroed), tmp_path / "patch")
    for missing in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(DataError, match="Q-GGUF-003"):
            apply_patch(missing, tmp_path / "patch", tmp_path / "made")


@pytest.mark.parametrize("name", ["base.gguf/below", "x" * 300])
def test_a_place_that_can_not_be_written_is_named(base: Path, tmp_path: Path, name: str) -> None:
    write_patch(base, write(tmp_path / "other.gguf", norm=zeroed), tmp_path / "patch")
    done = quench("model", "apply", base, tmp_path / "patch", tmp_path / name)
    assert done.exit_code == 6 and "Q-CORE-005" in done.output


def test_another_safetensors_file_is_no_patch(base: Path, tmp_path: Path) -> None:
    save_file({"x": np.zeros(3)}, tmp_path / "patch")
    with pytest.raises(DataError, match="Q-GGUF-018"):
        apply_patch(base, tmp_path / "patch", tmp_path / "made")


def test_the_commands(base: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.gguf", norm=zeroed)
    patch, made = tmp_path / "patch", tmp_path / "made.gguf"
    for words in (["model", "patch", base, other, patch], ["model", "apply", base, patch, made]):
        done = quench(*words)
        assert done.exit_code == 0, done.output
    assert made.read_bytes() == other.read_bytes() and list(gguf_tensors(made)[1]) == list(TYPES)
    done = quench("model", "apply", base, patch, base)
    assert done.exit_code == 2 and "Q-COMMANDS-034" in done.output
    assert gguf_tensors(base)

"""The tuned file against the base's: sound, every byte is accounted for; any other change is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GgmlType
from gguf_edit import Tensors, change_fields, change_rows, change_tensors, in_rows, in_tensors, without
from safetensors.torch import load_file, save_file
from tiny import tiny_gguf
from tuned_by_hand import train_by_chance, tune_by_hand, write_config

from pipeline.config.tuners import ADAPTER_FILE, SCALES_FILE
from pipeline.core.errors import GateError
from pipeline.core.hashing import file_hash
from pipeline.gguf.tensors import Bytes
from pipeline.metrics.divergence import Prompt
from pipeline.metrics.forward import trained_model
from pipeline.models.quantized_model import load_gguf
from pipeline.stages.parity.scales_weights import scales_weights
from pipeline.stages.parity.served_files import ServedFiles, base_file

# one scale a block, two, and a tensor of floats, which can't train
TYPES = {"attn": GgmlType.Q8_0, "ffn_gate": GgmlType.Q4_1, "ffn_up": GgmlType.Q5_0}
GATE, QUERY, DOWN = "blk.0.ffn_gate.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight"


def quantized(tensors: Tensors) -> Tensors:
    """A GGUF's F16 tensors in the types of `TYPES`."""

    def one(name: str, shape: tuple[int, ...], number: int, data: bytes) -> Any:
        kind = next((kind for part, kind in TYPES.items() if part in name), None)
        if kind is None or number != GgmlType.F16:
            return shape, number, data
        values = np.frombuffer(data, np.float16).reshape(tuple(reversed(shape))).astype(np.float32)
        return shape, int(kind), gguf.quantize(values, kind).tobytes()

    return {name: one(name, *tensor) for name, tensor in tensors.items()}


@pytest.fixture
def files(tmp_path: Path) -> ServedFiles:
    """A one-layer Llama, whose rows of q and k are in llama.cpp's order, with scales trained by chance."""
    base = write_config(tmp_path / "base")
    change_tensors(tiny_gguf(base / "model.gguf"), quantized)
    made = ServedFiles(base, tmp_path / "base.json", tmp_path / "adapter", tmp_path / "tiny-tuned.gguf")
    made.lineage.write_text(json.dumps({"files": {"model.gguf": file_hash(made.bare)}}))
    train_by_chance(base, made.adapter)
    tune_by_hand(base, made.adapter, made.served)
    return made


def weights(files: ServedFiles) -> Any:
    return scales_weights(files.base, files.adapter, files.served)


def test_a_sound_file_passes_with_every_byte_compared(files: ServedFiles) -> None:
    records, found = base_file(files), weights(files)
    assert (records.verdict, found.verdict) == ("pass", "pass"), (records, found)
    # 4 matrices of 32 rows, one of 64 with two scales a block, one of 64 with one
    assert "11 tensors" in found.sentence and "320 scales of 6" in found.sentence


def test_the_tuned_file_is_the_model_that_was_trained(files: ServedFiles) -> None:
    shutil.copy(files.served, files.base / "tuned.gguf")
    tuned = load_gguf(files.base, compute_dtype=torch.float32, device="cpu", name="tuned.gguf")
    prompt = Prompt(list(range(12)), list(range(12)))
    with (
        trained_model(files.base, files.adapter, float32=True) as trained,
        trained_model(files.base, None, float32=True, settings_of=files.adapter) as bare,
    ):
        answers = tuned(input_ids=torch.tensor([prompt.ids])).logits[0].numpy()
        assert np.abs(trained(prompt) - answers).max() < 1e-5 < np.abs(trained(prompt) - bare(prompt)).max()


def flipped(row: int, byte: int, bits: int = 1) -> Callable[[Bytes], Bytes]:
    """Changes bits of a byte in a row."""

    def change(rows: Bytes) -> Bytes:
        rows[row, byte] ^= bits
        return rows

    return change


def not_a_number(rows: Bytes) -> Bytes:
    rows[9, 2:4] = np.frombuffer(np.float16("nan").tobytes(), np.uint8)
    return rows


def provenance(file: Path) -> None:
    change_fields(
        file, {"quench.own": "yes", "general.base_model.0.name": "tiny", "tokenizer.ggml.own": "no"}
    )


OTHER_BYTE = "has another byte than a scale's changed in"
FAULTS = {
    "a code": (in_rows(QUERY, flipped(5, 7)), f"{QUERY} {OTHER_BYTE} row 5, block 0"),
    "the last byte of the last row": (
        in_rows(GATE, flipped(63, -1, 128)),
        f"{GATE} {OTHER_BYTE} row 63, block 0",
    ),
    "a scale": (in_rows(QUERY, flipped(6, 0)), f"{QUERY} has the scale "),
    "a minimum": (in_rows(GATE, flipped(7, 2)), f"{GATE} has the scale "),
    "rows in another order": (in_rows(QUERY, lambda rows: rows[::-1]), f"{QUERY} has the scale "),
    "no number": (in_rows(GATE, not_a_number), f"{GATE} has a scale that is nan in row 9, block 0"),
    "a tensor that does not train": (
        in_rows(DOWN, flipped(3, 20)),
        f"{DOWN} does not train, and row 3 is not the base's",
    ),
    "a field": (
        lambda file: change_fields(file, {"tokenizer.ggml.eos_token_id": 259}),
        "tokenizer.ggml.eos_token_id is not the base's",
    ),
    "a field more, beside two that say where the file comes from": (
        provenance,
        "tokenizer.ggml.own is not the base's",
    ),
    "a tensor less": (in_tensors(without(DOWN)), f"tensor {DOWN} is not the same as in the base's file"),
    "another order of tensors": (
        in_tensors(lambda all: dict(reversed(all.items()))),
        "the order of the tensors is not the same",
    ),
    "another type of a tensor": (
        in_tensors(lambda all: all | {QUERY: all["blk.0.ffn_up.weight"]}),
        f"tensor {QUERY} is not the same",
    ),
}


@pytest.mark.parametrize(("spoil", "words"), FAULTS.values(), ids=FAULTS)
def test_what_was_changed_is_named(files: ServedFiles, spoil: Callable[[Path], None], words: str) -> None:
    spoil(files.served)
    found = weights(files)
    assert (found.verdict, found.figure) == ("fail", 1.0), found
    assert words in found.sentence, found.sentence
    assert "snakemake --force tuned" in found.remedy


def test_the_first_fault_of_many_is_the_first_in_the_file(files: ServedFiles) -> None:
    for name in (DOWN, GATE, QUERY, "blk.0.attn_k.weight"):
        change_rows(files.served, name, flipped(0, 9))
    found = weights(files)
    assert found.figure == 4.0
    assert f"trained; {QUERY}" in found.sentence and found.sentence.endswith("and 1 more")


def test_scales_of_another_run_are_found(files: ServedFiles) -> None:
    train_by_chance(files.base, files.adapter, size=0.1)
    assert "tuned.gguf was not" in base_file(files).sentence
    found = weights(files)
    assert found.figure == 6.0 and "ended training" in found.sentence


def test_scales_that_are_no_numbers_are_trainings_own_fault(files: ServedFiles) -> None:
    changes = load_file(files.adapter / SCALES_FILE)
    changes["model.layers.0.mlp.gate_proj"][0, 3] = float("nan")
    save_file(changes, files.adapter / SCALES_FILE)
    with pytest.raises(GateError, match=f"Q-GGUF-020.*{GATE}"):
        weights(files)


def test_no_scale_at_all_is_not_a_trained_file(files: ServedFiles) -> None:
    save_file({}, files.adapter / SCALES_FILE)
    shutil.copy(files.bare, files.served)
    assert "of no tensor" in weights(files).sentence


def test_the_base_of_another_run_is_found_by_all_records(files: ServedFiles) -> None:
    change_rows(files.bare, DOWN, flipped(2, 11))
    found = base_file(files)
    assert (found.verdict, found.figure) == ("fail", 3.0)
    for words in ("base.json names", "adapter/ was trained on another file", "tiny-tuned.gguf was made for"):
        assert words in found.sentence
    assert DOWN in weights(files).sentence and "row 2 " in weights(files).sentence


def test_an_adapter_in_the_place_of_scales_is_found(files: ServedFiles) -> None:
    train_by_chance(files.base, files.adapter, tuner="lora")
    (files.adapter / SCALES_FILE).rename(files.adapter / ADAPTER_FILE)
    assert "train.tuner lora" in base_file(files).sentence
    found = weights(files)
    assert found.verdict == "fail" and "train.tuner" in found.remedy

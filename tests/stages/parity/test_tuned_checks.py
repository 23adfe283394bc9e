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
from pipeline.stages.parity.unmerged_chain import UnmergedChain, base_file

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
def chain(tmp_path: Path) -> UnmergedChain:
    """A one-layer Llama, whose rows of q and k are in llama.cpp's order, with scales trained by chance."""
    base = write_config(tmp_path / "base")
    change_tensors(tiny_gguf(base / "model.gguf"), quantized)
    made = UnmergedChain(base, tmp_path / "base.json", tmp_path / "adapter", tmp_path / "tiny-tuned.gguf")
    made.lineage.write_text(json.dumps({"files": {"model.gguf": file_hash(made.bare)}}))
    train_by_chance(base, made.adapter)
    tune_by_hand(base, made.adapter, made.served)
    return made


def weights(chain: UnmergedChain) -> Any:
    return scales_weights(chain.base, chain.adapter, chain.served)


def test_a_sound_file_passes_with_every_byte_compared(chain: UnmergedChain) -> None:
    records, found = base_file(chain), weights(chain)
    assert (records.verdict, found.verdict) == ("pass", "pass"), (records, found)
    # 4 matrices of 32 rows, one of 64 with two scales a block, one of 64 with one
    assert "11 tensors" in found.sentence and "320 scales of 6" in found.sentence


def test_the_tuned_file_is_the_model_that_was_trained(chain: UnmergedChain) -> None:
    shutil.copy(chain.served, chain.base / "tuned.gguf")
    tuned = load_gguf(chain.base, compute_dtype=torch.float32, device="cpu", name="tuned.gguf")
    prompt = Prompt(list(range(12)), list(range(12)))
    with (
        trained_model(chain.base, chain.adapter, float32=True) as trained,
        trained_model(chain.base, None, float32=True, settings_of=chain.adapter) as bare,
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
def test_what_was_changed_is_named(chain: UnmergedChain, spoil: Callable[[Path], None], words: str) -> None:
    spoil(chain.served)
    found = weights(chain)
    assert (found.verdict, found.figure) == ("fail", 1.0), found
    assert words in found.sentence, found.sentence
    assert "snakemake --force tuned" in found.remedy


def test_the_first_fault_of_many_is_the_first_in_the_file(chain: UnmergedChain) -> None:
    for name in (DOWN, GATE, QUERY, "blk.0.attn_k.weight"):
        change_rows(chain.served, name, flipped(0, 9))
    found = weights(chain)
    assert found.figure == 4.0
    assert f"trained; {QUERY}" in found.sentence and found.sentence.endswith("and 1 more")


def test_scales_of_another_run_are_found(chain: UnmergedChain) -> None:
    train_by_chance(chain.base, chain.adapter, size=0.1)
    assert "tuned.gguf was not" in base_file(chain).sentence
    found = weights(chain)
    assert found.figure == 6.0 and "ended training" in found.sentence


def test_scales_that_are_no_numbers_are_trainings_own_fault(chain: UnmergedChain) -> None:
    changes = load_file(chain.adapter / SCALES_FILE)
    changes["model.layers.0.mlp.gate_proj"][0, 3] = float("nan")
    save_file(changes, chain.adapter / SCALES_FILE)
    with pytest.raises(GateError, match=f"Q-GGUF-020.*{GATE}"):
        weights(chain)


def test_no_scale_at_all_is_not_a_trained_file(chain: UnmergedChain) -> None:
    save_file({}, chain.adapter / SCALES_FILE)
    shutil.copy(chain.bare, chain.served)
    assert "of no tensor" in weights(chain).sentence


def test_the_base_of_another_run_is_found_by_all_records(chain: UnmergedChain) -> None:
    change_rows(chain.bare, DOWN, flipped(2, 11))
    found = base_file(chain)
    assert (found.verdict, found.figure) == ("fail", 3.0)
    for words in ("base.json names", "adapter/ was trained on another file", "tiny-tuned.gguf was made for"):
        assert words in found.sentence
    assert DOWN in weights(chain).sentence and "row 2 " in weights(chain).sentence


def test_an_adapter_in_the_place_of_scales_is_found(chain: UnmergedChain) -> None:
    train_by_chance(chain.base, chain.adapter, tuner="lora")
    (chain.adapter / SCALES_FILE).rename(chain.adapter / ADAPTER_FILE)
    assert "train.tuner lora" in base_file(chain).sentence
    found = weights(chain)
    assert found.verdict == "fail" and "train.tuner" in found.remedy

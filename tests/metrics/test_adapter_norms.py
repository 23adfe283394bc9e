"""adapter-norms: what the matrices say is what the whole product says, for a PEFT folder and for a GGUF."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make import quench, ran
from tiny_lora import ALPHA, RANK, tiny_lora

from pipeline.core.errors import DataError
from pipeline.metrics.adapter_norms import adapter_norms, uncounted
from pipeline.models.merging.adapter import read_adapter

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"


def write_folder(
    folder: Path, dtype: Any = np.float32, down: tuple[str, ...] = (DOWN,), **settings: Any
) -> dict[str, Any]:
    """An adapter of two linears, or of q_proj and those in `down`; its matrices."""
    from safetensors.numpy import save_file

    folder.mkdir()
    random = np.random.default_rng(0)
    shapes = {Q: (6, 8)} | dict.fromkeys(down, (5, 12))
    matrices = {}
    for path, (rows, columns) in shapes.items():
        matrices[f"base_model.model.{path}.lora_A.weight"] = random.normal(size=(3, columns)).astype(dtype)
        matrices[f"base_model.model.{path}.lora_B.weight"] = random.normal(size=(rows, 3)).astype(dtype)
    save_file(matrices, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config | settings))
    return matrices


def product(matrices: dict[str, Any], path: str) -> Any:
    a, b = (matrices[f"base_model.model.{path}.lora_{part}.weight"].astype(np.float64) for part in "AB")
    return b @ a


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_peft_folder(dtype: Any, tmp_path: Path) -> None:
    matrices = write_folder(tmp_path / "adapter", dtype, alpha_pattern={"down_proj": 12})
    first, second = adapter_norms(tmp_path / "adapter")
    assert (first.layer, first.module, first.rank, first.scale) == (0, "self_attn.q_proj", 3, 2.0)
    assert (second.layer, second.module, second.scale) == (1, "mlp.down_proj", 4.0)
    for one, path in ((first, Q), (second, DOWN)):
        assert one.norm_update == pytest.approx(one.scale * np.linalg.norm(product(matrices, path)))
        assert one.relative is None


def test_beside_its_base(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    matrices = write_folder(tmp_path / "adapter")
    (tmp_path / "base").mkdir()
    weights = {
        f"{Q}.weight": np.full((6, 8), 2.0, np.float32),
        f"{DOWN}.weight": np.ones((5, 12), np.float32),
    }
    save_file(weights, tmp_path / "base/model.safetensors")
    first, _ = adapter_norms(tmp_path / "adapter", tmp_path / "base")
    assert first.norm_weight == pytest.approx(2 * 48**0.5)
    assert first.relative == pytest.approx(2 * np.linalg.norm(product(matrices, Q)) / (2 * 48**0.5))
    save_file({f"{Q}.weight": weights[f"{Q}.weight"]}, tmp_path / "base/model.safetensors")
    with pytest.raises(DataError, match="Q-METRICS-022"):
        adapter_norms(tmp_path / "adapter", tmp_path / "base")


def add(folder: Path, **tensors: Any) -> None:
    """More tensors, by their names behind PEFT's prefix."""
    from safetensors.numpy import load_file, save_file

    file = folder / "adapter_model.safetensors"
    more = {f"base_model.model.{name}": values.astype(np.float32) for name, values in tensors.items()}
    save_file(load_file(file) | more, file)


def test_scale_and_rank_of_another_tools_adapter(tmp_path: Path) -> None:
    write_folder(tmp_path / "adapter", use_rslora=True, init_lora_weights="pissa", lora_alpha=9)
    random = np.random.default_rng(2)
    a, b = random.normal(size=(3, 40)), random.normal(size=(8, 3))
    embedding = "model.embed_tokens.lora_embedding_"
    add(tmp_path / "adapter", **{f"{embedding}A": a, f"{embedding}B": b})
    found = {one.module: one for one in adapter_norms(tmp_path / "adapter")}
    assert found["self_attn.q_proj"].scale == pytest.approx(9 / 3**0.5)
    one = found["model.embed_tokens"]
    assert one.norm_update == pytest.approx(9 / 3**0.5 * np.linalg.norm(b @ a))
    assert (one.rows, one.columns) == (8, 40)
    assert "pissa" in (uncounted(tmp_path / "adapter") or "")


def test_what_is_not_counted_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path / "adapter", use_dora=True, modules_to_save=["lm_head"])
    assert uncounted(tmp_path / "adapter") is None
    add(tmp_path / "adapter", **{f"{Q}.lora_magnitude_vector": np.ones(6), "lm_head.weight": np.ones((9, 8))})
    for as_json in (False, True):
        told = quench("model", "norms", tmp_path / "adapter", *(["--json"] if as_json else []))
        also = told.stderr if as_json else told.stdout
        assert all(words in also for words in ("1 magnitude vector", "1 tensor stored", "lm_head"))
        assert not as_json or len(json.loads(told.stdout)) == 2


@pytest.mark.parametrize(
    ("settings", "words"), [({"peft_type": "IA3"}, "Q-METRICS-020: "), ({"r": 1}, "Q-METRICS-021: ")]
)
def test_no_lora_and_settings_of_another_adapter_are_refused(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_folder(tmp_path / "adapter", **settings)
    with pytest.raises(DataError, match=words):
        adapter_norms(tmp_path / "adapter")


SLOW = r"(.*.*.*.*)*x"  # on a name without an x


@pytest.mark.parametrize(
    "bent",
    [
        {"rank_pattern": {SLOW: 3}},
        {"alpha_pattern": {SLOW: 3}},
        {"target_modules": SLOW},
        {"rank_pattern": {"(": 3}},
        {"rank_pattern": {"(" * 5000 + ")" * 5000: 3}},
        {"rank_pattern": {"q_proj": 0}},
        {"rank_pattern": [3]},
        {"alpha_pattern": {"q_proj": "6"}},
        {"r": 0},
        {"r": None},
        {"r": "3"},
        {"lora_alpha": float("nan")},
        {"lora_alpha": [6]},
        {"use_rslora": "yes"},
        {"target_modules": 5},
        {"target_parameters": 7},
        {"modules_to_save": [[1]]},
        {"init_lora_weights": {"a": 1}},
        {"layers_pattern": "(a+)+"},
        {"peft_type": 5},
        {"megatron_config": {"a": 1}},
    ],
    ids=lambda bent: " ".join(bent),
)
def test_a_bent_adapter_config_is_a_sentence(
    bent: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.models.merging.adapter.MATCHING_SECONDS", 0.1)
    write_folder(tmp_path / "adapter", **bent)
    for read in (adapter_norms, read_adapter):
        with pytest.raises(DataError, match="Q-MODELS-039: "):
            read(tmp_path / "adapter")


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_named_pipe_in_an_adapters_place_is_not_waited_for(file: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "adapter")
    (tmp_path / "adapter" / file).unlink()
    os.mkfifo(tmp_path / "adapter" / file)
    with pytest.raises(DataError, match="Q-CORE-008"):
        adapter_norms(tmp_path / "adapter")


def test_a_gguf_of_experts(tmp_path: Path) -> None:
    random, name = np.random.default_rng(4), "blk.1.ffn_gate_exps.weight"
    a, b = random.normal(size=(5, RANK, 32)), random.normal(size=(5, 64, RANK))
    matrices = {f"{name}.lora_a": a.astype(np.float32), f"{name}.lora_b": b.astype(np.float32)}
    found = adapter_norms(tiny_lora(tmp_path / "one.gguf", tensors=matrices))
    (one,) = (one for one in found if one.tensor == name)
    assert (one.layer, one.module, one.rank, one.rows, one.columns) == (1, "ffn_gate_exps", RANK, 64, 32)
    assert one.norm_update == pytest.approx(ALPHA / RANK * np.linalg.norm(b @ a), rel=1e-6)
    assert uncounted(tmp_path / "one.gguf") is None


def test_a_gguf(tmp_path: Path) -> None:
    from gguf import GGUFReader

    file = tiny_lora(tmp_path / "one.gguf")
    matrices = {tensor.name: tensor.data for tensor in GGUFReader(file).tensors}
    found = adapter_norms(file)
    assert [(one.layer, one.module) for one in found][:2] == [(0, "attn_q"), (0, "attn_k")]
    for one in found:
        a, b = (matrices[f"{one.tensor}.lora_{part}"].astype(np.float64) for part in "ab")
        assert one.norm_update == pytest.approx(ALPHA / RANK * np.linalg.norm(b @ a))


@pytest.mark.parametrize("graph", ["finished", "served"])
def test_a_peft_folder_and_its_gguf_agree(graph: str, request: pytest.FixtureRequest) -> None:
    finished: Path = request.getfixturevalue(graph)
    folder = sorted(one.norm_update for one in adapter_norms(finished / "models/adapter"))
    file = sorted(one.norm_update for one in adapter_norms(finished / "models/gguf/tiny-lora.gguf"))
    assert folder == pytest.approx(file, rel=1e-2)  # the GGUF is in 16 bit


def test_what_is_no_adapter_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Q-METRICS-020: "):
        adapter_norms(tmp_path / "missing.gguf")
    with pytest.raises(DataError, match="Q-METRICS-020: "):
        adapter_norms(tiny_lora(tmp_path / "other.gguf", general__type="model"))
    whole = tiny_lora(tmp_path / "half.gguf", tensors={"blk.0.attn_q.weight.lora_b": None})
    with pytest.raises(DataError, match="Q-METRICS-021: "):
        adapter_norms(whole)


def test_the_command_prints_tables_or_json_and_loads_no_torch(tmp_path: Path) -> None:
    write_folder(tmp_path / "adapter")
    code = (
        "import sys; from pipeline.cli import app\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code, end\n"
        "assert 'torch' not in sys.modules"
    )

    def told(*words: str) -> str:
        command = [sys.executable, "-c", code, "model", "norms", tmp_path / "adapter", *words]
        done = ran(command)
        return done.stdout

    assert "layer 1" in told() and "down_proj" in told()
    assert [one["layer"] for one in json.loads(told("--json"))] == [0, 1]


def test_a_layers_experts_are_shown_together(tmp_path: Path) -> None:
    down = tuple(f"model.layers.1.mlp.experts.{number}.down_proj" for number in (0, 1, 11))
    write_folder(tmp_path / "adapter", down=(*down, "model.layers.1.mlp.shared_expert.down_proj"))
    shown = quench("model", "norms", tmp_path / "adapter")
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert [row[1] for row in rows if row[:1] == ["mlp.experts.down_proj"]] == ["3"]
    (header,) = (row for row in rows if row[:1] == ["‖s·B·A‖"])
    assert header[1:] == ["q_proj", "experts.down_proj", "shared_expert.down_proj"]
    assert [row[:2] for row in rows if row[:1] == ["layer"]] == [["layer", "0"], ["layer", "1"]]
    norms = [one.norm_update for one in adapter_norms(tmp_path / "adapter") if ".experts." in one.module]
    (shown,) = (float(row[3]) for row in rows if row[:2] == ["layer", "1"])
    assert shown == pytest.approx(np.linalg.norm(norms), rel=1e-3)

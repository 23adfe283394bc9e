"""fidelity: a right NF4 model passes every check, and each check fails on the damage it is there for."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import untied_qwen2
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.errors import GateError
from pipeline.fidelity.finite import adapter_is_finite, finite_record, nf4_linears, outputs_watched
from pipeline.fidelity.memory import PARTS, measure_training, memory_line, memory_table, planned_training, tensor_bytes
from pipeline.fidelity.outputs import MAX_KLD, compare_logits, output_lines, weight_line
from pipeline.fidelity.swap import random_adapter, swap_line
from pipeline.params import load_params
from pipeline.planning.shape import load_shape
from pipeline.sections import Training
from pipeline.training.qlora import load_quantised, lora_config

ROWS = [[1, 5, 9, 200, 7, 30, 2], [3, 4, 5, 6, 7]]
PLAIN = load_params(Path(__file__).parent.parent / "recipes" / "demo.yaml").training
NF4 = PLAIN.model_copy(update={"r": 4, "lora_dropout": 0.0})


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untied_qwen2(tmp_path_factory.mktemp("base"))


def adapted(base: Path, train: Training = NF4) -> Any:
    return random_adapter(load_quantised(base, train), lora_config(train), "default", 0)


# --- finite --------------------------------------------------------------------------------------------------------


def test_a_sound_model_is_counted(base: Path) -> None:
    model = adapted(base)
    assert finite_record(model) == {"nf4_linears_finite": 14, "packed_tensors_finite": 0, "adapter_matrices_finite": 28}
    assert next(iter(nf4_linears(model))) == "model.layers.0.self_attn.q_proj"
    with outputs_watched(model) as seen, torch.no_grad():
        model(torch.tensor([ROWS[0]]), use_cache=False)
    assert seen == [14]


def test_a_scale_that_is_no_number_names_its_linear(base: Path) -> None:
    model = adapted(base)
    nf4_linears(model)["model.layers.1.mlp.down_proj"].weight.quant_state.state2.absmax[0] = float("nan")
    with pytest.raises(GateError, match=r"^model\.layers\.1\.mlp\.down_proj holds weights that are not finite"):
        finite_record(model)


@pytest.mark.parametrize("matrix", ["lora_A", "lora_B"])
def test_a_matrix_that_is_not_finite_is_named(base: Path, matrix: str) -> None:
    model = adapted(base)
    layer = model.get_base_model().model.layers[1].self_attn.v_proj
    getattr(layer, matrix)["default"].weight.data[0, 0] = float("inf")
    with pytest.raises(GateError, match=rf"layers\.1\.self_attn\.v_proj\.{matrix}\.default\.weight is not finite"):
        adapter_is_finite(model)


def test_an_output_that_is_not_finite_is_named(base: Path) -> None:
    model = adapted(base)
    model.get_base_model().model.layers[1].self_attn.k_proj.lora_B["default"].weight.data[:] = 3e38  # finite itself
    with pytest.raises(GateError, match=r"layers\.1\.self_attn\.k_proj gives numbers that are not finite"), outputs_watched(model), torch.no_grad():
        model(torch.tensor([ROWS[0]]), use_cache=False)


# --- outputs -------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), size=st.floats(0.0, 2.0))
def test_figures_of_logits(seed: int, size: float) -> None:
    random = np.random.default_rng(seed)
    before = [random.normal(size=(rows, 11)).astype(np.float32) for rows in (3, 4)]
    after = [values + np.float32(size) for values in before]  # the same for all tokens: softmax doesn't see it
    figures = compare_logits(before, after)
    assert figures["mean_abs"] == pytest.approx(size, abs=1e-5)
    assert figures["max_abs"] == pytest.approx(size, abs=1e-5)
    assert figures["kld"] == pytest.approx(0.0, abs=1e-6)
    assert (figures["same_top"], figures["positions"]) == (1.0, 7)


def test_outputs_that_lie_apart_fail() -> None:
    before = [np.eye(8, dtype=np.float32) * 20]
    lines = output_lines(compare_logits(before, [np.roll(before[0], 1, axis=1)]), "here")
    assert {line.verdict for line in lines.values()} == {"fail"}
    assert lines["output_divergence"].figure is not None
    assert lines["output_divergence"].figure > MAX_KLD


def test_weights_are_compared_with_the_file(base: Path, tmp_path: Path) -> None:
    model = load_quantised(base, NF4)
    line = weight_line(model, base)
    assert line.verdict == "pass"
    assert line.figure == pytest.approx(0.009, abs=0.004)  # NF4's own error on normal weights
    nf4_linears(model)["model.layers.1.mlp.up_proj"].weight.data[:200] = 0
    broken = weight_line(model, base)
    assert (broken.verdict, "worst model.layers.1.mlp.up_proj" in broken.detail) == ("fail", True)
    assert weight_line(model, tmp_path).verdict == "not measured"
    assert weight_line(load_quantised(base, NF4.model_copy(update={"quantization": "none"})), base).verdict == "not measured"


# --- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_4bit", [True, False])
@pytest.mark.parametrize("double_quant", [True, False])
def test_measured_bytes_are_the_planners(base: Path, in_4bit: bool, double_quant: bool) -> None:
    train = NF4.model_copy(update={"quantization": "nf4" if in_4bit else "none", "bnb_4bit_use_double_quant": double_quant})
    measured = measure_training(adapted(base, train), ROWS, 1e-3)
    assert measured == planned_training(load_shape(base / "config.json"), train)
    assert memory_line(measured, load_shape(base / "config.json"), train).verdict == "pass"
    assert memory_line(measured | {"adam": 0}, load_shape(base / "config.json"), train).verdict == "fail"
    assert memory_line(measured, None, train).verdict == "not measured"


def test_seven_billion_by_formula() -> None:
    parts = dict.fromkeys(PARTS, 1)
    table = memory_table({"NF4 QLoRA": parts}, load_params(Path(__file__).parent.parent / "recipes" / "qwen2.5-7b-8gb.yaml").training)
    assert table["NF4 QLoRA"] == parts | {"total": 4}
    assert table["Qwen2.5-7B, unquantised LoRA"]["weights"] == pytest.approx(2 * 7_615_616_512, rel=1e-4)
    assert table["Qwen2.5-7B, NF4 QLoRA"]["weights"] == pytest.approx(5.55e9, rel=0.01)
    assert table["Qwen2.5-7B, NF4 QLoRA"]["adapter"] == 4 * 40_370_176


def test_a_tensor_that_is_there_twice_counts_once() -> None:
    table = torch.zeros(10, 4, dtype=torch.bfloat16)
    assert tensor_bytes([table, table, torch.zeros(3)]) == 80 + 12


# --- switching adapters --------------------------------------------------------------------------------------------


def test_adapters_can_be_switched(base: Path) -> None:
    line = swap_line(load_quantised(base, NF4), lora_config(NF4), ROWS)
    assert (line.verdict, line.figure, line.detail) == ("pass", 0.0, "4 compared")


def test_a_switch_that_does_nothing_is_seen(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from peft import PeftModel

    monkeypatch.setattr(PeftModel, "set_adapter", lambda self, name: None)
    line = swap_line(load_quantised(base, NF4), lora_config(NF4), ROWS)
    assert (line.verdict, line.figure) == ("fail", 1.0)
    assert "switch 2" in line.detail


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tiny_qwen2: Path, tiny_params: dict[str, Any], tmp_path: Path) -> Path:
    """A project that has a base and nothing else."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models/base").symlink_to(tiny_qwen2)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tiny_params))
    return tmp_path


def quench(root: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["fidelity", "--root", str(root), "--prompts", "2", *arguments])


def test_the_command_measures_everything_on_a_sound_base(root: Path) -> None:
    result = quench(root)
    assert result.exit_code == 0, result.output
    report = json.loads((root / "reports/fidelity.json").read_text())
    assert report["verdict"] == "pass"
    assert {key: line["verdict"] for key, line in report["lines"].items()} == dict.fromkeys(
        (
            "nf4_before_lora",
            "dequantisation_finite",
            "lora_finite",
            "nf4_weights",
            "output_divergence",
            "output_first_choice",
            "memory",
            "adapter_swap",
        ),
        "pass",
    )
    assert "a fresh random adapter" in report["lines"]["output_divergence"]["detail"]
    assert list(report["memory"]) == ["NF4 QLoRA", "Qwen2.5-7B, NF4 QLoRA", "Qwen2.5-7B, unquantised LoRA", "unquantised LoRA"]
    assert "Qwen2.5-7B, NF4 QLoRA" in result.output


def test_a_failed_check_ends_with_5_and_leaves_its_report(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.fidelity.outputs.MAX_KLD", -1.0)
    result = quench(root, "--json")
    assert result.exit_code == 5
    assert "divergence failed" in result.stderr
    assert json.loads(result.stdout) == json.loads((root / "reports/fidelity.json").read_text())
    assert json.loads(result.stdout)["verdict"] == "fail"


@pytest.mark.parametrize(("name", "words"), [("model.safetensors", "model.safetensors cut short"), ("tokenizer.json", "tokenizer.json missing")])
def test_a_damaged_base_is_one_sentence(root: Path, tiny_qwen2: Path, name: str, words: str) -> None:
    base = root / "models/base"
    base.unlink()
    shutil.copytree(tiny_qwen2, base)
    if name == "tokenizer.json":
        (base / name).unlink()
    else:
        os.truncate(base / name, 1_000_000)
    result = quench(root)
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
    assert words in result.stderr and "run `snakemake --force base`" in result.stderr


def test_nothing_to_compare_is_one_sentence(root: Path, tiny_params: dict[str, Any]) -> None:
    tiny_params["base"]["quantization"] = "none"
    (root / "params.yaml").write_text(yaml.safe_dump(tiny_params))
    assert (quench(root).exit_code, "set it to nf4" in quench(root).stderr) == (2, True)
    tiny_params["base"]["quantization"] = "nf4"
    (root / "params.yaml").write_text(yaml.safe_dump(tiny_params))
    (root / "models/base").unlink()
    assert (quench(root).exit_code, "run `snakemake base`" in quench(root).stderr) == (3, True)

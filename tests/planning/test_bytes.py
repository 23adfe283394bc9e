"""The planner against what torch, PEFT, bitsandbytes and transformers really allocate: equal to the byte, for
every kind of base and of training.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plans import GIB, demo_training, parts, plan_of, training
from shaped_gguf import shaped, written
from tensor_bytes import adapted, hidden_states, kept_bytes, measured, planned, size
from tiny import untied_qwen2

from pipeline.config.sections import Training
from pipeline.config.targets import expert_parts
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.llamacpp.converters import quantize_gguf
from pipeline.llamacpp.tools import Llama
from pipeline.models.offload import OffloadedWeight
from pipeline.planning import setup
from pipeline.planning.model.config_file import load_shape
from pipeline.planning.model.gguf_base import quantized_file

# odd widths on purpose: padding, blocks that are not full, scales below and above 256 to a linear
TINY: dict[str, dict[str, Any]] = {
    "qwen2": {"hidden_size": 40, "intermediate_size": 50, "num_key_value_heads": 2}
    | {"tie_word_embeddings": True},
    "qwen3": {"hidden_size": 40, "intermediate_size": 72, "num_key_value_heads": 1}
    | {"head_dim": 6, "attention_bias": True},
    "llama": {"hidden_size": 96, "intermediate_size": 264, "num_attention_heads": 3}
    | {"num_key_value_heads": 3, "mlp_bias": True},
    "mistral": {"hidden_size": 64, "intermediate_size": 1100, "num_key_value_heads": 2, "head_dim": 24},
    "qwen2_moe": {"hidden_size": 40, "moe_intermediate_size": 24, "num_key_value_heads": 2}
    | {"shared_expert_intermediate_size": 72, "num_experts": 4},
    "mixtral": {"hidden_size": 40, "intermediate_size": 24, "num_key_value_heads": 2, "num_local_experts": 4},
    "qwen3_moe": {"hidden_size": 40, "moe_intermediate_size": 24, "num_key_value_heads": 2}
    | {"num_experts": 4, "norm_topk_prob": True, "head_dim": 16},
}
GGUF = {"q4_k_m tied": (True, "Q4_K_M"), "q5_k_m": (False, "Q5_K_M"), "q8_0": (False, "Q8_0")}
TOKENS = 48


@pytest.fixture(scope="module")
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Random tiny bases by kind: a two-layer architecture, `four layers`, a level as stage base leaves it."""

    @functools.cache
    def folder(kind: str) -> Path:
        made = tmp_path_factory.mktemp("base")
        if kind == "four layers":
            return untied_qwen2(made, layers=4)
        return write_gguf(made, *GGUF[kind], request) if kind in GGUF else write_tiny(made, kind)

    return folder


def write_tiny(folder: Path, kind: str) -> Path:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {"num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 128} | TINY[kind]
    if "moe" in kind or kind == "mixtral":
        values["num_experts_per_tok"] = 3  # of 48 tokens, each expert gets some
    config = AutoConfig.for_model(kind, vocab_size=301, **values)
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def write_gguf(folder: Path, tied: bool, level: str, request: pytest.FixtureRequest) -> Path:
    shape = shaped(256, 512, tied=tied, kv_heads=2)
    tools = request.getfixturevalue("tools")
    quantize_gguf(Llama(tools), written(folder / "f16.gguf", shape), folder / "model.gguf", level)
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
    return folder


def trained_on(kind: str, **changed: Any) -> Training:
    return demo_training(**({"quantization": "gguf"} if kind in GGUF else {}) | changed)


def file_of(folder: Path, train: Training) -> Any:
    return quantized_file(folder / MODEL_FILE) if train.quantization == "gguf" else None


SLOW = pytest.mark.slow
KINDS = {*TINY, "q4_k_m tied", "q5_k_m"}  # that are tried in every run
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "float32": {"bnb_4bit_compute_dtype": "float32", "target_modules": ["q_proj", "down_proj"]},
}


@pytest.mark.base_cells("NF4", families=tuple(TINY))
@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        pytest.param(CHANGES[name], kind, marks=[] if kind in quick else SLOW)
        for name, quick in (("as it is", KINDS), ("float32", ("qwen2", "q5_k_m")))
        for kind in [*TINY, *GGUF]
    ],
)
def test_tensors_after_a_step(base: Callable[[str], Path], kind: str, changed: dict[str, Any]) -> None:
    check_step(base(kind), trained_on(kind, **changed))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "changed"),
    [
        (TINY, {"quantization": "none"}),
        (GGUF, {"tuner": "scales"}),
        (GGUF, {"tuner": "scales", "target_modules": ["v_proj", "up_proj"]}),
    ],
    ids=["16bit", "scales", "some-scales"],
)
def test_tensors_after_a_step_of_what_only_some_bases_can(
    base: Callable[[str], Path], kinds: dict[str, Any], changed: dict[str, Any]
) -> None:
    for kind in kinds:
        if kind != "q8_0":
            check_step(base(kind), trained_on(kind, **changed))


def check_step(folder: Path, train: Training) -> None:
    import torch

    model = adapted(folder, train).train()
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    hidden_states(model, TOKENS).float().sum().backward()
    optimizer.step()
    shape = load_shape(folder / "config.json")
    assert measured(model, optimizer) == planned(shape, train, file_of(folder, train))


@pytest.mark.parametrize(
    "name", ["adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "lion_8bit", "lion_32bit"]
)
@pytest.mark.parametrize("rank", [4, 64])  # 64: some matrices have 4,096 elements and more
def test_states_of_bitsandbytes(base: Callable[[str], Path], name: str, rank: int) -> None:
    import bitsandbytes.optim as bnb
    import torch

    train = demo_training(optim=name, r=rank)
    kind = bnb.Lion if "lion" in name else bnb.AdamW
    model = adapted(base("mistral"), train)
    matrices = [
        torch.nn.Parameter(torch.zeros(one.numel())) for one in model.parameters() if one.requires_grad
    ]
    optimizer = kind(matrices, optim_bits=8 if "8bit" in name else 32)
    for number, matrix in enumerate(matrices):
        optimizer.init_state(optimizer.param_groups[0], matrix, 0, number)
    states = {
        value.data_ptr(): value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    }
    plan = plan_of(train, load_shape(base("mistral") / "config.json"), device="cpu")
    assert size(states.values()) == parts(plan)["optimizer"]


def kept_by_plan(folder: Path, train: Training, device: str = "cpu") -> int:
    """Return the planned bytes that autograd keeps, less the mask of packed rows, which it doesn't keep."""
    shape = load_shape(folder / "config.json")
    plan = plan_of(train, shape, length=TOKENS, device=device, quantized=file_of(folder, train))
    kept = parts(plan)["layer inputs kept" if train.gradient_checkpointing else "activations kept"]
    if train.gradient_checkpointing is True:
        # the table of positions is one of the inputs that a recomputed layer keeps, and no saved tensor
        kept -= 2 * TOKENS * shape.head_dim * 2
    return kept - TOKENS**2


ALL_BUT_GATE = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
RECOMPUTED = {"gradient_checkpointing": True}
KEPT: list[Any] = [
    *(
        pytest.param(
            kind,
            {"target_modules": ALL_BUT_GATE, "lora_dropout": dropout, **checkpointing},
            marks=[SLOW] if bool(dropout) != bool(checkpointing) and kind != "qwen3_moe" else [],
        )
        for kind in TINY
        for dropout in (0.0, 0.05)
        for checkpointing in ({}, RECOMPUTED)
    ),
    *((kind, {"lora_dropout": 0.0, **RECOMPUTED}) for kind in ("q4_k_m tied", "q5_k_m")),
    *((kind, {"lora_dropout": 0.05}) for kind in ("q4_k_m tied", "q5_k_m")),
    *((kind, {"tuner": "scales", "lora_dropout": 0.05}) for kind in ("q4_k_m tied", "q5_k_m")),
    *(
        pytest.param("q8_0", {"lora_dropout": dropout, **checkpointing}, marks=SLOW)
        for dropout in (0.0, 0.05)
        for checkpointing in ({}, RECOMPUTED)
    ),
    *(
        ("four layers", {"lora_dropout": 0.0, **changed})
        for changed in (
            {"layers": "2-"},
            {"layers": [1, 3]},
            {"rank_pattern": {r"2\..*q_proj": 9}},
            {"layers": "1-", **RECOMPUTED},
            {"layers": "1-", "gradient_checkpointing": 2},
            {"gradient_checkpointing": 3},
            {"modules_to_save": ["input_layernorm", "norm"]},
            {"modules_to_save": ["post_attention_layernorm"], "layers": [1, 2], "lora_dropout": 0.1},
            {"modules_to_save": ["input_layernorm"], "target_modules": r".*\.[23]\.mlp\..*_proj"},
            {"modules_to_save": ["embed_tokens", "norm"], "layers": "2-", "lora_dropout": 0.1},
            {"modules_to_save": ["lm_head"], "lora_dropout": 0.0},
        )
    ),
]


@pytest.mark.parametrize(("kind", "changed"), KEPT)
def test_what_autograd_keeps(base: Callable[[str], Path], kind: str, changed: dict[str, Any]) -> None:
    train = trained_on(kind, **changed)
    if train.lora_dropout and load_shape(base(kind) / "config.json").mixture:
        train = train.model_copy(update={"experts": [*expert_parts(train), "router"]})
    model = adapted(base(kind), train).train()
    if train.gradient_checkpointing > 1:
        layers = train.gradient_checkpointing
        model.activation_checkpointing_enable({"use_reentrant": False}, every_n_layers=layers)
    elif train.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        if not isinstance(train.layers, str):
            model.enable_input_require_grads()
    found = kept_bytes(model, lambda: hidden_states(model, TOKENS))
    assert found == kept_by_plan(base(kind), train)
    if kind == "four layers":
        trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
        plan = plan_of(train, load_shape(base(kind) / "config.json"), device="cpu")
        assert parts(plan)["LoRA"] + parts(plan).get("trained embeddings and head", 0) == 4 * trained


def test_what_autocast_keeps_on_a_gpu(base: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """With autocast as on a GPU; without dropout, whose mask is a CPU's here."""
    import torch

    train = demo_training(lora_dropout=0.0, bnb_4bit_compute_dtype="bfloat16", loss="chunked")
    model = adapted(base("llama"), train).train()
    # PEFT asks for a GPU's; undone before autocast ends, which would else put back what it was told, for good
    with torch.autocast("cpu", torch.bfloat16), monkeypatch.context() as output:
        output.setattr(torch, "is_autocast_enabled", lambda *device: True)
        found = kept_bytes(model, lambda: hidden_states(model, TOKENS))
    # the first layer's input needs no gradient, so three A's 16-bit copies aren't kept for one
    copies_of_unused = 3 * 4 * 96 * 2
    assert found == kept_by_plan(base("llama"), train, "cuda") - copies_of_unused


@pytest.mark.parametrize("dropout", [0.0, 0.05])
@pytest.mark.parametrize(
    "targets", [["q_proj"], ["q_proj", "down_proj"], ["q_proj", "k_proj", "o_proj", "up_proj"]]
)
def test_dora_is_planned_not_below_what_it_keeps(
    base: Callable[[str], Path], dropout: float, targets: list[str]
) -> None:
    train = demo_training(lora_dropout=dropout, lora_variants=["dora"], target_modules=targets)
    model = adapted(base("four layers"), train).train()
    found = kept_bytes(model, lambda: hidden_states(model, TOKENS))
    assert found <= kept_by_plan(base("four layers"), train) < 1.2 * found


@pytest.mark.parametrize("quantization", ["nf4", "none", "gguf"])
def test_offloaded_layers_are_those_of_the_tensors(quantization: str, tmp_path: Path) -> None:
    from benchmarks.random_gguf import write_random_gguf

    gguf = quantization == "gguf"
    folder = write_random_gguf(tmp_path / "base", "blocks") if gguf else untied_qwen2(tmp_path)
    train = training(quantization=quantization, loss="chunked", offload=2)
    found = [0, 0]
    for module in adapted(folder, train).modules():
        one = getattr(module.__dict__.get("forward"), "__self__", None)
        if isinstance(one, OffloadedWeight):
            found[one.layer] += one.bytes
    shape, file = load_shape(folder / "config.json"), file_of(folder, train)
    here, off = (
        plan_of(train.model_copy(update={"offload": away}), shape, room=GIB, quantized=file)
        for away in ("none", 2)
    )
    linears = next(name for name in parts(off) if "linears" in name)
    assert parts(here)[linears] - parts(off)[linears] == sum(found)
    assert parts(off)["offloaded layer"] == max(found)
    assert file is None or file.linears == sum(file.layers)


def test_figures_are_those_of_the_code_that_trains() -> None:
    from pipeline.models import chunked_loss, quantized_head, quantized_linear

    assert setup.BLOCK_WEIGHTS == quantized_linear.BLOCK_WEIGHTS
    assert setup.BLOCK_HEAD == quantized_head.BLOCK_HEAD
    assert setup.CHUNK_LOGITS == chunked_loss.CHUNK_LOGITS


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_tables_that_train_are_told_with_all_that_they_take(base: Callable[[str], Path], kind: str) -> None:
    shape = load_shape(base(kind) / "config.json")
    plain = demo_training(loss="chunked", optim="adamw_torch")
    whole = plain.model_copy(update={"modules_to_save": ["embed_tokens", "lm_head"]})
    more = shape.table_weights * (1 if shape.tied else 2)
    before, after = (parts(plan_of(train, shape, device="cpu")) for train in (plain, whole))
    assert after["trained embeddings and head"] == 4 * more
    assert after["gradients"] - before["gradients"] == 4 * more
    states = after["optimizer"] - before["optimizer"]
    assert 8 * more <= states <= 8 * more + 8  # and a step a tensor
    assert after["loss"] - before["loss"] == 8 * shape.table_weights
    assert after["LoRA"] == before["LoRA"]

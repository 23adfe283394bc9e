"""Every planner over every kind of base and training: the figures as text, and what they are by hand."""

from dataclasses import replace
from typing import Any, get_args

import pytest
from golden import Golden
from hypothesis import given
from hypothesis import settings as drawn
from hypothesis import strategies as st
from plans import GIB, MIXTURE, QWEN_7B, SMOLLM2, demo_training, parts, plan_of, published, training

from pipeline.config.sections import Machine, Train
from pipeline.config.sections.training import Grpo
from pipeline.core import cpu
from pipeline.core.errors import ConfigError
from pipeline.planning.model.gguf_base import quantized_level
from pipeline.planning.model.shape import Shape
from pipeline.planning.plan import BASE, Plan
from pipeline.planning.setup import wants_gpu

GGUF, QWEN_MOE = {"quantization": "gguf"}, published("qwen1.5-moe-a2.7b-chat")
LEVELS = ["Q4_K_M", "Q5_K_M"]
EXPERTS = {"r": 16, "target_modules": ["q_proj"], "experts": ["gate_proj", "up_proj", "down_proj"]}
WITH_ROUTER = {"experts": [*EXPERTS["experts"], "router"]}


def grpo(**changed: Any) -> Any:
    layers = changed.pop("n_gpu_layers", 0)
    return training(method="grpo", grpo=Grpo(**changed), machine=Machine(n_gpu_layers=layers))


# name: what `plan_of` is given. Each key that a plan reads has another value than the default in one of them
KINDS: dict[str, dict[str, Any]] = {
    "nf4": {"room": 8 * GIB, "levels": LEVELS},
    "not-recomputed": {
        "train": training(gradient_checkpointing=False, per_device_train_batch_size=2, lora_dropout=0.05),
        "room": 7 * GIB,
    },
    "float32-plain-loss": {
        "train": training(quantization="none", bnb_4bit_compute_dtype="float32", loss="plain").model_copy(
            update={"optim": "lion_8bit"}
        ),
        "shape": published("qwen3-4b"),
        "room": 24 * GIB,
        "untuned": False,
    },
    "dora-norms-half-frozen": {
        "train": training(
            lora_variants=["dora"],
            modules_to_save=["norm", "q_norm", "k_norm", "input_layernorm", "post_attention_layernorm"],
            layers="14-",
            loss="chunked",
            lora_dropout=0.1,
            gradient_checkpointing=False,
            rank_pattern={"q_proj": 4},
        ),
        "shape": published("qwen3-1.7b"),
    },
    "dora-without-dropout": {"train": training(lora_variants=["dora"], lora_dropout=0.0)},
    "every-second-recomputed": {
        "train": training(gradient_checkpointing=2, offload="embeddings", layers="7-"),
        "length": 777,
    },
    "gguf": {"train": training(**GGUF), "level": "Q4_K_M", "room": 5 * GIB, "length": 4096}
    | {"levels": LEVELS},
    "gguf-of-rare-types": {"train": training(**GGUF), "level": "IQ4_XS", "shape": published("llama-3.2-1b")},
    "scales": {"train": training(**GGUF, tuner="scales"), "level": "Q5_K_M", "room": 12 * GIB},
    "scales-on-a-cpu": {
        "train": demo_training(**GGUF, tuner="scales"),
        "shape": SMOLLM2,
        "level": "Q4_K_M",
        "device": "cpu",
    },
    "mixture": {"train": training(**EXPERTS, loss="auto"), "shape": MIXTURE, "room": 16 * GIB},
    "mixture-trains-its-router": {
        "train": training(**EXPERTS | WITH_ROUTER, loss="chunked", lora_dropout=0.05),
        "shape": QWEN_MOE,
    },
    "cpu": {"train": demo_training(), "shape": SMOLLM2, "device": "cpu", "levels": ["Q4_K_M"]},
    "cpu-with-dropout": {
        "train": demo_training(lora_dropout=0.05, quantization="none"),
        "shape": published("qwen3-0.6b"),
        "device": "cpu",
        "room": 3 * GIB,
    },
    "preferences": {"train": training(method="dpo", num_train_epochs=2.0)},
    "preferences-without-a-reference": {"train": training(method="simpo", num_train_epochs=2.0)},
    "other-answers": {"train": training(method="kto", num_train_epochs=2.0)},
    "grpo": {"train": grpo(n_gpu_layers=7, parallel=3, kl_beta=0.1), "room": 24 * GIB},
    "grpo-on-a-gguf": {"train": training(**GGUF, method="grpo"), "level": "Q4_K_M", "device": "cpu"}
    | {"train": demo_training(**GGUF, method="grpo", grpo=Grpo())},
    "grpo-server-on-the-gpu": {"train": grpo(n_gpu_layers=99)},
    "grpo-server-partly-on-a-gpu": {"train": grpo(n_gpu_layers=7).model_copy(update={"optim": "adamw_torch"})}
    | {"device": "cpu"},
    "grpo-in-process": {"train": grpo(rollouts="in-process")},
    "grpo-offloaded": {"train": grpo(kl_beta=0.1).model_copy(update={"offload": 14, "layers": "14-"})},
    "offloaded": {"train": training(offload=14, layers="7-"), "tflops": 20.0},
    "four-processes": {"train": training(offload="shared"), "processes": 4, "room": 4 * GIB},
    "four-processes-on-a-gguf": {"train": training(**GGUF, offload="shared"), "level": "Q4_K_M"}
    | {"processes": 4, "room": 4 * GIB},
    "one-process-shares-nothing": {"train": training(offload="shared"), "room": 4 * GIB},
    "four-processes-advised": {"processes": 4, "room": 4 * GIB},
}


def page(plan: Plan) -> str:
    setup, memory = plan.setup, plan.memory
    lines = [f"{setup.tokens} tokens, loss {setup.loss} on {setup.device}, fits {plan.fits}"]
    lines += [f"{part.bytes:>14,} {'  '[part.at_peak :]}{part.name}: {part.source}" for part in memory.parts]
    lines += [f"{getattr(memory, name):>14,} {name}" for name in ("total", "allocated", "loading", "peak")]
    lines += [f"longest row {plan.longest_row}, {plan.flops_per_token:.0f} operations a token"]
    rate = plan.tokens_per_second if setup.device == "cuda" else "this machine's"
    lines += [f"{plan.copied_bytes_per_token:.0f} bytes copied a token, {rate} tokens/s"]
    lines += [f"{one.change} saves {one.saves:,}, enough {one.enough}" for one in plan.memory_reductions]
    lines += [f"remedy: {plan.remedy}"] if plan.memory_reductions else []
    return "\n".join([*lines, *(f"{size:>14,} on disk: {name}" for name, size in plan.disk.items())]) + "\n"


@pytest.fixture(autouse=True)
def _multiplies_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "instructions", lambda *_: cpu.INSTRUCTIONS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan(kind: str, snapshot: Any) -> None:
    assert page(plan_of(**KINDS[kind])) == snapshot(extension_class=Golden)


@pytest.mark.parametrize("kind", ["cpu", "scales-on-a-cpu"])
def test_a_cpu_that_widens_products_needs_memory_for_their_operands(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = parts(plan_of(**KINDS[kind]))
    monkeypatch.setattr(cpu, "instructions", lambda *_: set())
    wide = parts(plan_of(**KINDS[kind]))
    assert wide["workspace"] > narrow["workspace"]
    assert {name for name in narrow if wide[name] != narrow[name]} <= {"workspace", "loss"}


def test_every_optimizer_that_can_be_set_can_be_planned() -> None:
    for optim in set(get_args(Train.model_fields["optim"].annotation)) - {"auto"}:
        plan_of(train=training().model_copy(update={"optim": optim}))


def test_layers_in_main_memory_want_a_gpu() -> None:
    offloaded = training(offload=1, loss="auto", optim="adamw_torch")
    assert wants_gpu(offloaded) and not wants_gpu(offloaded.model_copy(update={"offload": "none"}))


# --- by hand ------------------------------------------------------------------------------------------------


def test_the_8_gb_recipe_has_the_known_figures() -> None:
    plan = plan_of(room=8 * GIB)
    assert parts(plan)["linears in NF4"] * 8 / QWEN_7B.linear_weights == pytest.approx(4.127, abs=1e-3)
    assert plan.memory.total / 1e9 == pytest.approx(7.3, rel=0.02)
    assert plan_of(training(loss="plain")).memory.total / 1e9 == pytest.approx(9.4, rel=0.03)
    assert plan.flops_per_token / 1e9 == pytest.approx(42.5, abs=0.05)
    assert plan.longest_row is not None and plan.longest_row >= 2972


@pytest.mark.parametrize(
    ("shape", "path", "width"),
    [
        (QWEN_7B, "self_attn.[qkv]_proj", 3 * 3584 + 3584 + 2 * 512),
        (QWEN_7B, "self_attn.o_proj", 3584 + 3584),
        (QWEN_7B, "mlp.down_proj", 18_944 + 3584),
        (QWEN_MOE, "mlp.shared_expert.up_proj", 2048 + 5632),
        (QWEN_MOE, "mlp.shared_expert_gate", 2048 + 1),
        (QWEN_MOE, r"mlp.experts.\d+.down_proj", 60 * (1408 + 2048)),
    ],
)
def test_a_pattern_has_to_match_the_path_in_transformers_model(shape: Shape, path: str, width: int) -> None:
    plan = plan_of(training(target_modules=rf"model\.layers\.3\.{path}", r=16, loss="chunked"), shape)
    assert parts(plan)["LoRA"] == 4 * 16 * width


def test_qwen_7b_on_q4_k_m() -> None:
    base = quantized_level(QWEN_7B, "Q4_K_M")
    assert base.embeddings == 152_064 * 3584 // 256 * 144  # Q4_K
    assert base.head == 152_064 * 3584 // 256 * 210  # Q6_K
    plan = plan_of(training(**GGUF), quantized=replace(base, made_from=77))
    assert plan.disk[BASE] == base.file + 77
    found = parts(plan)
    both = found["quantized linears"] + found["embeddings and head"]
    assert both == pytest.approx(4_683_073_536, rel=0.002)  # of the published file
    block = 32 * 2**20 // 18_944 * 18_944  # down_proj: whole rows in at most 32 Mi weights
    # Triton's kernels take nothing beside
    assert found["workspace"] == 8_519_680 + max(block, 32 * 2**20 // 3584 * 3584) * 2
    states = 1024 * 3584
    # the adapter's 16-bit copies too
    assert found["loss"] == 2 * states * 2 + 8 * 2**20 * (2 + 12) + states * (4 + 2) + 40_370_176 * 2
    nf4 = parts(plan_of())
    same = ("LoRA", "gradients", "optimizer", "layer inputs kept", "one layer recomputed", "norms and biases")
    assert {name: found[name] for name in same} == {name: nf4[name] for name in same}


def test_embeddings_in_main_memory_save_their_bytes_unless_the_head_is_the_same_table() -> None:
    for shape, saved in ((QWEN_7B, 152_064 * 3584 * 2), (published("qwen2.5-0.5b"), 0)):
        here, away = (plan_of(training(offload=kept), shape).memory for kept in ("none", "embeddings"))
        assert here.allocated - away.allocated == saved


# --- what fits ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@drawn(deadline=None)  # the first draw imports, and the machine may be busy
@given(
    room=st.integers(2 * GIB, 80 * GIB),
    batch=st.integers(1, 8),
    checkpointing=st.booleans(),
    length=st.integers(64, 8192),
    level=st.sampled_from([None, "Q4_K_M"]),
)
def test_the_longest_rows_fit_and_reductions_tell_the_truth(
    room: int, batch: int, checkpointing: bool, length: int, level: str | None
) -> None:
    train = training(per_device_train_batch_size=batch, gradient_checkpointing=checkpointing)
    if level:
        train = train.model_copy(update={"quantization": "gguf"})
    plan = plan_of(train, length=length, level=level, room=room)
    longest, total = plan.longest_row, plan.memory.total

    def needed(tokens: int) -> int:
        return plan_of(train, length=tokens, level=level).memory.total

    assert longest is not None
    assert longest == 0 or needed(longest) <= room
    assert longest == QWEN_7B.positions or needed(longest + 1) > room
    assert total > room or not plan.memory_reductions
    for number, reduction in enumerate(plan.memory_reductions, 1):
        assert reduction.saves > 0 and reduction.total == total - reduction.saves
        assert reduction.enough == (reduction.total <= room)
        assert not reduction.enough or number == len(plan.memory_reductions)
        assert level is None or "embeddings" not in reduction.change  # a GGUF's aren't moved
        total = reduction.total


TWO = {"per_device_train_batch_size": 2, "gradient_checkpointing": False}
FROM_CHEAPEST: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    (
        TWO,
        {"room": 5 * GIB},
        [
            "train.per_device_train_batch_size: 1 and gradient_accumulation_steps: 16",
            "train.gradient_checkpointing: true",
            "train.offload: embeddings",
            "preprocess.max_length: 512",  # what is then left is the weights, all of which are loaded first
        ],
    ),
    ({}, {"room": 8 * GIB}, ["preprocess.max_length: 3392"]),
    (
        {},
        {"level": "Q4_K_M", "room": 5 * GIB},
        ["preprocess.max_length: 512", "train.r: 8", "train.offload: 5"],
    ),
    ({}, {"length": 1024, "room": 4 * GIB, "processes": 4}, ["train.offload: shared"]),
]


@pytest.mark.parametrize(("changed", "given_", "changes"), FROM_CHEAPEST)
def test_changes_are_advised_from_the_cheapest_on(
    changed: dict[str, Any], given_: dict[str, Any], changes: list[str]
) -> None:
    kind = {"quantization": "gguf"} if "level" in given_ else {}
    plan = plan_of(training(**kind, **changed), **{"length": 4096} | given_)
    assert [one.change for one in plan.memory_reductions][-len(changes) :] == changes


def test_a_card_of_just_as_many_bytes_is_large_enough() -> None:
    needed = plan_of().memory.total
    just, short = (plan_of(room=needed - missing) for missing in (0, 1))
    assert just.fits and not just.memory_reductions and not short.fits and short.memory_reductions
    assert plan_of(room=400 * GIB).longest_row == QWEN_7B.positions
    first = plan_of(training(**TWO), room=5 * GIB).memory_reductions[0]
    assert plan_of(training(**TWO), room=first.total).memory_reductions == (replace(first, enough=True),)


def test_as_few_layers_are_offloaded_as_fit() -> None:
    train = training(**GGUF, r=8)
    plan = plan_of(train, length=512, level="Q4_K_M", room=5 * GIB)
    (advice,) = plan.memory_reductions
    count = int(advice.change.removeprefix("train.offload: "))
    assert advice.enough and 0 < count < 28
    for layers, fits in ((count, True), (count - 1, False)):
        changed = train.model_copy(update={"offload": layers})
        assert plan_of(changed, length=512, level="Q4_K_M", room=5 * GIB).fits is fits
    dora = plan_of(training(**GGUF, r=8, lora_variants=["dora"]), length=512, level="Q4_K_M", room=2 * GIB)
    assert "offload" not in dora.remedy


# --- what can't be planned ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "given_", "id"),
    [
        ({"target_modules": ["q_proj", "c_attn"]}, {}, "Q-PLANNING-007"),
        ({"layers": "28-"}, {}, "Q-PLANNING-007"),
        ({"modules_to_save": ["q_norm"]}, {}, "Q-PLANNING-007"),
        ({"offload": 1}, {"device": "cpu"}, "Q-PLANNING-008"),
        ({"experts": ["down_proj"]}, {}, "Q-MODELS-034"),
        ({"experts": []}, {}, "Q-MODELS-034"),
        ({"tuner": "scales"}, {"shape": MIXTURE}, "Q-MODELS-034"),
        ({"loss": "liger"}, {"shape": MIXTURE}, "Q-MODELS-034"),
        ({"method": "distill"}, {"shape": MIXTURE}, "Q-MODELS-034"),
    ],
)
def test_what_cant_be_planned_is_refused(changed: dict[str, Any], given_: dict[str, Any], id: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_of(training(**{"loss": "chunked"} | changed), **given_)
    assert refused.value.id == id


def test_quantized_bytes_have_to_be_known() -> None:
    with pytest.raises(AssertionError):
        plan_of(training(**GGUF))

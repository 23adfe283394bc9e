"""A model on a GGUF's bytes: transformers' own logits of the same file, every tensor used once, trained as
the dense model is; others refused.
"""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense import dense_model
from families import GEMMA, ON_GGUF, ROWS, SIZES, name_phi_tokenizer, rows_and_words, write_tokenizer
from gguf_edit import Tensors, change_tensors
from peft import get_peft_model
from qwen2_variants import change_json
from tiny import tiny_gguf
from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig
from tuned_by_hand import write_config

from pipeline.config.params import Params
from pipeline.core.errors import DataError
from pipeline.gguf.tensors import gguf_tensors
from pipeline.llamacpp.converters import HeaderFields, quantize_gguf, to_gguf
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.models.chunked_loss import check_head, chunked_loss
from pipeline.models.own_targets import linears
from pipeline.models.quantized_linear import QuantizedEmbedding, QuantizedLinear
from pipeline.models.quantized_model import load_gguf
from pipeline.models.tensors import frozen_tensors, tensor_bytes
from pipeline.models.tuners.lora import check_adapter, lora_config
from pipeline.models.unpacked_model import unpacked_model
from pipeline.planning.model.config_file import load_shape
from pipeline.planning.model.gguf_base import quantized_file, quantized_level

LEVELS = ("F16", "Q8_0", "Q4_K_M")
IDS = torch.arange(48).reshape(2, 24) * 37 % 2000


def write_model(name: str, folder: Path, tools: Toolchain, tied: bool) -> Path:
    """A random two-layer model (norms and biases random too) as a Hugging Face folder; the folder."""
    # the same small vocabulary for all whose converter takes it
    tokenizer = name if name in GEMMA else "qwen2"
    ends = write_tokenizer(tokenizer, folder, tools)
    if name == "phi3":
        name_phi_tokenizer(folder)
    rows, _ = rows_and_words(tokenizer)
    config = AutoConfig.for_model(
        name, **(SIZES | ROWS[name].settings | ends | {"vocab_size": rows, "tie_word_embeddings": tied})
    )
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def levels_of(
    tools: Toolchain, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, bool], dict[str, Path]]:
    """{level: folder with config.json and model.gguf} of a model."""

    @functools.cache
    def made(name: str, tied: bool) -> dict[str, Path]:
        root = tmp_path_factory.mktemp(name)
        source = write_model(name, root / "source", tools, tied)
        folders = {level: root / level for level in LEVELS}
        for level, folder in folders.items():
            folder.mkdir()
            for file in source.glob("*config.json"):
                shutil.copyfile(file, folder / file.name)
            if level == "F16":
                to_gguf(tools, source, folder / "model.gguf", "F16", HeaderFields("tiny", "qwen2"))
            else:
                quantize_gguf(Llama(tools), folders["F16"] / "model.gguf", folder / "model.gguf", level)
        return folders

    return made


# models that every run tries, and whether their head is tied; of the others each is tied as its row says
QUICK = {"llama": True, "qwen2": True, "qwen3": False, "granite": True, "gemma2": True}
SLOW = {name: (SIZES | ROWS[name].settings)["tie_word_embeddings"] for name in ON_GGUF if name not in QUICK}


@pytest.fixture(
    params=[
        *QUICK.items(),
        *(
            pytest.param(model, marks=pytest.mark.slow)
            for model in (("llama", False), ("qwen2", False), *SLOW.items())
        ),
    ],
    ids=lambda param: f"{param[0]}-{'tied' if param[1] else 'untied'}",
)
def levels(
    request: pytest.FixtureRequest, levels_of: Callable[[str, bool], dict[str, Path]]
) -> dict[str, Path]:
    """The folders of one model."""
    return levels_of(*request.param)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The one-layer Llama of `tiny_gguf`, with its config.json; the folder."""
    tiny_gguf(tmp_path / "model.gguf")
    return write_config(tmp_path)


def load(folder: Path, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """`load_gguf` on the CPU."""
    return load_gguf(folder, compute_dtype=dtype, device="cpu", **more)


def logits(model: Any) -> torch.Tensor:
    """Float32 logits of IDS."""
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS % model.config.vocab_size, use_cache=False).logits.float()
    return found


# transformers' names of a layer's parts: llama.cpp's, by the converter's own lists
PARTS = {
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    **{f"self_attn.{part}_norm": f"attn_{part}_norm" for part in "qk"},
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    # LFM2's
    "self_attn.out_proj": "attn_output",
    **{f"self_attn.{part}_layernorm": f"attn_{part}_norm" for part in "qk"},
    **{f"conv.{part}": f"shortconv.{part}" for part in ("in_proj", "out_proj", "conv")},
    **{
        f"feed_forward.{part}": f"ffn_{name}" for part, name in (("w1", "gate"), ("w2", "down"), ("w3", "up"))
    },
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    # Qwen3.5's
    **{f"linear_attn.{part}": f"ssm_{part}" for part in ("conv1d", "norm")},
    **{
        f"linear_attn.{part}": name
        for part, name in (
            ("A_log", "ssm_a"),
            ("dt_bias", "ssm_dt"),
            ("in_proj_qkv", "attn_qkv"),
            ("in_proj_z", "attn_gate"),
            ("in_proj_a", "ssm_alpha"),
            ("in_proj_b", "ssm_beta"),
            ("out_proj", "ssm_out"),
        )
    },
}
FILTERS = ("shortconv.conv.weight", "ssm_conv1d.weight")
BEHIND = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
TURNED = (
    "granite",
    "smollm3",
    "ministral3",
    "mistral",
)  # the rows of the halves of a head of q and k lie in turns
OUTSIDE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.embedding_norm": "token_embd_norm",
    "lm_head": "output",
}


def grouped(values: torch.Tensor, part: str, config: Any) -> torch.Tensor:
    """Put the value heads of one key head side by side; the file has the first of each key head first."""
    if part == "linear_attn.norm":
        return values
    if part == "linear_attn.out_proj":
        return grouped(values.T, "linear_attn.in_proj_z", config).T
    keys = config.linear_num_key_heads
    before = 0
    if part in ("linear_attn.in_proj_qkv", "linear_attn.conv1d"):
        before = 2 * keys * config.linear_key_head_dim
    heads = values[before:].unflatten(0, (config.linear_num_value_heads // keys, keys, -1))
    return torch.cat([values[:before], heads.transpose(0, 1).flatten(0, 2)])


def dequantized(folder: Path) -> Any:
    """transformers' model of the file, dense: read by transformers, or by the names above if it can't."""
    config = AutoConfig.from_pretrained(folder)
    if config.model_type in ("llama", "qwen2", "qwen3"):
        return AutoModelForCausalLM.from_pretrained(
            folder,
            gguf_file="model.gguf",
            config=config,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
    model = AutoModelForCausalLM.from_config(config).float()
    tensors = gguf_tensors(folder / "model.gguf")[1]
    parts = PARTS | (BEHIND if config.model_type in ("olmo2", "olmo3", "qwen3_5_text", *GEMMA) else {})
    for name, parameter in model.named_parameters():
        module = name.removesuffix(".weight")
        number, _, part = module.removeprefix("model.layers.").partition(".")
        ending = {"linear_attn.A_log": "", "linear_attn.dt_bias": ".bias"}.get(part, ".weight")
        tensor = tensors.pop(f"{OUTSIDE.get(module) or f'blk.{number}.{parts.get(part)}'}{ending}")
        values = torch.from_numpy(tensor.values(0, tensor.rows).copy()).reshape(parameter.shape)
        if part in ("self_attn.q_proj", "self_attn.k_proj") and config.model_type in TURNED:
            width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
            halves = values.reshape(-1, width // 2, 2, 256)
            values = halves.transpose(1, 2).reshape(parameter.shape)
        if part == "linear_attn.A_log":
            values = torch.log(-values)
        if part.startswith("linear_attn."):
            values = grouped(values, part, config)
        adds_one = config.model_type in (*GEMMA, "qwen3_5_text") and part != "linear_attn.norm"
        if adds_one and module.endswith("norm"):
            values = values - 1
        parameter.data.copy_(values)
    assert all(name.startswith("rope_factors") for name in tensors)
    return model


def settings(params: dict[str, Any], model: Any) -> Any:
    """The section train of `params` for LoRA on all linears of the layers."""
    names = "|".join(sorted({path.rpartition(".")[2] for path in linears(model)}))
    params["train"] |= {"target_modules": rf".*\.({names})", "lora_dropout": 0.0}
    return Params.model_validate(params).train


# --- what it answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_logits_are_transformers_own_of_the_same_file(levels: dict[str, Path], level: str) -> None:
    folder = levels[level]
    theirs = dequantized(folder)
    expected = logits(theirs.eval())
    model = load(folder)
    check_head(model)
    assert float((logits(model) - expected).abs().max() / expected.abs().max()) <= 1e-4
    assert float((logits(dense_model(load(folder))) - expected).abs().max() / expected.abs().max()) <= 1e-4
    in_bfloat16 = logits(load(folder, torch.bfloat16))
    assert float((in_bfloat16 - expected).pow(2).mean() / expected.pow(2).mean()) <= 1e-3
    for (name, ours), (_, other) in zip(model.named_buffers(), theirs.named_buffers(), strict=True):
        assert torch.equal(ours, other), name


@pytest.mark.slow
def test_a_plan_knows_what_its_linears_take(levels: dict[str, Path]) -> None:
    folder = levels["Q4_K_M"]
    by_file = quantized_file(folder / "model.gguf")
    by_level = quantized_level(load_shape(folder / "config.json"), "Q4_K_M")
    assert by_file.layers == by_level.layers
    assert set(by_file.scales) == set(by_level.scales)


@pytest.mark.parametrize("level", ["F16", "Q4_K_M"])
def test_unpacked_it_has_transformers_names_and_the_files_values(levels: dict[str, Path], level: str) -> None:
    file = levels[level] / "model.gguf"
    found = unpacked_model(file, AutoConfig.from_pretrained(levels[level]), torch.float16).state_dict()
    wanted = dequantized(levels[level]).to(torch.float16).state_dict()
    source = AutoModelForCausalLM.from_pretrained(levels[level].parent / "source", dtype=torch.float16)
    assert found.keys() == wanted.keys() == source.state_dict().keys()
    for name, values in found.items():
        assert torch.equal(values, wanted[name]), name
        assert level != "F16" or torch.equal(values, source.state_dict()[name]), name


@pytest.mark.parametrize("level", LEVELS)
def test_it_holds_the_files_bytes_once(levels: dict[str, Path], level: str) -> None:
    model = load(levels[level], torch.bfloat16)
    assert not model.config.use_cache and not model.training
    assert not any(weight.requires_grad for weight in model.parameters())
    stored = gguf_tensors(levels[level] / "model.gguf")[1].values()
    matrices = {tensor for tensor in stored if len(tensor.shape) == 2 and not tensor.name.endswith(FILTERS)}
    packed = QuantizedLinear | QuantizedEmbedding
    quantized = [module.weight for module in model.modules() if isinstance(module, packed)]
    assert tensor_bytes(quantized) == sum(tensor.rows * tensor.row_bytes for tensor in matrices)
    bytes_of = {id(weight) for weight in quantized}
    vectors = [weight for weight in model.parameters() if id(weight) not in bytes_of]
    assert {weight.dtype for weight in vectors} == {torch.bfloat16}
    assert tensor_bytes(frozen_tensors(model)) == tensor_bytes([*quantized, *vectors, *model.buffers()])
    if model.config.tie_word_embeddings:
        assert model.lm_head.weight is model.get_input_embeddings().weight
    ggml_types = {module.ggml_type for module in model.modules() if isinstance(module, QuantizedLinear)}
    # ggml's numbers: Q4_K and Q6_K in the last
    assert ggml_types == {"F16": {1}, "Q8_0": {8}, "Q4_K_M": {12, 14}}[level]


@pytest.mark.base_cells("adapter", families=ON_GGUF)
def test_an_adapter_learns_what_it_learns_on_the_same_weights_dense(
    levels: dict[str, Path], tiny_params: dict[str, Any]
) -> None:
    train = settings(tiny_params, load(levels["Q4_K_M"]))
    labels = torch.where(torch.arange(IDS.numel()).reshape(IDS.shape) % 3 > 0, IDS, -100)
    learned = []
    for of_blocks in (lambda model: model, dense_model):
        torch.manual_seed(0)
        model = get_peft_model(of_blocks(load(levels["Q4_K_M"])), lora_config(train))
        assert check_adapter(model, train) > 0
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                seeded = torch.Generator().manual_seed(len(name))
                weight.data = torch.randn(weight.shape, generator=seeded) * 0.02
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
        loss = chunked_loss(model.train().get_base_model(), {"input_ids": IDS, "labels": labels})
        assert model(input_ids=IDS, labels=labels).loss.item() == pytest.approx(loss.item(), rel=1e-5)
        loss.backward()
        trained = {name: one.grad for name, one in model.named_parameters() if one.requires_grad}
        learned.append((loss.item(), trained))
    (ours, gradients), (theirs, expected) = learned
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert gradients.keys() == expected.keys()
    assert len(gradients) == len(list(linears(load(levels["Q4_K_M"])))) * 2
    for name, gradient in gradients.items():
        wanted = expected[name]
        assert float((gradient - wanted).abs().max()) <= 1e-4 * float(wanted.abs().max()), name
        assert float(gradient.abs().max()) > 0


# --- what it refuses ----------------------------------------------------------------------------------------


def drop(name: str) -> Callable[[Tensors], Tensors]:
    """Takes a tensor out."""
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def add(name: str, like: str) -> Callable[[Tensors], Tensors]:
    """Puts in another tensor with the shape and bytes of one that is there."""
    return lambda tensors: tensors | {name: tensors[like]}


def test_the_tiny_file_is_fine(base: Path) -> None:
    assert logits(load(base)).isfinite().all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            drop("blk.0.ffn_up.weight"),
            r"Q-MODELS-029.*blk\.0\.ffn_up\.weight.*model\.layers\.0\.mlp\.up_proj\.weight",
        ),
        (drop("output_norm.weight"), r"Q-MODELS-029.*output_norm\.weight"),
        (add("blk.1.attn_norm.weight", "blk.0.attn_norm.weight"), r"Q-MODELS-029.*blk\.1\.attn_norm\.weight"),
        (add("output.weight", "token_embd.weight"), r"Q-MODELS-029.*holds output\.weight"),
        (add("rope_freqs.weight", "output_norm.weight"), "Q-MODELS-005"),
        (add("blk.0.ffn_up.weight", "blk.0.ffn_down.weight"), r"Q-MODELS-029.*\(32, 64\).*\(64, 32\)"),
    ],
)
def test_a_file_that_is_not_this_models_is_refused(
    base: Path, change: Callable[[Tensors], Tensors], sentence: str
) -> None:
    change_tensors(base / "model.gguf", change)
    with pytest.raises(DataError, match=sentence):
        load(base)


@pytest.mark.base_refused("`base.quantization: gguf` for another family than the table says", "Q-MODELS-028")
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"architectures": ["PhiForCausalLM"], "model_type": "phi"}, "Q-MODELS-028.*PhiForCausalLM"),
        ({"architectures": None}, "Q-MODELS-028"),
        ({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, "Q-MODELS-029"),
        ({"tie_word_embeddings": False}, r"Q-MODELS-029.*output\.weight"),
        ({"num_hidden_layers": 2}, r"Q-MODELS-029.*blk\.1\."),
    ],
)
def test_a_config_that_is_not_this_files_is_refused(
    base: Path, changed: dict[str, Any], sentence: str
) -> None:
    change_json(base / "config.json", keep_none=True, **changed)
    with pytest.raises(DataError, match=sentence):
        load(base)


def test_a_norm_that_the_compute_type_cannot_hold_is_refused(base: Path) -> None:
    tiny_gguf(base / "model.gguf", tensors={"output_norm.weight": np.full(32, 1e6, np.float32)})
    with pytest.raises(DataError, match="Q-MODELS-031"):
        load(base, torch.float16)


def test_a_file_that_is_cut_off_is_refused(base: Path) -> None:
    data = (base / "model.gguf").read_bytes()
    (base / "model.gguf").write_bytes(data[:-100])
    with pytest.raises(DataError, match="Q-GGUF-003"):
        load(base)

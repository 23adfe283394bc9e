"""A mixture whose experts are linears of their own: the same model as transformers', in NF4, 16 bit and a
GGUF's blocks, with adapters where the settings ask for them and gradients as plain torch computes them.
"""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from dense import dense
from merging import logits, write_base
from peft import PeftModel
from tiny import ROWS, tiny_moe
from transformers import AutoModelForCausalLM

from pipeline.config.sections import Training
from pipeline.config.targets import is_routed, together
from pipeline.core.errors import ConfigError, DataError
from pipeline.gguf.header import read_header
from pipeline.gguf.sources import in_model
from pipeline.gguf.tensors import gguf_tensors
from pipeline.llamacpp.converters import HeaderFields, quantize_gguf, to_gguf
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.models.loading import load_model
from pipeline.models.qlora import load_quantized
from pipeline.models.quantized_linear import QuantizedLinear
from pipeline.models.tuners import TUNERS, put_tuner, tuner_on

KINDS = ("Qwen2Moe", "Qwen3Moe", "Mixtral")
UP = "model.layers.1.mlp.experts.2.up_proj.weight"
PARTS = ["gate_proj", "up_proj", "down_proj"]
IDS = torch.arange(40).view(1, -1) * 37 % 90


def settings(**changed: Any) -> Training:
    """Training in float32 with an adapter of rank 4 on attention and all experts."""
    given = {"quantization": "none", "bnb_4bit_compute_dtype": "float32", "r": 4, "lora_alpha": 8}
    return Training(**(given | {"lora_dropout": 0.0} | changed))


@pytest.fixture(scope="module", params=KINDS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random mixture of two layers, without a tokenizer."""
    return write_base(tmp_path_factory.mktemp(request.param), request.param, moe_intermediate_size=64)


def adapted(base: Path, train: Training) -> Any:
    """The model as training has it, its adapter no longer 0."""
    torch.manual_seed(0)
    model = put_tuner(load_quantized(base, train), train)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def adapters(model: Any) -> set[str]:
    """The linears with an adapter, one name for all experts and layers: "mlp.experts.up_proj"."""
    names = (name.partition(".lora_A.") for name, _ in model.named_parameters())
    return {together(name.partition(".layers.")[2]).partition(".")[2] for name, found, _ in names if found}


# --- the model ----------------------------------------------------------------------------------------------


def test_it_is_the_model_of_transformers(base: Path) -> None:
    ours, theirs = load_model(base, dtype=torch.float32), AutoModelForCausalLM.from_pretrained(base)
    assert torch.allclose(logits(ours), logits(theirs.float()), atol=1e-6)
    assert sum(one.numel() for one in ours.parameters()) == sum(one.numel() for one in theirs.parameters())


def test_a_base_that_lacks_an_expert_is_refused(base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(base / "model.safetensors")
    del tensors[next(name for name in tensors if in_model(name) == UP)]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((base / "config.json").read_bytes())
    with pytest.raises(DataError, match=r"Q-MODELS-035.*layers\.1\.mlp\.experts\.2\.up_proj"):
        load_model(tmp_path)


# --- where adapters are -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("modules", "experts", "routed", "shared"),
    [
        (["q_proj", *PARTS], None, PARTS, PARTS),
        (["q_proj", *PARTS], [], [], PARTS),
        (["q_proj", *PARTS], ["down_proj"], ["down_proj"], PARTS),
        (["q_proj"], None, [], []),
        (["q_proj"], ["gate_proj", "up_proj"], ["gate_proj", "up_proj"], []),
        (["q_proj", "up_proj"], PARTS, PARTS, ["up_proj"]),
    ],
)
def test_routed_and_shared_experts_are_told_apart(
    base: Path, modules: list[str], experts: Any, routed: list[str], shared: list[str]
) -> None:
    train = settings(target_modules=modules, experts=experts)
    model = adapted(base, train)
    has_shared = "Qwen2" in base.name
    wanted = {"self_attn.q_proj", *(f"mlp.experts.{part}" for part in routed)}
    assert adapters(model) == wanted | {f"mlp.shared_expert.{part}" for part in shared if has_shared}
    trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
    assert TUNERS["lora"].check(model, train) == trained


def test_an_expert_without_its_adapter_is_noticed(base: Path) -> None:
    train = settings(experts=PARTS)
    model = put_tuner(load_quantized(base, train), train)
    expert = model.get_base_model().model.layers[1].mlp.experts.get_submodule("3")
    expert["up_proj"] = expert["up_proj"].base_layer
    with pytest.raises(AssertionError, match=r"layers\.1\.mlp\.experts\.3\.up_proj"):
        TUNERS["lora"].check(model, train)


@pytest.mark.parametrize("changed", [{"experts": []}, {"experts": ["up_proj"]}, {"experts": ["router"]}])
def test_a_dense_base_has_no_experts_to_train(tmp_path: Path, changed: dict[str, Any]) -> None:
    train = settings(**changed)
    model = load_quantized(write_base(tmp_path, "Qwen2"), train)
    with pytest.raises(ConfigError, match="Q-MODELS-034"):
        put_tuner(model, train)


# --- gradients ----------------------------------------------------------------------------------------------


def fused_weights(tensors: dict[str, torch.Tensor], experts: int) -> dict[str, torch.Tensor]:
    """Weights by their linears' names as transformers' own mixture has them: a layer's experts together."""
    found = {name: value for name, value in tensors.items() if not is_routed(name)}
    stacks = {}
    for name in (name for name in tensors if ".experts.0." in name):
        each = (name.replace(".experts.0.", f".experts.{number}.") for number in range(experts))
        stacks[together(name)] = torch.stack([tensors[one] for one in each])
    for name in [name for name in stacks if name.endswith("gate_proj.weight")]:
        up = stacks.pop(name.replace("gate_proj", "up_proj"))
        found[name.replace("gate_proj.weight", "gate_up_proj")] = torch.cat([stacks.pop(name), up], dim=1)
    return found | {name.removesuffix(".weight"): value for name, value in stacks.items()}


def frozen_weight(linear: Any) -> torch.Tensor:
    """The dense weight that a linear computes with."""
    if isinstance(linear, QuantizedLinear):
        return dense(linear).weight.detach()
    if getattr(linear.weight, "quant_state", None) is not None:
        from bitsandbytes.functional import dequantize_4bit

        return dequantize_4bit(linear.weight.data, linear.weight.quant_state)
    return linear.weight.detach()


def compare_gradients(model: Any, train: Training, own: Any, ids: torch.Tensor) -> None:
    """The gradients of all A and B against those of transformers' own model `own` whose weights are W + scale
    · B · A, by torch's autograd alone.
    """
    model.train()
    model(ids, labels=ids).loss.backward()
    modules = {name.removeprefix("base_model.model."): one for name, one in model.named_modules()}
    layers = {name: module for name, module in modules.items() if hasattr(module, "lora_A")}
    trained, weights = {}, {}
    for name, module in layers.items():
        halves = (part["default"].weight.detach() for part in (module.lora_A, module.lora_B))
        trained[name] = a, b = tuple(half.clone().requires_grad_() for half in halves)
        weights[f"{name}.weight"] = frozen_weight(module.base_layer) + train.lora_alpha / train.r * b @ a
    left = {  # of experts whose matrix has no adapter
        f"{name}.weight": frozen_weight(module)
        for name, module in modules.items()
        if isinstance(module, torch.nn.Linear) and is_routed(name) and name.endswith("_proj")
    }
    values = fused_weights(weights | left, own.config.num_experts)
    torch.func.functional_call(own, values, (), {"input_ids": ids, "labels": ids}).loss.backward()
    assert any(is_routed(name) for name in trained)
    for name, pair in trained.items():
        module = layers[name]
        for ours, theirs in zip((module.lora_A, module.lora_B), pair, strict=True):
            found, wanted = ours["default"].weight.grad, theirs.grad
            if found is None:  # no token came here
                assert is_routed(name) and not wanted.any()
            else:
                # sums in another order: 1.6e-4 on a CPU with AMX, for an expert that few tokens come to
                assert (found - wanted).norm() <= 1e-3 * wanted.norm(), name


@pytest.mark.parametrize(
    ("quantization", "experts"),
    [("none", ["down_proj"]), ("none", [*PARTS, "router"]), ("nf4", [*PARTS, "router"])],
)
def test_gradients_are_those_of_plain_torch(base: Path, quantization: str, experts: list[str]) -> None:
    train = settings(quantization=quantization, target_modules=["q_proj"], experts=experts)
    model = adapted(base, train)
    own = AutoModelForCausalLM.from_pretrained(base).float()
    if quantization == "nf4":
        dense = {}
        for name, module in model.named_modules():
            packed = getattr(getattr(module, "weight", None), "quant_state", None) is not None
            if packed and not hasattr(module, "base_layer"):
                plain = name.removeprefix("base_model.model.").removesuffix(".base_layer")
                dense[f"{plain}.weight"] = frozen_weight(module)
        own.load_state_dict(fused_weights(dense, own.config.num_experts), strict=False)
    compare_gradients(model, train, own, IDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_on_a_ggufs_blocks_are_those_of_plain_torch(
    kind: str, tools: Toolchain, tmp_path: Path
) -> None:
    source, folder = tiny_moe(tmp_path / "source", tools, kind), tmp_path / "base"
    folder.mkdir()
    to_gguf(tools, source, tmp_path / "f16.gguf", "F16", HeaderFields("tiny", "qwen2"))
    quantize_gguf(Llama(tools), tmp_path / "f16.gguf", folder / "model.gguf", "Q4_K_M")
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    train = settings(quantization="gguf", target_modules=["q_proj"], experts=[*PARTS, "router"])
    model = adapted(folder, train)
    own = AutoModelForCausalLM.from_pretrained(source).float()
    own.load_state_dict(from_file(folder / "model.gguf", own), strict=False)
    compare_gradients(model, train, own, torch.arange(40).view(1, -1) * 37 % ROWS)


def from_file(file: Path, own: Any) -> dict[str, torch.Tensor]:
    """The weights of transformers' own model out of a GGUF, by the package gguf alone."""
    architecture = read_header(file).fields["general.architecture"]
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names, (_, tensors) = gguf.get_tensor_name_map(number, 2), gguf_tensors(file)
    found = {}
    for name, like in own.named_parameters():
        stacked = name.endswith("experts.gate_up_proj")
        parts = ["gate_proj", "up_proj"] if stacked else [name.rpartition(".")[2]]
        sources = [name.replace("gate_up_proj", part) if stacked else name for part in parts]
        read = []
        for source in sources:
            found_as = names.get_name(source, try_suffixes=(".weight", ".bias"))
            tensor = tensors[found_as if "." in source[-7:] else f"{found_as}.weight"]
            read.append(torch.from_numpy(tensor.values(0, tensor.rows).copy()).view(tensor.shape))
        found[name] = torch.cat(read, dim=1 if stacked else 0).view(like.shape)
        if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            found[name] = unpermuted(found[name], own.config, keys="k_proj" in name)
    return found


def unpermuted(weight: torch.Tensor, config: Any, *, keys: bool) -> torch.Tensor:
    """Rows in transformers' order: llama.cpp permutes a Llama's for its own RoPE (`LlamaModel.permute`)."""
    heads = config.num_key_value_heads if keys else config.num_attention_heads
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


# --- the adapter's folder -----------------------------------------------------------------------------------


def test_peft_puts_the_folder_on_transformers_own_qwen3(tmp_path: Path) -> None:
    """Whose fused experts need other names: PEFT knows how to convert them."""
    base = write_base(tmp_path / "base", "Qwen3Moe")
    model = adapted(base, settings(target_modules=["q_proj"], experts=[*PARTS, "router"]))
    tuner_on(model).save(model, tmp_path / "adapter")
    own = AutoModelForCausalLM.from_pretrained(base).float()
    theirs = PeftModel.from_pretrained(own, tmp_path / "adapter").eval()
    assert torch.allclose(logits(model.eval()), logits(theirs), atol=1e-5)

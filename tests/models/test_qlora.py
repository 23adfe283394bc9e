"""qlora: NF4 before the adapter, nothing cast, every target of every layer hit and nothing else trained; the
options change memory, not results.
"""

from pathlib import Path

import pytest
import torch
from needed import need
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from qlora import adapted, same, settings, step
from tiny import untied_qwen2
from transformers import Qwen2ForCausalLM

from pipeline.core.errors import ConfigError, ToolError
from pipeline.models import qlora as base
from pipeline.models.qlora import check_quantized, load_quantized
from pipeline.models.tuners.lora import check_adapter, lora_config


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Qwen2 whose head is a table of its own."""
    return untied_qwen2(tmp_path_factory.mktemp("untied"))


# --- NF4 before LoRA, and as it was made --------------------------------------------------------------------


def test_every_targeted_linear_is_nf4_before_the_adapter(untied: Path) -> None:
    model = load_quantized(untied, settings())
    targets, modules = settings().target_modules, dict(model.named_modules())
    linears = [modules[name] for name in modules if name.rpartition(".")[2] in targets]
    assert len(linears) == 14
    assert {module.weight.quant_state.quant_type for module in linears} == {"nf4"}
    assert {module.weight.quant_state.nested for module in linears} == {True}


def test_a_linear_that_is_not_nf4_is_named(untied: Path) -> None:
    model = load_quantized(untied, settings())
    model.model.layers[1].mlp.up_proj = torch.nn.Linear(64, 128)
    with pytest.raises(ToolError, match="Q-MODELS-024"):
        check_quantized(model, settings())
    model.model.layers[0].self_attn.k_proj.weight.quant_state.quant_type = "fp4"
    with pytest.raises(ToolError, match="Q-MODELS-024"):
        check_quantized(model, settings())


def test_an_evaluation_does_not_cost_the_gradients_through_the_base(untied: Path) -> None:
    """bitsandbytes repacks NF4 weights at the first evaluation, and its kernel for that has no backward."""
    model = adapted(untied, settings())
    before = step(model)
    model.eval()
    with torch.no_grad():
        model(torch.arange(24)[None], use_cache=False)
    assert same(step(model), before)


def test_without_the_guard_bitsandbytes_does_repack(untied: Path) -> None:
    """So that the guard goes when bitsandbytes repairs it."""
    from bitsandbytes.functional import has_avx512bf16

    if not has_avx512bf16():
        pytest.skip(need("a CPU with AVX512-BF16"))
    model = load_quantized(untied, settings())
    linear = model.model.layers[0].self_attn.q_proj
    linear.support_avx512bf16_for_cpu = True
    linear.eval()
    states = torch.randn(1, 5, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        linear(states)
    assert linear.weight.quant_state.packing_format_for_cpu
    base.forbid_repacking(model)
    assert not linear.support_avx512bf16_for_cpu


def test_nothing_is_cast_and_the_saving_is_what_peft_would_add(untied: Path) -> None:
    model = load_quantized(untied, settings(bnb_4bit_compute_dtype="bfloat16"))
    assert {p.dtype for p in model.parameters()} == {torch.uint8, torch.bfloat16}

    def stored() -> int:
        return sum(p.numel() * p.element_size() for p in model.parameters())

    saving, before = base.float32_cast_bytes(model), stored()
    assert stored() - before == 0
    prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    assert stored() - before == saving > 2 * 2 * 512 * 64  # embeddings and head, and norms and biases


# --- what is trained ----------------------------------------------------------------------------------------


def test_a_layer_that_was_missed_is_named(untied: Path) -> None:
    recipe = settings()
    config = lora_config(recipe)
    config.exclude_modules = r".*layers\.1\.self_attn\.q_proj"
    model = get_peft_model(load_quantized(untied, recipe), config)
    with pytest.raises(ConfigError, match="Q-MODELS-026"):
        check_adapter(model, recipe)


def test_an_adapter_outside_the_layers_is_refused(untied: Path) -> None:
    recipe = settings(target_modules=["q_proj", "lm_head"])
    model = get_peft_model(load_quantized(untied, recipe), lora_config(recipe))
    with pytest.raises(ConfigError, match="Q-MODELS-026"):
        check_adapter(model, recipe)
    sly = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "lm_head"])
    model = get_peft_model(load_quantized(untied, settings()), sly)
    with pytest.raises(ConfigError, match="Q-MODELS-026"):
        check_adapter(model, settings(target_modules=["q_proj"]))


def test_anything_else_that_trains_is_named(untied: Path) -> None:
    recipe = settings()
    model = adapted(untied, recipe)
    model.get_base_model().model.norm.weight.requires_grad_(True)
    with pytest.raises(AssertionError, match=r"model\.norm\.weight is trainable"):
        check_adapter(model, recipe)


# --- options that change memory, not results ----------------------------------------------------------------


@pytest.mark.parametrize("offload", ["embeddings", 1, "shared"])
def test_embeddings_in_main_memory_change_nothing_without_a_gpu(untied: Path, offload: int | str) -> None:
    plain, kept = (adapted(untied, settings(offload=place)) for place in ("none", offload))
    assert same(step(plain), step(kept))
    names = [name for name, _ in kept.named_parameters() if "embed" in name]
    assert not names  # no parameter: nothing that moves the model to the GPU takes the table along
    assert check_adapter(kept, settings()) == check_adapter(plain, settings())


def test_only_the_rows_looked_up_are_moved(untied: Path) -> None:
    """The `meta` device stands in for the GPU: what is on it has a shape and no bytes."""
    model = Qwen2ForCausalLM.from_pretrained(untied)
    model.lm_head.to("meta")
    base.keep_embeddings_on_cpu(model)
    table = model.get_input_embeddings()
    rows = table(torch.arange(6)[None])
    assert (rows.device.type, tuple(rows.shape)) == ("meta", (1, 6, 64))
    model.to("meta")
    assert table.weight.device.type == "cpu"


def test_tied_embeddings_stay(tiny_qwen2: Path) -> None:
    with pytest.raises(ConfigError, match="Q-MODELS-025"):
        load_quantized(tiny_qwen2, settings(offload="embeddings"))


@pytest.mark.parametrize("offload", ["none", "embeddings"])
def test_noise_checkpointing_and_packed_rows_work_together(untied: Path, offload: str) -> None:
    from transformers.integrations.neftune import activate_neftune

    model = adapted(untied, settings(offload=offload))
    quiet = step(model)
    activate_neftune(model, 5.0)
    noisy = step(model)
    assert noisy[0] != quiet[0]
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert same(step(model), noisy)  # the noise is drawn once, not again where a layer is recomputed
    model.eval()
    ids = torch.arange(24)[None]
    positions = torch.cat([torch.arange(10), torch.arange(14)])[None]
    with torch.no_grad():  # no noise outside training, and rows that are packed stay apart
        packed = model(ids, position_ids=positions, use_cache=False).logits[0]
        apart = torch.cat(
            [model(part[None], use_cache=False).logits[0] for part in (ids[0, :10], ids[0, 10:])]
        )
    torch.testing.assert_close(packed, apart, rtol=0.05, atol=0.05 * float(apart.abs().max()))

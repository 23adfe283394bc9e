"""merge: what PEFT's adapter model computes, for every kind of adapter, within half a unit in the last place,
or a refusal that says why.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import merging
import pytest
import torch
from merging import BASES, KINDS, is_nearest, merge_in
from safetensors.torch import load_file, save_file

from pipeline.__main__ import run
from pipeline.core.errors import DataError
from pipeline.gguf.safetensors_rows import INDEX

Change = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bases")
    for name, settings in BASES.items():
        merging.write_base(folder / name, **settings)
    return folder


@pytest.fixture
def plain(bases: Path, tmp_path: Path) -> Path:
    """A project's models: base qwen2 with a plain adapter, to be changed at will."""
    shutil.copytree(bases / "qwen2", tmp_path / "base")
    merging.write_adapter(tmp_path / "base", tmp_path / "adapter", target_modules=merging.LINEARS)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_what_peft_computes(kind: str, bases: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    name, settings, adapted = KINDS[kind]
    merging.write_adapter(bases / name, tmp_path / "adapter", **settings)
    done = merge_in(tmp_path, base=bases / name)
    assert done["adapted"] == adapted
    tuned = merging.peft_model(bases / name, tmp_path / "adapter")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    wanted, found = merging.logits(tuned), merging.logits(ours)
    before = merging.logits(AutoModelForCausalLM.from_pretrained(bases / name, dtype=torch.float32))
    assert (found - wanted).abs().max() < 0.02 * (before - wanted).abs().max()
    if not done["config"]:  # PEFT loses one side of an untied table when it merges
        reference, weights = tuned.merge_and_unload().state_dict(), ours.state_dict()
        assert reference.keys() == weights.keys()
        for key, value in weights.items():
            exact = reference[key].double()
            # PEFT sums in float32
            assert is_nearest(value, exact, 6e-7), key


@pytest.mark.parametrize("name", ["qwen2", "tied"])
def test_resized_embeddings_carry_the_vocabulary_with_them(name: str, bases: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    merging.write_adapter(bases / name, tmp_path / "adapter", resize=104, target_modules=["q_proj"])
    assert merge_in(tmp_path, base=bases / name)["config"] == {"vocab_size": 104}
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    peft = merging.logits(merging.peft_model(bases / name, tmp_path / "adapter", resize=104))
    torch.testing.assert_close(merging.logits(ours), peft, atol=0.01, rtol=0.01)


@pytest.mark.parametrize("compute", ["bfloat16", "float16", "float32"])
def test_nf4_is_added_to_exactly_what_training_saw(compute: str, bases: Path, tmp_path: Path) -> None:
    import bitsandbytes
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    merging.write_adapter(bases / "qwen2", tmp_path / "adapter", target_modules=merging.LINEARS)
    merging.add_run(tmp_path / "adapter", bnb_4bit_compute_dtype=compute)
    done = merge_in(tmp_path, "bfloat16", base=bases / "qwen2", merge_base="nf4")
    assert done["nf4"] == {"compute_dtype": compute, "double_quant": True, "block": 64}
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, compute),
    )
    model = AutoModelForCausalLM.from_pretrained(
        bases / "qwen2", dtype=getattr(torch, compute), quantization_config=settings, device_map={"": "cpu"}
    )
    files = (tmp_path / "merged/model", bases / "qwen2/model", tmp_path / "adapter/adapter_model")
    ours, before, adapter = (load_file(f"{file}.safetensors") for file in files)
    parts = {key.removeprefix("base_model.model."): value for key, value in adapter.items()}
    linears = {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, bitsandbytes.nn.Linear4bit)
    }
    assert len(linears) == 14
    for name, value in ours.items():
        if name not in linears:
            assert torch.equal(value, before[name]), name
            continue
        weight = linears[name].weight
        exact = bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state).double()
        stem = name.removesuffix(".weight")
        if f"{stem}.lora_A.weight" in parts:
            exact += 2 * parts[f"{stem}.lora_B.weight"].double() @ parts[f"{stem}.lora_A.weight"].double()
        assert is_nearest(value, exact, exact.abs() * 2**-26), name


def test_what_the_adapter_leaves_alone_keeps_its_bits_and_a_second_merge_its_bytes(plain: Path) -> None:
    done = merge_in(plain, "bfloat16")
    before, after = load_file(plain / "base/model.safetensors"), load_file(plain / "merged/model.safetensors")
    assert before.keys() == after.keys()
    bits = {name: [each[name].view(torch.int16) for each in (before, after)] for name in before}
    changed = {name for name, (one, other) in bits.items() if not torch.equal(one, other)}
    assert changed == {one["tensor"] for one in done["adapters"]}
    assert done["rounded"] == 0
    files = {file.name: file.read_bytes() for file in (plain / "merged").iterdir()}
    assert json.loads(files["merge.json"]) == done
    merge_in(plain, "bfloat16")
    assert files == {file.name: file.read_bytes() for file in (plain / "merged").iterdir()}
    assert merge_in(plain, "float16")["rounded"] == len(before)


def test_the_stage_merges_as_its_section_says(plain: Path, tmp_path: Path) -> None:
    for folder in ("base", "adapter"):
        (tmp_path / "models").mkdir(exist_ok=True)
        (plain / folder).rename(tmp_path / "models" / folder)
        (tmp_path / "models" / folder / "chat_template.jinja").write_text(f"{{# of the {folder} #}}")
    (tmp_path / "params.yaml").write_text("merge:\n  base: 16-bit\n", encoding="utf-8")
    run("merge", tmp_path, None)
    merged = tmp_path / "models/merged"
    assert {one.dtype for one in load_file(merged / "model.safetensors").values()} == {torch.float16}
    assert json.loads((merged / "config.json").read_text())["dtype"] == "float16"
    assert (merged / "chat_template.jinja").read_text() == "{# of the adapter #}"  # what was trained
    report = json.loads((tmp_path / "reports/merge.json").read_text())
    assert (report["asked"], report["merge_base"], report["dtype"]) == ("16-bit", "16-bit", "float16")


def test_shards_stay_as_the_base_has_them_with_an_index_of_the_right_size(plain: Path) -> None:
    single = merge_in(plain)
    whole, tensors = (load_file(plain / name / "model.safetensors") for name in ("merged", "base"))
    (plain / "base/model.safetensors").unlink()
    names = sorted(tensors)
    shards = {f"model-0000{number}-of-00002.safetensors": names[number - 1 :: 2] for number in (1, 2)}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, plain / "base" / file, metadata={"format": "pt"})
    done = merge_in(plain)
    index = json.loads((plain / "merged" / INDEX).read_text())
    size = sum(2 * tensor.numel() for tensor in tensors.values())
    assert index["metadata"]["total_size"] == done["bytes"] == single["bytes"] == size
    assert index["weight_map"] == {name: file for file, part in shards.items() for name in part}
    for file, part in shards.items():
        found = load_file(plain / "merged" / file)
        assert found.keys() == set(part)
        assert all(torch.equal(found[name], whole[name]) for name in part)


def edit_tensors(folder: Path, change: Change) -> None:
    file = folder / "adapter/adapter_model.safetensors"
    save_file(change(load_file(file)), file)


def each(part: str, change: Callable[[Any], Any]) -> Change:
    """Changes the tensors with this in their names."""
    return lambda t: {name: change(value) if part in name else value for name, value in t.items()}


def test_a_weight_too_large_for_the_type_is_refused(plain: Path) -> None:
    edit_tensors(plain, each("o_proj", lambda value: value * 1e4))
    with pytest.raises(DataError, match="Q-MODELS-022: "):
        merge_in(plain)
    assert not (plain / "merged").exists()
    assert merge_in(plain, "bfloat16")["adapted"] == 8


def test_the_record_measures_each_adapted_tensor(plain: Path) -> None:
    merging.add_run(plain / "adapter")
    edit_tensors(plain, each("layers.1.self_attn.v_proj.lora_B", lambda value: value * 0))
    records = {one["tensor"]: one for one in merge_in(plain)["adapters"]}
    name = "model.layers.0.mlp.down_proj"
    one, weight = (
        records[f"{name}.weight"],
        load_file(plain / "base/model.safetensors")[f"{name}.weight"].double(),
    )
    parts = load_file(plain / "adapter/adapter_model.safetensors")
    a, b = (parts[f"base_model.model.{name}.lora_{half}.weight"].double() for half in "AB")
    change = 2 * b @ a
    expected = {
        "norm_a": a.norm(),
        "norm_b": b.norm(),
        "norm_update": change.norm(),
        "norm_weight": weight.norm(),
        "spectral_update": torch.linalg.matrix_norm(change, 2),
        "relative_change": change.abs().mean() / weight.abs().mean(),
    }
    assert [one[key] for key in ("layer", "module", "rank", "scale")] == [0, "mlp.down_proj", 4, 2.0]
    assert (one["rows"], one["columns"]) == weight.shape
    assert one["rms_weight"] == pytest.approx(float(weight.square().mean().sqrt()))
    for key, value in expected.items():
        assert one[key] == pytest.approx(float(value)), key
    assert one["nf4_error_to_update"] == pytest.approx(0.09 * float(weight.norm() / change.norm()), rel=0.2)
    assert records["model.layers.1.self_attn.v_proj.weight"]["norm_b"] == 0.0

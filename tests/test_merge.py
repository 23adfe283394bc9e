"""merge: equal to PEFT's own merge, and every adapter tensor applied exactly once or refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pipeline.errors import DataError
from pipeline.merge import adapter_pairs, fitting, merge


@pytest.fixture
def model(finished: Path, tmp_path: Path) -> Path:
    for name in ("base", "adapter"):
        shutil.copytree(finished / "models" / name, tmp_path / name)
    return tmp_path


def merge_here(folder: Path, dtype: str = "float16") -> dict[str, int]:
    return merge(base=folder / "base", adapter=folder / "adapter", merged=folder / "merged", dtype=dtype)


def test_it_equals_pefts_merge(model: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    done = merge_here(model)
    base = AutoModelForCausalLM.from_pretrained(model / "base", dtype=torch.float32)
    expected = PeftModel.from_pretrained(base, model / "adapter").merge_and_unload().state_dict()
    ours = load_file(model / "merged/model.safetensors")
    assert done["adapted"] == 14
    for name, value in ours.items():
        assert value.dtype == torch.float16
        assert torch.equal(value, expected[name].to(torch.float16)), name


def test_several_shards_get_an_index_with_the_right_size(model: Path) -> None:
    tensors = load_file(model / "base/model.safetensors")
    names = sorted(tensors)
    (model / "base/model.safetensors").unlink()
    for number, part in enumerate((names[::2], names[1::2]), 1):
        save_file({name: tensors[name] for name in part}, model / f"base/model-0000{number}-of-00002.safetensors", metadata={"format": "pt"})
    merge_here(model)
    index = json.loads((model / "merged/model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(names)
    assert index["metadata"]["total_size"] == sum(2 * tensor.numel() for tensor in tensors.values())
    for name, shard in index["weight_map"].items():
        with safe_open(model / "merged" / shard, "pt") as weights:
            assert name in weights.keys()  # noqa: SIM118


def edit_adapter(folder: Path, **changes: object) -> None:
    file = folder / "adapter/adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_all_that_is_not_plain_is_named_at_once(model: Path) -> None:
    edit_adapter(model, use_dora=True, modules_to_save=["lm_head"])
    with pytest.raises(DataError, match=r"use_dora is True; modules_to_save is \['lm_head'\]"):
        merge_here(model)
    assert not (model / "merged").exists()


def test_an_adapter_of_another_base_is_refused(model: Path) -> None:
    file = model / "adapter/adapter_model.safetensors"
    tensors = {name.replace(".layers.1.", ".layers.7."): value for name, value in load_file(file).items()}
    save_file(tensors, file)
    with pytest.raises(DataError, match=r"7 adapter targets are not in .*layers\.7"):
        merge_here(model)
    assert not (model / "merged").exists()


def test_an_adapter_tensor_without_a_place_is_refused() -> None:
    keys = ["base_model.model.model.q.lora_A.weight", "base_model.model.model.q.lora_B.weight"]
    assert adapter_pairs(keys) == {"model.q.weight": (keys[0], keys[1])}
    with pytest.raises(DataError, match="lora_B"):
        adapter_pairs([*keys, "base_model.model.model.k.lora_B.weight"])
    with pytest.raises(DataError, match="empty"):
        adapter_pairs([])


def test_a_weight_too_large_for_float16_is_refused() -> None:
    with pytest.raises(DataError, match=r"1e\+05.*bfloat16"):
        fitting(torch.tensor([1.0, 1e5]), torch.float16, "w")
    assert fitting(torch.tensor([1e5]), torch.bfloat16, "w").isfinite().all()

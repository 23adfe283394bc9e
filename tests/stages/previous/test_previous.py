"""previous: an adapter by anybody is brought in if it is of this base and of the settings in section `train`;
otherwise a sentence names what to set.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from merging import write_adapter
from safetensors.torch import load_file, save_file

from pipeline.config.params import Params, load_params
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hashing import file_hash
from pipeline.core.publish import read_json, write_json
from pipeline.gguf.base_files import base_hashes
from pipeline.stages.previous.stage import main

NAMED = ["q_proj", "v_proj"]
LORA: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": NAMED}
# What Unsloth writes for a list of targets: a pattern over modules of any model.
UNSLOTH = (
    r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense).*?(?:q_proj|v_proj).*?)"
    r"|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)\.(?:(?:q_proj|v_proj)))"
)


@pytest.fixture
def project(prepared: Path, tmp_path: Path) -> Path:
    """The prepared project's base and settings, in a folder that may be changed."""
    root = tmp_path / "project"
    root.mkdir()
    shutil.copytree(prepared / "models/base", root / "models/base")
    shutil.copyfile(prepared / "models/base.json", root / "models/base.json")
    shutil.copyfile(prepared / "params.yaml", root / "params.yaml")
    return root


def settings(project: Path, start_from: Path | str, **changes: Any) -> Params:
    values = load_params(project / "params.yaml").model_dump(mode="json")
    values["train"] |= LORA | {"start_from": str(start_from)} | changes
    return Params.model_validate(values)


def edit(folder: Path, **changes: Any) -> Path:
    """Change what the adapter's settings say."""
    file = folder / "adapter_config.json"
    write_json(file, read_json(file, "") | changes)
    return folder


def adapter(project: Path, folder: Path, **changes: Any) -> Path:
    return write_adapter(project / "models/base", folder, **LORA | changes)


def test_an_adapter_is_brought_in_with_its_record(project: Path, tmp_path: Path) -> None:
    source = adapter(project, tmp_path / "there")
    write_json(source / "run.json", {"base": base_hashes(project / "models/base")})
    (source / "tokenizer.json").write_text("{}")
    main(settings(project, source), project)
    here = project / "models/previous"
    names = {"adapter_config.json", "adapter_model.safetensors", "run.json"}
    assert {path.name for path in here.iterdir()} == names
    assert all(file_hash(here / name) == file_hash(source / name) for name in names)


def test_another_project_may_be_named(project: Path, tmp_path: Path) -> None:
    adapter(project, tmp_path / "old/models/adapter")
    main(settings(project, "../old"), project)
    assert (project / "models/previous/adapter_model.safetensors").is_file()


FORMS: dict[str, dict[str, Any]] = {
    "peft": {},
    "trl": {"base_model_name_or_path": "/home/somebody/qwen", "task_type": "CAUSAL_LM", "lora_dropout": 0.0},
    "unsloth": {"target_modules": UNSLOTH, "base_model_name_or_path": "unsloth/tiny-bnb-4bit"},
    "llama-factory": {"inference_mode": True, "target_modules": ["v_proj", "q_proj"], "lora_dropout": 0.1},
    "axolotl": {"lora_dropout": 0.05, "modules_to_save": None, "fan_in_fan_out": None},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_forms_of_other_tools_are_taken(form: str, project: Path, tmp_path: Path) -> None:
    source = edit(adapter(project, tmp_path / "there"), **FORMS[form])
    main(settings(project, source), project)
    assert (project / "models/previous/adapter_model.safetensors").is_file()


def test_another_base_by_name_is_told(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = edit(adapter(project, tmp_path / "there"), base_model_name_or_path="somebody/Other-7B")
    main(settings(project, source), project)
    assert "somebody/Other-7B" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        ({"r": 16, "lora_alpha": 32}, ["train.r: 16", "train.lora_alpha: 32"]),
        ({"use_rslora": True}, ["train.lora_variants: [rslora]"]),
        ({"use_dora": True}, ["train.lora_variants: [dora]"]),
        ({"target_modules": ["q_proj", "down_proj"]}, ["train.target_modules: [q_proj, down_proj]"]),
        ({"layers_to_transform": [1]}, ["train.layers: [1]"]),
        ({"modules_to_save": ["model.norm"]}, ["train.modules_to_save: [norm]"]),
        (
            {"modules_to_save": ["embed_tokens", "lm_head"], "ensure_weight_tying": True},
            ["train.modules_to_save: [embed_tokens]"],
        ),
    ],
    ids=["rank", "rslora", "dora", "targets", "layers", "saved", "tables"],
)
def test_other_settings_are_named_with_the_values_to_set(
    made: dict[str, Any], wanted: list[str], project: Path, tmp_path: Path
) -> None:
    source = adapter(project, tmp_path / "there", **made)
    with pytest.raises(ConfigError, match="Q-PREVIOUS-004") as refused:
        main(settings(project, source), project)
    assert all(words in str(refused.value) for words in wanted), refused.value
    assert not (project / "models/previous").exists()
    keys = yaml.safe_load("{" + ", ".join(wanted) + "}")
    changes = {key.removeprefix("train."): value for key, value in keys.items()}
    main(settings(project, source, **changes), project)  # What the sentence says is enough.


def cut(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    numbers = load_file(file)
    save_file({name: weight[..., :8].contiguous() for name, weight in numbers.items()}, file)


def renamed(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    numbers = load_file(file)
    save_file(
        {
            name.replace("model.layers", "model.language_model.layers"): weight
            for name, weight in numbers.items()
        },
        file,
    )


def unlike(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    numbers = load_file(file)
    save_file(
        {name: weight for name, weight in numbers.items() if "layers.0.self_attn.v_proj" not in name}, file
    )


def with_nan(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    numbers = load_file(file)
    next(iter(numbers.values()))[0, 0] = float("nan")
    save_file(numbers, file)


def emptied(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    save_file({name: weight.new_zeros(0) for name, weight in load_file(file).items()}, file)


def pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def of_other_weights(folder: Path) -> None:
    write_json(folder / "run.json", {"base": {"weights_sha256": "0" * 64}})


@pytest.mark.parametrize(
    ("damage", "id"),
    [
        (shutil.rmtree, "Q-PREVIOUS-001"),
        (pickled, "Q-PREVIOUS-001"),
        (of_other_weights, "Q-PREVIOUS-003"),
        (cut, "Q-PREVIOUS-003"),
        (renamed, "Q-PREVIOUS-003"),
        (emptied, "Q-PREVIOUS-003"),
        (with_nan, "Q-PREVIOUS-006"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"version"), "Q-PREVIOUS-006"),
        (lambda folder: edit(folder, lora_alpha=0), "Q-PREVIOUS-005"),
        (lambda folder: edit(folder, r=8, lora_alpha=16), "Q-PREVIOUS-005"),
        (unlike, "Q-PREVIOUS-005"),
        (lambda folder: edit(folder, alpha_pattern={"v_proj": 16}), "Q-PREVIOUS-005"),
        (lambda folder: edit(folder, peft_type="IA3"), "Q-MODELS-016"),
        (lambda folder: edit(folder, init_lora_weights="pissa"), "Q-MODELS-016"),
        (lambda folder: (folder / "adapter_config.json").write_text("[]"), "Q-"),
    ],
)
def test_what_can_not_be_gone_on_from_is_refused(
    damage: Callable[[Path], object], id: str, project: Path, tmp_path: Path
) -> None:
    source = adapter(project, tmp_path / "there")
    damage(source)
    with pytest.raises(DataError, match=id):
        main(settings(project, source), project)
    assert not (project / "models/previous").exists()


@pytest.mark.parametrize(
    "made",
    [
        {"target_modules": [*NAMED, "embed_tokens"]},
        {"bias": "lora_only"},
        {"lora_bias": True},
        {"modules_to_save": ["input_layernorm"], "layers_to_transform": [1]},
        {"modules_to_save": ["norm"]},
    ],
    ids=["embeddings", "bias", "bias of B", "norms of other layers", "all norms"],
)
def test_what_no_key_can_make_is_refused_before_training(
    made: dict[str, Any], project: Path, tmp_path: Path
) -> None:
    source = adapter(project, tmp_path / "there", **made)
    changes: dict[str, Any] = {"modules_to_save": made.get("modules_to_save", [])}
    if "layers_to_transform" in made:
        changes["layers"] = made["layers_to_transform"]
    with pytest.raises(DataError, match=r"Q-PREVIOUS-005|Q-MODELS-016"):
        main(settings(project, source, **changes), project)


def test_a_pattern_can_be_pasted(project: Path, tmp_path: Path) -> None:
    source = adapter(
        project, tmp_path / "there", rank_pattern={r".*\.q_proj": 2}, use_rslora=True, lora_alpha=4
    )
    edit(source, use_rslora=True, lora_alpha=4)
    with pytest.raises(ConfigError, match="Q-PREVIOUS-004") as refused:
        main(settings(project, source), project)
    said = str(refused.value).partition("set ")[2].replace("train.", "")
    main(settings(project, source, **yaml.safe_load("{" + said + "}")), project)


def test_scales_are_not_an_adapter(project: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/scales.safetensors").write_bytes(b"\0" * 8)
    with pytest.raises(ConfigError, match="Q-PREVIOUS-002"):
        main(settings(project, tmp_path / "there"), project)

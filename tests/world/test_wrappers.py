"""Models that read images too: stage `base` takes their text part, which computes what the whole model does
of text, and says what it can't take within seconds.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fake_hub import COMMIT, REPO, hub_here
from gguf import GGUFReader
from safetensors.torch import load_file, save_file
from tiny import tiny_params
from tokenizer_folders import qwen35_folder, smollm_folder
from wrappers import WRAPPERS, as_published, flat, renamed, with_drafts, wrapper
from wrappers import text_model as written_text_model

from pipeline.__main__ import main
from pipeline.chat.tokenizer_file import plain_tokenizer
from pipeline.chat.tokens import load_tokenizer
from pipeline.gguf.safetensors_rows import INDEX
from pipeline.llamacpp.converters import HeaderFields, to_gguf
from pipeline.llamacpp.tools import Toolchain
from pipeline.models.text_config import text_part
from pipeline.stages.base.text_part import PREFIXES, settings_only, take_text_part
from pipeline.stages.parity.special_tokens import agrees, settings

ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
IDS = torch.arange(40).reshape(2, 20) * 7
# the class of the text part, and whether the mmproj of the whole model can be served beside it
PARTS = {
    "gemma3": ("Gemma3ForCausalLM", True),
    "gemma4": ("Gemma4ForCausalLM", True),
    "qwen3_5": ("Qwen3_5ForCausalLM", True),
    "qwen2_5_vl": ("Qwen2ForCausalLM", False),
    "qwen2_vl": ("Qwen2ForCausalLM", False),
    "qwen3_vl": ("Qwen3ForCausalLM", False),
    "mistral3": ("MistralForCausalLM", True),
}


def config_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))


def taken(folder: Path) -> dict[str, Any]:
    return take_text_part(folder, config_of(folder), "the source")


def logits(model: Any) -> Any:
    # Gemma 3 attends to both sides inside an image, and wants to be told that there is none
    more = {"token_type_ids": torch.zeros_like(IDS)} if model.config.model_type == "gemma3" else {}
    with torch.no_grad():
        return model(input_ids=IDS, **more).logits


def text_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


def test_every_kind_has_a_row_here() -> None:
    assert PARTS.keys() == WRAPPERS.keys()


@pytest.mark.parametrize("kind", PARTS)
def test_the_text_part_computes_what_the_whole_model_does(kind: str, tmp_path: Path) -> None:
    whole = wrapper(kind, tmp_path, ENDS, vocab_size=300)
    stored = load_file(tmp_path / "model.safetensors")
    record = taken(tmp_path)
    name, sees_images = PARTS[kind]
    assert record["model_type"] == kind and record["sees_images"] == sees_images
    config = config_of(tmp_path)
    assert config["architectures"] == [name] and "vision_config" not in config
    assert {key: config[key] for key in ENDS} == ENDS
    text = load_file(tmp_path / "model.safetensors")
    assert record["tensors_left_out"] == len(stored) - len(text) > 0
    assert not any("vis" in tensor for tensor in text)
    expected = logits(whole)
    assert expected.std() > 0.01
    assert logits(text_model(tmp_path)).equal(expected)


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("gemma3", "model.language_model.", "language_model.model."),
        ("gemma3", "language_model.model.", "model.language_model."),
        ("qwen2_5_vl", "model.language_model.", "model."),
        ("mistral3", "lm_head.", "language_model.lm_head."),
    ],
)
def test_names_of_older_and_newer_files_are_known(kind: str, old: str, new: str, tmp_path: Path) -> None:
    """huggingface/transformers#37033 renamed the parts of all vision models."""
    whole = wrapper(kind, tmp_path, ENDS, vocab_size=300)
    renamed(tmp_path, old, new)
    if kind == "qwen2_5_vl":
        flat(tmp_path)
    taken(tmp_path)
    assert logits(text_model(tmp_path)).equal(logits(whole))


def test_keys_of_layers_that_use_another_layers_stay(tmp_path: Path) -> None:
    """Published Gemmas 3n and 4 have them, transformers' models have not. llama.cpp wants those of a 3n."""
    whole = wrapper("gemma4", tmp_path, ENDS, vocab_size=300)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    keys = "layers.{}.self_attn.k_proj.weight"
    inside = f"model.language_model.{keys}"
    save_file({**stored, inside.format(2): stored[inside.format(0)] + 1}, file, {"format": "pt"})
    taken(tmp_path)
    assert f"model.{keys.format(2)}" in load_file(file)
    assert logits(text_model(tmp_path)).equal(logits(whole))


def test_shards_and_layers_that_draft_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3.5 brings a layer (mtp) that llama.cpp drafts with, and transformers' model has not."""
    whole = wrapper("qwen3_5", tmp_path, ENDS, shards="100KB", vocab_size=300)
    index = json.loads((tmp_path / INDEX).read_text(encoding="utf-8"))
    shards = set(index["weight_map"].values())
    assert len(shards) > 2
    first = min(shards)
    tensors = load_file(tmp_path / first) | {"mtp.fc.weight": torch.ones(64, 128)}
    save_file(tensors, tmp_path / first, {"format": "pt"})
    index["weight_map"]["mtp.fc.weight"] = first
    (tmp_path / INDEX).write_text(json.dumps(index), encoding="utf-8")
    room: list[int] = []
    monkeypatch.setattr(
        "pipeline.stages.base.text_part.need_disk", lambda _, predicted: room.append(predicted)
    )
    taken(tmp_path)
    index = json.loads((tmp_path / INDEX).read_text(encoding="utf-8"))
    assert room == [index["metadata"]["total_size"]]
    assert index["weight_map"]["mtp.fc.weight"] == first
    assert set(index["weight_map"].values()) == {file.name for file in tmp_path.glob("*.safetensors")}
    assert load_file(tmp_path / first)["mtp.fc.weight"].equal(tensors["mtp.fc.weight"])
    assert logits(text_model(tmp_path)).equal(logits(whole))


@pytest.mark.parametrize("same", [True, False], ids=["the embeddings again", "another"])
def test_a_head_that_is_stored_decides_whether_it_is_tied(same: bool, tmp_path: Path) -> None:
    wrapper("gemma3", tmp_path, ENDS, vocab_size=300)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    (table,) = (value for name, value in tensors.items() if name.endswith("embed_tokens.weight"))
    head = table.clone() if same else -table
    save_file(tensors | {"lm_head.weight": head}, file, {"format": "pt"})
    taken(tmp_path)
    assert config_of(tmp_path)["tie_word_embeddings"] == same
    model = text_model(tmp_path)
    assert model.get_output_embeddings().weight.equal(head)
    assert model.get_input_embeddings().weight.equal(table)


def test_settings_that_say_nothing_of_a_tied_head_are_read() -> None:
    """mistralai/Voxtral-Mini-3B-2507: transformers' settings of it have no tie_word_embeddings."""
    text = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
    sound = {"model_type": "voxtral_encoder", "hidden_size": 64, "num_hidden_layers": 1}
    part = text_part({"model_type": "voxtral", "audio_config": sound, "text_config": text}, "the source")
    assert part.config.architectures == ["LlamaForCausalLM"]
    assert part.config.tie_word_embeddings is False


def converted(folder: Path, tools: Toolchain, pre: str, target: Path) -> GGUFReader:
    to_gguf(tools, folder, target, "F16", HeaderFields("tiny", pre))
    return GGUFReader(target)


def tensors_of(reader: GGUFReader) -> dict[str, tuple[int, bytes]]:
    return {tensor.name: (int(tensor.tensor_type), tensor.data.tobytes()) for tensor in reader.tensors}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gemma3", "qwen3_5", "mistral3"])
def test_llama_cpp_makes_the_same_of_the_text_part_as_of_the_whole(
    kind: str, tools: Toolchain, tmp_path: Path
) -> None:
    folder = tmp_path / "source"
    if kind == "qwen3_5":
        qwen35_folder(folder, tools, 2000)
        wrapper(kind, folder, ENDS, vocab_size=2100)
        with_drafts(folder)
    else:
        smollm_folder(folder)
        wrapper(kind, folder, ENDS, vocab_size=49_152)
    pre = "qwen35" if kind == "qwen3_5" else "smollm"
    whole = converted(folder, tools, pre, tmp_path / "whole.gguf")
    taken(folder)
    text = converted(folder, tools, pre, tmp_path / "text.gguf")
    assert tensors_of(text) == tensors_of(whole)
    own = ("GGUF.", "general.", "tokenizer.")
    fields = [
        {name: reader.fields[name].contents() for name in reader.fields if not name.startswith(own)}
        for reader in (text, whole)
    ]
    if kind != "mistral3":  # a Llama to llama.cpp, and under another name when it is in the wrapper
        assert fields[0] == fields[1]


@pytest.mark.parametrize("said", [0, 1], ids=["no such layers", "config.json says one"])
def test_a_qwen35_without_its_layers_for_drafting_is_converted(
    said: int, tools: Toolchain, tmp_path: Path
) -> None:
    """transformers leaves them out when it saves a model, and llama.cpp's converter asserts one."""
    folder = qwen35_folder(tmp_path / "source", tools, 2000)
    sizes = {"vocab_size": 2100, "mtp_num_hidden_layers": said}
    written_text_model("qwen3_5", folder, ENDS, **sizes)
    reader = converted(folder, tools, "qwen35", tmp_path / "text.gguf")
    assert reader.fields["qwen35.block_count"].contents() == 2
    assert "qwen35.nextn_predict_layers" not in reader.fields


# --- the stage ---


def run(folder: Path | str, root: Path, **keys: str) -> int:
    """Return the exit code of stage `base` of a project in `root` whose base is `folder`."""
    root.mkdir(parents=True, exist_ok=True)
    params = tiny_params(Path("unused"))
    params["base"] = {"model": str(folder), **keys}
    (root / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    return main(["base", "--root", str(root), "--params", str(root / "params.yaml")])


@pytest.fixture(scope="module")
def mistral3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Mistral 3 with SmolLM2's tokenizer."""
    folder = smollm_folder(tmp_path_factory.mktemp("wrapper"))
    wrapper("mistral3", folder, ENDS, vocab_size=49_152, hidden_size=16, num_attention_heads=2)
    return folder


@pytest.mark.parametrize("place", ["folder", "hub"])
def test_the_stage_publishes_the_text_part(
    place: str,
    mistral3: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = {file.name: file.read_bytes() for file in mistral3.iterdir()}
    if place == "folder":
        assert run(mistral3, tmp_path / "project") == 0, capsys.readouterr().err
    else:
        with hub_here(mistral3, monkeypatch):
            assert run(REPO, tmp_path / "project", revision=COMMIT) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "mistral3, which reads images or sound too: its text part is trained" in said
    base = tmp_path / "project/models/base"
    facts = json.loads((tmp_path / "project/models/base.json").read_text(encoding="utf-8"))
    assert facts["architecture"] == {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    assert facts["text_part_of"]["architectures"] == ["Mistral3ForConditionalGeneration"]
    whole, text = load_file(mistral3 / "model.safetensors"), load_file(base / "model.safetensors")
    assert facts["parameters"] == sum(value.numel() for value in text.values())
    for name, value in whole.items():
        prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
        short = PREFIXES.get(prefix, "") + name.removeprefix(prefix)
        assert short not in text or text[short].equal(value)
    assert not any(file.is_symlink() for file in base.iterdir())
    assert {file.name: file.read_bytes() for file in mistral3.iterdir()} == before


@pytest.mark.parametrize("place", ["folder", "hub"])
def test_a_large_one_is_tried_as_the_text_model_that_it_becomes(
    place: str,
    mistral3: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "source"
    shutil.copytree(mistral3, folder)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('use the processor') }}")
    monkeypatch.setattr("pipeline.stages.base.chats.EARLY_BYTES", 0)
    if place == "folder":
        assert run(folder, tmp_path / "project") == 0, capsys.readouterr().err
    else:
        with hub_here(folder, monkeypatch):
            assert run(REPO, tmp_path / "project", revision=COMMIT) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "If data/raw holds chats, stop here" in said and "text-part-" not in said


def test_no_weights_are_copied_to_try_a_large_one(mistral3: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(mistral3, tmp_path / "source"))
    for name in ("pytorch_model.bin", "mmproj-F16.gguf", "consolidated.safetensors"):
        (folder / name).write_bytes(b"gigabytes")
    with settings_only(folder) as small:
        names = {file.name for file in small.iterdir()}
    assert {"config.json", "tokenizer.json"} <= names
    assert not any(name.endswith((".bin", ".gguf", ".safetensors")) for name in names)


def test_the_text_of_qwen35_is_split_as_the_whole_models(tools: Toolchain, tmp_path: Path) -> None:
    """transformers reads the tokenizer of a qwen3_5 by another class than its hub folder names."""
    folder = qwen35_folder(tmp_path / "source", tools, 2000)
    wrapper("qwen3_5", folder, ENDS, vocab_size=2100)
    whole = load_tokenizer(folder)
    taken(folder)
    text = load_tokenizer(folder)
    assert type(text) is type(whole)
    marks = "नमस्ते दुनिया"
    assert text(marks)["input_ids"] == whole(marks)["input_ids"] == plain_tokenizer(folder).encode(marks).ids


def test_the_end_of_a_turn_is_in_all_settings_of_a_published_qwen35(
    tools: Toolchain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its text_config names the end of a text alone, and parity failed after the training."""
    folder = qwen35_folder(tmp_path / "source", tools, 2000)
    wrapper("qwen3_5", folder, ENDS, vocab_size=2100)
    as_published(folder, end_of_text=2000, end_of_turn=2002)
    assert run(folder, tmp_path / "project") == 0, capsys.readouterr().err
    base = tmp_path / "project/models/base"
    end = load_tokenizer(base).eos_token_id
    assert end == 2002
    assert all(agrees("eos", end, stated["eos_token_id"]) for stated in settings(base).values())


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a text part that is no causal model": (
        {"model_type": "clip", "vision_config": {}},
        "Q-BASE-010",
        "text-only model of this family",
    ),
    "an unknown kind": ({"model_type": "seesall"}, "Q-BASE-010", "seesall"),
    "quantized": ({"quantization_config": {"quant_method": "awq"}}, "Q-BASE-011", "awq"),
    "more layers than there are": ({"num_hidden_layers": 9}, "Q-BASE-015", "2 layers"),
    "another size": ({"intermediate_size": 96}, "Q-BASE-015", "mlp"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_taken_is_said_before_anything_is_copied(
    name: str,
    mistral3: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changed, id, word = REFUSED[name]
    folder = tmp_path / "source"
    folder.mkdir()
    for file in mistral3.iterdir():
        (folder / file.name).symlink_to(file)
    config = config_of(folder)
    sizes = {key: value for key, value in changed.items() if isinstance(value, int)}
    more = {key: value for key, value in changed.items() if key not in sizes}
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(
        json.dumps(config | {"text_config": config["text_config"] | sizes} | more), encoding="utf-8"
    )

    def no_room(*_: Any) -> None:
        raise AssertionError("it was about to copy")

    monkeypatch.setattr("pipeline.stages.base.stage.need_disk", no_room)
    assert run(folder, tmp_path / "project") == 3
    refusal = capsys.readouterr().err
    assert id in refusal and word in refusal and str(folder) in refusal
    assert not (tmp_path / "project/models/base").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_cant_be_read_is_named(
    name: str, mistral3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(mistral3, tmp_path / "source"))
    (folder / name).unlink()
    (folder / name).symlink_to("/proc/self/mem")  # an error for whoever reads its first bytes, root too
    assert run(folder, tmp_path / "project") == 3
    assert f"Q-BASE-027: {folder / name} can't be read" in " ".join(capsys.readouterr().err.split())


def test_the_hub_is_asked_for_config_json_first(
    mistral3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    for file in mistral3.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = config_of(folder)
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "seesall"}), encoding="utf-8")
    with hub_here(folder, monkeypatch) as hub:
        assert run(REPO, tmp_path / "project", revision=COMMIT) == 3
    assert [name for name, _ in hub.served] == ["config.json"]
    assert "Q-BASE-010" in capsys.readouterr().err

"""A GGUF as the base that is trained on as it is: kept byte for byte, with settings and tokenizer of its own,
or refused in one sentence.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import tiny
import torch
from draws import SHARE, some
from families import ON_GGUF, SMOLLM, STRETCHED, family
from gguf_edit import change_field, change_tensors, odd_variants
from transformers import AutoConfig

from pipeline.chat.rendering import render
from pipeline.chat.tokens import load_tokenizer
from pipeline.config.products import ModelFiles
from pipeline.config.sections import Base
from pipeline.core.errors import DataError, QuenchError
from pipeline.core.hashing import file_hash
from pipeline.gguf.families.registry import BY_CLASS
from pipeline.gguf.file import check_gguf
from pipeline.gguf.tensors import gguf_tensors
from pipeline.llamacpp.converters import HeaderFields, to_gguf
from pipeline.llamacpp.logits import open_gguf
from pipeline.llamacpp.server import serving
from pipeline.llamacpp.tools import Llama, Toolchain, run_tool
from pipeline.models.quantized_model import load_gguf
from pipeline.stages.base import quantized_gguf
from pipeline.stages.base.stage import base

Bring = Callable[..., dict[str, Any]]
RULES = {"qwen3_5_text": "qwen35"}  # by which llama.cpp splits text, of a family that has another
SETTINGS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("vocab_size", "head_dim"),
)


@pytest.fixture
def bring(tmp_path: Path) -> Bring:
    """Run the stage into tmp_path; the facts it recorded."""

    def run(file: Path, level: str | None = None) -> dict[str, Any]:
        chosen = Base(model=str(file), quantization="gguf", level=level)
        return base(chosen, target=tmp_path / "models/base", record=tmp_path / "models/base.json")

    return run


def unpacked(file: Path, folder: Path) -> Path:
    """The file as a Hugging Face folder, as the graph of merged models reads it; the folder."""
    base(Base(model=str(file)), target=folder, record=folder.with_suffix(".json"))
    return folder


def test_the_file_is_kept_byte_for_byte_with_settings_and_tokenizer(
    gguf_file: Path, bring: Bring, tmp_path: Path
) -> None:
    facts, folder = bring(gguf_file), tmp_path / "models/base"
    assert file_hash(folder / "model.gguf") == file_hash(gguf_file) == facts["files"]["model.gguf"]
    assert not list(folder.glob("*.safetensors")) and not (folder / "source.gguf").exists()
    unpacked(gguf_file, tmp_path / "hf")
    ours, theirs = (json.loads((place / "config.json").read_text()) for place in (folder, tmp_path / "hf"))
    same = {
        *("architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "rms_norm_eps"),
        *("vocab_size", "eos_token_id", "rope_parameters"),
    }
    assert {key: ours.get(key) for key in same} == {key: theirs.get(key) for key in same}
    assert (folder / "chat_template.jinja").read_text() == (tmp_path / "hf/chat_template.jinja").read_text()
    shapes = [shape for shape, _ in check_gguf(gguf_file).tensors.values()]
    assert facts["parameters"] == sum(int(np.prod(shape)) for shape in shapes)
    assert facts["dtype"] == "mixed"  # this maker names no level


def test_with_a_level_the_source_stays_beside_what_was_made_of_it(
    gguf_file: Path, bring: Bring, tmp_path: Path
) -> None:
    facts, folder = bring(gguf_file, "Q8_0"), tmp_path / "models/base"
    assert file_hash(folder / "source.gguf") == file_hash(gguf_file)
    tensors = check_gguf(folder / "model.gguf").tensors.values()
    assert {kind for shape, kind in tensors if len(shape) > 1} == {8}  # ggml's Q8_0
    assert facts["dtype"] == "Q8_0" and facts["files"]["model.gguf"] != facts["files"]["source.gguf"]


def test_a_file_without_a_chat_template_is_for_texts_alone(bring: Bring, tmp_path: Path) -> None:
    file = tiny.tiny_gguf(tmp_path / "tiny.gguf", tokenizer__chat_template=None)
    assert "has no chat template" in bring(file)["no_chats"]


def test_the_same_source_gives_the_same_bytes(gguf_file: Path, bring: Bring) -> None:
    assert bring(gguf_file, "Q8_0") == bring(gguf_file, "Q8_0")


def test_a_gguf_called_mistral_has_the_window_that_llama_cpp_sees(bring: Bring, tmp_path: Path) -> None:
    bring(tiny.tiny_gguf(tmp_path / "mistral.gguf", general__name="mistral"))
    assert json.loads((tmp_path / "models/base/config.json").read_text()).get("sliding_window") is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"llama__expert_count": 8}, "Q-MODELS-029.*ffn_gate_inp"),  # no Mixtral
        ({"split__count": 3}, "Q-MODELS-004"),  # though its name says nothing of them
        ({"tensors": {"rope_freqs.weight": np.ones(4, np.float32)}}, "Q-MODELS-005"),
        ({"tensors": {"blk.0.attn_q.bias": np.ones(32, np.float32)}}, "Q-MODELS-029.*blk.0.attn_q.bias"),
        ({"llama__block_count": 2}, r"Q-MODELS-029.*blk\.1\."),
    ],
)
def test_a_gguf_that_would_lose_something_is_refused(
    tmp_path: Path, bring: Bring, changed: dict[str, Any], words: str
) -> None:
    file = tiny.tiny_gguf(tmp_path / "odd.gguf", **changed)
    with pytest.raises(DataError, match=words) as refused:
        bring(file)
    assert "model.gguf" not in refused.value.sentence  # which is a copy that the user doesn't know
    assert not (tmp_path / "models/base").exists()


def test_all_named_templates_are_the_tokenizers_and_files_that_a_merge_copies(
    bring: Bring, tmp_path: Path
) -> None:
    templates = {"default": tiny.CHATML, "tool_use": f"{tiny.CHATML} "}
    bring(tiny.tiny_gguf(tmp_path / "two.gguf", tokenizer__chat_template__tool_use=templates["tool_use"]))
    assert load_tokenizer(tmp_path / "models/base").chat_template == templates
    assert all(path.is_file() for path in (tmp_path / "models/base").iterdir())


END = "<|im_end|>"
CLOCK = "{{ strftime_now('%d %b %Y') }} {{ date_string }}\n"


@pytest.mark.parametrize("level", [None, "Q8_0"])
def test_the_date_is_fixed_in_the_files_own_template_and_no_tensor_changes(
    bring: Bring, tmp_path: Path, tools: Toolchain, level: str | None
) -> None:
    template = CLOCK + tiny.CHATML
    file = tiny.tiny_gguf(tmp_path / "dated.gguf", tokenizer__chat_template=template)
    before = file_hash(file)
    facts, folder = bring(file, level), tmp_path / "models/base"
    assert facts["template_date"] == "2024-07-26"
    assert file_hash(file) == before
    kept = folder / ("source.gguf" if level else "model.gguf")
    old, new = check_gguf(file), check_gguf(kept)
    assert kept.read_bytes()[new.start :] == file.read_bytes()[old.start :]
    assert list(new.fields)[:-1] == [name for name in old.fields if name != "tokenizer.chat_template"]
    tokenizer = load_tokenizer(folder)
    for served in folder.glob("*.gguf"):
        assert check_gguf(served).fields["tokenizer.chat_template"] == tokenizer.chat_template
    question = [{"role": "user", "content": "Hi"}]
    trained = render(tokenizer, question, add_generation_prompt=True)
    assert trained.startswith("26 Jul 2024 26 Jul 2024\n<|im_start|>system")
    with serving(Llama(tools), ModelFiles(folder / "model.gguf"), ctx_size=256) as server:
        assert server.post("/apply-template", {"messages": question})["prompt"] == trained


@pytest.mark.parametrize("level", [None, "Q8_0"])
def test_the_end_of_turn_of_the_template_is_named_in_the_file(
    bring: Bring, tmp_path: Path, tools: Toolchain, level: str | None
) -> None:
    """A base model with ChatML: its metadata name the end of a text."""
    file = tiny.tiny_gguf(tmp_path / "text.gguf", tokenizer__ggml__eos_token_id=258)
    facts, folder = bring(file, level), tmp_path / "models/base"
    assert (facts["eos_token"], facts["named_end"]) == (END, "<|endoftext|>")
    assert load_tokenizer(folder).eos_token == END
    for served in folder.glob("*.gguf"):
        assert check_gguf(served).fields["tokenizer.ggml.eos_token_id"] == 260
        assert facts["files"][served.name] == file_hash(served)
    old, new = check_gguf(file), check_gguf(folder / ("source.gguf" if level else "model.gguf"))
    kept = folder / ("source.gguf" if level else "model.gguf")
    assert kept.read_bytes()[new.start :] == file.read_bytes()[old.start :]


@pytest.mark.parametrize("template", ["chatml", None])
def test_a_chosen_template_is_in_the_file(tmp_path: Path, template: str | None) -> None:
    file = tiny.tiny_gguf(tmp_path / "own.gguf", tokenizer__chat_template="{{ messages }}")
    chosen = Base(model=str(file), quantization="gguf", chat_template=template)
    facts = base(chosen, target=tmp_path / "models/base", record=tmp_path / "models/base.json")
    assert ("no_chats" in facts) == (template is None)
    fields = check_gguf(tmp_path / "models/base/model.gguf").fields
    tokenizer = load_tokenizer(tmp_path / "models/base")
    assert fields.get("tokenizer.chat_template") == tokenizer.chat_template
    assert bool(tokenizer.chat_template) == (template is not None)


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["gguf", "nf4"])
def test_odd_metadata_is_a_sentence_or_a_model_that_llama_cpp_loads(
    gguf_file: Path, tmp_path: Path, tools: Toolchain, quantization: Literal["gguf", "nf4"]
) -> None:
    file, tried, accepted = tmp_path / "odd.gguf", 0, 0
    chosen = Base(model=str(file), quantization=quantization)
    for field, value in some(odd_variants(gguf_file)):
        change_field(gguf_file, file, field, value)
        tried += 1
        try:
            facts = base(chosen, target=tmp_path / "models/base", record=tmp_path / "models/base.json")
        except QuenchError:
            continue
        except BaseException as error:
            pytest.fail(f"{field} {value}: {error!r}")
        accepted += 1
        assert facts["vocab_size"] == 261
        if quantization == "gguf":
            with open_gguf(Llama(tools), ModelFiles(file), ctx_size=16) as opened:
                assert np.isfinite(opened.logits([1, 2, 3], [0, 1, 2])).all(), (field, value)
    assert tried > 400 // SHARE and accepted < tried / 4


def test_a_family_that_is_not_trained_on_is_refused_before_its_file_is_copied(
    tmp_path: Path, bring: Bring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To copy and quantize a file of gigabytes takes minutes. That its rotary positions are not known either
    is not the reason.
    """
    file = tiny.tiny_gguf(tmp_path / "scaled.gguf", llama__rope__scaling__type="yarn")
    monkeypatch.setattr(quantized_gguf, "TRAINED_ON", ("falcon",))
    monkeypatch.setattr(quantized_gguf, "copy_file", lambda *_: pytest.fail("copied"))
    with pytest.raises(DataError, match=r"Q-MODELS-028.*of falcon: .*nf4"):
        bring(file, "Q8_0")


@pytest.mark.parametrize(("kind", "name"), [(16, "IQ2_XXS"), (9, "Q8_1"), (4_000, "4000")])
def test_a_tensor_type_that_cannot_be_trained_on_is_named(
    tmp_path: Path, bring: Bring, gguf_file: Path, kind: int, name: str
) -> None:
    file, up = Path(shutil.copy(gguf_file, tmp_path / "odd.gguf")), "blk.0.ffn_up.weight"
    change_tensors(file, lambda tensors: tensors | {up: (tensors[up][0], kind, bytes(1 << 16))})
    with pytest.raises(DataError, match=rf"blk\.0\.ffn_up\.weight.*{name}|type number {name}"):
        bring(file)


def test_a_hugging_face_folder_as_source_is_a_config_error(tiny_params: dict[str, Any]) -> None:
    from pydantic import ValidationError

    with pytest.raises(ValidationError, match=r"is no file that ends in \.gguf: name one"):
        Base.model_validate(tiny_params["base"] | {"quantization": "gguf"})
    with pytest.raises(ValidationError, match="'a/b' is no file that ends in"):
        Base.model_validate({"model": "a/b", "revision": "0" * 40, "quantization": "gguf"})
    with pytest.raises(ValidationError, match="only quantization gguf has one"):
        Base.model_validate(tiny_params["base"] | {"level": "Q4_K_M"})


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ON_GGUF if name != "llama"])
def test_settings_of_other_families_are_read_whole(
    name: str, bring: Bring, tmp_path: Path, tools: Toolchain
) -> None:
    source = family(name, tmp_path / "hf", tools)
    rule = RULES.get(name, "smollm" if name in SMOLLM else "qwen2")
    to_gguf(tools, source, tmp_path / "model.gguf", "F16", HeaderFields("tiny", rule))
    # proves that the model takes every tensor in its shape
    bring(tmp_path / "model.gguf", "Q4_K_M")
    read, written = (
        AutoConfig.from_pretrained(folder, local_files_only=True)
        for folder in (tmp_path / "models/base", source)
    )
    for key in SETTINGS:
        assert getattr(read, key, None) == getattr(written, key, None), key
    ends = written.eos_token_id
    assert read.eos_token_id == (ends[0] if isinstance(ends, list) else ends)  # a GGUF names one
    epsilon = "norm_eps" if name == "lfm2" else "rms_norm_eps"
    # a GGUF keeps float32
    assert getattr(read, epsilon) == pytest.approx(getattr(written, epsilon), rel=1e-6)
    for key, value in written.rope_parameters.items():
        assert read.rope_parameters[key] == (
            value if isinstance(value, str | dict) else pytest.approx(value, rel=1e-6)
        )
    for key in BY_CLASS[written.architectures[0]].settings:
        assert getattr(read, key) == pytest.approx(getattr(written, key), rel=1e-6), key
    for key in ("no_rope_layers", "layer_types", "query_pre_attn_scalar"):
        assert getattr(read, key, None) == getattr(written, key, None), key


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ON_GGUF if name not in ("qwen2", "qwen3")])
def test_what_is_trained_on_computes_what_llama_cpp_does(
    name: str, bring: Bring, tmp_path: Path, tools: Toolchain
) -> None:
    """With the settings of its header alone, in 16 bit, where llama.cpp rounds little."""
    source = family(name, tmp_path / "hf", tools, **(STRETCHED if name == "llama" else {}))
    to_gguf(tools, source, tmp_path / "model.gguf", "F16", HeaderFields("tiny", RULES.get(name, "smollm")))
    bring(tmp_path / "model.gguf")
    # more than the first context of a Ministral 3, beyond which its queries are scaled
    ids = [(number * 37) % 1900 + 7 for number in range(192)]
    model = load_gguf(tmp_path / "models/base", compute_dtype=torch.float32, device="cpu")
    with torch.no_grad():
        ours = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    with open_gguf(Llama(tools), ModelFiles(tmp_path / "model.gguf"), ctx_size=256) as opened:
        theirs = torch.from_numpy(np.array(opened.logits(ids, range(len(ids)))))
    assert float((ours - theirs).norm() / ours.norm()) < 1e-2


def test_parts_are_joined_and_a_missing_one_is_named(
    gguf_file: Path, bring: Bring, tmp_path: Path, tools: Toolchain
) -> None:
    split = [tools.tool("llama-gguf-split"), "--split", "--split-max-tensors", "5"]
    run_tool([*split, gguf_file, tmp_path / "split"])
    first, *others = sorted(tmp_path.glob("split-*.gguf"))
    facts = bring(first)
    (joined,) = (tmp_path / "models/base").glob("*.gguf")
    assert joined.name == "model.gguf" and len(others) > 1
    ours, theirs = (
        {name: one.stored(0, one.rows).tobytes() for name, one in gguf_tensors(file)[1].items()}
        for file in (joined, gguf_file)
    )
    assert ours == theirs
    assert facts["parameters"] == 18_688 and first.is_file()  # the user's own parts stay
    others[0].unlink()
    with pytest.raises(DataError, match="Q-BASE-023"):
        bring(first)


def test_an_error_on_joined_parts_names_the_users_file(
    bring: Bring, tmp_path: Path, tools: Toolchain
) -> None:
    endless = tiny.tiny_gguf(tmp_path / "endless.gguf", tokenizer__ggml__eos_token_id=None)
    run_tool(
        [tools.tool("llama-gguf-split"), "--split", "--split-max-tensors", "5", endless, tmp_path / "split"]
    )
    first = min(tmp_path.glob("split-*.gguf"))
    with pytest.raises(DataError) as raised:
        bring(first)
    assert f"{first} names no end-of-turn token" in raised.value.sentence

"""Tokenizers with tokens behind the rows of the embeddings: those that nothing needs are left out.

google/gemma-3-1b-it and google/gemma-3-270m-it are published so: 262,144 rows, and a token of that id,
`<image_soft_token>` (huggingface/transformers#37011; llama.cpp's converter leaves it out, too).
"""

import json
from pathlib import Path
from typing import Any

import pytest
from qwen2_variants import change_json
from test_base_trial import with_weights
from tokenizer_folders import GEMMA_END, GEMMA_WORDS, gemma_folder, smollm_folder, with_config, with_zeros
from tokenizers import AddedToken, Tokenizer

from pipeline.chat.tokens import load_tokenizer
from pipeline.config.sections import Base
from pipeline.core.errors import DataError
from pipeline.stages.base.hf_folder import examine
from pipeline.stages.base.new_tokens import add_new_tokens
from pipeline.stages.base.rowless_tokens import drop_rowless, rowless_tokens
from pipeline.stages.base.stage import base

IMAGE = "<image_soft_token>"
PADDING = {"pad_token": "<pad>"}
FLAGS = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}


def with_token(folder: Path, token: str, **settings: Any) -> Path:
    """Add a control token to all files of a tokenizer that name one, as a published Gemma 3 has it."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    number = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    file = folder / "tokenizer_config.json"
    written = json.loads(file.read_text(encoding="utf-8")) | settings
    decoder = {**written.get("added_tokens_decoder", {}), str(number): {"content": token, **FLAGS}}
    file.write_text(json.dumps(written | {"added_tokens_decoder": decoder}), encoding="utf-8")
    (folder / "added_tokens.json").write_text(json.dumps({token: number}), encoding="utf-8")
    (folder / "special_tokens_map.json").write_text(json.dumps({"image_token": {"content": token}}))
    return folder


def gemma(folder: Path) -> Path:
    """Write the folder of a small Gemma 3 for text only, with the tokenizer of those that see images."""
    named = {"image_token": IMAGE, "extra_special_tokens": {"image_token": IMAGE, "end": "<end_of_turn>"}}
    with_token(gemma_folder(folder), IMAGE, **named)
    sizes = {"vocab_size": GEMMA_WORDS, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16}
    ends = {"eos_token_id": [1, GEMMA_END], "bos_token_id": 2, "pad_token_id": 0}
    return with_zeros(
        with_config(folder, "gemma3_text", architectures=["Gemma3ForCausalLM"], **sizes, **ends)
    )


@pytest.mark.slow
def test_stage_base_says_which_tokens_have_no_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = gemma(tmp_path / "source")
    made = tmp_path / "models/base"
    facts = base(Base(model=str(folder)), target=made, record=tmp_path / "models/base.json")
    assert IMAGE in capsys.readouterr().out
    assert facts["rowless_tokens"] == [IMAGE]
    assert IMAGE in (folder / "tokenizer.json").read_text(encoding="utf-8")


def test_a_token_that_no_row_stands_for_is_left_out(tmp_path: Path) -> None:
    folder = gemma(tmp_path)
    facts, _ = examine(folder)
    tokenizer = load_tokenizer(folder)
    assert facts["rowless_tokens"] == [IMAGE]
    assert facts["vocab_size"] == len(tokenizer) == GEMMA_WORDS
    for name in ("tokenizer.json", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"):
        assert IMAGE not in (folder / name).read_text(encoding="utf-8")
    assert tokenizer.eos_token_id == GEMMA_END


@pytest.mark.parametrize("is_in_file", [False, True], ids=["named only", "in tokenizer.json"])
def test_a_padding_token_that_has_no_row_is_left_out(is_in_file: bool, tmp_path: Path) -> None:
    """ggml-org/llama.cpp#6111: fine-tuned Llama 2s have 32,000 rows and `<pad>` as token 32,000."""
    folder = smollm_folder(tmp_path)
    rows = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    if is_in_file:
        with_token(folder, "<pad>")
    change_json(folder / "tokenizer_config.json", **PADDING)
    (folder / "special_tokens_map.json").write_text(json.dumps(PADDING))
    (folder / "added_tokens.json").write_text(json.dumps({"<pad>": rows}))
    with_weights(folder, vocab_size=rows)
    change_json(folder / "generation_config.json", pad_token_id=rows)
    facts, _ = examine(folder)
    assert facts["rowless_tokens"] == ["<pad>"]
    tokenizer = load_tokenizer(folder)
    assert tokenizer.pad_token is None and len(tokenizer) == rows
    settings = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    assert "pad_token_id" not in settings


def test_new_tokens_take_its_place(tmp_path: Path) -> None:
    folder = gemma(tmp_path / "source")
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings["limit"] = [0.0, float("inf")]
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    assert drop_rowless(folder) == [IMAGE]
    assert add_new_tokens(folder, ["<note>"], None) == {"<note>": GEMMA_WORDS}
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert written == settings | {"vocab_size": GEMMA_WORDS + 1}
    assert drop_rowless(folder) == []
    assert len(load_tokenizer(folder)) == GEMMA_WORDS + 1


def test_what_is_wrong_with_a_tokenizer_is_said(tmp_path: Path) -> None:
    folder = with_config(smollm_folder(tmp_path))
    change_json(folder / "tokenizer_config.json", eos_token="<nowhere>")  # noqa: S106
    with pytest.raises(DataError) as refusal:
        drop_rowless(folder)
    assert refusal.value.id == "Q-CHAT-003"


def test_a_tokenizer_that_takes_too_much_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = gemma(tmp_path)
    twice = {"type": "Replace", "pattern": {"String": "l"}, "content": "ll"}
    change_json(folder / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [twice] * 12})
    loader = "pipeline.stages.base.rowless_tokens.read_tokenizer"
    monkeypatch.setattr(loader, lambda _: pytest.fail("it was loaded"))
    with pytest.raises(DataError, match="Q-CHAT-009"):
        drop_rowless(folder)


@pytest.mark.parametrize("needed", ["nothing", "the template", "eos_token", "unk_token"])
def test_a_token_that_is_needed_stays(needed: str, tmp_path: Path) -> None:
    folder = smollm_folder(tmp_path)
    tokenizer = load_tokenizer(with_token(folder, IMAGE))
    rows = len(tokenizer) - 1
    if needed == "the template":
        tokenizer.chat_template = IMAGE + tokenizer.chat_template
    elif needed != "nothing":
        setattr(tokenizer, needed, IMAGE)
    assert rowless_tokens(tokenizer, rows) == ([IMAGE] if needed == "nothing" else [])
    assert rowless_tokens(tokenizer, rows + 1) == []
    assert rowless_tokens(tokenizer, rows - 1000) == []  # words of the vocabulary: another model's

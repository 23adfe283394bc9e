"""Ends of generation that llama.cpp does not know by their spelling are named in the GGUF."""

import json
import re
from pathlib import Path

import pytest
from tokenizer_folders import smollm_folder, with_config
from tokenizers import AddedToken, Tokenizer

from pipeline.core.errors import DataError
from pipeline.gguf.header import read_header
from pipeline.llamacpp.ends import END, SPELLINGS, end_fields
from pipeline.llamacpp.tools import Toolchain, run_converter
from pipeline.stages.parity.tokens import open_vocabulary


def stopping_at(folder: Path, *words: str) -> list[int]:
    """Let generation by `folder` stop at more tokens, which its tokenizer gets; return their ids."""
    with_config(smollm_folder(folder), architectures=["LlamaForCausalLM"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in words])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rows = {"vocab_size": tokenizer.get_vocab_size()}
    (folder / "config.json").write_text(json.dumps(config | rows), encoding="utf-8")
    ids = [tokenizer.token_to_id(word) for word in words]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0, *ids]}))
    return ids


def test_the_spellings_are_those_of_llama_cpp(tools: Toolchain) -> None:
    source = (tools.source / "src/llama-vocab.cpp").read_text(encoding="utf-8")
    _, _, rest = source.partition("special_eog_ids.clear();")
    by_spelling, _, _ = rest.partition("is not marked as EOG")
    assert set(re.findall(r't\.first == "([^"]+)"', by_spelling)) == SPELLINGS


def test_an_end_that_llama_cpp_does_not_know_ends_answers_once_it_is_named(
    tools: Toolchain, tmp_path: Path
) -> None:
    """THUDM/GLM-4-9B-0414 stops at <|observation|>, behind a call of a tool."""
    (number,) = stopping_at(tmp_path / "model", "<|observation|>")
    fields = end_fields(tmp_path / "model")
    assert fields == {END: 2, "tokenizer.ggml.eom_token_id": number}
    file = tmp_path / "vocabulary.gguf"
    arguments = [tmp_path / "model", "--vocab-only", "--outfile", file]
    run_converter(tools, "convert_hf_to_gguf.py", arguments, "smollm", fields)
    with open_vocabulary(tools, file) as vocabulary:
        assert all(vocabulary.ends(end) for end in (0, 2, number))


def test_an_answer_ends_in_the_tokenizers_token_whatever_the_converter_writes(
    tools: Toolchain, tmp_path: Path
) -> None:
    """A Hunyuan's converter writes config.json's eod_token_id."""
    stopping_at(tmp_path / "model", "<|eod|>")
    file = tmp_path / "model/config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    hunyuan = {"architectures": ["HunYuanDenseV1ForCausalLM"], "model_type": "hunyuan_v1_dense"}
    file.write_text(json.dumps(config | hunyuan | {"eod_token_id": 0}), encoding="utf-8")
    gguf = tmp_path / "vocabulary.gguf"
    arguments = [tmp_path / "model", "--vocab-only", "--outfile", gguf]
    run_converter(tools, "convert_hf_to_gguf.py", arguments, "smollm", end_fields(tmp_path / "model"))
    assert read_header(gguf).fields[END] == 2


def test_two_ends_can_be_named_and_a_third_is_refused(tmp_path: Path) -> None:
    stopping_at(tmp_path / "none")
    assert end_fields(tmp_path / "none") == {END: 2}
    stopping_at(tmp_path / "two", "<|a|>", "<|b|>")
    assert len(end_fields(tmp_path / "two")) == 3
    stopping_at(tmp_path / "three", "<|a|>", "<|b|>", "<|c|>")
    with pytest.raises(DataError, match=r"Q-LLAMACPP-030.*<\|a\|>, <\|b\|> and <\|c\|>"):
        end_fields(tmp_path / "three")

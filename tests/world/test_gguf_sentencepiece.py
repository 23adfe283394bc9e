"""GGUFs with SentencePiece's vocabularies: Llama 2's and Mistral 7B's kind from the file to parity, Gemma's
unpacked.
"""

import json
from pathlib import Path

import pytest
import tiny
import torch
from conftest import run_stages
from families import GEMMA, ROWS, SIZES
from tokenizer_folders import GEMMA_WORDS, gemma_folder, llama2_folder
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, LlamaConfig

from pipeline.chat.tokenizer_file import PROBES, plain_tokenizer
from pipeline.gguf.header import read_header
from pipeline.llamacpp.converters import HeaderFields, to_gguf
from pipeline.llamacpp.tools import Toolchain, run_converter

PREPARED = ("base", "curate", "preprocess", "train")
MERGED = ("merge", "convert", "quantize@Q4_K_M", "parity")

VOCABULARY = {
    f"tokenizer.ggml.{field}" for field in ("model", "tokens", "scores", "token_type", "add_space_prefix")
}
# checks of parity
TOKENS = {"text_template", "tokens_ids", "tokens_corpus", "tokens_special"}


def sentencepiece_model(folder: Path, control: tuple[str, ...]) -> Path:
    """Write a small Llama with the tokenizer of `llama2_folder` that looks trained; return the folder."""
    words = plain_tokenizer(llama2_folder(folder, control)).get_vocab_size()
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    config = LlamaConfig(**SIZES | ends | {"vocab_size": words})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = tiny.look_trained(AutoModelForCausalLM.from_config(config), None).to(torch.bfloat16)
    model.generation_config = GenerationConfig(**ends)
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("control", [(), ("[INST]", "[/INST]")], ids=["llama2", "mistral"])
@pytest.mark.parametrize("quantization", ["gguf", "nf4"])
def test_its_tokens_are_the_same_up_to_parity(
    quantization: str, control: tuple[str, ...], tools: Toolchain, tmp_path: Path
) -> None:
    source = sentencepiece_model(tmp_path / "source", control)
    file = tmp_path / "tiny.gguf"
    to_gguf(tools, source, file, "F16", HeaderFields("tiny", None))
    is_merged = quantization == "nf4"
    params = tiny.tiny_params(file) if is_merged else tiny.gguf_params(file)
    params["quantize"]["levels"] = ["Q4_K_M"]
    if is_merged:
        params["evaluate"]["models"] = ["base-F16", "F16", "Q4_K_M"]
    params["train"] |= {"learning_rate": 1.0e-2, "max_steps": 6}
    root = run_stages(tiny.write_project(tmp_path / "project", params), PREPARED)
    found, wanted = (plain_tokenizer(folder) for folder in (root / "models/base", source))
    for text in (*PROBES, "<s>[INST] Which  river?[/INST] The Nile</s>\n<s>"):
        assert (
            found.encode(text, add_special_tokens=False).ids
            == wanted.encode(text, add_special_tokens=False).ids
        )
    run_stages(root, MERGED if is_merged else ("lora", "parity"))
    checks = json.loads((root / "reports/parity.json").read_text())["checks"]
    verdicts = {key: check["verdict"] for key, check in checks.items()}
    assert verdicts.keys() >= TOKENS and {verdicts[key] for key in TOKENS} == {"pass"}
    # of a random model and at standard depth some are not measured
    assert set(verdicts.values()) == {"pass", "not measured"}


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(GEMMA))
def test_a_gemmas_vocabulary_is_converted_to_what_it_was(
    family: str, tools: Toolchain, tmp_path: Path
) -> None:
    """Without tokenizer.model the converter can't read a Gemma 2's folder, and takes a Gemma 3's for another
    model's.
    """
    source = gemma_folder(tmp_path / "source")
    ends = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "vocab_size": GEMMA_WORDS}
    config = AutoConfig.for_model(family, **SIZES | ROWS[family].settings | ends)
    AutoModelForCausalLM.from_config(config).save_pretrained(source)
    file = tmp_path / "tiny.gguf"
    to_gguf(tools, source, file, "F16", HeaderFields("tiny", None))
    root = run_stages(tiny.write_project(tmp_path / "project", tiny.tiny_params(file)), ("base",))
    again = tmp_path / "vocabulary.gguf"
    run_converter(tools, "convert_hf_to_gguf.py", [root / "models/base", "--vocab-only", "--outfile", again])
    wanted, found = (
        {key: value for key, value in read_header(path).fields.items() if key in VOCABULARY}
        for path in (file, again)
    )
    assert wanted.keys() == VOCABULARY
    assert found == wanted

"""Small models that read images (Gemma 3, Qwen3.5) and a text model, from the folder to the GGUF's proofs."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from tokenizer_folders import GEMMA_WORDS, gemma_folder, qwen35_folder
from wrappers import as_published, text_model, with_drafts, wrapper

from pipeline.__main__ import main
from pipeline.chat.rendering import render
from pipeline.chat.tokens import load_tokenizer
from pipeline.gguf.header import read_header
from pipeline.llamacpp.tools import Toolchain

STAGES = ("base", "curate", "preprocess", "train", "merge", "convert", "quantize@Q4_K_M", "parity")
WORDS = 8000
THOUGHT = "I add the two numbers."
# hidden is a multiple of 256, the block of K-quants
SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
DELTA = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
# what each is called in the GGUF
ARCHITECTURES = {"gemma3": "gemma3", "qwen3_5": "qwen35", "qwen3_5_text": "qwen35"}
TEXT_PARTS = {"gemma3": "gemma3_text", "qwen3_5": "qwen3_5_text"}
# how their templates open an answer
OPENINGS = {"gemma3": "<start_of_turn>model\n", "qwen35": "assistant\n"}


def source(kind: str, folder: Path, tools: Toolchain) -> Path:
    """Write a small model of this kind with its tokenizer; return its folder."""
    if kind == "gemma3":
        ends = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
        sizes = SIZES | {"query_pre_attn_scalar": SIZES["head_dim"], "vocab_size": GEMMA_WORDS}
        wrapper(kind, gemma_folder(folder), ends, **sizes)
        return folder
    qwen35_folder(folder, tools, WORDS)
    ends = {"bos_token_id": WORDS, "eos_token_id": WORDS + 2, "pad_token_id": WORDS}
    sizes = SIZES | DELTA | {"vocab_size": 8192}
    if kind == "qwen3_5":
        wrapper(kind, folder, ends, **sizes)
        with_drafts(folder)
        as_published(folder, end_of_text=WORDS, end_of_turn=WORDS + 2)
        return folder
    text_model("qwen3_5", folder, ends, **sizes)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "TokenizersBackend"  # as transformers saves it
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.base_cells("NF4", "merged", "levels", "parity", "served", families="kind", called=TEXT_PARTS)
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_it_is_trained_converted_and_proven(kind: str, tools: Toolchain, tmp_path: Path) -> None:
    params = tiny.tiny_params(source(kind, tmp_path / "source", tools))
    params["quantize"]["levels"] = ["Q4_K_M"]
    params["evaluate"]["models"] = ["base-F16", "F16", "Q4_K_M"]
    params["preprocess"]["max_length"] = 320
    params["train"]["target_modules"] = r".*\.(q_proj|v_proj|down_proj)"
    root = tiny.write_project(tmp_path / "project", params, rows=24)
    file = root / "data/raw/chats.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    architecture = ARCHITECTURES[kind]
    for row in rows[::2]:
        if architecture == "qwen35":
            row["messages"][-1]["reasoning_content"] = THOUGHT
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for stage in STAGES:
        assert main([stage, "--root", str(root)]) == 0, stage
    tokenizer = load_tokenizer(root / "models/merged")
    question = [{"role": "user", "content": "hi"}]
    assert render(tokenizer, question, add_generation_prompt=True).endswith(OPENINGS[architecture])
    stats = json.loads((root / "reports/labels.json").read_text(encoding="utf-8"))
    assert "token_across_turns" not in json.dumps(stats)
    header = read_header(root / "models/gguf/tiny-F16.gguf")
    assert header.fields["general.architecture"] == architecture
    assert header.fields.get("qwen35.nextn_predict_layers", 0) == (kind == "qwen3_5")
    report = json.loads((root / "reports/parity.json").read_text(encoding="utf-8"))
    odd = {name: check for name, check in report["checks"].items() if check["verdict"] == "fail"}
    assert report["verdict"] == "pass", odd

"""New tokens on their entire way: added to a base, trained with embeddings and head, merged, converted, and
with every parity check green; llama.cpp reads each as one id.
"""

import json
import re
from pathlib import Path

import pytest
import tiny
import torch
from conftest import run_stages
from safetensors.torch import load_file

from pipeline.chat.tokens import load_tokenizer
from pipeline.gguf.header import read_header
from pipeline.llamacpp.tools import Toolchain, run_tool

pytestmark = pytest.mark.slow
TOKENS = ["<tool>", "</tool>"]
STAGES = ("base", "curate", "preprocess", "train", "merge", "convert", "quantize@Q4_K_M", "parity")
EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"
USER_DEFINED = 4  # GGUF's type of a token that is text and never cut


@pytest.mark.parametrize(
    ("tied", "quantization"), [(True, "nf4"), (False, "nf4"), (False, "none")], ids=["tied", "own", "16 bit"]
)
def test_new_tokens_reach_the_file_that_is_served(
    tied: bool, quantization: str, tools: Toolchain, tmp_path: Path
) -> None:
    # without a padded vocabulary if the head is its own, so that the tables grow
    words = tiny.WORDS if tied else 8170
    source = tiny.tiny_qwen2(tmp_path / "source", tools, words=words, trained=not tied)
    params = tiny.tiny_params(source)
    params["base"] |= {"new_tokens": TOKENS, "quantization": quantization}
    params["train"] |= {"modules_to_save": ["embed_tokens", "lm_head"], "max_steps": 4, "method": "sft"}
    params["quantize"]["levels"] = ["Q4_K_M"]
    params["evaluate"]["models"] = ["base-F16", "F16", "Q4_K_M"]
    root = tiny.write_project(tmp_path / "project", params)
    chats = root / "data/raw/chats.jsonl"
    written = chats.read_text(encoding="utf-8")
    called = re.sub(r'"(\d+) 🙂"', r'"<tool>\1</tool> 🙂"', written)
    assert called != written
    chats.write_text(called, encoding="utf-8")
    run_stages(root, STAGES)

    checks = json.loads((root / "reports/parity.json").read_text(encoding="utf-8"))["checks"]
    assert not {key: check["detail"] for key, check in checks.items() if check["verdict"] == "fail"}
    assert sum(check["verdict"] == "pass" for check in checks.values()) >= 10
    new = json.loads((root / "models/base.json").read_text(encoding="utf-8"))["new_tokens"]
    before = load_file(root / "models/base/model.safetensors")
    after = load_file(root / "models/merged/model.safetensors")
    for name in {EMBEDDINGS, HEAD} & before.keys():
        for number in new.values():
            assert not torch.equal(after[name][number].float(), before[name][number].float())
    assert (HEAD in after) != tied

    gguf = root / "models/gguf/tiny-F16.gguf"
    fields = read_header(gguf).fields
    ids = load_tokenizer(root / "models/merged")("a<tool>b</tool>")["input_ids"]
    for token, number in new.items():
        assert fields["tokenizer.ggml.tokens"][number] == token
        assert fields["tokenizer.ggml.token_type"][number] == USER_DEFINED
        assert ids.count(number) == 1
    printed = run_tool(
        [
            tools.tool("llama-tokenize"),
            "-m",
            gguf,
            "-p",
            "a<tool>b</tool>",
            "--ids",
            "--no-bos",
            "--log-disable",
        ]
    )
    assert json.loads(printed.strip().splitlines()[-1]) == ids

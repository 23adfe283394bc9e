"""A project of plain text alone, on a tiny base without a chat template, from text files to the report. What
needs chats is called not measured.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import run_stages
from curating import sentence
from tiny import tiny_gguf, tiny_params, write_project

MERGED = (
    *("base", "curate", "preprocess", "train", "merge", "convert", "quantize@Q4_K_M"),
    *("parity", "evaluate@base-F16", "evaluate@F16", "evaluate@Q4_K_M", "report"),
)
ADAPTER = (
    *("base", "curate", "preprocess", "train", "lora", "parity"),
    *("evaluate@base", "evaluate@adapter", "report"),
)
# the parity checks that need a chat, or the base's chat template
OF_CHATS = (
    *("text_template", "tokens_ids"),
    *("behavior_answers_end", "behavior_no_markers"),
)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def finish(root: Path, params: dict[str, Any], stages: tuple[str, ...]) -> None:
    """Run the stages of a project of twelve text files."""
    params["evaluate"]["general"] = "builtin"
    write_project(root, params, rows=0)
    (root / "data/raw/chats.jsonl").unlink()
    for number in range(12):
        paragraphs = [sentence(number * 10 + place, 30) for place in range(1 + number % 4)]
        (root / f"data/raw/note{number}.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")
    run_stages(root, stages)


def judge(root: Path, models: list[str], shipped: str) -> None:
    """Check what the reports say of a project of texts."""
    assert "has no chat template" in read(root / "models/base.json")["no_chats"]
    parity = read(root / "reports/parity.json")
    assert parity["verdict"] == "pass"
    for key in OF_CHATS:
        assert parity["checks"][key]["verdict"] == "not measured"
    assert parity["checks"]["tokens_corpus"]["verdict"] == "pass"
    for model in models:
        figures = read(root / f"reports/eval/{model}.json")
        assert figures["task"] is None and figures["general"] is None
        assert figures["not_measured"].keys() == {"task", "general"}
        assert figures["perplexity"] > 1 and figures["perplexity_tokens"] > 0
    for name in ("index.html", "card.md"):
        assert "all are texts" in (root / "reports" / name).read_text(encoding="utf-8")
    rules = read(root / "reports/quants.json")
    assert shipped in json.dumps(rules)


@pytest.mark.slow
def test_texts_come_to_the_report_on_a_base_without_a_chat_template(tiny_qwen2: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(tiny_qwen2, tmp_path / "base"))
    (base / "chat_template.jinja").unlink()
    params = tiny_params(base)
    params["quantize"]["levels"] = ["Q4_K_M"]
    models = ["base-F16", "F16", "Q4_K_M"]
    params["evaluate"]["models"] = models
    finish(tmp_path / "project", params, MERGED)
    judge(tmp_path / "project", models, "Q4_K_M")


@pytest.mark.slow
def test_texts_come_to_the_report_beside_a_gguf_without_a_chat_template(tmp_path: Path) -> None:
    gguf = tiny_gguf(tmp_path / "source.gguf", llama__context_length=1024, tokenizer__chat_template=None)
    params = tiny_params(gguf)
    params["base"] |= {"quantization": "gguf", "level": "Q4_0"}
    params["preprocess"] |= {"max_length": 256}
    params["evaluate"] |= {"models": ["base", "adapter"]}
    finish(tmp_path / "project", params, ADAPTER)
    judge(tmp_path / "project", ["base", "adapter"], "adapter")

"""Beyond supervised chats: preferences, thumbs, drawn answers and rewarded chats go from data/raw to a bundle
and a served model. The base is a random one-layer Llama as a GGUF.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import run_stages
from html_page import Page
from tiny import tiny_gguf, tiny_params, write_project
from user_project import quench

from pipeline.core.errors import GateError
from pipeline.core.jsonl import write_rows
from pipeline.llamacpp.server import free_port
from pipeline.llamacpp.tools import Toolchain
from pipeline.ship.verification import bundle_faults

STAGES = (
    *("base", "curate", "preprocess", "train", "lora", "parity"),
    *("evaluate@base", "evaluate@adapter", "report"),
)
ANSWERS = ["Yes.", "It is four, of course.", "No, never", "The sea is blue", "Ask me again later", "Paris"]
ROWS = 24
LETTERS = """
def letters(reference, answer, row):
    return sum(letter in "abcdefgh" for letter in answer) / 12
"""
GRPO = {
    "rewards": {"python:letters.py:letters": 1.0},
    "group_size": 4,
    "max_new_tokens": 8,
    "rollouts": "in-process",
}
PREFERENCES = {"dpo": "Held-out pairs ranked correctly", "kto": "Held-out answers judged correctly"}
METHODS = {"dpo": "dpo", "kto": "kto", "grpo": "grpo", "rewarded": "sft"}


def rows(kind: str) -> Iterator[dict[str, Any]]:
    """Yield the rows that a user puts into data/raw."""
    for number in range(ROWS):
        asked = [{"role": "user", "content": f"Question {number}: what is it?"}]
        good, bad = (
            [{"role": "assistant", "content": ANSWERS[(number + turn) % len(ANSWERS)]}] for turn in (0, 2)
        )
        yield {
            "dpo": {"prompt": asked, "chosen": good, "rejected": bad},
            "kto": {"messages": asked + good, "label": number % 2 == 0},
            "grpo": {"messages": asked + good},
            "rewarded": {"messages": asked + good, "reward": number / ROWS},
        }[kind]


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dpo", "grpo", "kto", "rewarded"])
def test_a_method_s_figure_is_reported_gated_shipped_and_its_model_served(
    kind: str, tools: Toolchain, tmp_path: Path
) -> None:
    params = tiny_params(tiny_gguf(tmp_path / "source.gguf", llama__context_length=1024))
    params["base"] |= {"quantization": "gguf", "level": "Q4_0"}
    params["parity"] |= {"rows": 1}  # near ties of a random model change sides: fewer positions, more slack
    params["curate"] |= {"drop_duplicates": "exact"}
    params["preprocess"] |= {"max_length": 256}
    params["evaluate"] |= {"models": ["base", "adapter"]}
    params["train"] |= {"method": METHODS[kind], "sample_rows": 1, "learning_rate": 1e-2}
    params["train"]["grpo"] |= GRPO if kind == "grpo" else {}
    params["serve"] |= {"port": free_port(), "ctx_size": 256, "n_predict": 8}
    # of an untrained model, the method's own figure alone is judged
    params["report"]["gate"] = dict.fromkeys(params["report"]["gate"])
    params["report"]["gate"]["min_preference_accuracy"] = 0.1
    root = write_project(tmp_path / "project", params, rows=0)
    write_rows(root / "data/raw/chats.jsonl", rows(kind))
    (root / "data/evaluation").mkdir()
    (root / "data/evaluation/letters.py").write_text(LETTERS)
    run_stages(root, STAGES)

    train = read(root / "reports/train.json")
    page = (root / "reports/index.html").read_text(encoding="utf-8")
    drawn = {attributes.get("id", "") for tag, attributes in Page(page).tags if tag == "title"}
    assert train["method"] == METHODS[kind]
    if kind in ("dpo", "kto"):
        told = train["preferences"]
        assert told["items"] and 0 <= told["low"] <= told["accuracy"] <= told["high"] <= 1
        assert "accuracy-title" in drawn and PREFERENCES[kind] in page
    elif kind == "grpo":
        assert 0 < train["rewards"]["first"] < 1
        assert "reward-title" in drawn and "Mean reward" in page
    else:
        account = read(root / "reports/labels.json")["splits"]["train"]["rewards"]
        assert account["sequences"] and account["rule"] == "min_max"

    assert quench(root, "ship", "adapter").exit_code == 0
    bundle = root / "models/bundle/tiny-adapter"
    assert bundle_faults(bundle) == []
    card = (bundle / "README.md").read_text(encoding="utf-8")
    assert [name for name in METHODS if f"({name})" in card] == [kind] * (kind != "rewarded")
    rules = {found["rule"]: found for found in read(bundle / "evidence/gate.json")["findings"]}
    # Two held-out rows expect one answer, of which nothing is decided.
    assert rules.keys() - {"commonest"} == {"parity"} | ({"preferences"} if kind in PREFERENCES else set())
    served = quench(root, "serve", "--smoke", "1")  # a random model's answer need not end
    assert "stopped by themselves" in served.output and served.exit_code in (0, 5), served.output

    if kind in PREFERENCES:
        assert rules["preferences"]["figure"] == told["accuracy"]
        unlearned = train | {"preferences": told | {"accuracy": 0.02, "low": 0.0, "high": 0.05}}
        (root / "reports/train.json").write_text(json.dumps(unlearned))
        assert quench(root, "ship", "adapter").exit_code == GateError.exit_code

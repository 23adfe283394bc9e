"""Rounding that was asked for is no damage: a level that is useless on its data passes parity and gets its
report, and the gate refuses it; damage in a project whose rounding already costs that much is still named.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import yaml
from conftest import run_stages
from gguf_edit import both_ends_swapped, change_number, change_rows, change_tensors, without
from html_page import Page
from kept import kept

from pipeline.__main__ import main
from pipeline.config.params import load_params
from pipeline.gate.judgment import Judgment
from pipeline.gate.rules import judge
from pipeline.llamacpp.tools import Toolchain

STAGES = (
    "base",
    "curate",
    "preprocess",
    "train",
    "merge",
    "convert",
    "compare",
    "imatrix",
    "quantize@Q2_K",
    "parity",
    "evaluate@base-F16",
    "evaluate@F16",
    "evaluate@Q2_K",
    "report",
)
# a random model's logits are nearly alike, which hides what rounding costs: so the last norm is so many times
# as large, and there are layers enough to add their errors up
SHARPER, LAYERS = 20, 6


def sharp_base(folder: Path, tools: Toolchain) -> Path:
    """A tiny base with an opinion on every next token."""
    from safetensors.torch import load_file, save_file

    tiny.tiny_qwen2(folder, tools, words=tiny.WORDS, layers=LAYERS)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= SHARPER
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def write_random_rows(root: Path) -> None:
    """Forty chats of random words."""
    dice = random.Random(0)  # noqa: S311

    def words(count: int) -> str:
        letters = "abcdefghijklmnopqrstuvwxyz"
        return " ".join("".join(dice.choices(letters, k=dice.randint(2, 8))) for _ in range(count))

    rows = (
        [{"role": "user", "content": words(9)}, {"role": "assistant", "content": words(5)}] for _ in range(40)
    )
    text = "".join(json.dumps({"messages": messages}) + "\n" for messages in rows)
    (root / "data/raw/chats.jsonl").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def coarse(tools: Toolchain) -> Path:
    """A finished project of random data whose level Q2_K is sound and useless. Read only."""

    def make(root: Path) -> None:
        root.mkdir()
        params = tiny.tiny_params(sharp_base(root / "sharp", tools))
        params["quantize"] |= {"levels": ["Q2_K"]}
        params["parity"] |= {"depth": "full"}
        params["evaluate"] |= {"models": ["base-F16", "F16", "Q2_K"]}
        tiny.write_project(root, params)
        write_random_rows(root)
        run_stages(root, STAGES)

    return kept("coarse", make)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def judged(root: Path, model: str) -> Judgment:
    evaluations = {file.stem: read(file) for file in (root / "reports/eval").glob("*.json")}
    answers = {
        name: [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for name in evaluations
        if (file := root / f"reports/eval/{name}.answers.jsonl").exists()
    }
    params = load_params(root / "params.yaml")
    return judge(model, evaluations, answers, read(root / "reports/parity.json"), params.report.gate, 0)


def test_a_sound_q2_k_passes_parity_and_is_refused_by_the_gate(coarse: Path) -> None:
    parity = read(coarse / "reports/parity.json")
    checks = parity["checks"]
    assert parity["verdict"] == "pass"
    assert not [key for key, check in checks.items() if check["verdict"] == "fail"]
    assert checks["weights_q2_k"]["verdict"] == "pass"
    for key in ("outputs_q2_k", "outputs_lora_q2_k"):
        assert (checks[key]["verdict"], checks[key]["figure"] > checks[key]["limit"]) == ("warn", True), key
    refused = {check.key: check for check in judged(coarse, "Q2_K").checks if check.verdict == "fail"}
    assert {"kld", "same_top"} <= refused.keys() and "parity" not in refused


def test_the_report_has_what_it_costs(coarse: Path) -> None:
    text = Page((coarse / "reports/index.html").read_text(encoding="utf-8")).text
    figure = judged(coarse, "Q2_K").checks[1].figure
    assert figure is not None and f"{figure:.3g}" in text
    assert text.count("▲ warn") >= 2
    parity = Page((coarse / "reports/parity.html").read_text(encoding="utf-8")).text
    assert parity.count("▲ warn") > 2  # the legend has one


# --- damage is named all the same ---

Q2_K, F16 = "models/gguf/tiny-Q2_K.gguf", "models/gguf/tiny-F16.gguf"
UP, BIAS = "blk.1.ffn_up.weight", "blk.0.attn_q.bias"
Change = Callable[[Path], object]


def rows_swapped(root: Path) -> None:
    change_rows(root / Q2_K, UP, both_ends_swapped)


def blocks_zeroed(root: Path) -> None:
    def zeroed(rows: Any) -> Any:
        rows = rows.copy()
        rows[3, :84] = 0
        return rows

    change_rows(root / Q2_K, UP, zeroed)


def scale_wrong(root: Path) -> None:
    def scaled(rows: Any) -> Any:
        rows = rows.copy()
        scales = np.ascontiguousarray(rows[5, 80:84]).view(np.float16)
        rows[5, 80:84] = (scales * np.float16(1.8)).view(np.uint8)
        return rows

    change_rows(root / Q2_K, UP, scaled)


def bias_lost(root: Path) -> None:
    change_tensors(root / Q2_K, without(BIAS))


def bias_lost_before(root: Path) -> None:
    change_tensors(root / F16, without(BIAS))


def level_of_another_run(root: Path) -> None:
    shutil.copy(root / "models/gguf/tiny-base-F16.gguf", root / "base.gguf")
    from pipeline.llamacpp.converters import quantize_gguf
    from pipeline.llamacpp.tools import find_toolchain

    quantize_gguf(find_toolchain(), root / "base.gguf", root / Q2_K, "Q2_K", 1)


def end_of_turn_wrong(root: Path) -> None:
    change_number(root / F16, "tokenizer.ggml.eos_token_id", tiny.END - 2)


def end_of_turn_wrong_in_the_level(root: Path) -> None:
    change_number(root / Q2_K, "tokenizer.ggml.eos_token_id", tiny.END - 2)


def template_wrong(root: Path) -> None:
    file = root / "models/adapter/chat_template.jinja"
    file.write_text(file.read_text(encoding="utf-8").replace("<|im_end|>\\n", "<|im_end|> \\n"), "utf-8")


def merged_is_the_base(root: Path) -> None:
    shutil.copy(root / "models/base/model.safetensors", root / "models/merged/model.safetensors")


DAMAGES: dict[Change, set[str]] = {
    rows_swapped: {"weights_q2_k"},
    blocks_zeroed: {"weights_q2_k"},
    scale_wrong: {"weights_q2_k"},
    bias_lost: {"weights_q2_k"},
    bias_lost_before: {"weights_gguf"},
    level_of_another_run: {"tokens_levels"},
    end_of_turn_wrong: {"tokens_special"},
    end_of_turn_wrong_in_the_level: {"tokens_levels"},
    template_wrong: {"text_template", "text_chat_template"},
    merged_is_the_base: {"weights_merged", "weights_gguf"},
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_named(coarse: Path, tmp_path: Path, damage: Change) -> None:
    root = Path(shutil.copytree(coarse, tmp_path / "project"))
    params = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    params["parity"]["depth"] = "quick"
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")
    damage(root)
    assert main(["parity", "--root", str(root)]) == 5
    failed = {
        key
        for key, check in read(root / "reports/parity.json")["checks"].items()
        if check["verdict"] == "fail"
    }
    assert failed >= DAMAGES[damage]

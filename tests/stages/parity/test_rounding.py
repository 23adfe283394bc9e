"""Rounding that was asked for is no damage: a level that is useless on its data passes parity and gets its
report, and the gate refuses it; damage in a project whose rounding already costs that much is still named.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import yaml
from conftest import STAGES as GRAPH
from conftest import run_stages
from gguf_edit import Tensors, change_fields, change_rows, change_tensors, without
from html_page import Page
from kept import kept

from pipeline.__main__ import main
from pipeline.config.params import load_params
from pipeline.gate.inputs import load_inputs
from pipeline.gate.recommend import advise
from pipeline.gate.verdict import Judgment
from pipeline.gguf.header import read_header
from pipeline.llamacpp.converters import quantize_gguf
from pipeline.llamacpp.tools import Llama, Toolchain, find_toolchain

STAGES = tuple(stage.replace("Q4_K_M", "Q2_K") for stage in GRAPH if "Q5_K_M" not in stage)
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

    return kept("coarse", make, STAGES)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def judged(root: Path, model: str) -> Judgment:
    params = load_params(root / "params.yaml")
    inputs = load_inputs(root, params)
    return advise(inputs, params.report, params.serving)[1][model]


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

GGUF = "models/gguf/tiny-{}.gguf"
F16, Q2_K = GGUF.format("F16"), GGUF.format("Q2_K")
KEYS = "blk.0.attn_k.weight"
UP, BIAS, NORM, TABLE = "blk.1.ffn_up.weight", "blk.0.attn_q.bias", "output_norm.weight", "token_embd.weight"
TEMPLATE, VOCABULARY = "tokenizer.chat_template", "tokenizer.ggml.{}"
Change = Callable[[Path], object]
Damage = tuple[Change, set[str], str]  # what is done, the parity checks that fail by it, what they name


def rows(file: str, tensor: str, change: Callable[[Any], Any]) -> Change:
    """Changes a tensor's bytes, (rows, bytes of a row)."""
    return lambda root: change_rows(root / file, tensor, lambda stored: change(stored.copy()))


def tensors(file: str, change: Callable[[Tensors], Tensors]) -> Change:
    """Puts other tensors into a file."""
    return lambda root: change_tensors(root / file, change)


def fields(change: Callable[[Any], Any], *names: str, files: tuple[str, ...] = (F16, Q2_K)) -> Change:
    """Changes a GGUF's metadata, by default that of the 16-bit file and of the level made from it alike."""

    def damage(root: Path) -> None:
        for file in files:
            stored = read_header(root / file).fields
            change_fields(root / file, {name: change(stored.get(name)) for name in names})

    return damage


def to(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def moved_by_one(stored: Any) -> Any:
    return np.roll(stored, 1, axis=0)


def ones(stored: Any) -> Any:
    return np.ones(stored.size // 4, np.float32).view(np.uint8).reshape(stored.shape)


def exchanged(one: str, other: str) -> Callable[[Tensors], Tensors]:
    return lambda ours: ours | {one: ours[other], other: ours[one]}


def level_of_the_base(root: Path) -> None:
    quantize_gguf(Llama(find_toolchain()), root / GGUF.format("base-F16"), root / Q2_K, "Q2_K")


def two_tokens(tokens: list[str]) -> list[str]:
    return [*tokens[:1000], tokens[1001], tokens[1000], *tokens[1002:]]


def no_control(types: list[int]) -> list[int]:
    """<|im_start|> is text."""
    return [*types[: tiny.END - 1], 1, *types[tiny.END :]]


def newline(template: str) -> str:
    return template.replace("<|im_end|>\\n", "<|im_end|>\\n\\n")


def template_of_training(root: Path) -> None:
    file = root / "models/adapter/chat_template.jinja"
    file.write_text(newline(file.read_text(encoding="utf-8")), encoding="utf-8")


def merged_is_the_base(root: Path) -> None:
    shutil.copy(root / "models/base/model.safetensors", root / "models/merged/model.safetensors")


MERGE, SETTING, WHOLE = {"weights_merged", "weights_gguf"}, {"weights_gguf"}, {"weights_gguf", "weights_q2_k"}
LEVEL, SAME = {"weights_q2_k"}, {"tokens_levels"}
TEXT, IDS = {"text_template", "text_chat_template"}, {"tokens_corpus", "tokens_ids"}
ROPE, EPS = "qwen2.rope.freq_base", "qwen2.attention.layer_norm_rms_epsilon"
EOS, BOS = VOCABULARY.format("eos_token_id"), VOCABULARY.format("add_bos_token")
TYPES, MERGES = VOCABULARY.format("token_type"), VOCABULARY.format("merges")

DAMAGES: dict[str, Damage] = {
    # base + adapter → merged
    "not merged": (merged_is_the_base, MERGE, "was not merged"),
    # merged → F16; where weights are damaged, the level is not this file's either
    "bias dropped": (tensors(F16, without(BIAS)), WHOLE, BIAS),
    "norm reset": (rows(F16, NORM, ones), WHOLE, NORM),
    "k and v exchanged": (tensors(F16, exchanged(KEYS, "blk.0.attn_v.weight")), WHOLE, "blk.0.attn_k"),
    "embeddings moved by one": (rows(F16, TABLE, moved_by_one), WHOLE, TABLE),
    "rope's base": (fields(to(10_000.0), ROPE), SETTING, ROPE),
    "epsilon": (fields(to(1e-5), EPS), SETTING, EPS),
    "tokens exchanged": (fields(two_tokens, VOCABULARY.format("tokens")), {"tokens_corpus"}, "token 1000"),
    "token type": (fields(no_control, TYPES), IDS, "im_start"),
    "merges shuffled": (fields(lambda merges: merges[::-1], MERGES), IDS, "merges"),
    "end of turn": (fields(to(tiny.END - 2), EOS), {"tokens_special"}, "eos is"),
    "beginning added": (fields(to(True), BOS), {"tokens_special", "tokens_ids"}, "adds"),
    "a newline in the template": (fields(newline, TEMPLATE), TEXT, "template"),
    "another template in training": (template_of_training, TEXT | {"weights_merged"}, "template"),
    # F16 → level
    "embeddings of a level moved by one": (rows(Q2_K, TABLE, moved_by_one), LEVEL, TABLE),
    "norm of a level reset": (rows(Q2_K, NORM, ones), LEVEL, NORM),
    "level of the base": (level_of_the_base, SAME, "quench.adapter.sha256"),
    "rope's base of a level": (fields(to(10_000.0), ROPE, files=(Q2_K,)), SAME, ROPE),
    "epsilon of a level": (fields(to(1e-5), EPS, files=(Q2_K,)), SAME, EPS),
    "end of turn of a level": (fields(to(tiny.END - 2), EOS, files=(Q2_K,)), SAME, EOS),
    "template of a level": (fields(newline, TEMPLATE, files=(Q2_K,)), SAME, TEMPLATE),
}


def failed(finished: Path, root: Path, damage: Change) -> dict[str, str]:
    """The parity checks that fail by a damage to a copy of a project, with all that they say."""
    shutil.copytree(finished, root)
    params = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    params["parity"]["depth"] = "quick"
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")
    damage(root)
    assert main(["parity", "--root", str(root)]) == 5
    assert "Something was lost" in (root / "reports/parity.html").read_text(encoding="utf-8")
    checks = read(root / "reports/parity.json")["checks"].items()
    return {key: f"{one['detail']} {one['cause']}" for key, one in checks if one["verdict"] == "fail"}


def assert_named(finished: Path, root: Path, damage: Damage) -> None:
    """Assert that a damaged copy of a project fails the checks that it should, and that one says by what."""
    change, checks, named = damage
    said = failed(finished, root, change)
    assert said.keys() == checks
    assert any(named in words for words in said.values()), said


def by_checks() -> Iterator[Any]:
    """All damages; the first that fails these very checks is in every run of the tests, the others in CI."""
    seen: list[set[str]] = []
    for name, (_, checks, _) in DAMAGES.items():
        yield pytest.param(name, marks=[pytest.mark.slow] if checks in seen else [])
        seen.append(checks)


@pytest.mark.parametrize("damage", by_checks())
def test_damage_is_named(coarse: Path, tmp_path: Path, damage: str) -> None:
    assert_named(coarse, tmp_path / "project", DAMAGES[damage])


LORA, BASE = GGUF.format("lora"), "models/base/model.gguf"
ALPHA, LORA_B = "adapter.lora.alpha", "blk.0.ffn_up.weight.lora_b"
SERVED: dict[str, Damage] = {
    "alpha halved": (fields(lambda alpha: alpha / 2, ALPHA, files=(LORA,)), {"weights_lora"}, "alpha is"),
    "adapter of another run": (rows(LORA, LORA_B, lambda some: some ^ 0x80), {"weights_lora"}, "lora_b"),
    "another file": (rows(BASE, UP, lambda some: some ^ 1), {"weights_file"}, "model.gguf"),
}


@pytest.mark.parametrize("damage", SERVED)
def test_damage_to_what_is_served_is_named(served: Path, tmp_path: Path, damage: str) -> None:
    assert_named(served, tmp_path / "project", SERVED[damage])

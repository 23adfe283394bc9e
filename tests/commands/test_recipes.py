"""Recipes: each is a whole, valid, commented configuration; `use` never overwrites edits unasked."""

import re
from pathlib import Path

import pytest

from pipeline.commands.recipes import RECIPES, recipe_names, unified_diff, use
from pipeline.config.params import load_params
from pipeline.core.errors import ConfigError, MachineError
from pipeline.llamacpp.tools import PROJECT

ALL = sorted(RECIPES.glob("*.yaml"))


def keys_with_comments(path: Path) -> dict[str, str]:
    """{section.key: the comment line above it} of a params file; a key without one fails."""
    found, section, group, above = {}, "", "", ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if opened := re.match(r"(\w+):$", line):
            section = opened[1]
        elif key := re.match(r"( {2,4})(\w+):( |$)", line):
            name = f"{section}.{key[2]}" if len(key[1]) == 2 else f"{group}.{key[2]}"
            group = name if len(key[1]) == 2 else group
            assert above.startswith(key[1] + "# "), f"{path.name}: {name} has no comment above it"
            found[name] = above
        above = line
    return found


def test_the_four_recipes_are_there():
    assert {"demo", "qwen2.5-0.5b", "qwen2.5-7b-8gb", "qwen2.5-7b-a100"} <= set(recipe_names())


def test_a_fresh_clone_holds_the_demo():
    assert (PROJECT / "params.yaml").read_bytes() == (RECIPES / "demo.yaml").read_bytes()


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_every_recipe_validates_and_says_the_same_about_each_key(path):
    load_params(path)
    assert keys_with_comments(path) == keys_with_comments(RECIPES / "demo.yaml")


def test_the_8_gb_recipe_is_the_production_run_value_by_value():
    params = load_params(RECIPES / "qwen2.5-7b-8gb.yaml")
    train, serve = params.train, params.serve
    assert (params.base.source, params.base.model) == ("hub", "Qwen/Qwen2.5-7B-Instruct")
    assert (params.base.quantization, train.bnb_4bit_use_double_quant, train.bnb_4bit_compute_dtype) == ("nf4", True, "bfloat16")
    assert (train.r, train.lora_alpha, train.lora_dropout) == (16, 32, 0.05)
    assert train.target_modules == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert (train.num_train_epochs, train.max_steps, train.per_device_train_batch_size, train.gradient_accumulation_steps) == (3.0, -1, 1, 8)
    assert (train.learning_rate, train.warmup_ratio, train.lr_scheduler_type, train.weight_decay) == (2e-4, 0.1, "cosine", 0.01)
    assert (train.optim, train.gradient_checkpointing, train.loss) == ("paged_adamw_8bit", True, "liger")
    assert (train.save_steps, train.save_total_limit, params.preprocess.max_length) == (100, 3, 1024)
    assert params.quantize.levels == ["Q4_K_M", "Q5_K_M"]
    assert (serve.port, serve.ctx_size, serve.n_gpu_layers, serve.threads, serve.flash_attn) == (8081, 4096, 99, 6, "on")
    large = load_params(RECIPES / "qwen2.5-7b-a100.yaml")
    assert (large.train.per_device_train_batch_size, large.train.gradient_accumulation_steps, large.preprocess.max_length) == (4, 4, 4096)


def test_use_installs_into_an_empty_folder_and_over_another_recipe(tmp_path, capsys):
    assert use("demo", tmp_path)
    changes = use("qwen2.5-0.5b", tmp_path)
    assert (tmp_path / "params.yaml").read_bytes() == (RECIPES / "qwen2.5-0.5b.yaml").read_bytes()
    assert "-  source: package\n" in changes
    assert "+  source: hub\n" in changes
    assert changes in capsys.readouterr().out
    assert use("qwen2.5-0.5b", tmp_path) == ""
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]


@pytest.mark.parametrize("edit", [b"# mine\n", b" ", b"\xff"])
def test_use_keeps_edits_unless_forced(tmp_path, edit):
    target = tmp_path / "params.yaml"
    mine = (RECIPES / "demo.yaml").read_bytes() + edit
    target.write_bytes(mine)
    with pytest.raises(ConfigError, match=r"(?s)has edits.*--force.*\n\+  source: hub\n") as raised:
        use("qwen2.5-0.5b", tmp_path)
    assert raised.value.exit_code == 2
    assert target.read_bytes() == mine
    assert use("qwen2.5-0.5b", tmp_path, force=True)
    assert target.read_bytes() == (RECIPES / "qwen2.5-0.5b.yaml").read_bytes()


@pytest.mark.parametrize(("asked", "meant"), [("qwen2.5-7b-8GB", "qwen2.5-7b-8gb"), ("dmo", "demo"), ("qwen-0.5b", "qwen2.5-0.5b")])
def test_an_unknown_recipe_lists_the_known_with_the_nearest(tmp_path, asked, meant):
    with pytest.raises(ConfigError, match=re.escape(f"{asked!r}: did you mean {meant}? The recipes are {', '.join(recipe_names())}")):
        use(asked, tmp_path)
    assert not (tmp_path / "params.yaml").exists()


@pytest.mark.parametrize("name", ["../params", "/etc/passwd", "", "demo.yaml"])
def test_a_recipe_is_a_name_not_a_path(tmp_path, name):
    with pytest.raises(ConfigError, match="no recipe is called"):
        use(name, tmp_path)


def test_a_params_file_that_is_a_folder_is_one_sentence(tmp_path):
    (tmp_path / "params.yaml").mkdir()
    with pytest.raises(MachineError, match="can't be read"):
        use("demo", tmp_path, force=True)


def test_the_diff_of_texts_without_a_last_newline_stays_readable():
    assert unified_diff(b"a\nb", b"a\nc\n", "old", "new").splitlines()[-3:] == ["-b", "\\ No newline at end of file", "+c"]

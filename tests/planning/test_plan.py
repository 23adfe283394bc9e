"""`quench plan`: tables and JSON, found bases, a verdict with its exit code, and no torch."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.config.params import load_params
from pipeline.config.sections import Train
from pipeline.config.targets import misfits
from pipeline.core.errors import ToolError
from pipeline.core.places import PROJECT
from pipeline.planning import card as cards
from pipeline.planning import weights
from pipeline.planning.card import Card

EIGHT = ["--recipe", "qwen2.5-7b-8gb", "--vram", "8"]


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.commands.plan.first_gpu", lambda: None)


def plan(*words: str | Path) -> Any:
    return CliRunner().invoke(app, ["plan", *map(str, words)])


def test_it_imports_neither_torch_nor_transformers() -> None:
    code = f"""
import runpy, sys
sys.argv = ["quench", "plan", *{EIGHT!r}]
try:
    runpy.run_module("pipeline.cli", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
print("HEAVY", *(name for name in ("torch", "transformers", "peft", "bitsandbytes", "numpy", "pyarrow") if name in sys.modules))
"""  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=PROJECT, check=True
    )
    assert done.stdout.splitlines()[-1] == "HEAVY"


def test_the_8_gb_recipe_fits_8_gb(tmp_path: Path) -> None:
    shown = plan(*EIGHT, "--root", tmp_path)
    assert shown.exit_code == 0, shown.stderr
    assert "It fits, with 1.18 GB to spare. The longest rows that fit are of 3,4" in shown.stdout
    assert (
        "40,370,176 parameters, float32" in shown.stdout
        and "not measured (42.5 GFLOP a token)" in shown.stdout
    )
    assert max(map(len, shown.stdout.splitlines())) <= 100
    words = " ".join(shown.stdout.split())
    assert "there is 8.000 a card of 8 GB" in words
    assert (
        "1 GB of memory is 2³⁰ bytes here, as cards are sold; of disk and downloads it is 10⁹ bytes." in words
    )


@pytest.mark.parametrize("recipe", [path.stem for path in (PROJECT / "recipes").glob("qwen*.yaml")])
def test_a_recipe_fits_the_card_that_the_readme_names(recipe: str, tmp_path: Path) -> None:
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| .*`{re.escape(recipe)}`.*", readme, re.MULTILINE)
    card = re.search(r"one (\d+) GB card", row)
    memory = card[1] if card else 40 if "A100" in row else 4
    assert plan("--recipe", recipe, "--vram", memory, "--root", tmp_path).exit_code == 0


def test_the_disk_is_what_the_stages_need_and_dvcs_copies_are_a_line_of_their_own(tmp_path: Path) -> None:
    lines = " ".join(plan(*EIGHT, "--root", tmp_path).stdout.split()).split("Disk: ")[1]
    assert lines.startswith("46.53 GB (checkpoints 0.97,") and "base-F16" not in lines
    assert (
        "beside the base's 15.23 GB" in lines
        and "DVC's cache: 60.79 GB more, a copy of each of these but the checkpoints, and of the" in lines
    )
    large = " ".join(plan("--recipe", "qwen2.5-7b-a100", "--vram", "80", "--root", tmp_path).stdout.split())
    assert "base-F16 GGUF 15.24" in large


def on_a_gguf(root: Path, **train: Any) -> list[str | Path]:
    """The 8 GB recipe on a published GGUF, as the command's words."""
    params = load_params(PROJECT / "recipes" / "qwen2.5-7b-8gb.yaml").model_dump(mode="json")
    params["base"] |= {
        "model": "Qwen/Qwen2.5-7B-Instruct-GGUF",
        "file": "qwen2.5-7b-instruct-q4_k_m.gguf",
        "quantization": "gguf",
    }
    params["train"] |= train
    params["evaluate"]["models"] = ["base", "adapter"]
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    return ["--root", root]


def test_training_on_a_gguf_is_planned_before_it_is_here(tmp_path: Path) -> None:
    shown = plan(*on_a_gguf(tmp_path), "--vram", "6")
    assert shown.exit_code == 0, shown.stderr
    words = " ".join(shown.stdout.split())
    assert (
        "quantized linears 3.653 computed for Q4_K_M" in words
        and "embeddings and head 0.702 quantized too" in words
    )
    assert "Disk: 1.24 GB (checkpoints 0.97, adapter 0.18, LoRA GGUF 0.08)" in words
    found = json.loads(plan(*on_a_gguf(tmp_path), "--vram", "6", "--json").stdout)
    assert found["quantization"] == "gguf"


def test_dense_linears_that_do_not_fit_are_left_packed(tmp_path: Path) -> None:
    shown = plan(*on_a_gguf(tmp_path, keep_quantized=False), "--vram", "6")
    assert (
        shown.exit_code == 6 and "does not fit a card of 6 GB: set train.keep_quantized: true" in shown.stderr
    )


def test_what_does_not_fit_is_exit_6_with_what_to_change(tmp_path: Path) -> None:
    shown = plan("--recipe", "qwen2.5-7b-a100", "--vram", "8", "--root", tmp_path)
    assert shown.exit_code == 6
    assert "It does not fit: 6.9" in shown.stdout and "saves GB" in shown.stdout
    sentence = shown.stderr.strip()
    assert sentence.startswith("quench: Q-COMMANDS-006: training needs 14.9") and "\n" not in sentence
    assert (
        "and does not fit a card of 8 GB: set train.per_device_train_batch_size: 1 and "
        "gradient_accumulation_steps: 16, preprocess.max_length: 33"
    ) in sentence


def test_json_holds_every_part_in_bytes(tmp_path: Path) -> None:
    found = json.loads(plan(*EIGHT, "--json", "--tflops", "20", "--root", tmp_path).stdout)
    assert sum(part["bytes"] for part in found["memory"].values() if part["at_peak"]) == found["total_bytes"]
    assert found["fits"] and found["card"]["memory"] == 8 << 30 and not found["tflops_assumed"]
    assert found["work"] is None and found["seconds"] is None  # not measured: nothing is tokenized here


def test_the_mixtures_recipe_fits_its_card(tmp_path: Path) -> None:
    shown = json.loads(
        plan("--recipe", "qwen3-30b-a3b-gguf", "--vram", 32, "--json", "--root", tmp_path).stdout
    )
    # rank 8 on attention's linears and on three of each of 128 experts, 48 layers
    attention = (2048 + 4096) + 2 * (2048 + 512) + (4096 + 2048)
    assert shown["memory"]["LoRA"]["bytes"] == 4 * 8 * 48 * (128 * 3 * (2048 + 768) + attention)
    assert shown["fits"] and shown["loss"] == "chunked"


def test_time_comes_from_tokens_and_tflops(tmp_path: Path) -> None:
    (tmp_path / "data" / "tokens").mkdir(parents=True)
    (tmp_path / "data" / "tokens" / "manifest.json").write_text(
        json.dumps({"splits": {"train": {"packed_rows": 100, "tokens": 100_000}}})
    )
    found = json.loads(plan(*EIGHT, "--json", "--tflops", "20", "--root", tmp_path).stdout)
    assert found["seconds"] == pytest.approx(300_000 * found["flops_per_token"] / 20e12)
    assert " for 300,000 tokens in 39 steps at 471 tokens/s" in " ".join(
        plan(*EIGHT, "--tflops", "20", "--root", tmp_path).stdout.split()
    )


def test_without_a_card_a_gpu_recipe_is_not_measured_and_the_demo_takes_main_memory(tmp_path: Path) -> None:
    shown = plan("--recipe", "qwen2.5-7b-8gb", "--root", tmp_path)
    assert (
        shown.exit_code == 0
        and "Whether it fits is not measured" in shown.stdout
        and "It fits" not in shown.stdout
    )
    assert "main memory" in plan("--recipe", "demo-small", "--root", tmp_path).stdout


def test_the_machines_own_card_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pipeline.commands.plan.first_gpu", lambda: Card("NVIDIA A100-SXM4-80GB", 80 << 30, "cuda")
    )
    shown = plan("--recipe", "qwen2.5-7b-a100", "--root", tmp_path)
    assert "It fits" in shown.stdout and "124.8 TFLOP/s assumed from the card's name" in " ".join(
        shown.stdout.split()
    )


def test_the_base_that_is_here_is_planned(tmp_path: Path) -> None:
    params = load_params(PROJECT / "recipes" / "qwen2.5-0.5b.yaml").model_dump(mode="json")
    here = {
        "model_type": "qwen2",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 99,
    }
    (tmp_path / "models" / "base").mkdir(parents=True)
    (tmp_path / "models" / "base" / "config.json").write_text(json.dumps(here))
    record = tmp_path / "models" / "base.json"

    def parameters(*words: str | Path) -> int:
        shown = plan("--json", "--vram", "8", "--root", tmp_path, *words)
        assert shown.exit_code == 0, shown.stderr
        return int(json.loads(shown.stdout)["parameters"])

    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    record.write_text(json.dumps({"model": params["base"]["model"], "revision": params["base"]["revision"]}))
    tiny = parameters()
    assert tiny < 1_000_000
    record.write_text(json.dumps({"model": "another/base", "revision": None}))
    assert parameters() == 494_032_768  # what is here is another base, so the published shape is taken
    assert parameters("--config", tmp_path / "models" / "base" / "config.json") == tiny
    (tmp_path / "params.yaml").write_text(
        yaml.safe_dump(
            params | {"base": params["base"] | {"source": "path", "model": "models/base", "revision": None}}
        )
    )
    assert parameters() == tiny


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--recipe", "qwen"], 2, "no recipe is called 'qwen'"),
        (["--recipe", "demo-small", "--params", "x.yaml"], 2, "Q-COMMANDS-005: "),
        ([], 2, "params.yaml can't be read"),
        (["--recipe", "demo-small", "--config", "none.json"], 3, "none.json can't be read"),
        (["--recipe", "demo-small", "--vram", "0"], 2, "--vram"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, words: list[str], code: int, sentence: str) -> None:
    shown = plan(*words, "--root", tmp_path)
    assert shown.exit_code == code and sentence in " ".join(shown.stderr.split()) and not shown.stdout


def test_a_mixture_of_experts_is_not_planned(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt_oss", "num_local_experts": 8}))
    shown = plan("--recipe", "demo-small", "--config", tmp_path / "config.json", "--root", tmp_path)
    assert (
        shown.exit_code == 3 and "config.json is a mixture of experts (num_local_experts 8)" in shown.stderr
    )


def test_an_unknown_base_says_how_to_give_its_shape(tmp_path: Path) -> None:
    params = load_params(PROJECT / "recipes" / "qwen2.5-0.5b.yaml").model_dump(mode="json")
    params["base"]["model"] = "someone/finetune"
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    shown = plan("--root", tmp_path)
    assert (
        shown.exit_code == 2 and "run `snakemake base`, or name its config.json with --config" in shown.stderr
    )


# --- the card -----------------------------------------------------------------------------------------------


def fake_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """An nvidia-smi that is this shell script."""
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_the_driver_is_asked_for_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(
        tmp_path, monkeypatch, 'echo "$@" >"$(dirname "$0")/asked"; echo "NVIDIA GeForce RTX 4060, 8188"'
    )
    assert cards.first_gpu() == Card("NVIDIA GeForce RTX 4060", 8188 << 20, "cuda")
    assert "--id" not in (tmp_path / "asked").read_text()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    cards.first_gpu()
    assert "--id=1" in (tmp_path / "asked").read_text()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cards.first_gpu() is None


def test_a_driver_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, monkeypatch, "echo no devices were found; exit 6")
    with pytest.raises(ToolError, match="Q-PLANNING-003"):
        cards.first_gpu()


@pytest.mark.parametrize("modules", [["q_proj"], ".*q_proj"])
def test_the_settings_that_a_cached_answer_depends_on_are_all_there(modules: Any) -> None:
    train = Train(target_modules=modules, rank_pattern={"q_proj": 4}, target_experts=["up_proj"])
    read = set()

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            read.add(name)
            return getattr(train, name)

    paths = [
        f"model.layers.0.{name}" for name in ("self_attn.q_proj", "mlp.experts.0.up_proj", "mlp.up_proj")
    ]
    list(misfits(Recorder(), paths, 1))  # type: ignore[arg-type]
    assert read <= weights.ASKED <= Train.model_fields.keys()

"""`quench config plan`: what it prints, what its JSON says, its verdict as an exit code, and no torch."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from golden import Golden
from make import ran
from plans import GIB, plan_json, run_plan, write_gguf_params, write_params

from pipeline.core.hardware import Card
from pipeline.core.places import PROJECT

EIGHT = ["--recipe", "qwen2.5-7b-8gb", "--vram", "8"]
A100 = Card("NVIDIA A100-SXM4-80GB", 80 * GIB, "cuda")


def test_it_imports_neither_torch_nor_transformers() -> None:
    code = """
import runpy, sys
sys.argv = ["quench", "config", "plan", "--recipe", "qwen2.5-0.5b", "--vram", "8"]
try:
    runpy.run_module("pipeline.cli", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
heavy = ("torch", "transformers", "peft", "bitsandbytes", "numpy", "pyarrow")
print("HEAVY", *(name for name in heavy if name in sys.modules))
"""
    assert ran([sys.executable, "-c", code], cwd=PROJECT).stdout.splitlines()[-1:] == ["HEAVY"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([*EIGHT, "--tflops", "20"], 0),
        (["--recipe", "qwen2.5-7b-a100", "--vram", "8"], 6),
        (EIGHT[:2], 0),
    ],
    ids=["fits", "does-not-fit", "no-card"],
)
def test_what_a_reader_is_shown(tmp_path: Path, words: list[str], code: int, snapshot: Any) -> None:
    tokenized(tmp_path)
    shown = run_plan(*words, "--root", tmp_path, free_disk=10**11)
    assert shown.exit_code == code
    assert max(map(len, shown.stdout.splitlines())) <= 100
    assert shown.stdout + shown.stderr == snapshot(extension_class=Golden)


def tokenized(root: Path) -> None:
    (root / "data" / "tokens").mkdir(parents=True)
    counts = {"splits": {"train": {"packed_rows": 100, "tokens": 100_000}}}
    (root / "data" / "tokens" / "manifest.json").write_text(json.dumps(counts))


@pytest.mark.parametrize(
    "recipe",
    sorted(path.stem for path in (PROJECT / "recipes").glob("*.yaml") if not path.stem.startswith("demo")),
)
def test_a_recipe_fits_the_card_that_the_readme_names(recipe: str, tmp_path: Path) -> None:
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| .*`{re.escape(recipe)}`.*", readme, re.MULTILINE)
    card = re.search(r"one (\d+) GB card", row)
    memory = card[1] if card else 40 if "A100" in row else 4
    assert plan_json("--recipe", recipe, "--vram", memory, "--root", tmp_path)["fits"]


def test_json_holds_every_part_in_bytes(tmp_path: Path) -> None:
    found = plan_json(*EIGHT, "--tflops", "20", "--root", tmp_path)
    assert sum(part["bytes"] for part in found["memory"].values() if part["at_peak"]) == found["total_bytes"]
    assert all(part["source"] for part in found["memory"].values())
    assert found["fits"] and found["card"]["memory"] == 8 * GIB and not found["tflops_assumed"]
    assert found["work"] is None and found["seconds"] is None  # not measured: nothing is tokenized here
    assert {"parameters", "device", "loss", "tokens_per_forward", "allocated_bytes", "longest_row"} <= set(
        found
    )
    tokenized(tmp_path)
    found = plan_json(*EIGHT, "--tflops", "20", "--root", tmp_path)
    assert (found["work"]["tokens"], found["work"]["steps"]) == (300_000, 39)
    assert found["seconds"] == pytest.approx(300_000 * found["flops_per_token"] / 20e12)


def test_the_mixtures_recipe_fits_its_card(tmp_path: Path) -> None:
    shown = plan_json("--recipe", "qwen3-30b-a3b-gguf", "--vram", 32, "--root", tmp_path)
    # rank 8 on attention's linears and on three of each of 128 experts, 48 layers
    attention = (2048 + 4096) + 2 * (2048 + 512) + (4096 + 2048)
    assert shown["memory"]["LoRA"]["bytes"] == 4 * 8 * 48 * (128 * 3 * (2048 + 768) + attention)
    assert shown["fits"] and shown["loss"] == "chunked"


def test_the_price_is_that_of_all_stages_with_a_planned_time(tmp_path: Path) -> None:
    write_params(tmp_path, machine={"price_per_hour": 36.0})
    words = ("--root", tmp_path, "--vram", 8, "--tflops", 10)
    stages = plan_json(*words)["stages"].values()
    seconds = sum(planned["seconds"] or 0.0 for planned in stages)
    shown = run_plan(*words).stdout
    assert f"Price of all stages: about {seconds / 100:,.2f} at 36 an hour" in shown
    write_params(tmp_path)
    assert "Price" not in run_plan(*words).stdout


def test_training_on_a_gguf_is_planned_before_it_is_here(tmp_path: Path) -> None:
    write_gguf_params(tmp_path)
    found = plan_json("--vram", "6", "--root", tmp_path)
    assert found["quantization"] == "gguf" and "quantized linears" in found["memory"]
    shown = run_plan("--vram", "3", "--root", tmp_path, "--json")
    assert shown.exit_code == 6 and "Q-COMMANDS-006" in shown.stderr
    assert [one["enough"] for one in json.loads(shown.stdout)["memory_reductions"]][-1]


def test_without_a_card_a_gpu_recipe_is_not_measured_and_the_demo_takes_main_memory(tmp_path: Path) -> None:
    assert plan_json("--recipe", "qwen2.5-7b-8gb", "--root", tmp_path)["fits"] is None
    assert plan_json("--recipe", "demo-small", "--root", tmp_path)["card"]["name"] == "main memory"
    assert plan_json("--recipe", "demo-grpo", "--root", tmp_path)["memory"]["llama-server"]["bytes"] > 0


def test_the_machines_own_card_is_taken(tmp_path: Path) -> None:
    shown = run_plan("--recipe", "qwen2.5-7b-a100", "--root", tmp_path, "--json", gpu=A100)
    found = json.loads(shown.stdout)
    assert found["card"]["name"] == A100.name and found["fits"]
    assert found["tflops_assumed"] and found["tflops"] == pytest.approx(312 * 0.4)
    other = run_plan("--recipe", "demo", "--root", tmp_path, "--json", gpu=Card("A 9000", 80 * GIB, "cuda"))
    assert json.loads(other.stdout)["tflops"] is None


@pytest.mark.parametrize("card", [["--vram", "8"], []], ids=["card", "no-card"])
def test_a_disk_that_is_too_small_does_not_fit(tmp_path: Path, card: list[str]) -> None:
    words = ["--recipe", "qwen2.5-7b-8gb", "--root", tmp_path, *card]
    shown = run_plan(*words, free_disk=130_000_000)
    assert shown.exit_code == 6 and "Q-TRAIN-006" in shown.stderr
    assert "It fits" not in shown.stdout
    as_json = json.loads(run_plan(*words, "--json", free_disk=130_000_000).stdout)
    assert (as_json["fits_disk"], as_json["free_disk"]) == (False, 130_000_000)


def test_a_base_that_is_there_takes_no_more_room(tmp_path: Path) -> None:
    words = ["--recipe", "qwen2.5-7b-8gb", "--vram", "8", "--root", tmp_path]
    sizes = plan_json(*words)["disk"]
    copies = "copies in DVC's cache"
    enough = int(1.2 * (sum(sizes.values()) - sizes["base"] - sizes[copies])) + 1
    assert run_plan(*words, free_disk=enough).exit_code == 6
    (tmp_path / "models/base").mkdir(parents=True)
    assert run_plan(*words, free_disk=enough).exit_code == 0


def test_several_processes_share_a_base_out(tmp_path: Path) -> None:
    words = ["--recipe", "qwen2.5-7b-8gb", "--root", tmp_path, "--vram", "4", "--json"]
    four = json.loads(run_plan(*words, "--processes", 4).stdout)
    assert four["memory_reductions"][-1]["change"] == "train.offload: shared"


@pytest.mark.parametrize(
    ("words", "code", "id"),
    [
        (["--recipe", "qwen"], 2, "Q-"),
        (["--recipe", "demo-small", "--params", "x.yaml"], 2, "Q-COMMANDS-005"),
        ([], 2, "Q-"),
        (["--recipe", "demo-small", "--config", "none.json"], 3, "Q-PLANNING-006"),
        (["--recipe", "demo-small", "--config", "mixture.json"], 3, "Q-"),
        (["--recipe", "demo-small", "--vram", "0"], 2, "--vram"),
        (["--params", "finetune.yaml"], 2, "Q-PLANNING-001"),
    ],
)
def test_a_mistake_has_an_id_and_prints_nothing(
    tmp_path: Path, words: list[str], code: int, id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_params(tmp_path, "qwen2.5-0.5b", base={"model": "someone/finetune"})
    (tmp_path / "params.yaml").rename(tmp_path / "finetune.yaml")
    (tmp_path / "mixture.json").write_text(json.dumps({"model_type": "gpt_oss", "num_local_experts": 8}))
    monkeypatch.chdir(tmp_path)
    shown = run_plan(*words, "--root", tmp_path)
    assert shown.exit_code == code and id in shown.stderr and not shown.stdout

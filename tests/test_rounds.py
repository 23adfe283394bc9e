"""A tuned model goes on: chats, then more chats, then preferences, each round a project of its own by
`quench new --from`, proven by parity; what the first round tested is not trained in the second.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import run_stages
from safetensors.torch import load_file
from train_runs import one_thread  # noqa: F401 (a fixture)

from pipeline.commands.new import main as new
from pipeline.config.params import load_params
from pipeline.core.errors import ConfigError
from pipeline.core.hashing import tree_hash
from pipeline.core.jsonl import read_rows
from pipeline.gguf.header import read_header
from pipeline.gguf.provenance import PREVIOUS

NEXT = ("base", "previous", "curate", "preprocess", "train")
MERGED = ("merge", "convert", "quantize@Q4_K_M", "quantize@Q5_K_M", "parity")


def write_chats(file: Path, numbers: range) -> None:
    with file.open("w", encoding="utf-8") as opened:
        for number in numbers:
            question = {"role": "user", "content": f"What is {number} times {number + 5}, please, in words?"}
            answer = {"role": "assistant", "content": f"It is {number * (number + 5)}."}
            opened.write(json.dumps({"messages": [question, answer]}) + "\n")


def write_pairs(file: Path, numbers: range) -> None:
    with file.open("w", encoding="utf-8") as opened:
        for number in numbers:
            row = {
                "prompt": f"Is {number} larger than {number + 2}? Say it in a friendly way.",
                "chosen": f"No, {number} is smaller, my friend.",
                "rejected": f"No: {number}.",
            }
            opened.write(json.dumps(row) + "\n")


def next_round(place: Path, project: Path, **train: Any) -> Path:
    """The project `place` that goes on from `project`, with other settings of training."""
    new(place, None, project)
    file = place / "params.yaml"
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    values["train"] |= train
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return place


def trained(project: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((project / "reports/train.json").read_text())
    return report


def is_proven(project: Path) -> bool:
    verdict = json.loads((project / "reports/parity.json").read_text())["verdict"]
    return bool(verdict == "pass")


@pytest.mark.slow
def test_a_chain_of_three_rounds_is_proven(finished: Path, tmp_path: Path) -> None:
    first = Path(shutil.copytree(finished, tmp_path / "first"))
    second = next_round(tmp_path / "second", first)
    shutil.copyfile(first / "data/raw/chats.jsonl", second / "data/raw/chats.jsonl")
    write_chats(second / "data/raw/more.jsonl", range(40))
    run_stages(second, (*NEXT, *MERGED))
    third = next_round(tmp_path / "third", second, method="dpo", learning_rate=5e-5)
    write_pairs(third / "data/raw/pairs.jsonl", range(40))
    run_stages(third, (*NEXT, *MERGED))
    assert all(map(is_proven, (first, second, third)))

    for project, before in ((second, first), (third, second)):
        went_on_from = tree_hash(project / "models/previous")
        assert trained(project)["run"]["hashes"]["previous"] == went_on_from
        header = read_header(project / f"models/gguf/{project.name}-Q4_K_M.gguf")
        assert header.fields[PREVIOUS] == went_on_from
        then = load_file(before / "models/adapter/adapter_model.safetensors")
        now = load_file(project / "models/adapter/adapter_model.safetensors")
        assert then.keys() == now.keys()
        assert not all(torch.equal(then[name], now[name]) for name in then)
        assert trained(project)["eval_loss_before"] > 0
    steps = [row for row in read_rows(third / "reports/train.jsonl") if row["kind"] == "step"]
    assert steps[0]["loss"] == pytest.approx(0.6931, abs=2e-3), "compared with the model of the second round"

    tested = {row["messages"][0]["content"] for row in read_rows(first / "data/final/test.jsonl")}
    assert tested
    for split in ("train", "val"):
        rows = read_rows(second / f"data/final/{split}.jsonl")
        assert tested.isdisjoint(row["messages"][0]["content"] for row in rows)
    assert load_params(third / "params.yaml").curate.decontaminate == [
        "first-test.jsonl",
        "second-test.jsonl",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "stage"), [("served", "lora"), ("tuned", "tuned")])
def test_a_second_round_on_a_gguf_is_proven(
    first: str, stage: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    second = next_round(tmp_path / "second", request.getfixturevalue(first))
    write_chats(second / "data/raw/more.jsonl", range(40))
    run_stages(second, (*NEXT, stage, "parity"))
    assert is_proven(second)


def test_each_rounds_test_rows_stay_guarded(finished: Path, tmp_path: Path) -> None:
    first = Path(shutil.copytree(finished, tmp_path / "a/chat"))
    new(tmp_path / "b/chat", None, first)
    second = tmp_path / "b/chat"
    for made in ("models/adapter", "data/final"):
        shutil.copytree(first / made, second / made, dirs_exist_ok=True)
    (second / "data/final/test.jsonl").write_text('{"text": "Another row."}\n')
    new(tmp_path / "c/chat", None, second)
    guarded = load_params(tmp_path / "c/chat/params.yaml").curate.decontaminate
    texts = [(tmp_path / "c/chat/data/guard" / name).read_text() for name in guarded]
    assert texts == [(project / "data/final/test.jsonl").read_text() for project in (first, second)]


def test_a_recipe_and_another_project_exclude_each_other(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Q-COMMANDS-042"):
        new(tmp_path / "next", "demo", finished)


def test_a_project_that_trained_nothing_is_not_gone_on_from(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match="Q-COMMANDS-041"):
        new(tmp_path / "next", None, tmp_path / "other")
    assert not (tmp_path / "next").exists()

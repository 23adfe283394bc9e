"""GRPO end to end on a tiny model: prompts, rounds on the disk, exact resume and replay, guards; by
llama-server and in process.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import run_stages
from tiny import tiny_gguf, tiny_params, write_project

from pipeline.config.params import load_params
from pipeline.config.sections import Training
from pipeline.core.errors import DataError, GateError, QuenchError
from pipeline.core.hashing import tree_hash
from pipeline.core.metrics_log import MEASURED, MetricsLog
from pipeline.stages.train.checkpoints import ROUNDS, checkpoints_in
from pipeline.stages.train.grpo.rounds import read_round
from pipeline.stages.train.stage import train

REWARD = """
def letters(reference, answer, row):
    return sum(letter in "aeiou" for letter in answer) / max(len(answer), 1)

def constant(reference, answer, row):
    return 0.5
"""
GRPO = {
    "rewards": {"python:letters.py:letters": 1.0},
    "group_size": 4,
    "max_new_tokens": 12,
    "steps_per_round": 2,
    "rollouts": "in-process",
    "threads": 1,
    "mask_truncated": False,
}
SETTINGS = {
    "method": "grpo",
    "bnb_4bit_compute_dtype": "float32",
    "r": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "max_steps": 4,
    "learning_rate": 1.0e-2,
    "gradient_accumulation_steps": 2,
    "eval_steps": 4,
    "save_steps": 1,
    "sample_rows": 1,
    "sample_tokens": 4,
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose base is a one-layer Llama at Q4_0, up to `preprocess`. Read only: copy it to change it."""
    root = tmp_path_factory.mktemp("grpo")
    random = np.random.default_rng(3)
    steep = {"token_embd.weight": random.normal(0, 0.6, (261, 32)).astype(np.float16)}
    params = tiny_params(tiny_gguf(root / "source.gguf", tensors=steep))
    params["base"] |= {"source": "gguf", "quantization": "gguf", "level": "Q4_0"}
    params["curate"] |= {"max_tokens": 250, "drop_duplicates": "exact"}
    params["preprocess"] |= {"max_length": 256}
    params["evaluate"] |= {"models": ["source", "base", "adapter"]}
    params["train"] |= SETTINGS | {"grpo": params["train"]["grpo"] | GRPO}
    folder = write_project(root / "project", params)
    (folder / "data/evaluation").mkdir()
    (folder / "data/evaluation/letters.py").write_text(REWARD)
    prompt = {"messages": [{"role": "user", "content": "Say a vowel, please?"}], "answer": "a"}
    with (folder / "data/raw/chats.jsonl").open("a") as file:
        file.write(json.dumps(prompt) + "\n")
    return run_stages(folder, ("base", "curate", "preprocess"))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work this small is slower on two, and many times slower beside other tests."""
    monkeypatch.setattr("pipeline.stages.train.stage.use_all_cores", lambda: torch.set_num_threads(1))
    torch.set_num_threads(1)


def run(
    project: Path, root: Path, *, resume: bool = False, replay: bool = False, grpo: Any = None, **changes: Any
) -> dict[str, Any]:
    """`train` on the project's rows and base, below `root`."""
    plain = load_params(project / "params.yaml").training.model_dump()
    settings = Training.model_validate(plain | changes | {"grpo": plain["grpo"] | (grpo or {})})
    return train(
        tokens=project / "data/tokens",
        base=project / "models/base",
        adapter=root / "adapter",
        checkpoints=root / "checkpoints",
        tensorboard=root / "tensorboard",
        settings=settings,
        resume=resume,
        replay=replay,
    )


def steps(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in report["metrics_log"] if row["kind"] == "step"]


def test_prompts_are_what_stands_before_the_answer_and_scorers_get_the_rest(project: Path) -> None:
    from pipeline.stages.train.dataset import load_rows
    from pipeline.chat.prompts import prompt_ids
    from pipeline.chat.tokens import load_tokenizer

    tokenizer, rows = load_tokenizer(project / "models/base"), load_rows(project / "data/tokens", "train")
    questions = [json.loads(line) for line in (project / "data/tokens/questions-train.jsonl").open()]
    assert [row["row_ids"][0] for row in rows] == [question["id"] for question in questions]
    for row, question in zip(rows, questions, strict=True):
        text = tokenizer.decode(prompt_ids(row["input_ids"], row["labels"]))
        assert question["prompt"] in text and text.endswith("<|im_start|>assistant\n")
    assert any(question["prompt"] == "Say a vowel, please?" and question["reference"] == "a" for question in questions)


def test_the_reward_rises_and_rounds_say_what_was_drawn(project: Path, tmp_path: Path) -> None:
    report = run(project, tmp_path, max_steps=12, save_steps=12, eval_steps=12)
    measured = [row["measures"] for row in steps(report)]
    first, last = (sum(one["reward"] for one in some) / 4 for some in (measured[:4], measured[-4:]))
    assert last > first + 0.05
    assert {"reward", "zero_variance", "truncated", "completion_tokens", "entropy", "clipped", "gap"} <= set(measured[0])
    assert measured[0]["gap"] < 1e-4
    made = read_round(tmp_path / "checkpoints" / ROUNDS / "00000002.jsonl")
    assert made is not None and made.head["rows"] == [row for one in steps(report)[2:4] for row in one["rows"]]
    assert all(len(one.ids) == len(one.logps) and one.reward == one.points["python:letters.py:letters"] for one in made.completions)
    evaluation = next(row for row in report["metrics_log"] if row["kind"] == "eval")
    assert evaluation["eval_loss"] == -evaluation["measures"]["reward"]

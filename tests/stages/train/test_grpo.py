"""GRPO, tiny model: prompts, rounds on disk, exact resume and replay, guards; llama-server and in process."""

import hashlib
import json
import shutil
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from conftest import run_stages
from gguf import GGUFReader
from killed import kill_at
from tiny import FOUR_STEPS, tiny_gguf, tiny_params, write_project
from train_runs import level_params, one_thread, result, train_in  # noqa: F401 (a fixture)

from pipeline.config.methods import ROUNDS
from pipeline.config.params import load_params
from pipeline.config.products import ModelFiles
from pipeline.config.sections import Training
from pipeline.core.errors import DataError, GateError, QuenchError
from pipeline.core.hashing import tree_hash
from pipeline.core.metrics_log import MetricsLog
from pipeline.llamacpp.server import serving
from pipeline.llamacpp.tools import Llama

REWARD = """
def letters(reference, answer, row):
    return sum(letter in "abcdefgh" for letter in answer) / 12

def length(reference, answer, row):
    return len(answer) % 10 / 10

def constant(reference, answer, row):
    return 0.1 + 0.2 if len(answer) % 2 else 0.3  # the same but for rounding

def hangs(reference, answer, row):
    import time
    time.sleep(30)

def no_number(reference, answer, row):
    return float("nan")

def dies(reference, answer, row):
    raise SystemExit(1)
"""
GRPO = {
    "rewards": {"python:letters.py:letters": 1.0},
    "group_size": 8,
    "max_new_tokens": 12,
    "steps_per_round": 2,
    "rollouts": "in-process",
}
SETTINGS = FOUR_STEPS | {
    "method": "grpo",
    "r": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "gradient_accumulation_steps": 2,
    "eval_steps": 4,
    "save_steps": 1,
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose base is a one-layer Llama at Q4_0, up to `preprocess`. Read only."""
    root = tmp_path_factory.mktemp("grpo")
    params = level_params(tiny_gguf(root / "source.gguf"))
    params["train"] |= SETTINGS | {"grpo": params["train"]["grpo"] | GRPO}
    folder = write_project(root / "project", params)
    (folder / "data/evaluation").mkdir()
    (folder / "data/evaluation/letters.py").write_text(REWARD)
    prompt = {"messages": [{"role": "user", "content": "Say a vowel, please?"}], "answer": "a"}
    with (folder / "data/raw/chats.jsonl").open("a") as file:
        file.write(json.dumps(prompt) + "\n")
    return run_stages(folder, ("base", "curate", "preprocess"))


def run(
    project: Path,
    root: Path,
    *,
    resume: bool = False,
    chosen: str = "",
    replay: bool = False,
    grpo: Any = None,
    **changes: Any,
) -> dict[str, Any]:
    """`train` on the project's rows and base, below `root`."""
    plain = load_params(project / "params.yaml").training.model_dump()
    settings = Training.model_validate(plain | changes | {"grpo": plain["grpo"] | (grpo or {})})
    return train_in(project, root, settings, resume=Path(chosen) if chosen else resume, replay=replay)


def round_of(root: Path, step: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what the file of the round before step `step` + 1 says of it, and the round's completions."""
    text = (root / "checkpoints" / ROUNDS / f"{step:08}.jsonl").read_text(encoding="utf-8")
    head, *completions = map(json.loads, text.splitlines())
    assert head["sha256"] == hashlib.sha256(text.partition("\n")[2].encode()).hexdigest()
    return head, completions


def steps(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in report["metrics_log"] if row["kind"] == "step"]


def test_prompts_are_what_stands_before_the_answer_and_scorers_get_the_rest(project: Path) -> None:
    from pipeline.chat.prompts import prompt_ids
    from pipeline.chat.tokens import load_tokenizer
    from pipeline.stages.train.dataset import load_rows

    tokenizer, rows = load_tokenizer(project / "models/base"), load_rows(project / "data/tokens", "train")
    questions = [json.loads(line) for line in (project / "data/tokens/questions-train.jsonl").open()]
    assert [row["row_ids"][0] for row in rows] == [question["id"] for question in questions]
    for row, question in zip(rows, questions, strict=True):
        text = tokenizer.decode(prompt_ids(row["input_ids"], row["labels"]))
        assert question["prompt"] in text and text.endswith("<|im_start|>assistant\n")
    assert ("Say a vowel, please?", "a") in [(one["prompt"], one["reference"]) for one in questions]


@pytest.mark.slow
def test_the_reward_rises_and_rounds_say_what_was_drawn(project: Path, tmp_path: Path) -> None:
    report = run(project, tmp_path, max_steps=24, save_steps=24, eval_steps=24, learning_rate=5e-2)
    measured = [row["measures"] for row in steps(report)]
    first, last = (fmean(one["reward"] for one in some) for some in (measured[:8], measured[-12:]))
    assert last > 1.5 * first
    assert {"reward", "zero_variance", "truncated", "completion_tokens", "entropy", "clipped", "gap"} <= set(
        measured[0]
    )
    assert measured[0]["gap"] < 1e-4
    head, completions = round_of(tmp_path, 2)
    assert head["rows"] == [row for one in steps(report)[2:4] for row in one["rows"]]
    assert [one["row"] for one in completions] == [row for row in head["rows"] for _ in range(8)]
    assert all(
        len(one["ids"]) == len(one["logps"]) and one["reward"] == one["points"]["python:letters.py:letters"]
        for one in completions
    )
    evaluation = next(row for row in report["metrics_log"] if row["kind"] == "eval")
    assert evaluation["eval_loss"] == -evaluation["measures"]["reward"]


SHORT = {"max_steps": 6, "eval_steps": 6, "sample_rows": 0}


@pytest.fixture(scope="module")
def whole(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps in three rounds that nothing disturbed. Read only."""
    root = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.stages.train.stage.use_all_cores", lambda: torch.set_num_threads(1))
        run(project, root, **SHORT)
    return root


@pytest.mark.parametrize(
    ("changed", "scaled", "factor"), [({}, True, 0.5), ({"loss": "dr_grpo"}, False, None)]
)
def test_advantages_and_the_weight_of_a_token_are_those_of_the_settings(
    project: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, Any],
    scaled: bool,
    factor: float | None,
) -> None:
    """Rollouts of this process have the probabilities of training: every weight is 1, or the cap below it."""
    if factor:
        monkeypatch.setattr("pipeline.stages.train.grpo.losses.CAP", factor)
    first, _ = steps(run(project, tmp_path, **SHORT | {"max_steps": 2}, grpo=changed))
    _, completions = round_of(tmp_path, 0)
    for start in range(0, len(completions), 8):
        rewards = [one["reward"] for one in completions[start : start + 8]]
        divisor = stdev(rewards) + 1e-4 if scaled else 1.0
        assert [one["advantage"] for one in completions[start : start + 8]] == pytest.approx(
            [(reward - fmean(rewards)) / divisor for reward in rewards]
        )
    if factor:
        plain = steps({"metrics_log": MetricsLog(whole / "checkpoints/steps.jsonl").rows()})[0]
        assert first["grad_norm"] == pytest.approx(factor * plain["grad_norm"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "call"),
    [
        ("trainer:GrpoTrainer.losses", 7),
        ("trainer:GrpoTrainer.losses", 9),
        ("rollouts:OwnSource.draw", 2),
        ("rollouts:OwnSource.draw", 3),
    ],
)
def test_a_run_that_was_killed_ends_in_the_same_bytes(
    project: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, call: int
) -> None:
    from pipeline.stages.train.grpo.rollouts import OwnSource

    draw = OwnSource.draw
    kill_at(f"pipeline.stages.train.grpo.{place}", call, run, project, tmp_path, **SHORT)
    known, drawn = len(list((tmp_path / "checkpoints" / ROUNDS).iterdir())), []
    monkeypatch.setattr(OwnSource, "draw", lambda *given: drawn.append(1) or draw(*given))
    run(project, tmp_path, resume=True, **SHORT)
    assert len(drawn) == 3 - known + 1  # and that of the held-out prompts
    assert result(tmp_path) == result(whole)
    assert tree_hash(tmp_path / "checkpoints" / ROUNDS) == tree_hash(whole / "checkpoints" / ROUNDS)


def test_a_replay_draws_nothing_and_ends_in_the_same_bytes(
    project: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole / "checkpoints", tmp_path / "checkpoints")
    monkeypatch.setattr("pipeline.stages.train.grpo.drawing.Rounds.watched", lambda *given: 0.0)
    monkeypatch.setattr("pipeline.stages.train.grpo.rollouts.OwnSource.draw", None)
    report = run(project, tmp_path, replay=True, **SHORT)
    assert report["resumed_from"] is None and report["steps"] == 6
    assert tree_hash(tmp_path / "adapter") == tree_hash(whole / "adapter")
    (tmp_path / "checkpoints" / ROUNDS / "00000002.jsonl").unlink()
    with pytest.raises(DataError, match=r"Q-GRPO-010: the run can't be replayed from step 3 on: .*missing"):
        run(project, tmp_path, replay=True, **SHORT)
    edit(
        tmp_path / "checkpoints" / ROUNDS / "00000000.jsonl", 0, '"adapter_sha256": "', '"adapter_sha256": "x'
    )
    with pytest.raises(DataError, match=r"Q-GRPO-010: .* from step 1 on: .*\(adapter_sha256\)"):
        run(project, tmp_path, replay=True, **SHORT)


def edit(file: Path, number: int, old: str, new: str) -> None:
    """Write `new` for `old` in a line of a round."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    assert old in lines[number]
    lines[number] = lines[number].replace(old, new)
    file.write_text("".join(lines), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "id"),
    [(Path.unlink, "Q-GRPO-007"), (lambda file: edit(file, -1, '"reward": ', '"reward": 1'), "Q-GRPO-004")],
    ids=["gone", "damaged"],
)
def test_a_round_that_is_not_whole_in_the_middle_is_one_sentence(
    project: Path, whole: Path, tmp_path: Path, damage: Any, id: str
) -> None:
    shutil.copytree(whole / "checkpoints", tmp_path / "checkpoints")
    damage(tmp_path / "checkpoints" / ROUNDS / "00000004.jsonl")
    with pytest.raises(DataError, match=id):
        run(project, tmp_path, resume=True, chosen="checkpoint-5", **SHORT)


@pytest.mark.parametrize(
    ("reward", "id"),
    [
        ("constant", "Q-GRPO-009"),
        ("hangs", "Q-GRPO-001"),
        ("no_number", "Q-METRICS-009"),
        ("dies", "Q-METRICS-009"),
    ],
)
def test_a_reward_that_cant_be_used_ends_in_one_sentence(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reward: str, id: str
) -> None:
    monkeypatch.setattr("pipeline.stages.train.grpo.rewards.GROUP_SECONDS", 0.2)
    with pytest.raises(QuenchError) as raised:
        run(project, tmp_path, grpo={"rewards": {f"python:letters.py:{reward}": 1.0}}, **SHORT)
    assert raised.value.id == id


def test_completions_that_are_all_empty_end_in_one_sentence(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.stages.train.grpo.rollouts import Drawn

    monkeypatch.setattr(
        "pipeline.stages.train.grpo.rollouts.OwnSource.draw",
        lambda self, model, requests, heed: [Drawn([260], [-0.1], True) for _ in requests],
    )
    with pytest.raises(GateError, match="Q-GRPO-008"):
        run(project, tmp_path, **SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("tuner", ["lora", "scales"])
def test_llama_server_draws_with_what_was_learned(
    project: Path, tmp_path: Path, tools: Any, tuner: str
) -> None:
    more = {"tuner": tuner, "learning_rate": {"lora": 2e-2, "scales": 2e-1}[tuner]}
    drawn: Any = {"rollouts": "llama-server", "kl_beta": 0.01}
    report = run(project, tmp_path, **SHORT | {"max_steps": 4, "eval_steps": 4} | more, grpo=drawn)
    measured = [row["measures"] for row in steps(report)]
    learned = max(one["kl"] for one in measured[2:])  # by now it is not the base
    assert learned > 1e-3 and measured[0]["kl"] < 1e-6
    assert all(0 < one["gap"] < 0.02 for one in measured)
    assert any(one["unknown"] for one in measured)  # tokens inside a character, aligned by id
    head, completions = round_of(tmp_path, 2)
    assert head["drawn_by"] == "llama-server"
    moved = [
        abs(old - base)
        for one in completions
        for old, base in zip(one["old"] or [], one["reference"] or [], strict=True)
    ]
    assert fmean(moved) > 3 * measured[2]["gap"]  # the base alone would be as far off as it has moved


@pytest.mark.slow
def test_a_base_in_nf4_is_drawn_with_its_own_gguf(
    tiny_qwen2: Path, tmp_path: Path, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    types: list[set[str]] = []

    def seen(llama: Llama, files: ModelFiles, **more: Any) -> Any:
        types.extend({tensor.tensor_type.name for tensor in GGUFReader(path).tensors} for path in files)
        return serving(llama, files, **more)

    monkeypatch.setattr("pipeline.stages.train.grpo.rollouts.serving", seen)
    params = tiny_params(tiny_qwen2)
    params["train"] |= SETTINGS | {"grpo": params["train"]["grpo"] | GRPO | {"rollouts": "llama-server"}}
    params["train"]["grpo"] |= {"rewards": {"python:letters.py:length": 1.0}, "steps_per_round": 1}
    params["train"]["grpo"]["parallel"] = 2
    params["convert"]["type"], params["evaluate"]["models"] = "BF16", ["BF16"]
    root = write_project(tmp_path / "project", params)
    (root / "data/evaluation").mkdir()
    (root / "data/evaluation/letters.py").write_text(REWARD)
    run_stages(root, ("base", "curate", "preprocess"))
    report = run(root, tmp_path, max_steps=1, warmup_ratio=0.0, eval_steps=1, save_steps=1, sample_rows=0)
    (row,) = steps(report)
    _, completions = round_of(tmp_path, 0)
    unknown = sum(log is None for one in completions for log in one["logps"])
    assert unknown / sum(len(one["ids"]) for one in completions) == row["measures"]["unknown"] < 0.7
    assert 1e-4 < row["measures"]["gap"] < 0.5  # NF4 is not 16 bit
    assert "BF16" in types[0] and types[1] == {"F16"}
    assert not (tmp_path / "checkpoints/rollouts").exists()

"""train with rewards: equal ones give the bytes of plain SFT, others do not."""

from pathlib import Path
from typing import Any

import pytest
from preferences import ANSWERS, says, settings, tokens_of, user
from pyarrow import parquet
from train_runs import train_in

from pipeline.core.hashing import file_hash
from pipeline.core.metrics_log import MetricsLog

ROWS = 6


def adapter(
    prepared: Path, root: Path, rewards: list[float | None], packing: bool = True, **changes: Any
) -> str:
    """The hash of the weights that were trained on chats with these rewards."""
    chats = [
        {"kind": "chat", "messages": [user(f"Question {number}: what is it?"), says(ANSWERS[number])]}
        | ({} if rewards[number] is None else {"reward": rewards[number]})
        for number in range(ROWS)
    ]
    learn(prepared, root, chats, packing, **changes)
    return file_hash(root / "adapter/adapter_model.safetensors")


def learn(prepared: Path, root: Path, chats: list[dict[str, Any]], packing: bool, **changes: Any) -> None:
    """Train on these chats, which are held out too."""
    asked = settings("sft", **{"quantization": "nf4", "max_steps": 2, "eval_steps": 2} | changes)
    tokens = tokens_of(prepared, root, chats, settings=asked, packing=packing)
    train_in(prepared, root, asked, tokens=tokens, resume=True)


def rewarded(answer: str, reward: float) -> dict[str, Any]:
    return {"kind": "chat", "messages": [user("What is it?"), says(answer)], "reward": reward}


@pytest.mark.slow
def test_equal_rewards_give_plain_sfts_bytes_and_others_do_not(prepared: Path, tmp_path: Path) -> None:
    plain = adapter(prepared, tmp_path / "plain", [None] * ROWS)
    assert adapter(prepared, tmp_path / "equal", [-0.5] * ROWS) == plain
    different = [number / 5 for number in range(ROWS)]
    assert adapter(prepared, tmp_path / "off", different, reward="none") == plain
    assert adapter(prepared, tmp_path / "weighted", different) != plain


def test_held_out_rows_are_weighed_by_the_rewards_of_training(prepared: Path, tmp_path: Path) -> None:
    # 5 is more than training has seen: no more than 1
    train, val = ([rewarded("Four.", reward) for reward in some] for some in ((0.0, 1.0), (0.5, 5.0)))
    tokens = tokens_of(prepared, tmp_path, train, val, settings("sft", reward="min_max"))
    found = parquet.read_table(tokens / "val.parquet")["weights"].to_pylist()
    assert sorted(weight for row in found for weight in row) == [1.0, 2.0]


def test_a_step_of_chats_that_weigh_nothing_is_no_fault(prepared: Path, tmp_path: Path) -> None:
    rewards = [float(number % 2) for number in range(ROWS)]
    adapter(prepared, tmp_path, rewards, packing=False, max_steps=ROWS, eval_steps=ROWS)
    rows = MetricsLog(tmp_path / "checkpoints/steps.jsonl").rows()
    losses = [row["loss"] for row in rows if row["kind"] == "step"]
    assert 0.0 in losses
    assert any(losses)


@pytest.mark.slow
def test_a_style_of_reward_0_is_gone_and_is_there_without_weights(prepared: Path, tmp_path: Path) -> None:
    """Two in three answers have the style. (On a pretrained model: tests/test_learned.py.)"""
    plain, chatty = "Four.", "Well, my friend"
    chats = [rewarded(answer, float(answer == plain)) for answer in (plain, chatty, chatty) * 2]
    learned = {"learning_rate": 1e-2, "max_steps": 40, "eval_steps": 40, "save_steps": 40, "sample_rows": 1}
    answers = []
    for weights in ("min_max", "none"):
        learn(prepared, tmp_path / weights, chats, packing=False, reward=weights, **learned)
        *_, last = MetricsLog(tmp_path / weights / "checkpoints/steps.jsonl").rows()
        answers.append(last["samples"][0]["answer"])
    assert [answer[0] for answer in answers] == ["F", "W"], answers

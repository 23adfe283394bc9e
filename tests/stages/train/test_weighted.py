"""train with rewards: equal ones give the bytes of plain SFT, others do not."""

from pathlib import Path
from typing import Any

from preferences import ANSWERS, says, settings, user
from pyarrow import parquet
from train_runs import train_in

from pipeline.core.hashing import file_hash
from pipeline.core.jsonl import write_rows
from pipeline.core.metrics_log import MetricsLog
from pipeline.stages.preprocess.stage import preprocess

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
    for split in ("train", "val"):
        write_rows(root / f"data/final/{split}.jsonl", chats)
    asked = settings("sft", **{"quantization": "nf4", "max_steps": 2, "eval_steps": 2} | changes)
    preprocess(
        rows_folder=root / "data/final",
        base=prepared / "models/base",
        tokens_folder=root / "data/tokens",
        max_length=128,
        packing=packing,
        train=asked,
    )
    train_in(prepared, root, asked, tokens=root / "data/tokens", resume=True)


def test_equal_rewards_give_plain_sfts_bytes_and_others_do_not(prepared: Path, tmp_path: Path) -> None:
    plain = adapter(prepared, tmp_path / "plain", [None] * ROWS)
    assert adapter(prepared, tmp_path / "equal", [-0.5] * ROWS) == plain
    different = [number / 5 for number in range(ROWS)]
    assert adapter(prepared, tmp_path / "off", different, reward="none") == plain
    assert adapter(prepared, tmp_path / "weighted", different) != plain


def test_held_out_rows_are_weighed_by_the_rewards_of_training(prepared: Path, tmp_path: Path) -> None:
    rewards = {"train": [0.0, 1.0], "val": [0.5, 5.0]}  # 5 is more than training has seen: no more than 1
    for split, given in rewards.items():
        chats = [
            {"kind": "chat", "messages": [user("What is it?"), says("Four.")], "reward": reward}
            for reward in given
        ]
        write_rows(tmp_path / f"data/final/{split}.jsonl", chats)
    preprocess(
        rows_folder=tmp_path / "data/final",
        base=prepared / "models/base",
        tokens_folder=tmp_path / "tokens",
        max_length=128,
        packing=False,
        train=settings("sft", reward="min_max"),
    )
    found = parquet.read_table(tmp_path / "tokens/val.parquet")["weights"].to_pylist()
    assert sorted(weight for row in found for weight in row) == [1.0, 2.0]


def test_a_step_of_chats_that_weigh_nothing_is_no_fault(prepared: Path, tmp_path: Path) -> None:
    rewards = [float(number % 2) for number in range(ROWS)]
    adapter(prepared, tmp_path, rewards, packing=False, max_steps=ROWS, eval_steps=ROWS)
    losses = [
        row["loss"]
        for row in MetricsLog(tmp_path / "checkpoints/steps.jsonl").rows()
        if row["kind"] == "step"
    ]
    assert 0.0 in losses
    assert any(losses)


def test_a_style_of_reward_0_is_gone_and_is_there_without_weights(prepared: Path, tmp_path: Path) -> None:
    """Two in three answers have the style. (On a pretrained model: tests/test_learned.py.)"""
    plain, chatty = "Four.", "Well, my friend"
    chats = [
        {"kind": "chat", "messages": [user("What is it?"), says(answer)], "reward": float(answer == plain)}
        for answer in (plain, chatty, chatty) * 2
    ]
    learned = {"learning_rate": 1e-2, "max_steps": 40, "eval_steps": 40, "save_steps": 40, "sample_rows": 1}
    answers = []
    for weights in ("min_max", "none"):
        learn(prepared, tmp_path / weights, chats, packing=False, reward=weights, **learned)
        *_, last = MetricsLog(tmp_path / weights / "checkpoints/steps.jsonl").rows()
        answers.append(last["samples"][0]["answer"])
    assert [answer[0] for answer in answers] == ["F", "W"], answers

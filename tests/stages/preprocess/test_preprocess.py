"""preprocess: nothing cut, nothing lost, packed rows hold the same tokens, the same bytes in every run."""

from pathlib import Path
from typing import get_args

import pyarrow.parquet as parquet
import pytest
import tiny

from pipeline.chat.rendering import Unrenderable
from pipeline.chat.rows import TRAINED, Kind
from pipeline.chat.tokens import IGNORED, NOT_LEARNED, encode, load_tokenizer
from pipeline.config.sections import Train
from pipeline.core.errors import DataError
from pipeline.core.hashing import tree_hash
from pipeline.core.jsonl import write_rows
from pipeline.stages.preprocess.page import render_labels_page
from pipeline.stages.preprocess.stage import preprocess, summary


def run(root: Path, target: Path, **changes: object) -> dict:
    settings = {"max_length": 160, "packing": True} | changes
    stats, _ = preprocess(
        rows_folder=root / "data/final", base=root / "models/base", tokens_folder=target, **settings
    )
    return stats


def test_packing_keeps_every_token(prepared: Path, tmp_path: Path) -> None:
    packed = run(prepared, tmp_path / "packed")
    plain = run(prepared, tmp_path / "plain", packing=False)
    rows = {
        name: parquet.read_table(tmp_path / name / "train.parquet").to_pylist()
        for name in ("packed", "plain")
    }
    assert len(rows["packed"]) < len(rows["plain"]) == plain["splits"]["train"]["rows"]
    pieces = []
    for row in rows["packed"]:
        assert len(row["input_ids"]) == len(row["labels"]) == sum(row["seq_lengths"]) <= 160
        start = 0
        for length in row["seq_lengths"]:
            pieces.append((row["input_ids"][start : start + length], row["labels"][start : start + length]))
            start += length
    assert sorted(pieces) == sorted((row["input_ids"], row["labels"]) for row in rows["plain"])
    assert packed["splits"]["train"]["packing_density"] > 0.5


def test_labels_are_the_answers(prepared: Path, tmp_path: Path) -> None:
    stats = run(prepared, tmp_path / "tokens", packing=False)
    trained = sum(
        label != IGNORED
        for row in parquet.read_table(tmp_path / "tokens/train.parquet").to_pylist()
        for label in row["labels"]
    )
    assert trained == stats["splits"]["train"]["trained_tokens"]
    assert 0 < stats["trained_share"] < 0.5
    asked = run(prepared, tmp_path / "asked", packing=False, train=Train(train_on_prompt=True))
    assert asked["trained_share"] == 1


def test_two_runs_give_the_same_bytes(prepared: Path, tmp_path: Path) -> None:
    run(prepared, tmp_path / "one")
    assert tree_hash(prepared / "data/tokens") == tree_hash(tmp_path / "one")


def test_rows_that_are_too_long_are_counted_and_never_cut(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Q-PREPROCESS-001: .*too_long: \d+"):
        run(prepared, tmp_path / "tokens", max_length=16)
    assert not (tmp_path / "tokens").exists()


def test_text_is_trained_and_what_is_no_use_is_counted(prepared: Path, tmp_path: Path) -> None:
    chat = {
        "kind": "chat",
        "messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}],
    }
    others = [
        {
            "kind": "text",
            "messages": [],
            "segments": [{"text": "two and two", "train": False}, {"text": " are four", "train": True}],
        },
        chat | {"kind": "feedback", "label": False},
        chat | {"reward": -1.0},
        # a part of a long text that is not its last one
        {
            "kind": "text",
            "messages": [],
            "segments": [{"text": "one two three.\n\n", "train": True}, {"text": "", "train": False}],
        },
        {"kind": "prompt", "messages": chat["messages"][:1], "answer": "4"},
        {"messages": [chat["messages"][0], {"role": "assistant", "content": "<|im_end|>4"}]},
        {"messages": [chat["messages"][0], {"role": "assistant", "content": "4", "reasoning_content": "hm"}]},
    ]
    root = tmp_path / "project"
    for split, rows in {"train": [chat, *others], "val": [chat]}.items():
        write_rows(root / f"data/final/{split}.jsonl", rows)
    (root / "models").mkdir()
    (root / "models/base").symlink_to(prepared / "models/base")
    stats = run(root, tmp_path / "tokens", packing=False)
    counted = stats["splits"]["train"]
    assert counted["rejected"] == {"control_token": 1, "not_learned": 2, "template_drops": 1}
    assert counted["rows"] == 4
    assert (counted["untrained"], counted["rewards"]["sequences"]) == ({"feedback": 1, "prompt": 1}, 1)
    _, left_out, untrained, rewarded = summary(stats)
    assert left_out == "4 rows left out: 2 not_learned, 1 control_token, 1 template_drops"
    assert "2 rows won't be trained (1 feedback and 1 prompt)" in untrained
    assert "reward -1" in rewarded
    page = render_labels_page(stats, [])
    assert "2 rows won&#39;t be trained" in page
    assert "reward -1" in page
    _, text, _, part = parquet.read_table(tmp_path / "tokens/train.parquet").to_pylist()
    assert part["labels"] == part["input_ids"]
    assert part["input_ids"][-1] != tiny.END, "no end of text is learned where the text goes on"
    assert [label for label in text["labels"] if label != IGNORED] == text["input_ids"][-3:]
    assert text["input_ids"][-1] == tiny.END  # <|im_end|>, for it is learned to its end


def test_the_kinds_that_are_said_to_be_trained_are(prepared: Path) -> None:
    turns = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    rows = [
        {"kind": kind, "messages": turns, "segments": [{"text": "a", "train": True}]}
        for kind in get_args(Kind)
    ]
    codes = {
        row["kind"]: isinstance(found, Unrenderable) and found.code
        for row, found in encode(load_tokenizer(prepared / "models/base"), rows)
    }
    assert codes == {kind: False if kind in TRAINED else NOT_LEARNED for kind in get_args(Kind)}

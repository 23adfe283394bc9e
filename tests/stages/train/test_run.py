"""run: an unfinished run goes on with the same inputs only, says what changed, and loses nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from training_logs import checkpoint

from pipeline.config.params import load_params
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hashing import tree_hash
from pipeline.core.places import PROJECT
from pipeline.stages.train.run import RUN, describe, find_start, finish, run_id

RECORD: dict[str, Any] = {
    "tokens_sha256": "t",
    "base": {"weights_sha256": "w", "template_sha256": "c"},
    "settings": {"r": 16, "learning_rate": 1e-4},
    "versions": {"torch": "2.13.0"},
    "device": "cpu",
    "threads": 2,
}


def make(folder: Path, step: int, best: int | None = None) -> Path:
    """A checkpoint of the run of `RECORD`."""
    return checkpoint(folder, step, best, run_id(RECORD))


def begun(folder: Path) -> Path:
    """An unfinished run at step 7."""
    assert find_start(folder, RECORD, resume=True) is None
    return make(folder, 7)


def changed(**values: Any) -> dict[str, Any]:
    return {
        key: value | values.get(key, {}) if isinstance(value, dict) else values.get(key, value)
        for key, value in RECORD.items()
    }


def test_a_gpu_says_that_nf4_was_made_in_main_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NF4 is made in main memory if the base is shared out. A run on another device than the record's goes
    on, with a message.
    """
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda number: "a card")
    settings = load_params(PROJECT / "recipes/qwen2.5-7b-8gb.yaml").training

    def described(**changed: Any) -> dict[str, Any]:
        return describe(tmp_path, tmp_path, settings.model_copy(update=changed))

    assert described()["device"] == described(offload="shared", quantization="gguf")["device"] == "a card"
    elsewhere = [described(offload=where)["settings"] for where in ("shared", "embeddings", 3)]
    assert elsewhere == 3 * [described()["settings"]]
    assert described(offload="shared")["device"].startswith("a card, ")


def test_checkpoints_of_nobody_are_neither_gone_on_from_nor_deleted(tmp_path: Path) -> None:
    checkpoint = make(tmp_path, 7)
    with pytest.raises(ConfigError, match="Q-TRAIN-028"):
        find_start(tmp_path, RECORD, resume=True)
    assert checkpoint.is_dir()
    assert find_start(tmp_path, RECORD, resume=False) is None
    assert not checkpoint.exists()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tokens_sha256": "x"}, ["(data/tokens)"]),
        ({"base": {"weights_sha256": "x"}}, ["base's weights"]),
        ({"base": {"template_sha256": "x"}}, ["chat template"]),
        ({"settings": {"r": 8}}, ["train.r (16 → 8)"]),
        ({"versions": {"torch": "2.14.0"}}, ["torch (2.13.0 → 2.14.0)"]),
        (
            {"tokens_sha256": "x", "settings": {"r": 8, "learning_rate": 0.1}},
            ["learning_rate (0.0001 → 0.1)", "train.r (16 → 8)", "(data/tokens)"],
        ),
    ],
)
def test_another_one_is_refused_by_name_and_nothing_is_touched(
    tmp_path: Path, values: dict[str, Any], words: list[str]
) -> None:
    begun(tmp_path)
    before = tree_hash(tmp_path)
    with pytest.raises(ConfigError) as refused:
        find_start(tmp_path, changed(**values), resume=True)
    assert refused.value.id == "Q-TRAIN-029"
    assert all(one in refused.value.sentence for one in (*words, "(step 7)", "--no-resume"))
    assert refused.value.sentence.count(" → ") == sum(one.count(" → ") for one in words)
    assert tree_hash(tmp_path) == before


def test_another_machine_may_go_on_but_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = begun(tmp_path)
    assert find_start(tmp_path, changed(threads=4), resume=True) == checkpoint
    assert "threads (2 → 4)" in capsys.readouterr().err


@pytest.mark.parametrize("finished", [False, True])
def test_a_chosen_checkpoint_is_gone_on_from_and_newer_ones_are_set_aside(
    tmp_path: Path, finished: bool
) -> None:
    assert find_start(tmp_path, RECORD, resume=True) is None
    aside = ["checkpoint-8", "checkpoint-9", "steps.jsonl"]
    checkpoints = [make(tmp_path, step) for step in (7, 8, 9)]
    (tmp_path / "steps.jsonl").write_text("rows")
    if finished:
        finish(tmp_path, RECORD)
    assert find_start(tmp_path, RECORD, resume=checkpoints[0]) == checkpoints[0]
    assert sorted(path.name for path in (tmp_path / "later").iterdir()) == aside
    assert find_start(tmp_path, RECORD, resume=True) == checkpoints[0]
    make(tmp_path, 8)
    assert find_start(tmp_path, RECORD, resume=Path("checkpoint-7")) == checkpoints[0]
    assert sorted(path.name for path in (tmp_path / "later").iterdir()) == aside
    assert find_start(tmp_path, changed(settings={"r": 8}), resume=False) is None
    assert [path.name for path in tmp_path.iterdir()] == [RUN]


@pytest.mark.parametrize(
    ("given", "record", "spoil", "error", "words"),
    [
        ("nowhere/checkpoint-7", RECORD, None, ConfigError, "Q-TRAIN-030"),
        ("checkpoint-9", RECORD, None, ConfigError, "Q-TRAIN-030"),
        (".", RECORD, None, ConfigError, "Q-TRAIN-030"),
        ("checkpoint-7", RECORD, "weights", DataError, "Q-TRAIN-031"),
        ("checkpoint-7", RECORD | {"tokens_sha256": "x"}, None, ConfigError, "Q-TRAIN-029"),
        ("checkpoint-7", RECORD, "run", ConfigError, "Q-TRAIN-030"),
    ],
)
def test_a_choice_that_is_none_is_one_sentence_and_moves_nothing(
    tmp_path, given, record, spoil, error, words
) -> None:
    begun(tmp_path)
    make(tmp_path, 8)
    if spoil == "weights":
        (tmp_path / "checkpoint-7/weights").write_bytes(b"x")
    if spoil == "run":
        marker = tmp_path / "checkpoint-7/complete.json"
        marker.write_text(json.dumps(json.loads(marker.read_text()) | {"run": "another"}))
    before = tree_hash(tmp_path)
    with pytest.raises(error, match=words):
        find_start(tmp_path, record, resume=tmp_path / given)
    assert tree_hash(tmp_path) == before


def test_a_chosen_checkpoint_whose_best_adapter_was_deleted_is_refused_before_it_costs_a_night(
    tmp_path: Path,
) -> None:
    begun(tmp_path)
    lost, kept = make(tmp_path, 8, best=5), make(tmp_path, 9, best=7)
    before = tree_hash(tmp_path)
    with pytest.raises(ConfigError, match="Q-TRAIN-032"):
        find_start(tmp_path, RECORD, resume=lost)
    assert tree_hash(tmp_path) == before
    assert find_start(tmp_path, RECORD, resume=kept) == kept


def test_a_finished_run_makes_room(tmp_path: Path) -> None:
    checkpoint = begun(tmp_path)
    finish(tmp_path, RECORD)
    # killed between publishing and recording: nothing is trained twice
    assert find_start(tmp_path, RECORD, resume=True) == checkpoint
    finish(tmp_path, RECORD)
    assert find_start(tmp_path, changed(settings={"r": 8}), resume=True) is None


def test_a_damaged_record_is_one_sentence(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / RUN).write_text("{")
    with pytest.raises(DataError, match="Q-TRAIN-033"):
        find_start(tmp_path, RECORD, resume=True)


def test_a_setting_that_is_newer_than_the_record_is_as_its_default(tmp_path: Path) -> None:
    checkpoint = begun(tmp_path)
    newer = changed(settings={"min_lr_rate": 0.0, "preference": {"beta": None, "gamma": None}})
    assert find_start(tmp_path, newer, resume=checkpoint) == checkpoint
    assert find_start(tmp_path, newer, resume=True) == checkpoint
    with pytest.raises(ConfigError, match=r"Q-TRAIN-029.*train.min_lr_rate \(0.0 → 0.1\)"):
        find_start(tmp_path, changed(settings={"min_lr_rate": 0.1}), resume=True)

"""Distillation a level end to end on a tiny model: the teacher's answers on the disk, the run, what it
reports, how it goes on after a kill.
"""

import json
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import run_stages
from killed import kill_at
from tiny import FOUR_STEPS, tiny_gguf, write_project
from train_runs import begun, job_in, level_params, one_thread, result, settings_in  # noqa: F401 (a fixture)
from train_runs import run_in as run

from pipeline.config.methods import TEACHER, TEACHER_TOP_K
from pipeline.core.errors import DataError, GateError, MachineError
from pipeline.core.hashing import file_hash
from pipeline.gguf.base_files import SOURCE_FILE
from pipeline.models.quantized_model import load_gguf
from pipeline.stages.train.dataset import load_rows
from pipeline.stages.train.distill.teacher import ask_teacher, batches
from pipeline.stages.train.run import find_start

KEPT_BY_TEACHER = "pipeline.stages.train.distill.teacher.TEACHER_TOP_K"
DISTILL = FOUR_STEPS | {"method": "distill", "r": 8, "lora_alpha": 16, "lora_dropout": 0.0}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose base is a one-layer Llama at Q4_0, with the 16-bit file beside it, up to `preprocess`.
    Read only: copy it to change it.
    """
    root = tmp_path_factory.mktemp("distillation")
    random = np.random.default_rng(3)
    # answers that are not all alike, for Q4_0 to damage
    steep = {"token_embd.weight": random.normal(0, 0.6, (261, 32)).astype(np.float16)}
    params = level_params(tiny_gguf(root / "source.gguf", tensors=steep))
    params["train"] |= DISTILL
    return run_stages(write_project(root / "project", params), ("base", "curate", "preprocess"))


def ask(project: Path, checkpoints: Path, **changes: Any) -> Any:
    """The teacher's answers below `checkpoints`, as `train` gets them."""
    job = job_in(project, checkpoints / "unused", settings_in(project, **changes))
    return ask_teacher(begun(replace(job, checkpoints=checkpoints)))


def never(*arguments: Any, **more: Any) -> Any:
    raise AssertionError("the teacher was asked again")


# --- the teacher's answers ----------------------------------------------------------------------------------


def test_the_answers_are_those_of_each_conversation_alone(project: Path, tmp_path: Path) -> None:
    teacher = ask(project, tmp_path)
    model = load_gguf(project / "models/base", compute_dtype=torch.float32, device="cpu", name=SOURCE_FILE)
    rows = load_rows(project / "data/tokens", "train")
    assert any(len(lengths) > 1 for lengths in rows["seq_lengths"])
    for row in rows.select(range(3)):
        ids, logs = teacher.train.of(row["row"])
        assert ids.shape == (sum(row["seq_lengths"]) - len(row["seq_lengths"]), TEACHER_TOP_K)
        assert logs.shape == (len(ids), TEACHER_TOP_K + 1)
        start = done = 0
        for length in row["seq_lengths"]:
            given = torch.tensor([row["input_ids"][start : start + length]])
            with torch.no_grad():
                alone = model(input_ids=given, use_cache=False).logits[0, :-1].log_softmax(1)
            expected, expected_ids = alone.topk(TEACHER_TOP_K, 1)
            piece = slice(done, done + length - 1)
            np.testing.assert_allclose(logs[piece, :-1], expected.numpy(), rtol=5e-4, atol=1e-3)
            assert (ids[piece] == expected_ids.numpy()).mean() > 0.99
            rest = 1 - np.exp(logs[piece, :-1].astype(np.float64)).sum(1)
            np.testing.assert_allclose(np.exp(logs[piece, -1].astype(np.float64)), rest, atol=5e-3)
            start, done = start + length, done + length - 1


def test_what_is_kept_is_as_large_as_it_says_and_is_reported(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = ask(project, tmp_path).figures
    rows = [row for split in ("train", "val") for row in load_rows(project / "data/tokens", split)]
    lengths = [length for row in rows for length in row["seq_lengths"]]
    assert figures["positions"] == sum(lengths) - len(lengths)
    assert figures["bytes"] == figures["positions"] * (6 * TEACHER_TOP_K + 2)
    on_disk = sum(file.stat().st_size for file in (tmp_path / TEACHER).glob("*.npy"))
    assert figures["bytes"] <= on_disk <= figures["bytes"] + 4 * 256
    assert figures["sha256"] == file_hash(project / "models/base" / SOURCE_FILE)
    assert figures["file"] == SOURCE_FILE and figures["top_k"] == TEACHER_TOP_K
    assert 0 < figures["covered"] < 1
    monkeypatch.setattr(KEPT_BY_TEACHER, 10_000)
    wanted = {"top_k": 261, "bytes": figures["positions"] * (6 * 261 + 2), "covered": 1.0}
    assert ask(project, tmp_path / "all").figures | {"covered": 1.0} == figures | wanted


def test_rows_are_asked_about_in_order_and_no_more_at_a_time_than_the_longest(project: Path) -> None:
    rows = load_rows(project / "data/tokens", "train")
    longest = max(map(sum, rows["seq_lengths"]))
    asked = list(batches(rows))
    assert [number for batch in asked for number in batch["rows"]] == list(range(len(rows)))
    assert max(batch["input_ids"].numel() for batch in asked) == longest
    short = [
        {"input_ids": [1] * n, "labels": [1] * n, "seq_lengths": [n], "row": n, "row_ids": []}
        for n in (4, 3, 8, 5, 1, 2)
    ]

    class Rows(list[Any]):
        def __getitem__(self, key: Any) -> Any:
            return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)

    assert [batch["rows"] for batch in batches(Rows(short))] == [[4, 3], [8], [5, 1, 2]]
    assert list(batches(Rows())) == []


def test_what_is_there_is_used_again(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask(project, tmp_path)
    monkeypatch.setattr("pipeline.stages.train.distill.teacher.load_gguf", never)
    again = ask(project, tmp_path, learning_rate=1e-3, r=4)  # nothing that the answers depend on
    assert again.figures == first.figures and np.array_equal(again.train.logs, first.train.logs)


def test_answers_of_other_settings_are_not_used(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(project, tmp_path)
    ask(project, tmp_path, bnb_4bit_compute_dtype="bfloat16")
    assert "can't be used (compute_dtype changed): they are made again" in capsys.readouterr().err
    monkeypatch.setattr(KEPT_BY_TEACHER, 7)
    ask(project, tmp_path, bnb_4bit_compute_dtype="bfloat16")
    assert "can't be used (top_k changed): they are made again" in capsys.readouterr().err


@pytest.mark.parametrize(
    "what",
    ["source", "cut", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tokens", "record", "gone"))],
)
def test_answers_of_other_files_or_damaged_ones_are_not_used(
    project: Path, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(project, tmp_path / "project"))
    before = ask(root, tmp_path).figures
    file = tmp_path / TEACHER / "train-logs.npy"
    if what == "source":
        random = np.random.default_rng(4)
        tiny_gguf(
            root / "models/base" / SOURCE_FILE,
            tensors={"token_embd.weight": random.normal(0, 0.6, (261, 32)).astype(np.float16)},
        )
    elif what == "tokens":
        (root / "data/tokens/manifest.json").write_text("{}")
    elif what == "cut":
        file.write_bytes(file.read_bytes()[:-2])
    elif what == "record":
        (tmp_path / TEACHER / "teacher.json").write_text("{")
    else:
        file.unlink()
    after = ask(root, tmp_path).figures
    assert "they are made again" in capsys.readouterr().err
    assert (before == after) == (what != "source")


def test_answers_to_other_rows_are_refused(project: Path, tmp_path: Path) -> None:
    from pipeline.stages.train.dataset import Collator
    from pipeline.stages.train.distill.trainer import DistillCollator

    teacher = ask(project, tmp_path)
    rows = load_rows(project / "data/tokens", "train")
    collate = DistillCollator(Collator(), teacher.train)
    batch = collate([rows[1], rows[0]])
    first, second = (teacher.train.of(number)[0] for number in (0, 1))
    assert batch["trained_tokens"] == len(batch["teacher_logs"]) == len(first) + len(second)
    assert np.array_equal(batch["teacher_ids"][: len(second)], second)
    with pytest.raises(DataError, match="Q-TRAIN-019"):
        collate([rows[0] | {"seq_lengths": [sum(rows[0]["seq_lengths"])]}])


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("pipeline.core.publish.shutil.disk_usage", lambda folder: usage(1, 1, 1000))
    with pytest.raises(
        MachineError, match=r"checkpoints needs [\d.]+ (kB|MB) and its disk has 1\.0 kB free: make room"
    ):
        ask(project, tmp_path / "checkpoints")
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_teacher_without_numbers_or_without_a_file_is_one_sentence(project: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(project, tmp_path / "project"))
    tiny_gguf(
        root / "models/base" / SOURCE_FILE,
        tensors={"blk.0.ffn_down.weight": np.full((32, 64), np.nan, np.float16)},
    )
    with pytest.raises(GateError, match="Q-TRAIN-020"):
        ask(root, tmp_path / "checkpoints")
    assert not (tmp_path / "checkpoints" / TEACHER).exists()
    (root / "models/base" / SOURCE_FILE).unlink()
    with pytest.raises(DataError, match="Q-TRAIN-027"):
        ask(root, tmp_path / "checkpoints")


def test_a_start_from_nothing_keeps_the_answers_and_one_by_hand_does_not(
    project: Path, tmp_path: Path
) -> None:
    record = begun(job_in(project, tmp_path, settings_in(project))).record
    ask(project, tmp_path)
    assert find_start(tmp_path, record, resume=True) is None and (tmp_path / TEACHER).is_dir()
    assert find_start(tmp_path, record, resume=False) is None and not (tmp_path / TEACHER).exists()
    ask(project, tmp_path)
    assert find_start(tmp_path, record | {"settings": {"method": "sft"}}, resume=True) is None
    assert not (tmp_path / TEACHER).exists()


# --- the run ------------------------------------------------------------------------------------------------


def test_a_damaged_level_comes_back_to_its_original(project: Path, tmp_path: Path) -> None:
    report = run(project, tmp_path, max_steps=40, eval_steps=20, save_steps=40)
    rows = report["metrics_log"]
    held_out = [row["eval_loss"] for row in rows if row["kind"] == "eval"]
    first, last = rows[0]["loss"], np.median([row["loss"] for row in rows if row["kind"] == "step"][-5:])
    assert last < 0.4 * first and held_out[-1] < 0.4 * first
    assert first == pytest.approx(divergence_of_the_level(project), rel=0.5)  # of other rows
    assert report["method"] == "distill" and report["teacher"]["top_k"] == TEACHER_TOP_K
    assert not (tmp_path / "checkpoints" / TEACHER).exists()
    known = json.loads((tmp_path / "adapter/run.json").read_text())
    assert known["settings"]["method"] == "distill" and known["teacher_sha256"] == report["teacher"]["sha256"]
    findings = {finding["rule"]: finding for finding in report["monitoring"]}
    warned = {name for name, finding in findings.items() if finding["level"] == "warn"}
    assert warned <= {"learning rate", "speed"}
    assert "nats between the level's answers and the original's" in findings["end loss"]["text"]
    lengths = load_rows(project / "data/tokens", "train")["seq_lengths"]
    for row in (row for row in rows if row["kind"] == "step"):
        # all but the last of each conversation
        assert row["trained_tokens"] == sum(length - 1 for length in lengths[row["rows"][0]])


def divergence_of_the_level(project: Path) -> float:
    """The mean KL divergence of model.gguf from source.gguf on watched rows, over the whole vocabulary."""
    original, level = (
        load_gguf(project / "models/base", compute_dtype=torch.float32, device="cpu", name=name)
        for name in (SOURCE_FILE, "model.gguf")
    )
    found = []
    for row in load_rows(project / "data/tokens", "val"):
        start = 0
        for length in row["seq_lengths"]:
            ids = torch.tensor([row["input_ids"][start : start + length]])
            with torch.no_grad():
                theirs, ours = (
                    model(input_ids=ids, use_cache=False).logits[0, :-1].double().log_softmax(1)
                    for model in (original, level)
                )
            found.append((theirs.exp() * (theirs - ours)).sum(1))
            start += length
    return float(torch.cat(found).mean())


def test_what_is_watched_is_the_divergence_itself(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KEPT_BY_TEACHER, 261)  # the whole vocabulary
    report = run(
        project, tmp_path, max_steps=2, eval_steps=1, learning_rate=1e-12, warmup_ratio=0.0
    )  # the adapter stays nothing
    for row in report["metrics_log"]:
        if row["kind"] == "eval":
            assert row["eval_loss"] == pytest.approx(divergence_of_the_level(project), rel=5e-3)


@pytest.mark.parametrize("weight", [0.4, pytest.param(0.0, marks=pytest.mark.slow)])
def test_rows_at_once_are_rows_one_by_one(project: Path, tmp_path: Path, weight: float) -> None:
    losses = []
    for batch, accumulation in ((3, 1), (1, 3)):
        rows = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
        log = run(project, tmp_path, sft_weight=weight, max_steps=6, **rows)["metrics_log"]
        losses.append([row["loss"] for row in log if row["kind"] == "step"])
    assert len(losses[0]) == 6 and max(abs(one - other) for one, other in zip(*losses, strict=True)) <= 1e-5


@pytest.mark.slow
def test_with_a_weight_of_one_it_is_sft(project: Path, tmp_path: Path) -> None:
    recovered = run(project, tmp_path, sft_weight=1.0, gradient_accumulation_steps=2, max_steps=3)
    tuned = run(project, tmp_path, method="sft", gradient_accumulation_steps=2, max_steps=3)
    for ours, theirs in zip(recovered["metrics_log"], tuned["metrics_log"], strict=True):
        name = "loss" if ours["kind"] == "step" else "eval_loss"
        assert ours[name] == pytest.approx(theirs[name], rel=1e-6)
    assert tuned["method"] == "sft" and "teacher" not in tuned


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.0, 0.4])
def test_a_run_that_was_killed_ends_in_the_same_bytes(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weight: float
) -> None:
    changes = {"lora_dropout": 0.1, "max_steps": 6, "gradient_accumulation_steps": 2, "sft_weight": weight}
    run(project, tmp_path / "whole", **changes)
    # in step 5, of which 4 are in a checkpoint
    place = "pipeline.stages.train.distill.trainer:DistillTrainer.micro_batch"
    kill_at(place, 10, run, project, tmp_path / "broken", **changes)
    assert (tmp_path / "broken/checkpoints" / TEACHER).is_dir()
    monkeypatch.setattr("pipeline.stages.train.distill.teacher.load_gguf", never)
    report = run(project, tmp_path / "broken", resume=True, **changes)
    assert report["resumed_from"] == "checkpoint-4"
    assert result(tmp_path / "broken") == result(tmp_path / "whole")


def test_the_stage_runs_and_reports(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(project, tmp_path / "project"))
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["train"] |= {"sample_rows": 1, "early_stopping_patience": 2}
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    run_stages(root, ("train",))
    report = json.loads((root / "reports/train.json").read_text())
    assert (report["method"], report["steps"]) == ("distill", 4)
    assert set(report["teacher"]) == {"file", "sha256", "top_k", "positions", "bytes", "covered"}
    said = capsys.readouterr()
    assert "source.gguf answers at" in said.out and "made again" not in said.err

"""train from an adapter that is there (`train.start_from`): it begins with its very numbers, goes on to the
same bytes after a kill, and preferences are compared with the model as it was at the start.
"""

import shutil
from pathlib import Path
from typing import Any

import preferences
import pytest
import torch
from preferences import ANSWERS, says, user
from safetensors.torch import load_file, save_file
from train_runs import result, run, settings, train_in, trainer_in

from pipeline.core.errors import DataError, GateError
from pipeline.core.publish import read_json
from pipeline.models.tuners import as_at_start, trained_part
from pipeline.stages.train.invariants import check_learned

SMALL: dict[str, Any] = {"r": 4, "lora_alpha": 8, "sample_rows": 0, "eval_steps": 2, "save_steps": 2}


def bare(name: str) -> str:
    """Return the name of a parameter as PEFT writes it."""
    for own in (".default", ".modules_to_save"):
        name = name.replace(own, "")
    return name.replace("magnitude_vector.weight", "magnitude_vector")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"quantization": "none"},
        {"lora_variants": ["dora"]},
        {"modules_to_save": ["norm", "embed_tokens", "lm_head"]},
    ],
    ids=["nf4", "16bit", "dora", "saved"],
)
def test_training_begins_with_the_numbers_of_the_adapter(
    changes: dict[str, Any], prepared: Path, tmp_path: Path
) -> None:
    run(prepared, tmp_path / "first", sample_rows=0, **changes)
    previous = tmp_path / "first/adapter"
    trainer = trainer_in(prepared, tmp_path / "second", settings(**SMALL | changes), previous=previous)
    there = load_file(previous / "adapter_model.safetensors")
    here = {bare(name): weight for name, weight in trained_part(trainer.model).items()}
    # Embeddings and head are one parameter here, and in the file two tensors.
    assert there.keys() - here.keys() <= {"base_model.model.lm_head.weight"}
    assert all(torch.equal(weight.cpu(), there[name]) for name, weight in here.items())
    with pytest.raises(GateError, match="Q-TRAIN-025"):  # It has moved from the base, not from its start.
        check_learned(trainer.model, [{"step": 1}], previous)


def test_a_killed_second_round_ends_in_the_same_bytes(prepared: Path, tmp_path: Path) -> None:
    run(prepared, tmp_path / "first", sample_rows=0)
    previous = tmp_path / "first/adapter"
    made = settings(**SMALL | {"max_steps": 4})
    report = train_in(prepared, tmp_path / "whole", made, previous=previous)
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "whole/checkpoints", killed / "checkpoints")
    shutil.rmtree(killed / "checkpoints/checkpoint-4")
    record = killed / "checkpoints/run.json"
    record.write_text(record.read_text().replace('"finished": true', '"finished": false'))
    again = train_in(prepared, killed, made, previous=previous, resume=True)
    assert again["resumed_from"] == "checkpoint-2"
    assert result(killed) == result(tmp_path / "whole")
    assert (
        read_json(killed / "adapter/run.json", "")["previous_sha256"] == report["inputs"]["previous_sha256"]
    )
    alone = train_in(prepared, tmp_path / "alone", made)
    steps = [row["loss"] for row in report["metrics_log"] if row["kind"] == "step"]
    first = [row["loss"] for row in alone["metrics_log"] if row["kind"] == "step"]
    assert steps[0] < first[0], "the same rows are known from the first round"


@pytest.mark.parametrize(("method", "first"), [("dpo", 0.6931472), ("kto", 0.5)])
def test_preferences_are_compared_with_the_model_at_the_start(
    method: str, first: float, prepared: Path, tmp_path: Path
) -> None:
    rows = [
        {
            "kind": "preference",
            "messages": [user(f"Question {number}: what is it?")],
            "chosen": [says(ANSWERS[number])],
            "rejected": [says(ANSWERS[number + 2])],
        }
        for number in range(4)
    ]
    made = preferences.settings(method, learning_rate=1e-3)
    tokens = preferences.tokens_of(prepared, tmp_path, rows, settings=made, length=512, packing=True)
    train_in(prepared, tmp_path / "first", made, tokens=tokens)
    previous = tmp_path / "first/adapter"
    report = train_in(prepared, tmp_path / "second", made, tokens=tokens, previous=previous)
    steps = [row for row in report["metrics_log"] if row["kind"] == "step"]
    assert steps[0]["loss"] == pytest.approx(first, rel=1e-5)
    assert steps[0]["measures"]["chosen_gain"] == pytest.approx(0.0, abs=1e-6)
    assert steps[-1]["loss"] < steps[0]["loss"]


def test_a_model_at_its_start_has_its_own_numbers_again(prepared: Path, tmp_path: Path) -> None:
    run(prepared, tmp_path / "first", sample_rows=0)
    previous = tmp_path / "first/adapter"
    model = trainer_in(prepared, tmp_path / "second", settings(**SMALL), previous=previous).model
    there = load_file(previous / "adapter_model.safetensors")
    with torch.no_grad():
        for weight in trained_part(model).values():
            weight.add_(1.0)
    with as_at_start(model, previous):
        assert all(
            torch.equal(weight, there[bare(name)]) and weight.requires_grad
            for name, weight in trained_part(model).items()
        )
    assert all(torch.equal(weight, there[bare(name)] + 1.0) for name, weight in trained_part(model).items())


def test_two_tables_are_not_put_into_one(prepared: Path, tmp_path: Path) -> None:
    tables = {"modules_to_save": ["embed_tokens", "lm_head"]}
    run(prepared, tmp_path / "first", sample_rows=0, **tables)
    file = tmp_path / "first/adapter/adapter_model.safetensors"
    numbers = load_file(file)
    head = next(name for name in numbers if "lm_head" in name)
    save_file(numbers | {head: numbers[head] + 1.0}, file)
    with pytest.raises(DataError, match="Q-MODELS-040"):
        trainer_in(prepared, tmp_path / "second", settings(**SMALL | tables), previous=file.parent)


@pytest.mark.parametrize(
    "changes",
    [{"r": 8}, {"target_modules": ["q_proj"]}, {"lora_variants": ["dora"]}, {"modules_to_save": ["norm"]}],
    ids=["rank", "targets", "dora", "saved"],
)
def test_numbers_of_another_adapter_are_refused(
    changes: dict[str, Any], prepared: Path, tmp_path: Path
) -> None:
    run(prepared, tmp_path / "first", sample_rows=0)
    with pytest.raises(DataError, match="Q-MODELS-040"):
        trainer_in(
            prepared, tmp_path / "second", settings(**SMALL | changes), previous=tmp_path / "first/adapter"
        )

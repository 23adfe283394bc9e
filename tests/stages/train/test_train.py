"""train: what the recipe says reaches the trainer, losses are means over tokens, a run that went wrong is
refused, what is published.
"""

import csv
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from preferences import says, tokens_of, user
from qlora import sixteen
from report_inputs import CURVE
from safetensors.torch import load_file, save_file
from train_runs import run, settings, train_in, trainer_in

from pipeline.config.sections import Train, Training
from pipeline.core.errors import ConfigError, DataError, GateError, Stopped, ToolError
from pipeline.core.interruption import Interruption
from pipeline.core.jsonl import read_rows
from pipeline.planning.duration import total_steps, warmup_steps
from pipeline.stages.train.assembly import check_settings
from pipeline.stages.train.distributed.reducer import GroupReducer
from pipeline.stages.train.invariants import check_learned, check_no_leaks
from pipeline.stages.train.journal import check_mean
from pipeline.stages.train.loop import Trainer, kind_of

# --- the recipe ---------------------------------------------------------------------------------------------


def up_proj(made: Any) -> Any:
    return made.model.base_model.model.model.layers[0].mlp.up_proj


WHERE: dict[str, Callable[[Any], Any]] = {  # where each setting ends up in the trainer that runs
    "quantization": lambda made: made.model.config.quantization_config.bnb_4bit_quant_type,
    "bnb_4bit_compute_dtype": lambda made: str(
        made.model.config.quantization_config.bnb_4bit_compute_dtype
    ).removeprefix("torch."),
    "r": lambda made: up_proj(made).lora_A["default"].weight.shape[0],
    "lora_alpha": lambda made: round(up_proj(made).scaling["default"] * 16),
    "lora_dropout": lambda made: up_proj(made).lora_dropout["default"].p,
    "target_modules": lambda made: sorted(
        {name.split(".")[-2] for name, _ in made.model.named_modules() if name.endswith("lora_A")}
    ),
    "learning_rate": lambda made: made.optimizer.param_groups[0]["initial_lr"],
    "weight_decay": lambda made: max(group["weight_decay"] for group in made.optimizer.param_groups),
    "neftune_noise_alpha": lambda made: made.model.get_input_embeddings().neftune_noise_alpha,
    "gradient_checkpointing": lambda made: made.model.is_activation_checkpointing,
    "lora_variants": lambda made: [
        name for name in ("dora", "rslora") if getattr(made.model.peft_config["default"], f"use_{name}")
    ],
    "rank_pattern": lambda made: made.model.peft_config["default"].rank_pattern,
}
OPTIMIZERS = get_args(Train.model_fields["optim"].annotation)
ELSEWHERE = {  # tested below or beside their code
    *("num_train_epochs", "max_steps", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("lr_scheduler_type", "min_lr_rate", "max_grad_norm", "save_steps", "eval_steps", "seed"),
    *("device", "rollout_type"),
    *(
        "warmup_ratio",
        "optim",
        "loss",
        "method",
        "reward",
        "reward_temperature",
        "preference",
        "grpo",
        "experts",
        "tuner",
    ),
    *("sft_weight", "offload", "early_stopping_patience", "sample_rows", "layers", "modules_to_save"),
    *("train_on_prompt", "machine", "clip_value", "order", "save_total_limit"),
    *("report_to", "compile", "start_from"),
}


def test_every_value_of_the_8gb_recipe_reaches_the_trainer(prepared: Path, tmp_path: Path) -> None:
    # the two values that need a GPU are below; a dropout of null is the method's own
    here = {"optim": "adamw_torch", "loss": "chunked", "neftune_noise_alpha": 5.0, "lora_dropout": 0.1}
    recipe = settings("qwen2.5-7b-8gb", **here)
    assert {*WHERE, *ELSEWHERE} == set(Training.model_fields)
    made = trainer_in(prepared, tmp_path, recipe)
    made.begin()
    for name, find in WHERE.items():
        wanted = getattr(recipe, name)
        assert find(made) == (sorted(wanted) if isinstance(wanted, list) else wanted), name
    trained = [parameter for parameter in made.model.parameters() if parameter.requires_grad]
    assert {parameter.dtype for parameter in trained} == {torch.float32}


def test_the_recipe_names_what_needs_a_gpu() -> None:
    recipe = settings("qwen2.5-7b-8gb")
    assert (recipe.optim, recipe.loss) == ("paged_adamw_8bit", "liger")
    assert warmup_steps(recipe, 2891) == 109  # a tenth of 1,086
    assert total_steps(recipe, 2891) == 1086


@pytest.mark.parametrize("optim", [name for name in OPTIMIZERS if name != "auto"])
def test_optimizers_are_those_of_transformers(optim: str, tmp_path: Path) -> None:
    from transformers import Trainer as TransformersTrainer
    from transformers import TrainingArguments

    arguments = TrainingArguments(output_dir=str(tmp_path), optim=optim, learning_rate=3e-4, report_to="none")
    kind, options = TransformersTrainer.get_optimizer_cls_and_kwargs(arguments)
    assert kind_of(optim) == (kind, {name: value for name, value in options.items() if name != "lr"})


def test_bfloat16_on_a_gpu_without_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: False)
    with pytest.raises(ConfigError, match="Q-TRAIN-017"):
        check_settings(settings(bnb_4bit_compute_dtype="bfloat16"), rows=10, held_out=1, cuda=True)
    check_settings(settings(bnb_4bit_compute_dtype="float16"), rows=10, held_out=1, cuda=True)


@pytest.mark.parametrize(
    ("changes", "held_out", "error", "words"),
    [
        ({"max_steps": 1}, 1, ConfigError, "Q-TRAIN-016"),
        ({"optim": "paged_adamw_8bit"}, 1, ToolError, "Q-TRAIN-014"),  # without a GPU
        ({"offload": 2}, 1, ConfigError, "Q-PLANNING-008"),
        ({"early_stopping_patience": 2, "eval_steps": 10, "save_steps": 10}, 0, DataError, "Q-TRAIN-015"),
    ],
)
def test_settings_that_cannot_be_are_one_sentence(
    changes: dict[str, Any], held_out: int, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        check_settings(settings(**changes), rows=10, held_out=held_out, cuda=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optim": "adamw_torhc"}, "optim"),
        ({"seed": -1}, "seed"),
        ({"num_train_epochs": float("inf")}, "num_train_epochs"),
        ({"max_grad_norm": float("nan")}, "max_grad_norm"),
        (
            {"early_stopping_patience": 2, "eval_steps": 3, "save_steps": 10},
            "save_steps is 10 and eval_steps is 3: make them equal",
        ),
    ],
)
def test_settings_that_the_libraries_choke_on_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        settings(**changes)


# --- the loss -----------------------------------------------------------------------------------------------


def uneven(prepared: Path, folder: Path) -> Path:
    """The prepared rows unpacked, of lengths that differ threefold."""
    words = "one two three four five six seven eight nine ten eleven twelve".split()  # noqa: SIM905
    rows = [
        {"id": f"{number}", "kind": "chat"}
        | {
            "messages": [
                user(" ".join(words[: 1 + number % 12])),
                says(" ".join(words[number % 5 : 6 + number % 7])),
            ]
        }
        for number in range(48)
    ]
    return tokens_of(prepared, folder, rows)


@pytest.mark.slow
def test_eight_rows_at_once_are_eight_rows_one_by_one(prepared: Path, tmp_path: Path) -> None:
    """8×1 and 1×8 give the same losses along 50 steps in float32, though the rows' lengths differ."""
    tokens, losses = uneven(prepared, tmp_path), {}
    for batch, accumulation in ((8, 1), (1, 8)):
        at_once = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
        steps = dict.fromkeys(("max_steps", "eval_steps", "save_steps"), 50)
        asked = sixteen(lora_alpha=8, sample_rows=0, **steps, **at_once)
        report = train_in(prepared, tmp_path, tokens=tokens, settings=asked)
        losses[batch] = [row["loss"] for row in report["metrics_log"] if row["kind"] == "step"]
    assert len(losses[8]) == 50
    assert max(abs(one - other) for one, other in zip(losses[8], losses[1], strict=True)) <= 1e-5


def test_a_mean_of_means_is_named() -> None:
    check_mean(3, 2.0, 20.0, 10)
    with pytest.raises(GateError, match="Q-TRAIN-018"):
        check_mean(3, 2.5, 20.0, 10)


# --- runs that went wrong -----------------------------------------------------------------------------------


class OneWeight(torch.nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.lora_B = torch.nn.Parameter(torch.full((2, 2), value))


@pytest.mark.parametrize(
    ("steps", "weight", "words"),
    [([], 1.0, "Q-TRAIN-023"), ([{}], 0.0, "Q-TRAIN-025"), ([{}], float("nan"), "Q-TRAIN-024")],
)
def test_a_run_that_cannot_have_learned_is_refused(
    steps: list[dict[str, Any]], weight: float, words: str
) -> None:
    with pytest.raises(GateError, match=words):
        check_learned(OneWeight(weight), steps)


def test_a_healthy_run_passes() -> None:
    check_learned(OneWeight(0.1), [{"loss": 1.0}])


def test_a_model_whose_packed_rows_see_each_other_is_refused(tiny_qwen2: Path) -> None:
    from pipeline.models.qlora import load_quantized
    from pipeline.stages.train.dataset import Collator

    model, collate = load_quantized(tiny_qwen2, settings()), Collator()
    rows = [([970, 11, 1879], [-100] * 3), ([40, 2776, 3974, 13], [-100] * 4)]
    error = check_no_leaks(model, collate, rows)
    assert error is not None and error < 1e-3
    assert check_no_leaks(model, collate, rows[:1]) is None
    with pytest.raises(ConfigError, match="Q-TRAIN-021"):
        # positions forgotten: one long text
        check_no_leaks(model, lambda examples: {"input_ids": collate(examples)["input_ids"]}, rows)


def test_a_base_that_is_damaged_stops_the_run_before_it_starts(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipeline.__main__ import main

    root = Path(shutil.copytree(prepared, tmp_path / "project"))
    weights = root / "models/base/model.safetensors"
    tensors = load_file(weights)
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, weights, metadata={"format": "pt"})
    assert main(["train", "--root", str(root)]) == 5
    assert "answers are not numbers before any training: run stage base again" in capsys.readouterr().err
    assert not (root / "models/adapter").exists()


# --- what is published --------------------------------------------------------------------------------------


def test_the_best_adapter_is_published_when_the_loss_rises_again(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses on the held-out rows are dictated: best at step 2, worse at 3 to 6, so training stops there,
    when the checkpoint of step 2 is no longer among the newest three.
    """
    matrix = "base_model.model.model.layers.0.mlp.up_proj.lora_B"
    dictated = {1: 3.0, 2: 1.0, 3: 2.0, 4: 2.5, 5: 2.2, 6: 2.1}
    kept: dict[int, torch.Tensor] = {}

    def held_out_metrics(self: Any) -> dict[str, float]:
        weights = dict(self.model.named_parameters())
        kept[self.step] = weights[f"{matrix}.default.weight"].detach().clone()
        return {"eval_loss": dictated[self.step]}

    monkeypatch.setattr(Trainer, "held_out_metrics", held_out_metrics)
    report = run(prepared, tmp_path, max_steps=20, eval_steps=1, save_steps=1, early_stopping_patience=4)
    figures = [report[key] for key in ("steps", "planned_steps", "adapter_step", "eval_loss")]
    assert figures == [6, 20, 2, 1.0]
    published = load_file(tmp_path / "adapter/adapter_model.safetensors")[f"{matrix}.weight"]
    assert torch.equal(published, kept[2])
    assert not torch.equal(published, kept[6])


def test_what_a_run_leaves(prepared: Path, tmp_path: Path) -> None:
    report = run(prepared, tmp_path, sample_rows=1)
    rows = report["metrics_log"]
    assert [(row["kind"], row["step"]) for row in rows] == [("step", 1), ("step", 2), ("eval", 2)]
    assert rows[0]["tokens"] > rows[0]["trained_tokens"] > 0
    assert rows[0]["row_ids"]
    assert set(rows[2]["samples"][0]) == {"prompt", "answer", "reference"}
    assert report["proven"]["packing_nmse"] < 1e-3
    known = json.loads((tmp_path / "adapter/run.json").read_text())
    assert known["settings"]["learning_rate"] == 5e-4
    assert set(known["base"]) == {"weights_sha256", "config_sha256", "tokenizer_sha256", "template_sha256"}
    assert json.loads((tmp_path / "checkpoints/run.json").read_text())["finished"] is True
    assert all(finding["level"] in ("ok", "warn", "not measured") for finding in report["monitoring"])


def test_a_checkpoint_of_another_training_loop_is_refused(prepared: Path, tmp_path: Path) -> None:
    made = trainer_in(prepared, tmp_path, settings())
    made.write_state(tmp_path)
    made.read_state(tmp_path)
    torch.save(made.optimizer.state_dict(), tmp_path / "optimizer.pt")  # as transformers' Trainer has it
    with pytest.raises(ConfigError, match="Q-TRAIN-029"):
        made.read_state(tmp_path)


def test_the_curve_has_a_line_a_step(finished: Path) -> None:
    log = list(read_rows(finished / "reports/train.jsonl"))
    evaluated = {row["step"]: str(row["eval_loss"]) for row in log if row["kind"] == "eval"}
    with (finished / "reports/train.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == CURVE and evaluated
    steps = [row["step"] for row in log if row["kind"] == "step"]
    assert [(row["step"], row["eval_loss"]) for row in rows] == [
        (str(step), evaluated.get(step, "")) for step in steps
    ]


def test_a_signal_of_ones_own_does_not_cut_the_checkpoint_short_that_anothers_asked_for() -> None:
    class Stopping(Trainer):
        step = 3

        def __init__(self, interruption: Interruption, reducer: GroupReducer) -> None:
            self.interruption, self.reducer, self.stopped = interruption, reducer, None

        def save_newest(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            saved.append(self.step)

    answers = torch.tensor([[0, 3, 0, 0], [15, 3, 0, 0]])
    group: Any = SimpleNamespace(count=2, all_gather=lambda mine: answers)
    reducer = GroupReducer(group, [], sharded=False)
    saved: list[int] = []
    with Interruption() as interruption, pytest.raises(Stopped):
        reducer.meet(Stopping(interruption, reducer), 0, 0)
    Interruption.stopping = False
    assert saved == [3]

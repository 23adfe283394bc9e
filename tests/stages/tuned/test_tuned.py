"""Scales that train inside a GGUF: the run, how it goes on after a kill, and the file that comes out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import run_stages
from killed import kill_at
from safetensors.torch import load_file, save_file
from tiny import FOUR_STEPS, tiny_gguf, write_project
from train_runs import level_params, one_thread  # noqa: F401 (a fixture)
from train_runs import run_in as run

from pipeline.config.tuners import SCALES_FILE
from pipeline.core.errors import DataError, GateError
from pipeline.core.hashing import file_hash
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.header import read_header
from pipeline.gguf.provenance import ADAPTER, BASE_FILE
from pipeline.gguf.tensors import SCALES, gguf_tensors
from pipeline.llamacpp.tools import Toolchain
from pipeline.models.quantized_model import load_gguf
from pipeline.models.tuners import restored
from pipeline.stages.parity.scales_weights import scales_weights
from pipeline.stages.tuned.stage import write

SCALED = FOUR_STEPS | {"tuner": "scales", "weight_decay": 0.0}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose base is a one-layer Llama at Q4_0, up to `preprocess`. Read only."""
    root = tmp_path_factory.mktemp("scales")
    random = np.random.default_rng(5)
    # two heads of keys and values for four of queries
    halves = {
        f"blk.0.attn_{name}.weight": random.normal(0, 0.2, (16, 32)).astype(np.float16) for name in "kv"
    }
    source = tiny_gguf(root / "source.gguf", tensors=halves, llama__attention__head_count_kv=2)
    params = level_params(source, "tuned")
    params["train"] |= SCALED
    return run_stages(write_project(root / "project", params), ("base", "curate", "preprocess"))


@pytest.fixture(scope="module")
def trained(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, with its report. Read only."""
    root = tmp_path_factory.mktemp("trained")
    torch.set_num_threads(1)
    report = run(project, root)
    (root / "report.json").write_text(json.dumps(report, default=str))
    return root


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=torch.arange(40)[None] * 5 % 250).logits
    return found


def base_model(project: Path, name: str = MODEL_FILE, folder: Path | None = None) -> Any:
    return load_gguf(folder or project / "models/base", compute_dtype=torch.float32, device="cpu", name=name)


def test_every_scale_of_the_layers_trains_and_nothing_else(project: Path, trained: Path) -> None:
    report = json.loads((trained / "report.json").read_text())
    _, tensors = gguf_tensors(project / "models/base" / MODEL_FILE)
    layers = [one for name, one in tensors.items() if name.startswith("blk.") and len(one.shape) == 2]
    expected = sum(one.rows * (one.columns // one.block) * len(SCALES[one.ggml_type]) for one in layers)
    assert report["proven"]["trainable_parameters"] == expected
    changes = load_file(trained / "adapter" / SCALES_FILE)
    assert len(changes) == len(layers) == 7
    assert all(float(one.abs().max()) > 0 for one in changes.values())
    assert not (trained / "adapter/adapter_config.json").exists()
    assert (trained / "adapter/run.json").is_file() and (trained / "adapter/tokenizer.json").is_file()


@pytest.mark.base_cells("scales", families=("llama",))
def test_the_file_is_what_was_trained_and_the_base_but_for_its_scales(
    project: Path, trained: Path, tmp_path: Path, tools: Toolchain
) -> None:
    target = tmp_path / "tiny-tuned.gguf"
    write(project, trained / "adapter", target, tools)
    base = project / "models/base"
    # what is computed with it is what was trained, to the last bit
    in_training = base_model(project)
    restored(in_training, trained / "adapter")
    folder = tmp_path / "served"
    folder.mkdir()
    for file in base.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / MODEL_FILE).write_bytes(target.read_bytes())
    assert torch.equal(logits(base_model(project, folder=folder)), logits(in_training))
    assert not torch.equal(logits(base_model(project)), logits(in_training))
    # and every other byte is the base's
    assert scales_weights(base, trained / "adapter", target).verdict == "pass"
    fields = read_header(target).fields
    assert fields[BASE_FILE] == file_hash(base / MODEL_FILE)
    assert fields[ADAPTER] == file_hash(trained / "adapter" / SCALES_FILE)


def test_a_run_that_was_killed_ends_in_the_same_bytes(project: Path, trained: Path, tmp_path: Path) -> None:
    # in step 4, of which 2 are in a checkpoint
    kill_at("pipeline.stages.train.loop:Trainer.micro_batch", 4, run, project, tmp_path)
    assert not (tmp_path / "adapter").exists()
    assert run(project, tmp_path, resume=True)["resumed_from"] == "checkpoint-2"
    ours, theirs = (root / "adapter" / SCALES_FILE for root in (tmp_path, trained))
    assert ours.read_bytes() == theirs.read_bytes()


def test_the_best_scales_are_kept_where_it_stops_early(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.stages.train.loop import Trainer

    losses = iter([3.0, 2.0, 4.0])
    monkeypatch.setattr(Trainer, "held_out_metrics", lambda self: {"eval_loss": next(losses)})
    report = run(project, tmp_path, max_steps=12, early_stopping_patience=1)
    assert (report["adapter_step"], report["steps"]) == (4, 6)
    kept = tmp_path / "checkpoints/checkpoint-4" / SCALES_FILE
    assert (tmp_path / "adapter" / SCALES_FILE).read_bytes() == kept.read_bytes()


def test_changes_too_small_for_float16_are_nothing_learned(project: Path, tmp_path: Path) -> None:
    with pytest.raises(GateError, match="Q-TRAIN-025"):
        run(project, tmp_path, learning_rate=1.0e-6)


@pytest.mark.parametrize("planted", [torch.nan, torch.inf, -torch.inf])
def test_a_scale_that_is_not_a_number_is_not_written(
    project: Path, trained: Path, tmp_path: Path, tools: Toolchain, planted: float
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    changes = load_file(trained / "adapter" / SCALES_FILE)
    next(iter(changes.values()))[0, 0, 0] = planted
    save_file(changes, adapter / SCALES_FILE)
    (adapter / "run.json").write_bytes((trained / "adapter/run.json").read_bytes())
    with pytest.raises(GateError, match="Q-GGUF-020"):
        write(project, adapter, tmp_path / "tuned.gguf", tools)
    assert not list(tmp_path.glob("*.gguf"))


def test_scales_of_another_file_are_refused(
    project: Path, trained: Path, tmp_path: Path, tools: Toolchain
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    run_record = json.loads((trained / "adapter/run.json").read_text())
    run_record["base"]["weights_sha256"] = "0" * 64
    target = tmp_path / "tuned.gguf"
    (adapter / "run.json").write_text(json.dumps(run_record))
    with pytest.raises(DataError, match="Q-GGUF-022"):
        write(project, adapter, tmp_path / "tuned.gguf", tools)
    (adapter / "run.json").write_bytes((trained / "adapter/run.json").read_bytes())
    with pytest.raises(DataError, match="Q-TUNED-001"):
        write(project, adapter, tmp_path / "tuned.gguf", tools)
    changes = load_file(trained / "adapter" / SCALES_FILE)
    save_file({name: one[:, :-1].contiguous() for name, one in changes.items()}, adapter / SCALES_FILE)
    with pytest.raises(DataError, match="Q-MODELS-033"):
        restored(base_model(project), adapter)
    doubles = {name: one.double() for name, one in changes.items()}
    for numbers in (doubles, {"model.embed_tokens": torch.zeros(1, 1, 1)}, {"lm_head": torch.zeros(1, 1, 1)}):
        save_file(numbers, adapter / SCALES_FILE)
        with pytest.raises(DataError, match="Q-MODELS-033"):
            write(project, adapter, target, tools)
    (adapter / SCALES_FILE).write_bytes((trained / "adapter" / SCALES_FILE).read_bytes()[:-7])
    with pytest.raises(DataError, match="Q-MODELS-033"):
        write(project, adapter, target, tools)
    assert not target.exists()

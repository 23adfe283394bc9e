"""Runs of stage train on the tiny project."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_params

from pipeline.chat.tokens import load_tokenizer
from pipeline.config.params import load_params
from pipeline.config.sections import Training
from pipeline.core.hashing import file_hash, tree_hash
from pipeline.core.interruption import Interruption
from pipeline.core.metrics_log import MEASURED, MetricsLog
from pipeline.core.places import PROJECT
from pipeline.stages.train.assembly import make_trainer
from pipeline.stages.train.checkpoints import checkpoints_in
from pipeline.stages.train.method import learner_of
from pipeline.stages.train.run import Job, Run, describe
from pipeline.stages.train.stage import train

RECIPES = PROJECT / "recipes"


def settings(recipe: str = "demo", **changes: Any) -> Training:
    plain = load_params(RECIPES / f"{recipe}.yaml").training
    return Training.model_validate(plain.model_dump() | changes)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work this small is slower on two, and many times slower beside other tests."""
    monkeypatch.setattr("pipeline.stages.train.stage.use_all_cores", lambda: torch.set_num_threads(1))
    torch.set_num_threads(1)


def run(prepared: Path, root: Path, **changes: Any) -> dict[str, Any]:
    """`train` on the prepared project's rows and base, below `root`."""
    small = {"r": 4, "lora_alpha": 8, "max_steps": 2, "sample_rows": 0, "eval_steps": 2, "save_steps": 2}
    return train_in(prepared, root, settings(**small | changes))


def train_in(
    project: Path,
    root: Path,
    settings: Training,
    *,
    tokens: Path | None = None,
    previous: Path | None = None,
    **how: Any,
) -> dict[str, Any]:
    """`train` below `root` on the project's base and rows, or `tokens`; afresh if `how` has no `resume`. It
    goes on from what is in the folder `previous`.
    """
    return train(job_in(project, root, settings, tokens, previous), **{"resume": False} | how)


def job_in(
    project: Path, root: Path, settings: Training, tokens: Path | None = None, previous: Path | None = None
) -> Job:
    """The job of training on the project's base and its rows, or other `tokens`, below `root`."""
    return Job(
        tokens=tokens or project / "data/tokens",
        base=project / "models/base",
        adapter=root / "adapter",
        checkpoints=root / "checkpoints",
        tensorboard=root / "tensorboard",
        settings=settings,
        previous=previous,
    )


def settings_in(project: Path, **changes: Any) -> Training:
    """The project's own, with changes."""
    return Training.model_validate(load_params(project / "params.yaml").training.model_dump() | changes)


def run_in(project: Path, root: Path, *, resume: bool = False, **changes: Any) -> dict[str, Any]:
    """`train` on the project's rows and base by its settings with changes, below `root`."""
    return train_in(project, root, settings_in(project, **changes), resume=resume)


def level_params(source: Path, trained: str = "adapter") -> dict[str, Any]:
    """The params.yaml of a project whose base is the GGUF `source` at Q4_0, as a dict to change at will."""
    params = tiny_params(source)
    params["base"] |= {"quantization": "gguf", "level": "Q4_0"}
    params["curate"] |= {"drop_duplicates": "exact"}
    params["preprocess"] |= {"max_length": 256}
    params["evaluate"] |= {"models": ["source", "base", trained]}
    return params


def result(root: Path) -> tuple[str, list[dict[str, Any]], bytes]:
    """Return what a run below `root` ended in: its adapter's hash, its metrics log without what depends on
    the machine, its optimizer's state.
    """
    rows = MetricsLog(root / "checkpoints/steps.jsonl").rows()
    log = [{key: value for key, value in row.items() if key not in MEASURED} for row in rows]
    last = checkpoints_in(root / "checkpoints")[-1]
    return tree_hash(root / "adapter"), log, (last / "optimizer.pt").read_bytes()


def begun(job: Job) -> Run:
    """The run of a job, from its start."""
    return Run(
        **vars(job),
        record=describe(job.tokens, job.base, job.settings, job.previous),
        start=None,
        tokenizer=load_tokenizer(job.base),
        interruption=Interruption(),
        metrics_log=MetricsLog(job.checkpoints / "steps.jsonl"),
    )


def goes_on_to_the_same(prepared: Path, root: Path, **changes: Any) -> dict[str, Any]:
    """The report of an unbroken run (`root`/unbroken), after a run resumed at its middle made equal bytes."""
    changes = {"max_steps": 4, "sample_rows": 0} | changes
    unbroken = run(prepared, root / "unbroken", **changes)
    killed = root / "killed"
    shutil.copytree(root / "unbroken/checkpoints", killed / "checkpoints")
    shutil.rmtree(killed / "checkpoints/checkpoint-4")
    record = (killed / "checkpoints/run.json").read_text()
    (killed / "checkpoints/run.json").write_text(record.replace('"finished": true', '"finished": false'))
    small = {"r": 4, "lora_alpha": 8, "eval_steps": 2, "save_steps": 2}
    again = train_in(prepared, killed, settings(**small | changes), resume=True)
    assert again["resumed_from"] == "checkpoint-2"
    file = "adapter/adapter_model.safetensors"
    assert file_hash(root / "unbroken" / file) == file_hash(killed / file)
    return unbroken


def trainer_in(
    project: Path, root: Path, settings: Training, tokens: Path | None = None, previous: Path | None = None
) -> Any:
    """The trainer for `settings`, as `train` makes it, on the project's base and rows, or other `tokens`."""
    job = job_in(project, root, settings, tokens, previous)
    trainer, _ = make_trainer(learner_of(settings.method)(begun(job)))
    return trainer

"""The stages of sub-projects, each of which is a process of its own, run in this process or not at all."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pipeline.__main__ import main


def in_this_process(module: str, *words: str, what: str = "") -> None:
    """`run_module` without a process of its own, which would import torch again."""
    if module == "pipeline":
        assert main([*words]) == 0, what
    else:
        importlib.import_module(module).main([*words])


def run_stages(patch: pytest.MonkeyPatch, run: Callable[..., None] = in_this_process) -> None:
    """Whatever a sub-project runs is run by `run`, on one core."""
    patch.setattr("pipeline.stages.train.stage.use_all_cores", lambda: torch.set_num_threads(1))
    for module in ("pipeline.subprojects.processes", "pipeline.extras.compare.measure"):
        patch.setattr(f"{module}.run_module", run)


def first_project(patch: pytest.MonkeyPatch, work: Callable[[], object]) -> Path:
    """The sub-project in which `work` would run a stage, as it is then; `work` ends there."""

    class Seen(Exception):
        """The first stage would run."""

    def stop(module: str, *words: str, what: str) -> None:
        raise Seen(words[words.index("--root") + 1])

    run_stages(patch, stop)
    with pytest.raises(Seen) as seen:
        work()
    return Path(seen.value.args[0])


def no_stage_runs(patch: pytest.MonkeyPatch) -> None:
    """A stage that runs is an error."""
    run_stages(patch, lambda *_, what: pytest.fail(f"a stage was run: {what}"))

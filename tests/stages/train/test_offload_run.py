"""A run with layers in main memory ends in the bytes of one without, resumed or not; here on a CPU, where
weights are copied as to a GPU.
"""

from pathlib import Path
from typing import Any

import pytest
from train_runs import goes_on_to_the_same, run

from pipeline.core.hashing import file_hash

RUN: dict[str, Any] = {"max_steps": 4, "gradient_checkpointing": True, "sample_rows": 1}


@pytest.mark.slow
def test_the_adapter_is_that_of_a_run_without_it_resumed_or_not(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.stages.train.assembly.check_offload", lambda *_: None)
    plain = run(prepared, tmp_path / "plain", **RUN)
    offloaded = goes_on_to_the_same(prepared, tmp_path, **RUN, offload=2)
    assert [row.get("loss") for row in plain["metrics_log"]] == [
        row.get("loss") for row in offloaded["metrics_log"]
    ]
    files = (tmp_path / name / "adapter/adapter_model.safetensors" for name in ("plain", "unbroken"))
    assert len(set(map(file_hash, files))) == 1

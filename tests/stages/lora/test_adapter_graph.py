"""The short graph on a tiny model, every stage of it: what is trained is what is served, and what was changed
in between is found.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_edit import change_rows

from pipeline.__main__ import run
from pipeline.core.errors import DataError, GateError
from pipeline.core.hashing import file_hash
from pipeline.gguf.file import check_gguf
from pipeline.gguf.provenance import BASE_FILE


@pytest.fixture
def project(served: Path, tmp_path: Path) -> Path:
    """A copy of the finished project, to spoil."""
    return Path(shutil.copytree(served, tmp_path / "project"))


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def checks(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = read(root / "reports/parity.json")["checks"]
    return found


def test_nothing_is_merged_and_what_was_trained_is_what_is_served(served: Path) -> None:
    assert not (served / "models/merged").exists() and not (served / "reports/merge.json").exists()
    assert sorted(path.name for path in (served / "models/gguf").iterdir()) == ["tiny-lora.gguf"]
    base = served / "models/base/model.gguf"
    assert (
        check_gguf(served / "models/gguf/tiny-lora.gguf").fields[BASE_FILE]
        == file_hash(base)
        == read(served / "models/base.json")["files"][base.name]
    )
    found = checks(served)
    assert {check["verdict"] for key, check in found.items() if not key.startswith("behavior")} == {"pass"}
    assert found["outputs_served"]["figure"] <= found["outputs_served"]["limit"]
    # llama.cpp's arithmetic differs by CPU and build, and alone turns ties
    bare = found["outputs_bare"]["figures"]["same_top"]
    assert found["outputs_served"]["figures"]["same_top"] >= min(0.99, bare - (1 - bare) / 5)
    assert read(served / "reports/quants.json")["recommended"] in (
        "adapter",
        None,
    )  # two steps teach it nothing
    assert (
        "model.gguf" in (served / "reports/Modelfile").read_text()
        and "ADAPTER" in (served / "reports/Modelfile").read_text()
    )


def test_only_lora_trains_and_a_packed_byte_counts_for_what_it_holds(served: Path) -> None:
    report = read(served / "reports/train.json")
    shapes = [shape for shape, _ in check_gguf(served / "models/base/model.gguf").tensors.values()]
    base = sum(int(np.prod(shape)) for shape in shapes)
    assert report["total_parameters"] == base + report["proven"]["trainable_parameters"]
    packed = (served / "models/base/model.gguf").stat().st_size
    assert report["memory"]["weights"] < packed  # not one dense matrix stays


def test_a_base_that_was_changed_after_training_is_found_by_every_stage_that_reads_it(project: Path) -> None:
    change_rows(project / "models/base/model.gguf", "blk.0.ffn_up.weight", lambda rows: rows[::-1])
    with pytest.raises(DataError, match="Q-GGUF-021"):
        run("lora", project, None)
    with pytest.raises(GateError, match="The base's file, and what was trained on it failed"):
        run("parity", project, None)
    # the record, the run and the adapter's GGUF all name the file that was
    assert checks(project)["weights_file"]["figure"] == 3.0


def test_another_adapters_gguf_is_found_by_its_numbers(project: Path) -> None:
    change_rows(
        project / "models/gguf/tiny-lora.gguf",
        "blk.1.attn_v.weight.lora_a",
        lambda rows: np.roll(rows, 2, axis=1),
    )
    with pytest.raises(
        GateError,
        match=r"Adapter → its GGUF failed.*blk\.1\.attn_v\.weight\.lora_a differs.*snakemake --force lora",
    ):
        run("parity", project, None)

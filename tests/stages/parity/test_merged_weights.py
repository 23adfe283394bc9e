"""The parity check of the merged weights: a right merge passes, every planted fault fails with its cause."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import merging
import pytest
import torch
from merging import merge_in
from qwen2_variants import change_json
from safetensors.torch import load_file, save_file

from pipeline.core.checks import Check
from pipeline.core.errors import DataError
from pipeline.models.merging.compute import Rows
from pipeline.models.merging.nf4 import Nf4
from pipeline.stages.parity.merged_weights import merged_weights

HEAD = "lm_head.weight"
BASE_WITH_ADAPTER, BIAS = (f"model.layers.0.self_attn.q_proj.{part}" for part in ("weight", "bias"))
EMBEDDINGS, RECORD = "model.embed_tokens.weight", "merged/merge.json"
Plant = Callable[[Path, pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """base, adapter, and the merges into both bases: 16-bit, nf4."""
    folder = tmp_path_factory.mktemp("made")
    base = merging.write_base(folder / "base")
    (folder / "adapter").mkdir()
    adapter = merging.write_adapter(base, folder / "adapter", target_modules=merging.LINEARS)
    merging.add_run(adapter)
    (adapter / "chat_template.jinja").write_text("{{ messages }}")
    for merge_base in ("16-bit", "nf4"):
        merge_in(folder, merge_base=merge_base, merged=merge_base)
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Path:
    """A copy whose merged model is the one into NF4, to be damaged."""
    shutil.copytree(made, tmp_path / "p")
    (tmp_path / "p/nf4").rename(tmp_path / "p/merged")
    return tmp_path / "p"


def check(folder: Path, merged: str = "merged") -> Check:
    return merged_weights(folder / "base", folder / "adapter", folder / merged)


def edit(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    file = folder / "merged/model.safetensors"
    changed = {name: value.contiguous() for name, value in change(load_file(file)).items()}
    save_file(changed, file, metadata={"format": "pt"})


@pytest.mark.parametrize("merge_base", ["16-bit", "nf4"])
def test_a_right_merge_passes(merge_base: str, made: Path) -> None:
    found = check(made, merge_base)
    assert found.verdict == "pass", found.sentence
    assert found.figure is not None and found.limit is not None and 0.4 < found.figure <= found.limit < 0.6
    # of 27 tensors 14 are linears of the layers; the base is bfloat16, so rounding to float16 leaves none as
    # it was but those that fit
    assert found.figures["wrong"] == 0


def remerge(folder: Path, how: str = "nf4", **record: Any) -> None:
    merge_in(folder, merge_base=how)
    change_json(folder / RECORD, **record)


def other_nf4(folder: Path, nf4: Nf4, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge again into another NF4, with a record that says nothing of it."""
    original = Rows.__init__
    with monkeypatch.context() as patch:
        patch.setattr(Rows, "__init__", lambda self, job, _: original(self, job, nf4))
        remerge(folder)


@pytest.mark.parametrize("record", ['{"onto": "nf4"}', "{}", "[]", '{"merge_base": "8-bit"}', None])
def test_a_record_without_the_base_that_was_merged_into_is_refused(project: Path, record: str | None) -> None:
    """Check that a record of an older release or another tool does not pass for a merge into 16 bits."""
    file = project / "merged/merge.json"
    file.unlink() if record is None else file.write_text(record)
    with pytest.raises(DataError, match="Q-PARITY-004") as error:
        check(project)
    assert "snakemake --force merge" in str(error.value)


def base_values(folder: Path) -> dict[str, Any]:
    return {name: value.half() for name, value in load_file(folder / "base/model.safetensors").items()}


def twice(folder: Path, _: pytest.MonkeyPatch) -> None:
    """Put in place the result of a second merge whose base is the first one's result."""
    for name in ("config.json", "generation_config.json"):
        shutil.copyfile(folder / "base" / name, folder / "merged" / name)
    shutil.copytree(folder / "merged", folder / "once")
    assert merge_in(folder, base="once", merged="again")["adapted"] == 8
    shutil.copyfile(folder / "again/model.safetensors", folder / "merged/model.safetensors")


def of_another_type(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: value.bfloat16().half() for name, value in tensors.items()}


def swapped(tensors: dict[str, Any]) -> dict[str, Any]:
    rows = torch.arange(len(tensors[BASE_WITH_ADAPTER]))
    rows[3], rows[4] = 4, 3
    return tensors | {BASE_WITH_ADAPTER: tensors[BASE_WITH_ADAPTER][rows]}


def zeroed(tensors: dict[str, Any]) -> dict[str, Any]:
    tensors[EMBEDDINGS][:2] = 0
    return tensors


def without(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: {name: value for name, value in tensors.items() if name not in names}


def edited(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Plant:
    return lambda folder, _: edit(folder, change)


def changed_head(change: Callable[[Any], Any]) -> Plant:
    return edited(lambda tensors: tensors | {HEAD: change(tensors[HEAD])})


def in_other_nf4(*settings: Any) -> Plant:
    return lambda folder, patch: other_nf4(folder, Nf4(*settings), patch)


def in_json(name: str, **changes: Any) -> Plant:
    return lambda folder, _: change_json(folder / name, **changes)


def not_merged(folder: Path, _: pytest.MonkeyPatch) -> None:
    edit(folder, lambda _: base_values(folder))
    change_json(folder / RECORD, merge_base="16-bit")


def of_another_base(folder: Path, _: pytest.MonkeyPatch) -> None:
    change_json(folder / RECORD, base_weights_sha256="0" * 64)
    change_json(folder / "adapter/run.json", base={"weights_sha256": "1" * 64})


NO_CAUSE, OF_14 = "None of the usual causes fits", "14 of 27"
FAULTS: dict[str, tuple[Plant, str, str]] = {
    "not merged": (not_merged, "8 of 27", "was not merged"),
    "merged twice": (twice, "8 of 27 tensors are off", "The adapter was merged twice"),
    "16-BIT for NF4": (
        lambda p, _: remerge(p, "16-bit", merge_base="nf4"),
        OF_14,
        "was merged into the 16-bit base, where the merge's record says nf4",
    ),
    "NF4 for 16-BIT": (
        lambda p, _: remerge(p, "nf4", merge_base="16-bit"),
        OF_14,
        "merged into NF4 in blocks of 64 with double quantization",
    ),
    "NF4 of another block": (in_other_nf4("bfloat16", True, 128), OF_14, "NF4 in blocks of 128 with double"),
    "NF4 without double quantization": (
        in_other_nf4("bfloat16", False),
        OF_14,
        "NF4 in blocks of 64 without double",
    ),
    "NF4 of another type": (
        in_other_nf4("float16", True),
        OF_14,
        "with double quantization, computed in float16",
    ),
    "another type on the way": (edited(of_another_type), "tensors are off", "rounded to bfloat16 on the way"),
    "adapter of another base": (of_another_base, "000000000000", "belongs to another base"),
    "another adapter": (
        in_json(RECORD, adapter_sha256="0"),
        "another adapter",
        "trained again after the merge",
    ),
    "head dropped": (
        edited(without(HEAD)),
        f"1 tensors are missing, first {HEAD}",
        "dropped as if it were the embeddings",
    ),
    "bias missing": (edited(without(BIAS)), f"first {BIAS}", "was cut"),
    "a tensor more": (
        edited(lambda t: t | {"model.extra": torch.zeros(2)}),
        "first model.extra",
        "of another base",
    ),
    "another shape": (
        changed_head(lambda head: head[:90]),
        r"lm_head.weight is \(90, 64\) and should be",
        "of another base",
    ),
    "shuffled rows": (edited(swapped), f"1 of 27 tensors are off, first {BASE_WITH_ADAPTER}", NO_CAUSE),
    "zeroed block": (edited(zeroed), f"1 of 27 tensors are off, first {EMBEDDINGS}", NO_CAUSE),
    "not a number": (
        changed_head(lambda head: head * float("nan")),
        "worst lm_head.weight, inf ulp",
        "may be damaged",
    ),
    "config changed": (
        in_json("merged/config.json", rms_norm_eps=0.5),
        "rms_norm_eps 0.5 in place of",
        "changed after the merge",
    ),
    "template changed": (
        lambda p, _: (p / "merged/chat_template.jinja").unlink(),
        "chat_template.jinja is not the one in",
        "after the merge",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_named(
    fault: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, detail, cause = FAULTS[fault]
    plant(project, monkeypatch)
    found = check(project)
    assert found.verdict == "fail"
    assert re.search(detail, found.sentence), found.sentence
    assert cause in found.remedy
    json.dumps([found.figure, dict(found.figures)], allow_nan=False)

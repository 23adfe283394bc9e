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
from safetensors.torch import load_file, save_file

from pipeline.core.checks import Check
from pipeline.core.errors import DataError
from pipeline.models.merging.compute import Rows
from pipeline.models.merging.nf4 import Nf4
from pipeline.stages.merge.stage import merge
from pipeline.stages.parity.merged_weights import LIMIT, merged_weights, read_merge

HEAD = "lm_head.weight"
BASE_WITH_ADAPTER = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """base, adapter, and the merges into both bases: 16-bit, nf4."""
    folder = tmp_path_factory.mktemp("made")
    base = merging.write_base(folder / "base")
    (folder / "adapter").mkdir()
    adapter = merging.write_adapter(
        base, folder / "adapter", target_modules=["q_proj", "v_proj", "o_proj", "down_proj"]
    )
    merging.add_run(adapter)
    (adapter / "chat_template.jinja").write_text("{{ messages }}")
    for merge_base in ("16-bit", "nf4"):
        merge(base=base, adapter=adapter, merged=folder / merge_base, dtype="float16", merge_base=merge_base)  # type: ignore[arg-type]
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
    save_file(
        {name: value.contiguous() for name, value in change(load_file(file)).items()},
        file,
        metadata={"format": "pt"},
    )


def edit_json(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("merge_base", ["16-bit", "nf4"])
def test_a_right_merge_passes(merge_base: str, made: Path) -> None:
    found = check(made, merge_base)
    assert found.verdict == "pass", found.sentence
    assert found.figure is not None
    assert 0.4 < found.figure <= LIMIT
    # of 27 tensors 14 are linears of the layers; the base is bfloat16, so rounding to float16 leaves none as
    # it was but those that fit
    assert found.figures["wrong"] == 0


@pytest.mark.parametrize(
    "kind", ["experts", "dora", "embeddings, tied", "stored in by out, dora", "bias of B"]
)
def test_every_kind_of_adapter_is_judged(kind: str, tmp_path: Path) -> None:
    name, settings, _ = merging.KINDS[kind]
    base = merging.write_base(tmp_path / "base", **merging.BASES[name])
    merging.write_adapter(base, tmp_path / "adapter", **settings)
    merge(
        base=base,
        adapter=tmp_path / "adapter",
        merged=tmp_path / "merged",
        dtype="bfloat16",
        merge_base="16-bit",
    )
    found = check(tmp_path)
    assert found.verdict == "pass", found.sentence
    assert found.figures["bit_equal"] > 5
    edit(tmp_path, lambda t: {key: value * (1 + 2**-7) for key, value in t.items()})
    assert check(tmp_path).verdict == "fail"


def remerge(folder: Path, how: str = "nf4", **record: Any) -> None:
    merge(
        base=folder / "base",
        adapter=folder / "adapter",
        merged=folder / "merged",
        dtype="float16",
        merge_base=how,
    )  # type: ignore[arg-type]
    edit_json(folder / "merged/merge.json", **record)


def other_nf4(folder: Path, nf4: Nf4, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge again into another NF4, with a record that says nothing of it."""
    original = Rows.__init__
    with monkeypatch.context() as patch:
        patch.setattr(Rows, "__init__", lambda self, job, _: original(self, job, nf4))
        remerge(folder)


@pytest.mark.parametrize("record", ['{"onto": "nf4"}', "{}", "[]", '{"merge_base": "8-bit"}', None])
def test_a_record_without_the_base_that_was_merged_into_is_refused(project: Path, record: str | None) -> None:
    """What an older release or another tool wrote is not taken for a merge into 16 bits."""
    file = project / "merged/merge.json"
    file.unlink() if record is None else file.write_text(record)
    with pytest.raises(DataError, match="Q-PARITY-004") as error:
        read_merge(project / "merged")
    with pytest.raises(DataError, match="Q-PARITY-004"):
        check(project)
    assert "snakemake --force merge" in str(error.value)


def base_values(folder: Path) -> dict[str, Any]:
    return {name: value.half() for name, value in load_file(folder / "base/model.safetensors").items()}


def twice(folder: Path) -> None:
    """What a second run of a merge makes whose base is the first one's result."""
    for name in ("config.json", "generation_config.json"):
        shutil.copyfile(folder / "base" / name, folder / "merged" / name)
    shutil.copytree(folder / "merged", folder / "once")
    remerged = merge(
        base=folder / "once",
        adapter=folder / "adapter",
        merged=folder / "again",
        dtype="float16",
        merge_base="16-bit",
    )
    assert remerged["adapted"] == 8
    shutil.copyfile(folder / "again/model.safetensors", folder / "merged/model.safetensors")


def of_another_type(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: value.bfloat16().half() for name, value in tensors.items()}


def swapped(tensors: dict[str, Any]) -> dict[str, Any]:
    rows = torch.arange(len(tensors[BASE_WITH_ADAPTER]))
    rows[3], rows[4] = 4, 3
    return tensors | {BASE_WITH_ADAPTER: tensors[BASE_WITH_ADAPTER][rows]}


def zeroed(tensors: dict[str, Any]) -> dict[str, Any]:
    tensors["model.embed_tokens.weight"][:2] = 0
    return tensors


def without(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: {name: value for name, value in tensors.items() if name not in names}


FAULTS: dict[str, tuple[Callable[[Path, pytest.MonkeyPatch], None], str, str]] = {
    "not merged": (
        lambda p, m: (
            edit(p, lambda _: base_values(p)) or edit_json(p / "merged/merge.json", merge_base="16-bit")
        ),
        "8 of 27",
        "was not merged",
    ),
    "merged twice": (lambda p, m: twice(p), "8 of 27 tensors are off", "The adapter was merged twice"),
    "16-BIT for NF4": (
        lambda p, m: remerge(p, "16-bit", merge_base="nf4"),
        "14 of 27",
        ("was merged into the 16-bit base, where the merge's record says nf4"),
    ),
    "NF4 for 16-BIT": (
        lambda p, m: remerge(p, "nf4", merge_base="16-bit"),
        "14 of 27",
        "merged into NF4 in blocks of 64 with double quantization",
    ),
    "NF4 of another block": (
        lambda p, m: other_nf4(p, Nf4("bfloat16", True, 128), m),
        "14 of 27",
        "NF4 in blocks of 128 with double",
    ),
    "NF4 without double quantization": (
        lambda p, m: other_nf4(p, Nf4("bfloat16", False), m),
        "14 of 27",
        "NF4 in blocks of 64 without double",
    ),
    "NF4 of another type": (
        lambda p, m: other_nf4(p, Nf4("float16", True), m),
        "14 of 27",
        "with double quantization, computed in float16",
    ),
    "another type on the way": (
        lambda p, m: edit(p, of_another_type),
        "tensors are off",
        "rounded to bfloat16 on the way",
    ),
    "adapter of another base": (
        lambda p, m: (
            edit_json(p / "merged/merge.json", base_weights_sha256="0" * 64)
            or edit_json(p / "adapter/run.json", base={"weights_sha256": "1" * 64})
        ),
        "000000000000",
        "belongs to another base",
    ),
    "another adapter": (
        lambda p, m: edit_json(p / "merged/merge.json", adapter_sha256="0"),
        "another adapter",
        "trained again after the merge",
    ),
    "head dropped": (
        lambda p, m: edit(p, without(HEAD)),
        f"1 tensors are missing, first {HEAD}",
        "dropped as if it were the embeddings",
    ),
    "bias missing": (
        lambda p, m: edit(p, without("model.layers.0.self_attn.q_proj.bias")),
        "first model.layers.0.self_attn.q_proj.bias",
        "was cut",
    ),
    "a tensor more": (
        lambda p, m: edit(p, lambda t: t | {"model.extra": torch.zeros(2)}),
        "first model.extra",
        "of another base",
    ),
    "another shape": (
        lambda p, m: edit(p, lambda t: t | {HEAD: t[HEAD][:90]}),
        r"lm_head.weight is \(90, 64\) and should be",
        "of another base",
    ),
    "shuffled rows": (
        lambda p, m: edit(p, swapped),
        f"1 of 27 tensors are off, first {BASE_WITH_ADAPTER}",
        "None of the usual causes fits",
    ),
    "zeroed block": (
        lambda p, m: edit(p, zeroed),
        "1 of 27 tensors are off, first model.embed_tokens.weight",
        "None of the usual causes fits",
    ),
    "not a number": (
        lambda p, m: edit(p, lambda t: t | {HEAD: t[HEAD] * float("nan")}),
        "worst lm_head.weight, inf ulp",
        "may be damaged",
    ),
    "config changed": (
        lambda p, m: edit_json(p / "merged/config.json", rms_norm_eps=0.5),
        "rms_norm_eps 0.5 in place of",
        "changed after the merge",
    ),
    "template changed": (
        lambda p, m: (p / "merged/chat_template.jinja").unlink(),
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

"""The pipeline on a tiny random Qwen2 with a cut vocabulary (whole: `make demo`): stages, then products."""

import csv
import json
from pathlib import Path

import pytest
import tiny
from gguf import GGMLQuantizationType
from log_lines import strange
from safetensors import safe_open

from pipeline.gguf.header import read_header


@pytest.mark.parametrize("name", ["tiny-F16", "tiny-Q4_K_M", "tiny-Q5_K_M"])
def test_every_gguf_opens_as_qwen2(finished: Path, name: str) -> None:
    header = read_header(finished / f"models/gguf/{name}.gguf")
    assert header.fields["general.architecture"] == "qwen2"
    assert len(header.fields["tokenizer.ggml.tokens"]) == tiny.ROWS
    assert len(header.tensors) > 20


def test_levels_hold_the_types_they_are_named_for(finished: Path) -> None:
    for level, kind in (("Q4_K_M", "Q4_K"), ("Q5_K_M", "Q5_K")):
        types = {
            GGMLQuantizationType(number).name
            for _, number in read_header(finished / f"models/gguf/tiny-{level}.gguf").tensors.values()
        }
        assert kind in types
        assert "F16" not in types


def test_the_adapter_is_in_the_merged_weights(finished: Path) -> None:
    with (
        safe_open(finished / "models/base/model.safetensors", "pt") as base,
        safe_open(finished / "models/merged/model.safetensors", "pt") as merged,
    ):
        changed = {
            name
            for name in base.keys()  # noqa: SIM118
            if not base.get_tensor(name).half().equal(merged.get_tensor(name))  # noqa: RUF100, SIM118
        }
        names = set(base.keys())
    assert changed == {name for name in names if name.endswith("proj.weight")}


def test_every_check_passed_or_says_that_it_was_not_measured(finished: Path) -> None:
    report = json.loads((finished / "reports/parity.json").read_text())
    assert report["verdict"] == "pass"
    for check in report["checks"].values():
        assert check["verdict"] in ("pass", "not measured")
        assert (check["figure"] is None) == (check["verdict"] == "not measured")


def test_evaluation_measures_each_model(finished: Path) -> None:
    figures = {
        name: json.loads((finished / f"reports/eval/{name}.json").read_text())
        for name in ("base-F16", "F16", "Q4_K_M", "Q5_K_M")
    }
    assert figures["F16"]["kld_mean"] < 1e-6
    assert figures["F16"]["same_top"] == 1.0
    assert figures["Q4_K_M"]["kld_mean"] > figures["Q5_K_M"]["kld_mean"] > 0
    assert figures["Q4_K_M"]["bytes"] < figures["Q5_K_M"]["bytes"] < figures["F16"]["bytes"]
    assert all(values["generation_tok_s"] > 0 and values["perplexity"] > 1 for values in figures.values())


def test_the_report_shows_every_model(finished: Path) -> None:
    page = (finished / "reports/index.html").read_text(encoding="utf-8")
    with (finished / "reports/quants.csv").open() as file:
        assert [row["model"] for row in csv.DictReader(file)] == ["base-F16", "F16", "Q4_K_M", "Q5_K_M"]
    for name in ("F16", "Q4_K_M", "Q5_K_M"):
        assert name in page
    for name in ("card.md", "Modelfile", "serve.txt", "quants.json"):
        assert (finished / "reports" / name).stat().st_size


def test_no_row_is_lost(finished: Path) -> None:
    data = json.loads((finished / "reports/data.json").read_text())
    labels = json.loads((finished / "reports/labels.json").read_text())
    assert data["rows_read"] == data["rows_kept"] + data["rows_rejected"] == 40
    for split in ("train", "val"):
        account = labels["splits"][split]
        assert account["rows"] + sum(account["rejected"].values()) == data["splits"][split]


def test_a_line_of_a_library_is_strange() -> None:
    line = "/lib/transformers/x.py:3: FutureWarning: `y` is deprecated"
    assert strange(f"train: 2 steps\n{line}\n") == [line]

"""The report of trained scales: what page, card, Modelfile and command say, and no word of an adapter's GGUF
or a merge.
"""

import json
import re
from pathlib import Path

import pytest
import tuned_inputs
from html_page import Page

from pipeline.gate.advice import advise
from pipeline.gate.records import load_inputs
from pipeline.stages.report import stage

pytestmark = pytest.mark.usefixtures("plots_once")

FORBIDDEN = (
    "its LoRA",
    "LoRA GGUF",
    "adapter's GGUF",
    "this adapter",
    "16-bit model",
    "QLoRA",
    "every level",
    "None",
    "Which level",
)


def made(root: Path, models: tuple[str, ...] = tuned_inputs.MODELS, *, distill: bool = False) -> Path:
    stage.main(
        tuned_inputs.params(models, distill=distill), tuned_inputs.write_reports(root, distill=distill)
    )
    return root / "reports"


def text_of(folder: Path) -> str:
    return re.sub(r"\s+", " ", Page((folder / "index.html").read_text(encoding="utf-8")).text)


def test_page_and_files_name_no_adapter_and_no_merge(tmp_path: Path) -> None:
    folder = made(tmp_path)
    text, card = text_of(folder), (folder / "card.md").read_text()
    assert not [words for words in FORBIDDEN if words in text + card]
    for command in ("merge", "lora"):
        assert f"python -m pipeline {command}" not in text
    assert "--lora" not in (folder / "serve.txt").read_text()
    quants = json.loads((folder / "quants.json").read_text())
    assert quants["recommended"] == "tuned" and "lora_bytes" not in quants["tuned"]


def test_what_was_recovered_is_said_of_the_tuned_file(tmp_path: Path) -> None:
    text = text_of(made(tmp_path, distill=True))
    assert "The tuned file recovers 80 % of the damage where the assistant speaks" in text
    assert "what is left of it in the tuned file" in text


def test_without_the_base_nothing_says_that_the_task_did_not_suffer(tmp_path: Path) -> None:
    text = text_of(made(tmp_path, ("tuned",)))
    assert "Ship nothing: the gate refuses the tuned file" in text
    assert "The tuned file against the base alone: not measured" in text
    assert "None" not in text


@pytest.mark.parametrize("key", ["weights_file", "weights_scales", "outputs_served"])
def test_the_gate_needs_each_parity_check_of_the_tuned_file(tmp_path: Path, key: str) -> None:
    tuned_inputs.write_reports(tmp_path)
    report = tuned_inputs.parity()
    del report["checks"][key]
    (tmp_path / "reports/parity.json").write_text(json.dumps(report))
    settings = tuned_inputs.params()
    inputs = load_inputs(tmp_path, settings.evaluate.models)
    advice, verdicts = advise(inputs, settings.report, settings.serve, settings.evaluate.seed)
    assert advice.model is None
    assert verdicts["tuned"].reasons[0].startswith("Parity has not measured ")


def test_a_report_of_the_tuned_file_with_an_adapter_on_it_is_refused(tmp_path: Path) -> None:
    tuned_inputs.write_reports(tmp_path)
    lora = {"file": "other-lora.gguf", "sha256": "1a" * 32, "bytes": 5}
    (tmp_path / "reports/eval/tuned.json").write_text(json.dumps(tuned_inputs.figures() | {"lora": lora}))
    settings = tuned_inputs.params()
    inputs = load_inputs(tmp_path, settings.evaluate.models)
    _, verdicts = advise(inputs, settings.report, settings.serve, settings.evaluate.seed)
    assert any("names an adapter's GGUF" in reason for reason in verdicts["tuned"].reasons)

"""All that the report says of four projects, as text: page, terminal, card, Modelfile, serve.txt. They are
the recorded ones with scores and figures of the demo's size. A graph without a merge has no word of one.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapter_inputs
import pytest
import report_inputs
import tuned_inputs
from golden import Golden
from html_page import lines_of

from pipeline.config.params import Params
from pipeline.stages.report import stage

pytestmark = pytest.mark.usefixtures("plots_once")

FILES = ("card.md", "Modelfile", "serve.txt", "quants.csv", "metrics.json")
PROJECTS: dict[str, tuple[Callable[..., Params], Callable[..., Path], dict[str, Any]]] = {
    "merged": (report_inputs.demo_params, report_inputs.write_inputs, {}),
    "adapter": (adapter_inputs.params, adapter_inputs.write_reports, {}),
    "recovered": (adapter_inputs.params, adapter_inputs.write_reports, {"distill": True}),
    "tuned": (tuned_inputs.params, tuned_inputs.write_reports, {}),
}
# words of another graph
MERGED = ("16-bit model", "QLoRA", "every level", "Which level", "pipeline merge", "None")
BESIDE = (*MERGED, "untuned base at the same level", "NF4", "merged into")
LORA = ("its LoRA", "LoRA GGUF", "adapter's GGUF", "this adapter", "--lora", "pipeline lora", "lora_bytes")
FORBIDDEN = {"merged": ("None",), "adapter": BESIDE, "recovered": BESIDE, "tuned": (*MERGED, *LORA)}


@pytest.mark.parametrize("name", PROJECTS)
def test_what_a_reader_is_told(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: Any
) -> None:
    params, write, options = PROJECTS[name]
    stage.main(params(**options), write(tmp_path, **options))
    reports = tmp_path / "reports"
    page = lines_of((reports / "index.html").read_text(encoding="utf-8"))
    assert page == snapshot(name="page", extension_class=Golden)
    printed = capsys.readouterr().out.replace(str(tmp_path), "ROOT")
    beside = [f"--- {file}\n{(reports / file).read_text(encoding='utf-8')}" for file in FILES]
    assert "".join([printed, *beside]) == snapshot(name="beside", extension_class=Golden)
    assert not [words for words in FORBIDDEN[name] if words in "".join([page, *beside])]


@pytest.mark.parametrize(
    ("name", "distill"), [("adapter", False), ("adapter", True), ("tuned", False)], ids=str
)
def test_without_the_base_much_is_not_measured_and_nothing_ships(
    name: str, distill: bool, tmp_path: Path, snapshot: Any
) -> None:
    params, write, _ = PROJECTS[name]
    stage.main(params((name,), distill=distill), write(tmp_path, distill=distill))
    title, *lines = lines_of((tmp_path / "reports/index.html").read_text(encoding="utf-8")).splitlines()
    open_ = [line for line in lines if line.startswith("○") or "which refuses" in line]
    assert "".join(f"{line}\n" for line in [title, *open_]) == snapshot(extension_class=Golden)
    assert "None" not in " ".join(lines)


def test_products_are_shown_as_a_share_of_the_time_that_was_seen(tmp_path: Path) -> None:
    write_inputs = report_inputs.write_inputs(tmp_path)
    folder = tmp_path / ".quench/usage"
    folder.mkdir(parents=True, exist_ok=True)
    seen = {"peak": 10**9, "seconds": 80.0, "disk": 1000}
    for name, products in (("train", 40.0), ("convert", None)):
        planned = {"peak": None, "seconds": 90.0, "disk": None, "products": products}
        usage = {"planned": planned, "seen": seen, "own_peak": 10**9}
        (folder / f"{name}.json").write_text(json.dumps(usage), encoding="utf-8")
    stage.main(report_inputs.demo_params(), write_inputs)
    lines = lines_of((tmp_path / "reports/index.html").read_text(encoding="utf-8")).splitlines()
    rows = {words[0]: words for words in (line.split() for line in lines) if words}
    assert " ".join(rows["train"]).count("50 %") == 1
    assert "%" not in " ".join(rows["convert"])

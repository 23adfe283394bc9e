"""The report of the graph without a merge: what its page, card, Modelfile and command say, and that no word
of a merge or a level is left.
"""

import re
from pathlib import Path

import adapter_inputs
import pytest
from html_page import Page

from pipeline.stages.parity.chain import chain
from pipeline.stages.parity.page import render_parity_page
from pipeline.stages.report import stage as stage

pytestmark = pytest.mark.usefixtures("plots_once")

FORBIDDEN = (
    "16-bit model",
    "untuned base at the same level",
    "QLoRA",
    "NF4",
    "merged into",
    "every level",
    "None",
    "Which level",
)


def made(
    root: Path, models: tuple[str, ...] = ("source", "base", "adapter"), *, distill: bool = False
) -> Path:
    stage.main(
        adapter_inputs.params(models, distill=distill), adapter_inputs.write_reports(root, distill=distill)
    )
    return root / "reports"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of an adapter that learned a task. Read only."""
    return made(tmp_path_factory.mktemp("tuned"))


@pytest.fixture(scope="module")
def recovered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of an adapter that was to recover. Read only."""
    return made(tmp_path_factory.mktemp("recovered"), distill=True)


def text_of(folder: Path) -> str:
    return re.sub(r"\s+", " ", Page((folder / "index.html").read_text(encoding="utf-8")).text)


def headings(folder: Path) -> list[str]:
    return re.findall(r'<h2 id="([a-z]+)"', (folder / "index.html").read_text(encoding="utf-8"))


def test_no_word_of_a_merge_or_of_levels_is_left(tuned: Path) -> None:
    text = text_of(tuned) + (tuned / "card.md").read_text()
    assert not [words for words in FORBIDDEN if words in text]
    assert "python -m pipeline merge" not in text


def test_sections_of_a_merge_are_left_out_and_distillation_is_there_where_it_was_asked_for(
    tuned: Path, recovered: Path
) -> None:
    assert not {"merge", "quantizing", "distillation"} & set(headings(tuned))
    assert "distillation" in headings(recovered)
    assert {"levels", "gate", "task", "general", "speed", "checks", "serve", "lineage"} <= set(
        headings(tuned)
    )


@pytest.mark.parametrize("models", [("adapter",), ("base", "adapter")])
def test_fewer_models_say_what_was_not_measured(tmp_path: Path, models: tuple[str, ...]) -> None:
    text = text_of(made(tmp_path, models))
    assert "None" not in text
    if models == ("adapter",):
        assert "The adapter against the base alone: not measured (name base in evaluate.models)" in text
        # nothing says that the task did not suffer
        assert "Ship nothing: the gate refuses the adapter" in text


def test_distillation_without_the_base_is_not_measured(tmp_path: Path) -> None:
    assert "Before and after: not measured (evaluate.models does not name base)" in text_of(
        made(tmp_path, ("adapter",), distill=True)
    )


# ---- the parity checks


def test_the_chain_without_a_merge() -> None:
    ways = {
        f"{step.start} → {step.end}: {', '.join(step.marked)}"
        for step in chain(adapter_inputs.parity()["checks"])
    }
    assert ways == {
        "trained → base GGUF + LoRA: ✓ text 2 of 2, ✓ tokens 3 of 3",
        "trained → base GGUF + LoRA: ✓ weights, ✓ outputs 0.00234",
        "base in training → base GGUF: ✓ weights, ✓ outputs 8.56e-06",
        "base GGUF + LoRA → served: ✓ answers 2 of 2",
    }


def test_the_parity_page_names_base_and_adapter() -> None:
    report = adapter_inputs.parity()
    report["checks"]["outputs_served"] |= {
        "verdict": "fail",
        "cause": "The adapter's GGUF is of another run.",
    }
    text = Page(render_parity_page(report | {"verdict": "fail"}, None)).text
    assert "Nothing was merged: the base's own GGUF was trained on" in text
    assert "Something was lost: 1 of 11 parity checks failed" in text
    assert "The adapter's GGUF is of another run." in text
    assert not [
        words
        for words in ("Merged", "16-bit", "None:")
        if words in text.replace("None: every parity check", "")
    ]

"""evaluate where nothing is merged: which files a model is made of, what it is compared with, and that the
adapter is really on it everywhere.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import adapter_inputs
import pytest
import tiny
import tuned_inputs
from report_inputs import DEMO_RECIPE
from tiny_lora import tiny_lora

from pipeline.__main__ import run
from pipeline.config.params import Params, load_params
from pipeline.config.products import ModelFiles
from pipeline.core.errors import DataError, ToolError
from pipeline.core.hashing import file_hash
from pipeline.llamacpp.logits import open_gguf
from pipeline.llamacpp.server import serving
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.metrics.divergence import Prompt
from pipeline.stages.base.chats import OWN
from pipeline.stages.base.quantized_gguf import keep_gguf
from pipeline.stages.evaluate.divergence import divergence_of
from pipeline.stages.evaluate.stage import compared_with

ROWS = [Prompt([5, 6, 7, 40, 41, 8, 9], [2, 3, 4]), Prompt([5, 6, 7, 11, 12, 13], [3, 4])]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny base and an adapter for it."""
    folder = tmp_path_factory.mktemp("adapter")
    return tiny.tiny_gguf(folder / "model.gguf"), tiny_lora(folder / "demo-lora.gguf")


def params(level: str | None, method: str = "sft") -> Params:
    found = adapter_inputs.params(distill=method == "distill")
    return found.model_copy(update={"base": found.base.model_copy(update={"level": level})})


def settings(**changed: Any) -> Any:
    small = {"ctx_size": 128}
    return adapter_inputs.params().evaluating.model_copy(update=small | changed)


@pytest.mark.parametrize(
    ("level", "method", "references"),
    [
        ("Q4_K_M", "sft", {"source": "source", "base": "source", "adapter": "base"}),
        ("Q4_K_M", "distill", {"source": "source", "base": "source", "adapter": "source"}),
        (None, "sft", {"base": "base", "adapter": "base"}),
    ],
)
def test_what_each_model_is_compared_with(level: str | None, method: str, references: dict[str, str]) -> None:
    assert {model: compared_with(params(level, method), model) for model in references} == references


@pytest.mark.parametrize(("distill", "reference"), [(False, "base"), (True, "source")])
def test_what_a_tuned_model_is_compared_with(distill: bool, reference: str) -> None:
    found = tuned_inputs.params(distill=distill)
    assert [compared_with(found, model) for model in ("base", "tuned")] == ["source", reference]


SOURCE, BASE = ("source", "base/source.gguf", None), ("base", "base/model.gguf", None)


@pytest.mark.parametrize(
    ("params", "models"),
    [
        (load_params(DEMO_RECIPE), [("base-Q4_K_M", "gguf/demo-base-Q4_K_M.gguf", None)]),
        (adapter_inputs.params(), [SOURCE, BASE, ("adapter", "base/model.gguf", "gguf/demo-lora.gguf")]),
        (tuned_inputs.params(), [SOURCE, BASE, ("tuned", "gguf/demo-tuned.gguf", None)]),
    ],
    ids=["merged", "adapter", "tuned"],
)
def test_which_files_a_model_is_made_of(
    params: Params, models: list[tuple[str, str, str | None]], tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    for model, file, lora in models:
        assert params.files(tmp_path, model) == (folder / file, lora and folder / lora), model


def compared(
    base: Path, tools: Toolchain, lora: Path | None = None, *, by_row: bool = False
) -> dict[str, Any]:
    llama, files = Llama(tools), ModelFiles(base, lora)
    with (
        open_gguf(llama, files, ctx_size=64) as ours,
        open_gguf(llama, ModelFiles(base), ctx_size=64) as theirs,
    ):
        return divergence_of(ours, theirs, ROWS, "test", itself=lora is None, by_row=by_row)


def test_divergence_is_measured_with_the_adapter_on_and_row_by_row(
    files: tuple[Path, Path], tools: Toolchain
) -> None:
    base, lora = files
    bare = compared(base, tools, by_row=True)
    assert bare["self_divergence"] < 1e-6
    moved = compared(base, tools, lora, by_row=True)
    assert moved["self_divergence"] is None  # the same file, and yet not itself
    assert moved["kld_mean"] > 1e-4
    for name, figures in (("assistant", moved), ("all_tokens", moved["all_tokens"])):
        rows = moved["by_row"][name]
        assert rows["tokens"] == ([3, 2] if name == "assistant" else [6, 5])
        assert sum(rows["kld"]) / sum(rows["tokens"]) == pytest.approx(figures["kld_mean"], rel=1e-3)
        assert sum(rows["same"]) / sum(rows["tokens"]) == pytest.approx(figures["same_top"], abs=1e-4)
    assert "by_row" not in compared(base, tools)


def test_files_that_are_not_there_are_a_sentence(
    files: tuple[Path, Path], tools: Toolchain, tmp_path: Path
) -> None:
    with pytest.raises((ToolError, DataError), match="gone"):
        compared(files[0], tools, tmp_path / "gone.gguf")


def test_the_whole_stage_of_base_and_adapter(
    tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both models on a tiny base from end to end; the answers are nonsense, but the adapter's own."""
    started: list[Path | None] = []

    def noted(llama: Llama, files: ModelFiles, **words: Any) -> Any:
        started.append(files.lora)
        return serving(llama, files, **words)

    for module in ("pipeline.metrics.asking", "pipeline.stages.evaluate.speed"):
        monkeypatch.setattr(f"{module}.serving", noted)
    base, adapter = tmp_path / "models/base", tmp_path / "models/adapter"
    base.mkdir(parents=True)
    file = tiny.tiny_gguf(tmp_path / "tiny.gguf", general__file_type=1)
    keep_gguf(file, base, None, tools, OWN)
    shutil.copytree(base, adapter, ignore=shutil.ignore_patterns("*.gguf"))
    (tmp_path / "models/gguf").mkdir()
    lora = tiny_lora(tmp_path / "models/gguf/demo-lora.gguf", size=2.0)
    (tmp_path / "data/final").mkdir(parents=True)
    turns = [
        [{"role": "user", "content": f"hello {number}"}, {"role": "assistant", "content": "hell"}]
        for number in range(6)
    ]
    lines = [json.dumps({"id": f"r{number}", "messages": one}) + "\n" for number, one in enumerate(turns)]
    for split in ("train", "test"):
        (tmp_path / f"data/final/{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    small = {
        "scorers": ["exact_match"],
        "general": "none",
        "max_new_tokens": 8,
        "perplexity_rows": 6,
        "task_rows": 2,
    }
    found = params(None)
    found = found.model_copy(
        update={
            "evaluate": settings(models=["base", "adapter"], **small),
            "serve": found.serve.model_copy(update={"ctx_size": 128}),
        }
    )
    (tmp_path / "params.yaml").write_text(found.model_dump_json(), encoding="utf-8")
    for model in ("base", "adapter"):
        run(f"evaluate@{model}", tmp_path, None)
    output = {
        model: json.loads((tmp_path / f"reports/eval/{model}.json").read_text())
        for model in ("base", "adapter")
    }
    answers = {model: (tmp_path / f"reports/eval/{model}.answers.jsonl").read_text() for model in output}
    assert output["base"]["file"] == output["adapter"]["file"] == "model.gguf"
    assert output["base"]["sha256"] == output["adapter"]["sha256"] == file_hash(base / "model.gguf")
    assert output["adapter"]["lora"] == {
        "file": lora.name,
        "sha256": file_hash(lora),
        "bytes": lora.stat().st_size,
    }
    assert all(output[model]["speed"]["generation"][0]["median"] > 0 for model in output)
    assert output["adapter"]["bytes"] == output["base"]["bytes"] + lora.stat().st_size
    assert [output[model]["reference"] for model in output] == ["base", "base"]
    assert output["base"]["kld_max"] < 1e-6 < output["adapter"]["kld_mean"]
    assert answers["base"] != answers["adapter"]
    assert started == [None, None, lora, lora]  # the server that is measured, and the one that answers
    assert len(output["adapter"]["by_row"]["all_tokens"]["kld"]) == 6

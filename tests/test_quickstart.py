"""The notebook examples/quickstart.ipynb runs from its first cell to its last, with a tiny model."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import needed
import pytest
import tiny
import yaml

from pipeline.config.sections import Gate
from pipeline.core.places import PROJECT
from pipeline.llamacpp.server import free_port
from pipeline.llamacpp.tools import DEFAULT_HOME

NOTEBOOK = PROJECT / "examples" / "quickstart.ipynb"
MISSING = [name for name in ("nbclient", "ipykernel") if importlib.util.find_spec(name) is None]
DATA = "quench data demo"  # the cell behind which other data and settings take the place of the demo's


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.skipif(bool(MISSING), reason=needed.need(", ".join(MISSING)))
def test_the_notebook_runs_and_shows_its_figures(
    tiny_qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbformat
    from nbclient import NotebookClient

    params = tiny.tiny_params(tiny_qwen2)
    params["quantize"]["levels"], params["evaluate"]["models"] = ["Q4_K_M"], ["F16", "Q4_K_M"]
    params["parity"]["depth"] = "quick"
    params["report"] = {"gate": dict.fromkeys(Gate.model_fields)}  # two steps teach it nothing
    params["serve"] = {"port": free_port(), "ctx_size": 512, "n_predict": 8}
    tiny.write_project(tmp_path / "tiny", params)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = next(place for place, cell in enumerate(notebook.cells) if DATA in cell.source) + 1
    replacing = (
        f"%%bash\nrm data/raw/*\ncp {tmp_path}/tiny/data/raw/* data/raw/\ncp {tmp_path}/tiny/params.yaml ."
    )
    notebook.cells.insert(place, nbformat.v4.new_code_cell(replacing))

    programs = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LLAMA_CPP_HOME", os.environ.get("LLAMA_CPP_HOME") or str(DEFAULT_HOME))
    NotebookClient(notebook, timeout=2000, resources={"metadata": {"path": tmp_path}}).execute()

    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    figures = [output.data for output in outputs if output.output_type == "display_data"]
    assert sum("image/png" in data for data in figures) == 2
    assert sum("text/markdown" in data for data in figures) == 2
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "Q4_K_M" in printed and "verifies" in printed
    root = tmp_path / "quickstart"
    assert yaml.safe_load((root / "params.yaml").read_text())["convert"]["name"] == "tiny"
    assert (root / "models/bundle/tiny-Q4_K_M/tiny-Q4_K_M.gguf").is_file()


def test_the_notebook_holds_no_outputs_and_shows_readmes_commands() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"]] == []
    source = "\n".join("".join(cell["source"]) for cell in code)
    for command in ("quench new", "quench data check", "dvc add", "quench run", '"serve"', "quench ship"):
        assert command in source

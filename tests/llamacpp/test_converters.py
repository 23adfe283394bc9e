"""llama.cpp's converters: the given pre-tokenizer and fields are written, and a failure leaves the file that
was there before.
"""

from pathlib import Path

import pytest
from qwen2_variants import cut_models, cut_qwen2

from pipeline.core.errors import ToolError
from pipeline.gguf.header import read_header
from pipeline.llamacpp.converters import to_gguf
from pipeline.llamacpp.tools import Toolchain

pytestmark = pytest.mark.usefixtures("whole_converters")


def test_the_given_name_and_fields_win(tools: Toolchain, tmp_path: Path) -> None:
    model, file = cut_models(tools) / "hf", tmp_path / "x.gguf"
    wanted = {
        "quench.x": "1 – ü",
        "general.base_model.count": 1,
        "general.name": "y",
        "general.architecture": "qwen2",
    }
    to_gguf(
        tools,
        model,
        file,
        "F16",
        "x",
        "gpt-2",
        {"quench.x": "1 – ü", "general.base_model.count": 1, "general.name": "y"},
    )
    header = read_header(file)
    assert {key: header.fields[key] for key in wanted} == wanted
    assert header.fields["tokenizer.ggml.pre"] == "gpt-2"
    plain = read_header(cut_models(tools) / "tiny-F16.gguf")
    assert header.tensors == plain.tensors
    assert header.fields.keys() - plain.fields.keys() == {"quench.x", "general.base_model.count"}


def test_an_unknown_vocabulary_without_a_name_fails_and_leaves_what_was_there(
    tools: Toolchain, tmp_path: Path
) -> None:
    model = cut_qwen2(tmp_path / "hf", tools)
    (tmp_path / "x.gguf").write_text("before")
    with pytest.raises(ToolError, match="BPE pre-tokenizer was not recognized"):
        to_gguf(tools, model, tmp_path / "x.gguf", "F16", "x")
    assert (tmp_path / "x.gguf").read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "x.gguf"]

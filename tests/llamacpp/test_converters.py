"""llama.cpp's converters: the given pre-tokenizer and fields are written; a failure keeps the old file."""

from pathlib import Path

import pytest
from qwen2_variants import KEPT, cut_models, cut_qwen2
from tiny import tiny_qwen2

from pipeline.core.errors import ToolError
from pipeline.gguf.header import read_header
from pipeline.gguf.safetensors_rows import read_folder, read_rows
from pipeline.gguf.tensors import gguf_tensors
from pipeline.llamacpp.converters import HeaderFields, to_gguf
from pipeline.llamacpp.tools import Toolchain

pytestmark = pytest.mark.usefixtures("whole_converters")


@pytest.mark.slow
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
        HeaderFields("x", "gpt-2", {"quench.x": "1 – ü", "general.base_model.count": 1, "general.name": "y"}),
    )
    header = read_header(file)
    assert {key: header.fields[key] for key in wanted} == wanted
    assert header.fields["tokenizer.ggml.pre"] == "gpt-2"
    plain = read_header(cut_models(tools) / "tiny-F16.gguf")
    assert header.tensors == plain.tensors
    assert header.fields.keys() - plain.fields.keys() == {"quench.x", "general.base_model.count"}


@pytest.mark.slow
def test_an_unknown_vocabulary_without_a_name_fails_and_leaves_what_was_there(
    tools: Toolchain, tmp_path: Path
) -> None:
    model = cut_qwen2(tmp_path / "hf", tools)
    (tmp_path / "x.gguf").write_text("before")
    with pytest.raises(ToolError, match="BPE pre-tokenizer was not recognized"):
        to_gguf(tools, model, tmp_path / "x.gguf", "F16", HeaderFields("x"))
    assert (tmp_path / "x.gguf").read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "x.gguf"]


@pytest.mark.slow
def test_biases_norms_and_a_head_of_its_own_are_converted(tools: Toolchain, tmp_path: Path) -> None:
    import torch

    model, file = tiny_qwen2(tmp_path / "hf", tools, words=KEPT, trained=True), tmp_path / "x.gguf"
    to_gguf(tools, model, file, "F16", HeaderFields("x", "qwen2"))
    stored, (_, tensors) = read_folder(model), gguf_tensors(file)
    assert len(tensors) == len(stored) == 27
    pairs = {f"model.layers.1.self_attn.{part}_proj.bias": f"blk.1.attn_{part}.bias" for part in "qkv"}
    pairs |= {
        "model.norm.weight": "output_norm.weight",
        "model.layers.1.input_layernorm.weight": "blk.1.attn_norm.weight",
    }
    for name, converted in pairs.items():
        values, found = read_rows(stored[name]).float(), tensors[converted]
        assert len(values.unique()) > 100
        assert torch.equal(torch.from_numpy(found.values(0, found.rows).copy()).view(-1), values.view(-1)), (
            name
        )
    head = tensors["output.weight"]
    assert torch.equal(
        torch.from_numpy(head.values(0, head.rows).copy()), read_rows(stored["lm_head.weight"]).half().float()
    )

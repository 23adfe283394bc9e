"""GGUFs of families that transformers can't read, unpacked to 16 bit and taken through preprocess."""

import json
from pathlib import Path

import pytest
import tiny
import torch
from conftest import run_stages
from families import family
from safetensors.torch import load_file
from wrappers import with_drafts

from pipeline.llamacpp.converters import HeaderFields, to_gguf
from pipeline.llamacpp.tools import Toolchain


@pytest.mark.slow
@pytest.mark.parametrize("name", ["granite", "smollm3", "olmo2", "phi3", "lfm2", "qwen3_5_text"])
def test_an_unpacked_file_is_the_folder_it_was_made_of(name: str, tools: Toolchain, tmp_path: Path) -> None:
    source = family(name, tmp_path / "source", tools)
    original = load_file(source / "model.safetensors")
    rule = "smollm"
    if name == "qwen3_5_text":
        rule = "qwen35"
        with_drafts(source)  # which are left out
    to_gguf(tools, source, tmp_path / "tiny.gguf", "F16", HeaderFields("tiny", rule))
    root = tiny.write_project(tmp_path / "project", tiny.tiny_params(tmp_path / "tiny.gguf"))
    run_stages(root, ("base", "curate", "preprocess"))
    unpacked = load_file(root / "models/base/model.safetensors")
    assert unpacked.keys() == original.keys()
    for tensor, values in original.items():
        assert torch.equal(unpacked[tensor], values.to(torch.float16)), tensor
    settings = json.loads((root / "models/base/config.json").read_text())
    assert settings["architectures"] == json.loads((source / "config.json").read_text())["architectures"]
    assert (settings["model_type"], settings["dtype"]) == (name, "float16")

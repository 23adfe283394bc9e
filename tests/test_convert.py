"""convert: three GGUFs that open, with the right architecture, and an adapter GGUF that changes what the base says."""

from pathlib import Path

import pytest
from gguf import GGUFReader

from pipeline.convert import convert
from pipeline.errors import ToolError
from pipeline.llamacpp.tools import Toolchain


def test_model_base_and_adapter(finished: Path) -> None:
    readers = {name: GGUFReader(finished / f"models/gguf/tiny-{name}.gguf") for name in ("F16", "base-F16", "lora")}
    assert {name: reader.get_field("general.architecture").contents() for name, reader in readers.items()} == dict.fromkeys(readers, "qwen2")
    assert readers["lora"].get_field("general.type").contents() == "adapter"
    assert len(readers["lora"].tensors) == 2 * 14
    shapes = [{tensor.name: tuple(tensor.shape) for tensor in readers[name].tensors} for name in ("F16", "base-F16")]
    assert shapes[0] == shapes[1]


def test_a_model_that_the_converter_refuses_publishes_nothing(finished: Path, tmp_path: Path, tools: Toolchain) -> None:
    models = finished / "models"
    merged = tmp_path / "merged"
    merged.mkdir()
    (merged / "config.json").write_text('{"architectures": ["NoSuchModel"]}')
    with pytest.raises(ToolError, match=r"convert_hf_to_gguf\.py.*failed|failed with exit status"):
        convert(base=models / "base", adapter=models / "adapter", merged=merged, folder=tmp_path / "gguf", name="x", tools=tools)
    assert list((tmp_path / "gguf").iterdir()) == []

"""quantize and convert: deterministic bytes, whatever case the level is spelt in; a failing tool leaves nothing behind."""

import shutil
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, ToolError
from pipeline.hashing import file_hash
from pipeline.llamacpp.tools import Toolchain
from pipeline.params import Params, load_params
from pipeline.quantize import main, quantize


def with_levels(params: Params, levels: list[str]) -> Params:
    return params.model_copy(update={"quantize": params.quantize.model_copy(update={"levels": levels})})


def test_the_same_bytes_in_any_case_and_with_any_number_of_threads(finished: Path, tmp_path: Path, tools: Toolchain) -> None:
    folder = tmp_path / "models/gguf"
    folder.mkdir(parents=True)
    shutil.copyfile(finished / "models/gguf/tiny-F16.gguf", folder / "tiny-F16.gguf")
    main(with_levels(load_params(finished / "params.yaml"), ["q4_k_m"]), tmp_path, "q4_k_m")
    assert file_hash(folder / "tiny-q4_k_m.gguf") == file_hash(finished / "models/gguf/tiny-Q4_K_M.gguf")
    quantize(source=folder / "tiny-F16.gguf", target=folder / "two.gguf", level="Q4_K_M", nthreads=2, tools=tools)
    assert file_hash(folder / "two.gguf") == file_hash(folder / "tiny-q4_k_m.gguf")


def test_a_torn_source_is_an_error_and_publishes_nothing(finished: Path, tmp_path: Path, tools: Toolchain) -> None:
    source = tmp_path / "tiny-F16.gguf"
    source.write_bytes((finished / "models/gguf/tiny-F16.gguf").read_bytes()[:1_000_000])
    with pytest.raises(ToolError, match="llama-quantize failed"):
        quantize(source=source, target=tmp_path / "tiny-Q4_K_M.gguf", level="Q4_K_M", nthreads=1, tools=tools)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-F16.gguf"]


def test_a_level_that_is_not_in_the_list_is_refused(finished: Path) -> None:
    with pytest.raises(ConfigError, match=r"Q8_0 is not in quantize\.levels"):
        main(load_params(finished / "params.yaml"), finished, "Q8_0")

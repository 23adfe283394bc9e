"""quantize: deterministic bytes, whatever case the level is spelled in; matrix and types reach the tool; a
failing tool leaves nothing behind.
"""

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from qwen2_variants import cut_models
from shaped_gguf import shaped, written
from tiny import tiny_gguf, tiny_params

from pipeline.config.params import Params
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hashing import file_hash
from pipeline.gguf.file import describe
from pipeline.gguf.header import read_header
from pipeline.llamacpp.converters import quantize_gguf
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.stages.quantize.stage import main


@pytest.fixture
def root(tools: Toolchain, tmp_path: Path) -> Path:
    """A project folder with nothing but models/gguf/tiny-F16.gguf."""
    (tmp_path / "models/gguf").mkdir(parents=True)
    shutil.copyfile(cut_models(tools) / "tiny-F16.gguf", tmp_path / "models/gguf/tiny-F16.gguf")
    return tmp_path


def params(**quantize: Any) -> Params:
    values = tiny_params(Path("base"))
    values["quantize"] |= quantize
    values["evaluate"]["models"] = ["F16"]
    return Params.model_validate(values)


def test_the_same_bytes_in_any_case_and_with_any_number_of_threads(
    root: Path, tools: Toolchain, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = root / "models/gguf"
    main(params(levels=["q4_k_m"]), root, "q4_k_m")
    size = (folder / "tiny-q4_k_m.gguf").stat().st_size / 1e6
    assert capsys.readouterr().out == f"quantize: tiny-q4_k_m.gguf {size:.0f} MB\n"
    quantize_gguf(Llama(tools, 2), folder / "tiny-F16.gguf", folder / "two.gguf", "Q4_K_M")
    made = describe(folder / "two.gguf")
    assert file_hash(folder / "two.gguf") == file_hash(folder / "tiny-q4_k_m.gguf")
    assert (made["tensor_types"]["Q4_K"], made["fallback_tensors"]) == (12, 0)


@pytest.mark.parametrize("level", ["Q4_K_M", "Q8_0"])
def test_a_level_that_could_pack_no_row_is_refused_and_not_published(level: str, root: Path) -> None:
    """Rows of 80 and 144 weights: 32 divides neither."""
    folder = root / "models/gguf"
    written(folder / "tiny-F16.gguf", shaped(80, 144, tied=False, kv_heads=2))
    with pytest.raises(DataError, match="Q-GGUF-023"):
        main(params(levels=[level]), root, level)
    assert [path.name for path in folder.iterdir()] == ["tiny-F16.gguf"]


def test_tensors_that_stay_at_16_bit_are_said_with_the_bits_of_the_file(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of rows of 80 and 96 weights only ffn_down's, of 96, can be packed."""
    folder = root / "models/gguf"
    written(folder / "tiny-F16.gguf", shaped(80, 96, tied=True, kv_heads=2))
    main(params(levels=["Q8_0"]), root, "Q8_0")
    made = describe(folder / "tiny-Q8_0.gguf")
    assert made["fallback_types"] == {"F16": 6 * 16 + 1}
    said = capsys.readouterr().out
    assert f"97 of {made['tensors']} tensors stay at 16 bit" in said
    assert f"{made['bits_per_weight']:.2f} bits per weight" in said


def test_a_level_of_the_untuned_base_is_made_from_the_base(root: Path, tools: Toolchain) -> None:
    folder = root / "models/gguf"
    (folder / "tiny-F16.gguf").rename(folder / "tiny-base-F16.gguf")
    main(params(levels=["Q4_K_M", "base-Q4_K_M"]), root, "base-Q4_K_M")
    quantize_gguf(Llama(tools), folder / "tiny-base-F16.gguf", folder / "two.gguf", "Q4_K_M")
    assert file_hash(folder / "two.gguf") == file_hash(folder / "tiny-base-Q4_K_M.gguf")


def test_types_of_single_tensors(root: Path) -> None:
    main(params(levels=["Q4_K_M"], tensor_types={"attn_v": "Q8_0"}), root, "Q4_K_M")
    # ggml's Q8_0
    assert read_header(root / "models/gguf/tiny-Q4_K_M.gguf").tensors["blk.1.attn_v.weight"][1] == 8


def test_a_level_with_a_matrix_needs_one(root: Path) -> None:
    with pytest.raises(ConfigError, match="Q-QUANTIZE-001"):
        main(params(levels=["IQ2_M-imatrix"]), root, "IQ2_M-imatrix")


def test_a_torn_source_is_an_error_and_publishes_nothing(root: Path, tools: Toolchain) -> None:
    source = root / "models/gguf/tiny-F16.gguf"
    source.write_bytes(source.read_bytes()[:1_000_000])
    with pytest.raises(DataError, match="Q-GGUF-003"):
        quantize_gguf(Llama(tools), source, source.with_name("tiny-Q4_K_M.gguf"), "Q4_K_M")
    assert [path.name for path in source.parent.iterdir()] == ["tiny-F16.gguf"]


def test_a_level_that_is_not_in_the_list_is_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match="Q-QUANTIZE-002"):
        main(params(levels=["Q4_K_M"]), root, "Q8_0")


def test_tensors_that_fell_back_are_counted_by_type(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of 32 and 64 weights are no block of 256."""
    tiny_gguf(root / "models/gguf/tiny-F16.gguf")
    main(params(levels=["Q4_K_M"]), root, "Q4_K_M")
    made = GGUFReader(root / "models/gguf/tiny-Q4_K_M.gguf").tensors
    types = Counter(one.tensor_type.name for one in made if "blk." in one.name and len(one.shape) > 1)
    said = capsys.readouterr().out
    found = re.findall(r"(\d+) of (\d+) tensors fell back \((.*)\): .* (\d\.\d\d) bits", said)
    bits = 8 * sum(one.n_bytes for one in made) / sum(one.n_elements for one in made)
    named = ", ".join(f"{count} to {kind}" for kind, count in sorted(types.items()))
    assert found == [(str(types.total()), str(len(made)), named, f"{bits:.2f}")]

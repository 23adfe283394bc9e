"""split: the parts are the whole, every fault in them is named, and nothing of someone else's is replaced."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from qwen2_variants import cut_models

from pipeline.commands.split import main, prove_complete, split
from pipeline.config.params import Params, load_params
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.places import PROJECT
from pipeline.gguf.tensors import gguf_tensors
from pipeline.llamacpp.tools import Toolchain


@pytest.fixture
def source(tools: Toolchain) -> Path:
    return cut_models(tools) / "tiny-F16.gguf"


def test_the_parts_are_found_by_llama_cpp(
    tools: Toolchain, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models/gguf").mkdir(parents=True)
    shutil.copyfile(source, tmp_path / "models/gguf/tiny-F16.gguf")
    params = Params.model_validate(tiny.tiny_params(Path("base")))
    for _ in range(2):  # the second time replaces the first
        main(params, tmp_path, "f16", "2M", None)
    parts = sorted((tmp_path / "models/split/tiny-F16").iterdir())
    assert [part.name for part in parts] == [f"tiny-F16-{number:05}-of-00002.gguf" for number in (1, 2)]
    assert "tiny-F16.gguf is in 2 parts" in capsys.readouterr().out


def test_the_folder_is_called_by_the_model(
    monkeypatch: pytest.MonkeyPatch, tools: Toolchain, tmp_path: Path
) -> None:
    folders: list[Path] = []

    def note(*, source: Path, folder: Path, **_: Any) -> list[Path]:
        folders.append(folder)
        return [source]

    monkeypatch.setattr("pipeline.commands.split.split", note)
    for file in ("base/model.gguf", "gguf/demo-tuned.gguf"):
        (tmp_path / "models" / file).parent.mkdir(parents=True)
        (tmp_path / "models" / file).touch()
    for recipe, model in (("demo-gguf", None), ("demo-scales", "base"), ("demo-scales", None)):
        main(load_params(PROJECT / "recipes" / f"{recipe}.yaml"), tmp_path, model, "2M", None)
    assert [folder.name for folder in folders] == ["demo-base", "demo-base", "demo-tuned"]


@pytest.mark.parametrize("size", ["", "4", "0G", "4.5G", "4T", "-1M"])
def test_a_size_that_is_none_is_refused(size: str, tools: Toolchain, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Q-COMMANDS-012"):
        split(source=source, folder=tmp_path / "x", max_size=size, tools=tools)


def test_a_folder_with_something_else_is_left_alone(tools: Toolchain, source: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ConfigError, match=r"Q-COMMANDS-013: .*thesis\.txt"):
        split(source=source, folder=tmp_path, max_size="2M", tools=tools)


def test_a_part_that_can_not_be_as_small_as_asked_is_said_before(
    tools: Toolchain, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"Q-COMMANDS-012: token_embd\.weight .* --max-size \d+M"):
        split(source=source, folder=tmp_path / "x", max_size="1M", tools=tools)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Q-COMMANDS-013"):
        split(source=source, folder=tmp_path / "file", max_size="2M", tools=tools)


def zero_a_byte(parts: list[Path]) -> None:
    tensor = max(gguf_tensors(parts[1])[1].values(), key=lambda one: one.start)
    with tensor.file.open("r+b") as file:
        file.seek(tensor.start + 5)
        byte = file.read(1)
        file.seek(tensor.start + 5)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize(
    ("fault", "output"),
    [
        (zero_a_byte, r"differs from the one in whole\.gguf"),
        (lambda parts: parts.pop(), r"in whole\.gguf or in its parts, not in both"),
        (lambda parts: parts.append(parts[0]), "is in part-1.gguf and in part-1.gguf"),
        (lambda parts: tiny.tiny_gguf(parts[0], general__name="other"), r"general\.name in part-1\.gguf "),
    ],
)
def test_a_part_that_is_not_of_the_whole_is_named(
    fault: Callable[[list[Path]], Any], output: str, tmp_path: Path
) -> None:
    whole = tiny.tiny_gguf(tmp_path / "whole.gguf", tensors={"extra.weight": np.ones((4, 32), np.float16)})
    parts = [tiny.tiny_gguf(tmp_path / "part-1.gguf"), tmp_path / "part-2.gguf"]
    extra_only(parts[1])
    prove_complete(whole, parts)
    fault(parts)
    with pytest.raises(DataError, match=f"Q-COMMANDS-014: .*{output}"):
        prove_complete(whole, parts)


def extra_only(file: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tensor("extra.weight", np.ones((4, 32), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

"""A conversion's preflight: all reasons in one sentence, and which tokenizer files differ from the base's."""

import json
import shutil
from pathlib import Path

import pytest
from qwen2_variants import add_token, change_json, cut_models

from pipeline.core.errors import DataError
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.convert.stage import preflight


@pytest.fixture
def folders(tools: Toolchain, tmp_path: Path) -> tuple[Path, Path]:
    made = cut_models(tools) / "hf"
    return Path(shutil.copytree(made, tmp_path / "base")), Path(shutil.copytree(made, tmp_path / "merged"))


def test_differing_files_are_named_whatever_their_spelling(
    folders: tuple[Path, Path], tools: Toolchain
) -> None:
    base, merged = folders
    content = json.loads((merged / "tokenizer_config.json").read_text())
    # another way to write the same
    (merged / "tokenizer_config.json").write_text(json.dumps(content, indent=8))
    assert preflight(base=base, merged=merged, kind="F16", tools=tools).differing == ()
    add_token(merged / "tokenizer.json", "<ticket>")
    (merged / "chat_template.jinja").unlink()
    found = preflight(base=base, merged=merged, kind="F16", tools=tools)
    assert found.differing == ("tokenizer.json", "chat_template.jinja")


def test_all_reasons_are_in_one_sentence(folders: tuple[Path, Path], tools: Toolchain) -> None:
    base, merged = folders
    change_json(base / "config.json", num_hidden_layers=3)
    change_json(merged / "config.json", vocab_size=7)
    change_json(merged / "tokenizer.json", normalizer={"type": "Lowercase"})
    with pytest.raises(DataError) as caught:
        preflight(base=base, merged=merged, kind="F16", tools=tools)
    output = str(caught.value)
    assert output.startswith(
        f"Q-CONVERT-002: {merged} can't be converted for 3 reasons: base: num_hidden_layers is 3"
    )
    assert "; merged: vocab_size is 7" in output
    assert "normalizer Lowercase" in output
    assert "(other than the base's: tokenizer.json)" in output

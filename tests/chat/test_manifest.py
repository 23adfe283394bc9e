"""manifest: tokens' sources are known by content, so that a copy elsewhere is the same and an edit is not."""

import json
import shutil
from pathlib import Path

import pytest

from pipeline.chat.manifest import check_manifest
from pipeline.chat.tokens import load_tokenizer
from pipeline.core.errors import DataError
from pipeline.core.hashing import file_hash


def test_the_manifest_names_contents_and_no_places(prepared: Path) -> None:
    tokens = prepared / "data/tokens"
    output = check_manifest(tokens, prepared / "models/base", load_tokenizer(prepared / "models/base"))
    assert output == json.loads((tokens / "manifest.json").read_text(encoding="utf-8"))
    assert output["rows"] == {
        name: file_hash(prepared / "data/final" / name) for name in ("train.jsonl", "val.jsonl")
    }
    assert output["files"] == {name: file_hash(tokens / name) for name in ("train.parquet", "val.parquet")}
    assert output["max_length"] == 160
    assert output["packing"] is True
    assert set(output["versions"]) == {"jinja2", "pyarrow", "tokenizers", "transformers"}
    stats = json.loads((prepared / "reports/labels.json").read_text(encoding="utf-8"))["splits"]
    assert output["splits"] == {
        split: {key: stats[split][key] for key in found} for split, found in output["splits"].items()
    }
    assert str(prepared) not in json.dumps(output)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": {}}'])
def test_a_broken_manifest_is_no_manifest(text: str, prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared / "data/tokens", tmp_path / "tokens")
    (tmp_path / "tokens/manifest.json").write_text(text)
    with pytest.raises(DataError, match="Q-CHAT-005"):
        check_manifest(
            tmp_path / "tokens", prepared / "models/base", load_tokenizer(prepared / "models/base")
        )

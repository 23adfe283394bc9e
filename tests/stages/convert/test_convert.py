"""convert: three GGUFs with their provenance; the adapter's changes what the base says, at 16 bit and at a
level; nothing is left of a failure.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from qwen2_variants import change_json, cut_models, lineage_of, random_adapter
from tiny import tiny_gguf

from pipeline.config.products import ModelFiles
from pipeline.config.sections import Convert
from pipeline.core.errors import DataError
from pipeline.core.hashing import file_hash
from pipeline.gguf.file import is_made
from pipeline.gguf.header import read_header
from pipeline.gguf.provenance import provenance
from pipeline.llamacpp.converters import quantize_gguf
from pipeline.llamacpp.logits import open_gguf
from pipeline.llamacpp.pretokenizer import PreTokenizer
from pipeline.llamacpp.tools import VERSION, Llama, Toolchain
from pipeline.stages.convert.stage import Sources, convert, remark


@pytest.fixture(scope="module")
def models(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models/ folder with a base, an adapter, a merged model and, from `convert`, the GGUFs."""
    folder = tmp_path_factory.mktemp("models")
    made = cut_models(tools) / "hf"
    shutil.copytree(made, folder / "base")
    shutil.copytree(made, folder / "merged")
    (folder / "merged/merge.json").write_text(
        json.dumps({"merge_base": "nf4", "method": "stream", "dtype": "bfloat16"})
    )
    random_adapter(folder / "adapter")
    lineage_of(folder / "base.json")
    found = convert(inputs(folder), folder / "gguf", Convert(name="tiny", type="BF16"), tools)
    assert (found.merged, found.differing) == (PreTokenizer("qwen2", "structure"), ())
    return folder


def inputs(models: Path, merged: Path | None = None) -> Sources:
    return Sources(models / "base", models / "adapter", merged or models / "merged", models / "base.json")


def test_three_files_in_the_chosen_type(models: Path) -> None:
    headers = {path.name: read_header(path) for path in (models / "gguf").iterdir()}
    assert sorted(headers) == ["tiny-BF16.gguf", "tiny-base-BF16.gguf", "tiny-lora.gguf"]
    assert {header.fields["general.architecture"] for header in headers.values()} == {"qwen2"}
    assert headers["tiny-BF16.gguf"].tensors["blk.0.attn_q.weight"] == ((256, 256), 30)  # ggml's BF16
    assert headers["tiny-BF16.gguf"].tensors == headers["tiny-base-BF16.gguf"].tensors
    assert headers["tiny-lora.gguf"].fields["general.type"] == "adapter"
    assert len(headers["tiny-lora.gguf"].tensors) == 8


def test_each_says_where_it_comes_from(models: Path, tools: Toolchain) -> None:
    shared = {
        "general.base_model.count": 1,
        "general.base_model.0.name": "tiny",
        "general.license": "mit",
        "quench.base.source": "path",
        "quench.llama_cpp.commit": tools.commit,
        "quench.llama_cpp.package": VERSION,
    }
    tuned = {
        "quench.adapter.sha256": file_hash(models / "adapter/adapter_model.safetensors"),
        "quench.data.sha256": "ab" * 32,
    }
    model = {
        "quench.template.sha256": file_hash(models / "base/chat_template.jinja"),
        "quench.tokenizer.found_by": "structure",
    }
    merge = {"quench.merge.base": "nf4", "quench.merge.method": "stream", "quench.merge.dtype": "bfloat16"}
    wanted = {
        "tiny-BF16": shared | tuned | model | merge | {"general.name": "tiny"},
        "tiny-base-BF16": shared | model | {"general.name": "tiny-base"},
        "tiny-lora": shared | tuned | {"general.name": "tiny-lora"},
    }
    hashes = {}
    for name, fields in wanted.items():
        found = provenance(models / f"gguf/{name}.gguf")
        hashes[name] = (found.pop("quench.base.sha256"), found.pop("quench.config.sha256", None))
        assert ("quench.merge.sha256" in found) == (name == "tiny-BF16")
        found.pop("quench.merge.sha256", None)
        assert found == fields
        assert "someone" not in str(found)
    assert hashes["tiny-BF16"] == hashes["tiny-lora"]
    assert hashes["tiny-base-BF16"] == (hashes["tiny-lora"][0], None)


def test_the_adapter_works_on_every_level_of_the_base(models: Path, tools: Toolchain, tmp_path: Path) -> None:
    level = tmp_path / "tiny-base-Q4_K_M.gguf"
    quantize_gguf(Llama(tools), models / "gguf/tiny-base-BF16.gguf", level, "Q4_K_M")
    assert provenance(level) == provenance(models / "gguf/tiny-base-BF16.gguf")  # llama-quantize keeps it
    for base in (models / "gguf/tiny-base-BF16.gguf", level):
        output = []
        for lora in (None, models / "gguf/tiny-lora.gguf"):
            with open_gguf(Llama(tools), ModelFiles(base, lora), ctx_size=32) as model:
                output.append(model.logits([5, 6, 7], [0, 1, 2]))
        assert np.abs(output[0] - output[1]).max() > 0.01


def test_a_base_that_nothing_needs_is_not_converted(models: Path, tools: Toolchain, tmp_path: Path) -> None:
    convert(inputs(models), tmp_path, Convert(name="tiny", type="F16"), tools, with_base=False)
    stands_in = tmp_path / "tiny-base-F16.gguf"  # a stage's outputs are the same files whatever is asked for
    assert stands_in.stat().st_size < 1000 and (tmp_path / "tiny-F16.gguf").stat().st_size > 1_000_000
    assert (is_made(stands_in), is_made(tmp_path / "tiny-F16.gguf")) == (False, True)
    with pytest.raises(DataError, match="Q-GGUF-004"):
        quantize_gguf(Llama(tools), stands_in, tmp_path / "tiny-base-Q4_K_M.gguf", "Q4_K_M")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"vocab_size": 7}, "can't be converted for 1 reason: merged: vocab_size is 7"),
        ({"architectures": ["NoSuchModel"]}, "can't be converted for 1 reason: .*NoSuchModel"),
    ],
)
def test_a_model_that_can_not_be_converted_publishes_nothing(
    models: Path, tools: Toolchain, tmp_path: Path, changed: dict, words: str
) -> None:
    shutil.copytree(models / "merged", tmp_path / "merged")
    change_json(tmp_path / "merged/config.json", **changed)
    with pytest.raises(DataError, match=words):
        convert(inputs(models, tmp_path / "merged"), tmp_path / "gguf", Convert(name="x"), tools)
    assert list((tmp_path / "gguf").iterdir()) == []


@pytest.mark.parametrize(
    ("pre", "output"),
    [
        (PreTokenizer("qwen2", "hash"), "pre-tokenizer qwen2"),
        (PreTokenizer("qwen2", "structure"), "pre-tokenizer qwen2 (llama.cpp does not list this vocabulary"),
        (PreTokenizer(None, "converter"), "the converter takes the tokenizer for one of kind gpt2 with pre-"),
    ],
)
def test_the_printed_line_says_how_the_pre_tokenizer_was_found(
    pre: PreTokenizer, output: str, tmp_path: Path
) -> None:
    assert remark(pre, tiny_gguf(tmp_path / "x.gguf")).startswith(output)

"""Pre-tokenizers: known by llama.cpp's hashes, or by structure alone, or refused; equal ids afterwards."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
from qwen2_variants import KEPT, ROWS, add_token, change_json, cut_models
from tokenizer_folders import qwen_folder, smollm_folder, with_config
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from pipeline.core.errors import DataError
from pipeline.gguf.header import read_header
from pipeline.llamacpp.pretokenizer import (
    DIGIT,
    GPT2,
    KNOWN,
    PreTokenizer,
    find_pre_tokenizer,
    known_hashes,
)
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.base.converted_vocabulary import same_ids_when_converted
from pipeline.stages.parity.probe_inputs import strings
from pipeline.stages.parity.tokens import open_vocabulary

BEGINS = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", KEPT)])


def differing(tools: Toolchain, folder: Path, gguf: Path, count: int = 6_000) -> list[str]:
    """The strings of a varied corpus whose ids differ between a tokenizer.json and a GGUF's vocabulary."""
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = list(
        strings(
            PreTrainedTokenizerFast(tokenizer_object=ours), ["Real text, 2 lines.\nNaïve – 東京 🙂 x"], count
        )
    )
    with open_vocabulary(tools, gguf) as vocabulary:
        encoded = ours.encode_batch(texts, add_special_tokens=False)
        return [text for text, one in zip(texts, encoded, strict=True) if vocabulary.ids(text) != one.ids]


def vocabulary_gguf(file: Path, folder: Path, pre: str) -> Path:
    """A GGUF with the vocabulary of a tokenizer.json, for its vocabulary only."""
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    words = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    added = [token["content"] for token in content["added_tokens"]]
    merges = [" ".join(merge) for merge in content["model"]["merges"]]
    changed: dict[str, Any] = {
        "tokenizer__ggml__pre": pre,
        "tokenizer__ggml__tokens": words + added,
        "tokenizer__ggml__merges": merges,
        "tokenizer__ggml__token_type": [1] * len(words) + [3] * len(added),
        "llama__vocab_size": len(words) + len(added),
        "tokenizer__ggml__unknown_token_id": None,
        "tokenizer__ggml__bos_token_id": len(words),
        "tokenizer__ggml__eos_token_id": len(words),
        "tokenizer__ggml__padding_token_id": None,
        "tokenizer__ggml__add_bos_token": None,
    }
    return tiny.tiny_gguf(file, **changed)


@pytest.fixture(scope="module")
def small(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Llama 3's tokenizer.json, vocabulary cut: unlike Qwen2's, it has multi-digit tokens."""
    folder = qwen_folder(tmp_path_factory.mktemp("small"), tools)
    fields = read_header(tools.source / "models" / "ggml-vocab-llama-bpe.gguf").fields
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    words = {word: number for number, word in enumerate(fields["tokenizer.ggml.tokens"])}
    change_json(
        folder / "tokenizer.json",
        normalizer=None,
        model=content["model"] | {"vocab": words, "merges": fields["tokenizer.ggml.merges"]},
    )
    tiny.cut_vocabulary(folder / "tokenizer.json", KEPT)
    return folder


def with_structure(small: Path, folder: Path, structure: Any) -> Path:
    """A small vocabulary, split and merged by `structure`."""
    shutil.copytree(small, folder)
    file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    parts: list[Any] = []
    for pattern in structure.patterns:
        if pattern == GPT2:
            parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
        elif pattern == DIGIT:
            parts.append(pre_tokenizers.Digits(individual_digits=True))
        else:
            parts += [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
    tokenizer.pre_tokenizer = parts[0] if len(parts) == 1 else pre_tokenizers.Sequence(parts)
    if structure.adds_bos:
        tokenizer.post_processor = BEGINS
    tokenizer.save(str(file))
    content = json.loads(file.read_text(encoding="utf-8"))
    change_json(file, model=content["model"] | {"ignore_merges": structure.ignore_merges})
    return folder


def test_the_list_of_hashes_is_read_whole(tools: Toolchain) -> None:
    text, names = known_hashes(tools)
    source = (tools.source / "conversion" / "base.py").read_text(encoding="utf-8")
    assert names.keys() == set(re.findall(r'chkhsh == "([0-9a-f]{64})"', source))
    assert {"qwen2", "smollm", "llama-bpe", "gpt-2", "qwen35"} <= set(names.values())
    assert "Български" in text


def test_published_tokenizers_are_known_by_hash(tools: Toolchain, tmp_path: Path) -> None:
    assert find_pre_tokenizer(qwen_folder(tmp_path / "qwen2", tools), tools) == PreTokenizer("qwen2", "hash")
    assert find_pre_tokenizer(smollm_folder(tmp_path / "smollm"), tools) == PreTokenizer("smollm", "hash")


@pytest.mark.slow
def test_an_added_token_leaves_the_hash_and_becomes_one_id(tools: Toolchain, tmp_path: Path) -> None:
    folder = qwen_folder(tmp_path, tools)
    add_token(folder / "tokenizer.json", "<ticket>")
    assert find_pre_tokenizer(folder, tools) == PreTokenizer("qwen2", "hash")
    gguf = vocabulary_gguf(tmp_path / "v.gguf", folder, "qwen2")
    assert differing(tools, folder, gguf) == []
    with open_vocabulary(tools, gguf) as vocabulary:
        assert len(vocabulary.ids("a<ticket>b")) == 3


def test_a_cut_vocabulary_converts_by_its_structure(tools: Toolchain, tmp_path: Path) -> None:
    made = cut_models(tools)
    found = find_pre_tokenizer(made / "hf", tools)
    assert found == PreTokenizer("qwen2", "structure")
    assert differing(tools, made / "hf", made / "tiny-F16.gguf") == []
    fields = read_header(made / "tiny-F16.gguf").fields
    assert (fields["tokenizer.ggml.pre"], len(fields["tokenizer.ggml.tokens"])) == ("qwen2", ROWS)


def test_a_cut_vocabulary_of_a_family_without_a_record_gives_equal_ids(
    tools: Toolchain, tmp_path: Path
) -> None:
    """Stage base tries such a tokenizer by converting it, by the structure that stage convert goes by too."""
    folder = smollm_folder(tmp_path / "model")
    tiny.cut_vocabulary(folder / "tokenizer.json", KEPT)
    with_config(folder, "seed_oss", architectures=["SeedOssForCausalLM"])
    pre = find_pre_tokenizer(folder, tools)
    assert pre.found_by == "structure"
    same_ids_when_converted(folder, tools, pre.name)


@pytest.mark.parametrize(("structure", "name"), KNOWN.items(), ids=KNOWN.values())
def test_every_known_structure_gives_equal_ids(
    structure: Any, name: str, small: Path, tools: Toolchain, tmp_path: Path
) -> None:
    folder = with_structure(small, tmp_path / "hf", structure)
    assert find_pre_tokenizer(folder, tools) == PreTokenizer(name, "structure")
    assert differing(tools, folder, vocabulary_gguf(tmp_path / "v.gguf", folder, name)) == []


def test_a_file_older_than_the_switch_of_its_pattern_is_known(
    small: Path, tools: Toolchain, tmp_path: Path
) -> None:
    (structure,) = (structure for structure, name in KNOWN.items() if name == "gpt-2")
    file = with_structure(small, tmp_path / "hf", structure) / "tokenizer.json"
    old = json.loads(file.read_text(encoding="utf-8"))["pre_tokenizer"]
    assert old.pop("use_regex")
    change_json(file, pre_tokenizer=old)
    assert find_pre_tokenizer(file.parent, tools) == PreTokenizer("gpt-2", "structure")
    assert differing(tools, file.parent, vocabulary_gguf(tmp_path / "v.gguf", file.parent, "gpt-2")) == []


@pytest.mark.parametrize("other", ["gpt-2", "smollm", "qwen2"])
def test_another_name_would_give_other_ids(other: str, small: Path, tools: Toolchain, tmp_path: Path) -> None:
    (structure,) = (structure for structure, name in KNOWN.items() if name == "smaug-bpe")
    folder = with_structure(small, tmp_path / "hf", structure)
    assert differing(tools, folder, vocabulary_gguf(tmp_path / "v.gguf", folder, other), 2_000)


def in_turn(*parts: Any) -> Any:
    """A pre-tokenizer of several."""
    return pre_tokenizers.Sequence(list(parts))


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)


@pytest.mark.parametrize(
    ("place", "value", "output"),
    [
        ("pre_tokenizer", in_turn(pre_tokenizers.Split(Regex(r"\w+"), "isolated"), BYTES), "its patterns"),
        ("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True), '"add_prefix_space": true'),
        ("pre_tokenizer", in_turn(pre_tokenizers.Whitespace(), GPT2_BYTES), "Whitespace"),
        ("pre_tokenizer", in_turn(pre_tokenizers.Digits(False), GPT2_BYTES), '"individual_digits": false'),
        ("normalizer", normalizers.Lowercase(), "normalizer Lowercase"),
        ("model.end_of_word_suffix", "</w>", "model.end_of_word_suffix"),
        ("post_processor", BEGINS, "beginning of text"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_structure_that_llama_cpp_lacks_is_refused(
    place: str, value: Any, output: str, small: Path, tools: Toolchain, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(small / "tokenizer.json"))
    *above, last = place.split(".")
    setattr(getattr(tokenizer, above[0]) if above else tokenizer, last, value)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match="Q-LLAMACPP-012") as caught:
        find_pre_tokenizer(tmp_path, tools)
    assert output in str(caught.value)


def test_no_byte_level_vocabulary_is_left_to_the_converter(tools: Toolchain, tmp_path: Path) -> None:
    assert find_pre_tokenizer(tmp_path, tools) == PreTokenizer(None, "converter")
    Tokenizer.from_str(
        json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": []})
    ).save(str(tmp_path / "tokenizer.json"))
    assert find_pre_tokenizer(tmp_path, tools) == PreTokenizer(None, "converter")

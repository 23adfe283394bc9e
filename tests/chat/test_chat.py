"""chat: the label mask covers exactly what the assistant says and its end of turn; nothing said is dropped or
becomes a control token.
"""

import json
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from draws import draws
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from qwen2_variants import change_json
from tiny import CHATML, QWEN_ADDED
from tokenizer_folders import llama2_folder, smollm_folder, with_config
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from pipeline.chat import tokens
from pipeline.chat.rendering import Unrenderable, render, renderings
from pipeline.chat.rows import edit_texts, texts
from pipeline.chat.tokenizer_file import PROBES
from pipeline.chat.tokens import IGNORED, Encoded, chat_request, encode, load_tokenizer, save_tokenizer
from pipeline.core.errors import DataError


@pytest.fixture(scope="module")
def tokenizer(tiny_qwen2: Path) -> Any:
    return load_tokenizer(tiny_qwen2)


def chat(*texts: str, system: str | None = None) -> list[dict[str, str]]:
    turns = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]
    return ([{"role": "system", "content": system}] if system else []) + turns


def row(messages: list[Any], **more: Any) -> dict[str, Any]:
    return {"id": "0", "source": "a.jsonl:1", "kind": "chat", "domain": "a", "messages": messages, **more}


def sequences(tokenizer: Any, row: dict[str, Any]) -> list[Encoded]:
    """A row's sequences; raises why there are none."""
    ((_, found),) = encode(tokenizer, [row])
    if isinstance(found, Unrenderable):
        raise found
    return found


def only(tokenizer: Any, row: dict[str, Any]) -> Encoded:
    """The one sequence of a row."""
    (encoded,) = sequences(tokenizer, row)
    return encoded


def trained_text(tokenizer: Any, row: dict[str, Any]) -> str:
    encoded = only(tokenizer, row)
    assert len(encoded.ids) == len(encoded.labels)
    assert all(label in (IGNORED, token) for token, label in zip(encoded.ids, encoded.labels, strict=True))
    return str(tokenizer.decode([label for label in encoded.labels if label != IGNORED]))


# NFC, which Qwen2's normalizer leaves as it is, so that decoded text can be compared
WORDS = (
    st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="<|>"), max_size=20)
    .map(lambda text: unicodedata.normalize("NFC", text).strip())
    .filter(bool)
    .map("  {} \n".format)
)


@settings(max_examples=draws(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(WORDS, min_size=2, max_size=6).filter(lambda texts: len(texts) % 2 == 0),
    system=st.none() | WORDS,
)
def test_trained_tokens_are_the_assistants(tokenizer: Any, texts: list[str], system: str | None) -> None:
    messages = chat(*texts, system=system)
    encoded = only(tokenizer, row(messages))
    (rendered,) = renderings(tokenizer, messages)
    assert tokenizer.decode(encoded.ids) == rendered.text
    answers = [f"{answer}<|im_end|>" for answer in texts[1::2]]
    assert [rendered.text[start:end] for start, end in rendered.spans] == answers
    assert trained_text(tokenizer, row(messages)) == "".join(answers)


def refused(tokenizer: Any, row: dict[str, Any]) -> tuple[str, str]:
    """The reason why a row can't be encoded, and the words."""
    with pytest.raises(Unrenderable) as caught:
        sequences(tokenizer, row)
    return caught.value.code, str(caught.value)


CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": "zwei", "b": [2]}}, "id": "c1"}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "one"}}},
    },
}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "4", "tool_call_id": "c1", "name": "add"},
    {"role": "tool", "content": "four"},
    {"role": "assistant", "content": "It is 4."},
]
CALLED = '<tool_call>\n{"name": "add", "arguments": {"a": "zwei", "b": [2]}}\n</tool_call>'


def test_calls_of_tools_are_trained_and_their_results_are_not(tokenizer: Any) -> None:
    with_tools = row(TURNS, tools=[TOOL])
    assert trained_text(tokenizer, with_tools) == f"{CALLED}\n{CALLED}<|im_end|>It is 4.<|im_end|>"
    text = tokenizer.decode(only(tokenizer, with_tools).ids)
    assert json.dumps(TOOL) in text
    assert "<tool_response>\n4\n</tool_response>\n<tool_response>\nfour\n</tool_response>" in text


@pytest.fixture
def with_template(tokenizer: Any) -> Iterator[Callable[[str], Any]]:
    """The tokenizer with another chat template, until the test ends."""
    kept = tokenizer.chat_template

    def change(template: str) -> Any:
        tokenizer.chat_template = template
        return tokenizer

    yield change
    tokenizer.chat_template = kept


PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
THINKS = (  # as Qwen3: only what follows the last question keeps its reasoning
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content | trim }}</think>\n{% endif %}"
    "{{ m.content | trim }}<|im_end|>\n{% endfor %}" + PROMPT
)


def showing(content: str) -> str:
    """ChatML with this for a message's content."""
    return CHATML.replace("message['content']", content)


PYTHON = showing("message['content'] ~ message.tool_calls")
COUNTING = "{% for m in messages %}{{ m.role }}{{ messages|length }}:{{ m.content }}<|im_end|>{% endfor %}"
NOT_SHOWN = "does not show the"
ENDLESS = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
ENDLESS += "{% if add_generation_prompt %}assistant:{% endif %}"
THOUGHT = {"role": "assistant", "content": "b", "reasoning_content": "hm"}


@pytest.mark.parametrize(
    ("template", "messages", "offered", "reason", "words"),
    [
        (COUNTING, chat("a", "b", "c", "d"), None, "template_rewrites", "turn 2"),
        (ENDLESS, chat("a", "b"), None, "no_end_of_turn", "turn 2"),
        ("{{ raise_exception('no') }}", chat("a", "b"), None, "template_refuses", "no"),
        ("{{ 1 + messages }}", chat("a", "b"), None, "template_refuses", "unsupported operand"),
        (CHATML, chat("a", "b"), [TOOL], "template_drops", "does not show tool 1"),
        (CHATML, TURNS, None, "template_drops", "does not show a tool call of turn 2"),
        (CHATML, [*chat("a"), THOUGHT], None, "template_drops", f"{NOT_SHOWN} reasoning_content of turn 2"),
        (
            showing("message['content'][:9]"),
            chat("a", "ten letters"),
            None,
            "template_drops",
            "the content of turn 2",
        ),
        (
            showing("(message['content'] if loop.last else '')"),
            chat("b", "b"),
            None,
            "template_drops",
            "of turn 2",
        ),
        (PYTHON, TURNS, None, "template_not_json", "as Python"),
        (CHATML, [*chat("a"), THOUGHT | {"train": False}], None, "nothing_to_train", ""),
    ],
)
def test_a_template_that_does_not_tell_all_is_refused(
    with_template: Callable[[str], Any],
    template: str,
    messages: list[Any],
    offered: Any,
    reason: str,
    words: str,
) -> None:
    found, output = refused(with_template(template), row(messages, **({"tools": offered} if offered else {})))
    assert found == reason
    assert words in output


def test_a_template_may_trim_or_escape_what_it_shows(with_template: Callable[[str], Any]) -> None:
    thought = THOUGHT | {"reasoning_content": " hm\n"}
    found = trained_text(with_template(THINKS), row([*chat(" a "), thought]))
    assert found == "<think>hm</think>\nb<|im_end|>"
    escaping = with_template(showing("message['content'] | tojson"))
    assert trained_text(escaping, row(chat('"a"\n', "b"))) == '"b"<|im_end|>'


SAYING = row(
    [{"role": "system", "content": "x", "name": "x"}, *TURNS[:4], TURNS[4] | {"reasoning_content": "x"}],
    tools=[TOOL],
)
SHOWS_ALL = (  # every text of a row, in any place
    "{{ tools | tojson }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.reasoning_content }}{{ "
    "m.content }}{{ m.name }}{{ m.tool_call_id }}"
    "{{ m.tool_calls | tojson if m.tool_calls }}<|im_end|>\n{% endfor %}" + PROMPT
)
PLACES = sorted({place for place, _ in texts(SAYING)})


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("token", QWEN_ADDED)
def test_no_control_token_comes_from_what_is_said(
    with_template: Callable[[str], Any], place: str, token: str
) -> None:
    """Every added token, in every text of a row: keys and values of tools and of calls, names and ids too."""
    tokenizer = with_template(SHOWS_ALL)
    output = [text for found, text in texts(SAYING) if found == place]
    for number in range(len(output)):
        seen = iter(range(len(output)))

        def inject(found: str, text: str, seen: Iterator[int] = seen, number: int = number) -> str:
            here = found == place and next(seen) == number
            return f"{text} {token}" if here and text not in ("type", "function", "name") else text

        injected = edit_texts(SAYING, inject)
        if injected is not SAYING:
            assert refused(tokenizer, injected)[0] == "control_token"
    only(tokenizer, SAYING)


def test_the_markup_of_text_is_its_own(tokenizer: Any) -> None:
    segments = [
        {"text": "<|im_start|>user\nhi<|im_end|>\n", "train": False},
        {"text": " hello<|im_end|>", "train": True},
    ]
    encoded = only(tokenizer, row([], kind="text", segments=segments))
    assert tokenizer.decode(encoded.ids) == "<|im_start|>user\nhi<|im_end|>\n hello<|im_end|>"
    assert trained_text(tokenizer, row([], kind="text", segments=segments)) == " hello<|im_end|>"


@pytest.mark.parametrize(
    ("segments", "trained"),
    [
        ([("a whole text", True)], "a whole text<|im_end|>"),
        ([("learn", True), (" read", False)], "learn"),
        ([("read ", False), ("lea", True), ("rn", True)], "learn<|im_end|>"),
    ],
)
def test_text_ends_where_it_is_learned_to_its_end(
    tokenizer: Any, segments: list[tuple[str, bool]], trained: str
) -> None:
    made = [{"text": text, "train": train} for text, train in segments]
    assert trained_text(tokenizer, row([], kind="text", segments=made)) == trained


def test_text_begins_as_the_tokenizer_begins_it(tokenizer: Any) -> None:
    class Begins:
        """Qwen's tokenizer with a beginning of text, as Llama's has one."""

        bos_token_id, eos_token_id = tiny.WORDS, tiny.END

        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            return {"input_ids": [self.bos_token_id] * add_special_tokens + ids}

    for text in ("a", "<|endoftext|>a"):
        encoded = tokens.encode_segments(
            Begins(), [{"text": text, "train": False}, {"text": "b", "train": True}]
        )
        assert tokenizer.decode(encoded.ids) == "<|endoftext|>ab<|im_end|>"
        assert encoded.labels[:2] == [IGNORED] * 2


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (row(chat("a"), kind="prompt", answer="b"), "not_learned"),
        (row(chat("a", "b"), kind="feedback", label=True), "not_learned"),
        (
            row(chat("a"), kind="preference", chosen=chat("a", "b")[1:], rejected=chat("a", "c")[1:]),
            "not_learned",
        ),
        (row([], kind="text", segments=[]), "nothing_to_train"),
        (row([], kind="text", segments=[{"text": "a", "train": False}]), "nothing_to_train"),
    ],
)
def test_what_supervised_training_has_no_use_for(tokenizer: Any, other: dict[str, Any], reason: str) -> None:
    assert refused(tokenizer, other)[0] == reason
    good = row(chat("a", "b"))
    found = [len(encoded.ids) for encoded in tokens.encodable(tokenizer, [other, good], 100)]
    assert found == [len(only(tokenizer, good).ids)]
    assert list(tokens.encodable(tokenizer, [good], 4)) == []
    assert list(tokens.chats([other, good, {"messages": []}])) == [good, {"messages": []}]


def test_a_request_says_the_same_as_the_row(tokenizer: Any) -> None:
    """In OpenAI's protocol the arguments of calls are text."""
    request = chat_request([*TURNS[:4], TURNS[4] | {"train": False}], [TOOL])
    assert request["messages"][4] == TURNS[4]
    for call in request["messages"][1]["tool_calls"]:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    assert request == {"messages": TURNS, "tools": [TOOL]}
    assert chat_request(chat("a")) == {"messages": chat("a")}
    assert render(tokenizer, TURNS, [TOOL]) != render(tokenizer, TURNS)


def test_a_folder_without_an_end_of_turn_is_refused(tmp_path: Path) -> None:
    folder = with_config(smollm_folder(tmp_path / "model"))
    change_json(folder / "tokenizer_config.json", eos_token=None)
    with pytest.raises(DataError, match="Q-CHAT-002"):
        load_tokenizer(folder)


@pytest.mark.parametrize("kind", ["another pattern", "no space behind a control token"])
def test_text_is_split_as_tokenizer_json_says(kind: str, tmp_path: Path) -> None:
    """By config.model_type transformers picks, in silence, a class that cuts text by another rule."""
    if kind == "another pattern":
        folder = with_config(smollm_folder(tmp_path / "model"))
        change_json(folder / "config.json", model_type="qwen2")
    else:
        folder = llama2_folder(tmp_path / "model")
    text = f"{''.join(PROBES)}<s>[INST] Which river? [/INST] The Nile.</s>And"
    loaded = load_tokenizer(folder)
    file = Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = file.encode(text, add_special_tokens=False).ids
    assert loaded(text, add_special_tokens=False)["input_ids"] == expected
    assert AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)["input_ids"] != expected
    save_tokenizer(loaded, tmp_path / "saved")
    saved = Tokenizer.from_file(str(tmp_path / "saved/tokenizer.json"))
    assert saved.encode(text, add_special_tokens=False).ids == expected


@pytest.mark.parametrize("model_type, key", [("qwen2", "pad_token"), ("llama", "eos_token")])
def test_a_token_that_the_file_has_not_is_refused(model_type: str, key: str, tmp_path: Path) -> None:
    folder = with_config(smollm_folder(tmp_path / "model"))
    change_json(folder / "config.json", model_type=model_type)
    change_json(folder / "tokenizer_config.json", **{key: "<|nowhere|>"})
    with pytest.raises(DataError, match=r"Q-CHAT-003.* names <\|nowhere\|> as special"):
        load_tokenizer(folder)


def test_without_a_template_texts_are_encoded_and_chats_are_refused(tmp_path: Path) -> None:
    folder = with_config(smollm_folder(tmp_path / "model"))
    (folder / "chat_template.jinja").unlink()
    bare = load_tokenizer(folder)
    text = {"kind": "text", "messages": [], "segments": [{"text": "The Nile.", "train": True}]}
    (_, encoded), (_, refused) = encode(bare, [text, {"messages": chat("a", "b")}])
    assert isinstance(encoded, list) and encoded[0].ids[-1] == bare.eos_token_id
    assert isinstance(refused, Unrenderable) and "no chat template" in str(refused)

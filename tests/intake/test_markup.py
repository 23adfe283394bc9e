"""markup: rendered chats are read back as their turns, whichever template wrote them, or not at all."""

import time
from contextlib import suppress
from typing import Any

import pytest
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.chat.rows import BadRow
from pipeline.chat.template import compiled
from pipeline.intake.rows.markup import is_rendered, parse, without_ends
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.curate.rules.rendered import Markup

Turn = dict[str, Any]
CHAT: list[Turn] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Name a pier."},
    {"role": "assistant", "content": "The north pier."},
    {"role": "user", "content": "Draw it."},
    {"role": "assistant", "content": "|  |\n==+== # 12"},
]
# of llama.cpp's copies those that write a chat as it is, but for a system turn of their own
TEMPLATES = (
    *("Bielik-11B-v3.0-Instruct", "GLM-4.6", "HuggingFaceTB-SmolLM3-3B", "Kimi-K2-Instruct", "LFM2-8B-A1B"),
    *(
        "Qwen-Qwen2.5-7B-Instruct",
        "Qwen-QwQ-32B",
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "llama-cpp-deepseek-r1",
    ),
    *("deepseek-ai-DeepSeek-V3.1", "google-gemma-4-31B-it", "ibm-granite-granite-3.3-2B-Instruct"),
    *("meta-llama-Llama-3.1-8B-Instruct", "microsoft-Phi-3.5-mini-instruct", "openai-gpt-oss-120b"),
    *("mistralai-Ministral-3-14B-Reasoning-2512", "unsloth-mistral-Devstral-Small-2507"),
)


def read(text: str) -> list[Turn]:
    """The turns that the rule makes of a rendered chat."""
    row = {"kind": "chat", "messages": [{"role": "assistant", "content": text}]}
    messages: list[Turn] = Markup([])(row, [])["messages"]
    return messages


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_a_real_template_writes_is_read_back(tools: Toolchain, name: str) -> None:
    template = compiled((tools.source / f"models/templates/{name}.jinja").read_text(encoding="utf-8"))
    is_deepseek = "deepseek" in name
    text = template(
        messages=CHAT,
        tools=None,
        documents=None,
        add_generation_prompt=False,
        bos_token="<｜begin▁of▁sentence｜>" if is_deepseek else "<s>",
        eos_token="<｜end▁of▁sentence｜>" if is_deepseek else "</s>",
    )
    found = read(text)
    turns = [turn for turn in found if turn["role"] != "system"]
    # thoughts are the rule `reasoning`'s, which sees the answer next
    for turn in turns:
        _, _, turn["content"] = turn["content"].rpartition("</think>")
        turn["content"] = turn["content"].lstrip("\n")
    assert turns == CHAT[1:]
    assert any(CHAT[0]["content"] in turn["content"] for turn in found if turn["role"] == "system")


def rendered(style: str, turns: list[Turn]) -> str:
    """A chat in a dialect of which llama.cpp has no template."""
    headers, ends = {
        "Llama 4": (
            ("<|header_start|>user<|header_end|>\n\n", "<|header_start|>assistant<|header_end|>\n\n"),
            "<|eot|>",
        ),
        "Phi 4": (("<|im_start|>user<|im_sep|>", "<|im_start|>assistant<|im_sep|>"), "<|im_end|>"),
        "Zephyr": (("<|user|>\n", "<|assistant|>\n"), "</s>\n"),
        "Tulu": (("<|user|>\n", "<|assistant|>\n"), "\n"),
        "OpenAssistant": (("<|prompter|>", "<|assistant|>"), "<|endoftext|>"),
        "Guanaco": (("### Human: ", "### Assistant: "), ""),
        "Solar": (("### User:\n", "### Assistant:\n"), "\n\n"),
        "Vicuna": (("USER: ", "ASSISTANT: "), " "),
        "Alpaca": (("### Instruction:\n", "### Response:\n"), "\n\n"),
        "hh-rlhf": (("\n\nHuman: ", "\n\nAssistant: "), ""),
        "phi-2": (("User: ", "Assistant: "), "\n"),
    }[style]
    return "".join(headers[turn["role"] == "assistant"] + turn["content"] + ends for turn in turns)


STYLES = (
    *(
        "Llama 4",
        "Phi 4",
        "Zephyr",
        "Tulu",
        "OpenAssistant",
        "Guanaco",
        "Solar",
        "Vicuna",
        "Alpaca",
        "hh-rlhf",
    ),
    "phi-2",
)
WORDS = st.text(st.sampled_from("ab ,.é\n<|>#:[]/"), min_size=1, max_size=12).map(lambda words: f"x{words}y")


@settings(max_examples=draws(200))
@given(style=st.sampled_from(STYLES), words=st.lists(WORDS, min_size=2, max_size=6))
def test_turns_come_back_as_they_were_rendered(style: str, words: list[str]) -> None:
    roles = ("user", "assistant")
    turns = [{"role": roles[number % 2], "content": said} for number, said in enumerate(words)]
    assert read(rendered(style, turns)) == turns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Plain words.",
        "In ChatML a turn begins with <|im_start|>user and ends with <|im_end|>.",
        "She typed USER: and waited.\nASSISTANT: nothing.",
        "USER: that is what stood on the badge.",
        "### Instructions\nMix.\n\n### Response times\nFast.",
        "Human: a short history",
        "Humans: 3\nAssistants: 4",
        "<p>Some <b>bold</b> text</p>",
        "[1] A source. [INST] is a marker.",
        "Q: 2 + 2?\nA: 4",
    ],
)
def test_other_texts_are_no_chats(text: str) -> None:
    assert not is_rendered(text)
    row = {"kind": "text", "messages": [], "segments": [{"text": text, "train": True}]}
    assert Markup([])(row, changes := []) is row
    assert not changes


@pytest.mark.parametrize(
    "text",
    [
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\nand more",
        "<|im_start|>user\na\n<|im_start|>assistant\nb<|im_end|>",
        "<|im_start|>user\na<|im_end|>",
        "<|im_start|>assistant",
        "<|start_header_id|>nobody<|end_header_id|>\n\na<|eot_id|>",
        "[INST] a [INST] b [/INST] c",
        "[INST] a [/INST] b [/INST] c",
        "[AVAILABLE_TOOLS] [] [/AVAILABLE_TOOLS][INST] a [/INST] b",
        "<<SYS>>\na\n<</SYS>>\n\n[INST] b [/INST] c",
        "### Human: a\n### Human: b\n### Assistant: c",
        "### Instruction:\na\n\n### Response:\nb\n\n### Input:\nc",
        "<|start|>assistant<|channel|>analysis<|message|>a<|end|>",
    ],
)
def test_what_begins_like_a_chat_and_is_none_is_named(text: str) -> None:
    with pytest.raises(BadRow) as caught:
        read(text)
    assert caught.value.code == "markup"
    assert "messages 1 " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a</s>", "a"),
        ("a<|im_end|>\n<|endoftext|>\n", "a"),
        ("<s> a</s>", "a"),
        ("a <s>b</s>", "a <s>b</s>"),
        ("Write <|im_end|> at the end: <|im_end|>", "Write <|im_end|> at the end: <|im_end|>"),
        ("a</s> b", "a</s> b"),
        ("  indented</s>", "  indented"),
        ("a\n", "a\n"),
    ],
)
def test_an_end_behind_the_last_word_is_taken_off(text: str, left: str) -> None:
    assert without_ends(text) == left


def test_the_first_line_of_code_stays_indented() -> None:
    code = "    return 1\n  # done"
    text = f"<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n{code}<|im_end|>\n"
    assert read(text)[1]["content"] == code


@pytest.mark.parametrize("begin", ["<s>", "<bos>\n", "[gMASK]<sop>", "  \n<|begin_of_text|>"])
def test_tokens_that_begin_a_text_are_passed_over(begin: str) -> None:
    for text in (rendered(style, CHAT[1:3]) for style in STYLES):
        assert read(begin + text) == CHAT[1:3]


@pytest.mark.parametrize(
    "text",
    [
        "<|im_start|>user\n" + "\n" * 500_000,
        "<|im_start|>user\na" + "<|im_end|>" * 100_000 + "x",
        "<|im_start|>" * 100_000,
        "<s>" * 200_000,
        "[INST]" * 100_000,
        "### Human: " * 100_000,
        "USER: ASSISTANT: " * 30_000,
        "A chat between a curious " + ". " * 200_000,
        "Below is an instruction that describes a task" + "\n" * 300_000,
        "<｜begin▁of▁sentence｜>" * 50_000,
        "[INST]" + "<<SYS>>" * 100_000,
    ],
)
def test_no_text_takes_long(text: str) -> None:
    start = time.process_time()
    with suppress(BadRow):
        parse(text, "messages 1")
    without_ends(text + "</s>" * 50_000)
    assert time.process_time() - start < 10  # a second on an idle core; what is quadratic takes hours

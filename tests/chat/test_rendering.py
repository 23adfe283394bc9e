"""rendering: a conversation is one text, or one for each answer where the template rewrites what is past."""

from typing import Any

import pytest
from tiny import CHATML, WORDS
from tokenizer_folders import qwen3_folder, qwen_folder, smollm_folder

from pipeline.chat.rendering import Unrenderable, own_system_prompt, render, renderings
from pipeline.chat.tokens import IGNORED, encode, load_tokenizer
from pipeline.llamacpp.tools import Toolchain


@pytest.fixture(scope="module")
def tokenizers(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("bases")
    found = {
        "qwen2.5": load_tokenizer(qwen_folder(place / "qwen2.5", tools, WORDS)),
        "qwen3": load_tokenizer(qwen3_folder(place / "qwen3", tools, WORDS)),
        "smollm": load_tokenizer(smollm_folder(place / "smollm")),
        "chatml": load_tokenizer(smollm_folder(place / "chatml")),
    }
    found["chatml"].chat_template = CHATML
    return found


def turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
CALLED = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
SEVERAL = [turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "d")]
ASKED, ANSWER, MORE, _ = SEVERAL
REASONED = turn("assistant", "b", reasoning_content="hm")
LAST = turn("assistant", "d", reasoning_content="so")
THOUGHT = [ASKED, REASONED, MORE, LAST]
CALLING = turn("assistant", "", tool_calls=[CALL])
LOOP = [turn("user", "2 + 2?"), CALLING, turn("tool", "4"), turn("assistant", "It is 4.")]
HM, SO = (f"<think>\n{thought}\n</think>\n\n{said}" for thought, said in (("hm", "b"), ("so", "d")))
HELD = {"train": False}
EMPTY = "<think>\n\n</think>\n\n"
CASES: dict[str, tuple[str, list[Any], Any, list[list[str]]]] = {
    "ChatML": ("chatml", SEVERAL, None, [["b", "d"]]),
    "ChatML, an untrained turn": ("chatml", [ASKED, ANSWER | HELD, *SEVERAL[2:]], None, [["d"]]),
    "SmolLM2, no system": ("smollm", SEVERAL, None, [["b", "d"]]),
    "Qwen2.5": ("qwen2.5", [turn("system", "Be brief."), *SEVERAL], None, [["b", "d"]]),
    "Qwen2.5, tools": ("qwen2.5", LOOP, [TOOL], [[CALLED, "It is 4."]]),
    "Qwen3": ("qwen3", SEVERAL[:2], None, [[f"{EMPTY}b"]]),
    "Qwen3, several turns": ("qwen3", SEVERAL, None, [[f"{EMPTY}b"], [f"{EMPTY}d"]]),
    "Qwen3, reasoning": ("qwen3", THOUGHT, None, [[HM], [SO]]),
    "Qwen3, an untrained turn": ("qwen3", [ASKED, ANSWER | HELD, *SEVERAL[2:]], None, [[f"{EMPTY}d"]]),
    "Qwen3, untrained reasoning": ("qwen3", [ASKED, REASONED | HELD, MORE, LAST], None, [[SO]]),
    "Qwen3, tools": ("qwen3", LOOP, [TOOL], [[EMPTY + CALLED], [f"{EMPTY}It is 4."]]),
}


@pytest.mark.parametrize("case", CASES)
def test_each_turn_is_learned_behind_what_a_server_shows(case: str, tokenizers: dict[str, Any]) -> None:
    name, messages, offered, answers = CASES[case]
    tokenizer = tokenizers[name]
    ((_, encoded),) = encode(tokenizer, [{"messages": messages, "tools": offered}])
    assert not isinstance(encoded, Unrenderable)
    trained = [tokenizer.decode([label for label in one.labels if label != IGNORED]) for one in encoded]
    assert trained == ["".join(f"{answer}<|im_end|>" for answer in part) for part in answers]
    texts = renderings(tokenizer, messages, offered)
    assert [tokenizer.decode(one.ids) for one in encoded] == [text.text for text in texts]
    starts = [text.text[:start] for text in texts for start, _ in text.spans]
    assert starts == [
        render(tokenizer, messages[:place], offered, add_generation_prompt=True)
        for place, message in enumerate(messages)
        if message["role"] == "assistant" and message.get("train", True)
    ]


def test_parts_are_named_by_the_answer_they_are_for(tokenizers: dict[str, Any]) -> None:
    ((_, parts),) = encode(tokenizers["qwen3"], [{"messages": SEVERAL}])
    ((_, whole),) = encode(tokenizers["qwen2.5"], [{"messages": SEVERAL}])
    assert not isinstance(parts, Unrenderable)
    assert not isinstance(whole, Unrenderable)
    assert [one.name_in("id") for one in parts] == ["id#1", "id#2"]
    assert [one.name_in("id") for one in whole] == ["id"]


def test_rows_keep_their_order_and_bad_ones_their_reason(tokenizers: dict[str, Any]) -> None:
    rows = [
        {"messages": SEVERAL[:2]},
        {"messages": SEVERAL[:1]},
        {"messages": THOUGHT},
        {"kind": "prompt", "messages": []},
        {"messages": SEVERAL},
    ] * 60
    found = list(encode(tokenizers["qwen2.5"], rows))
    assert [row for row, _ in found] == rows
    reasons = [one.code if isinstance(one, Unrenderable) else len(one) for _, one in found]
    assert reasons == [1, "nothing_to_train", "template_drops", "not_learned", 1] * 60


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (None, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
        ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}", None),
        (
            "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif "
            "%}<|im_start|>{{ m.content }}{% endfor %}",
            None,
        ),
        (
            "<|im_start|>system\nToday is Monday.\n{% if messages[0].role == 'system' %}{{ "
            "messages[0].content }}{% endif %}<|im_end|>\n"
            "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content "
            "}}<|im_end|>\n{% endfor %}",
            "Today is Monday.",
        ),
        (
            "{% set s = messages[0].content if messages[0].role == 'system' else '' %}{% for m in messages "
            "if m.role != 'system' %}"
            "[INST] {{ s ~ '\n\n' if s }}{{ m.content }}[/INST]{% endfor %}",
            None,
        ),
    ],
)
def test_the_templates_own_system_prompt(
    template: str | None, prompt: str | None, tokenizers: dict[str, Any]
) -> None:
    tokenizer = tokenizers["qwen2.5"]
    kept, tokenizer.chat_template = tokenizer.chat_template, template or tokenizer.chat_template
    try:
        assert own_system_prompt(tokenizer) == prompt
    finally:
        tokenizer.chat_template = kept

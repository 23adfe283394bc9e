"""Templates whose generation prompt opens reasoning, or is another in llama-server: both kinds of chats can
be trained with what stage `base` makes of them, and llama-server's default shows the same text.
"""

from pathlib import Path
from typing import Any

import pytest
from tiny import CHATML
from tokenizer_folders import qwen_folder
from tokenizers import AddedToken, Tokenizer

from pipeline.chat.rendering import render
from pipeline.chat.thinking import SWITCH, free_prompt
from pipeline.chat.tokens import load_tokenizer
from pipeline.chat.trial import CHATS, QUESTION, failures, trained_header
from pipeline.llamacpp.tools import Toolchain

TEMPLATES = Path("models/templates")  # of real models, in llama.cpp's sources
TOKENS = (
    "<think>",
    "</think>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<|turn>",
    "<turn|>",
    "<|channel>",
    "<channel|>",
)
END = "<|im_end|>"
WITHOUT = "<think>\n\n</think>\n\n"
# as the small Qwen3.5 have it: without the switch they do not reason, and llama-server sets it
SMALL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>\n"
    "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is true %}{{ '<think>\n' }}"
    "{% else %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
# the template, the end of turn, what is taken out of the prompt, and the kinds of chats that stay left out
REAL = {
    "Qwen3.5-4B": ("<|im_end|>", "<think>\n", set()),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": (
        "<｜end▁of▁sentence｜>",
        "<think>\n",
        {"reasoning", "tools"},
    ),
    "google-gemma-4-31B-it": ("<turn|>", "<|channel>thought\n<channel|>", {"reasoning", "tools"}),
}


@pytest.fixture(scope="module")
def tokenizer(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Qwen's, in which two line breaks are one token, with the control tokens of the templates here."""
    folder = qwen_folder(tmp_path_factory.mktemp("tokenizer"), tools, 2000)
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ends = [end for end, _, _ in REAL.values()]
    tokens.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in (*TOKENS, *ends)])
    tokens.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


def prompt(tokenizer: Any, **switch: bool) -> str:
    """Return a question with the generation prompt."""
    return render(tokenizer, [QUESTION], add_generation_prompt=True, **switch)


def whole(tokenizer: Any) -> list[str]:
    """Return the chats of the trial that end with an answer."""
    return [render(tokenizer, row["messages"], row.get("tools")) for row in CHATS.values()]


@pytest.mark.parametrize("name", REAL)
def test_a_real_template_trains_plain_chats_without_the_tag_in_its_prompt(
    name: str, tokenizer: Any, tools: Toolchain
) -> None:
    end, removed, left_out = REAL[name]
    tokenizer.eos_token = end
    tokenizer.chat_template = (tools.source / TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    assert "chats without reasoning" in failures(tokenizer)
    before, chats = prompt(tokenizer), whole(tokenizer)
    found = free_prompt(tokenizer)
    assert found is not None and found.removed == removed
    tokenizer.chat_template = found.template
    assert failures(tokenizer).keys() == left_out
    assert trained_header(tokenizer) is None
    assert whole(tokenizer) == chats  # only the prompt is changed
    assert prompt(tokenizer) == prompt(tokenizer, enable_thinking=True) == before.removesuffix(removed)
    assert free_prompt(tokenizer) is None


def test_qwen_can_still_be_told_not_to_reason(tokenizer: Any, tools: Toolchain) -> None:
    tokenizer.eos_token = END
    template = (tools.source / TEMPLATES / "Qwen3.5-4B.jinja").read_text(encoding="utf-8")
    for text in (template, SMALL, SMALL.replace("\n", "\r\n")):
        tokenizer.chat_template = text
        found = free_prompt(tokenizer)
        assert found is not None
        tokenizer.chat_template = found.template
        assert not failures(tokenizer).keys() - {"tools"}  # the short template here shows none
        assert prompt(tokenizer, enable_thinking=False) == prompt(tokenizer) + WITHOUT
        assert prompt(tokenizer, enable_thinking=True) == prompt(tokenizer)


def test_what_llama_server_would_show_otherwise_is_set(tokenizer: Any) -> None:
    """Without the tag in its answers there is nothing to train reasoning with: the switch is off for good."""
    tokenizer.eos_token = END
    loop = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    opening = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    tokenizer.chat_template = "{% if enable_thinking %}<think>{% endif %}" + loop + opening
    found = free_prompt(tokenizer)
    assert found is not None and (found.removed, SWITCH in found.template) == ("", True)
    plain = prompt(tokenizer)
    tokenizer.chat_template = found.template
    assert prompt(tokenizer) == prompt(tokenizer, enable_thinking=True) == plain


def test_a_sound_template_stays(tokenizer: Any, tools: Toolchain) -> None:
    tokenizer.eos_token = END
    qwen3 = (tools.source / TEMPLATES / "Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8")
    for template in (CHATML, qwen3):
        tokenizer.chat_template = template
        assert free_prompt(tokenizer) is None and tokenizer.chat_template == template

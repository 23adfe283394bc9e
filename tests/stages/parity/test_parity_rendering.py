"""parity checks.text: training's and llama-server's templates; planted differences caught and explained."""

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import tiny
from families import byte_folder
from preferences import user

from pipeline.chat.clock import without_clock
from pipeline.chat.tokens import load_tokenizer
from pipeline.config.products import ModelFiles
from pipeline.core.checks import Check
from pipeline.llamacpp.server import serving
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.stages.parity.probe_inputs import Conversation, synthetic
from pipeline.stages.parity.rendering import served_texts, template_text

TOOLS_AND_REASONING = "Qwen-Qwen3-0.6B.jinja"
DATED = "{{ '<|im_start|>system\nToday is ' + (date_string | default('1 May 2024')) + '.<|im_end|>\n' }}"
Measure = Callable[..., Check]


@pytest.fixture
def measure(tools: Toolchain, tmp_path: Path) -> Measure:
    """The parity check of a model with template `served` in its GGUF and `trained` in its tokenizer."""

    def run(
        served: str | None,
        trained: str | None = None,
        conversations: list[Conversation] | None = None,
        **changed: Any,
    ) -> Check:
        f16 = tiny.tiny_gguf(tmp_path / "model-F16.gguf", tokenizer__chat_template=served, **changed)
        tokenizer = load_tokenizer(byte_folder(tmp_path / "folder", trained or served or tiny.CHATML))
        asked = synthetic()[::8] if conversations is None else conversations
        with serving(Llama(tools), ModelFiles(f16), ctx_size=256) as server:
            return template_text(served_texts(tokenizer, server, asked), tokenizer, f16)

    return run


@pytest.mark.slow
def test_every_made_conversation_is_the_same_text(measure: Measure, tools: Toolchain) -> None:
    template = (tools.source / "models" / "templates" / TOOLS_AND_REASONING).read_text(encoding="utf-8")
    check = measure(template, conversations=synthetic())
    assert check.verdict == "pass", check.sentence
    assert check.figures["compared"] >= 400
    assert check.figures["left_out"] == 0 and len(synthetic()) >= 200
    assert "3 with numbers" in check.sentence and "4 with a tool" in check.sentence


def test_reasoning_that_is_never_trained_is_not_compared(measure: Measure, tools: Toolchain) -> None:
    """Ministral 3's template reads reasoning in parts of the content, which only llama-server writes."""
    name = "mistralai-Ministral-3-14B-Reasoning-2512.jinja"
    template = (tools.source / "models" / "templates" / name).read_text(encoding="utf-8")
    thought = [user("a"), {"role": "assistant", "content": "b", "reasoning_content": "hm"}, user("c")]
    plain = [user("a"), {"role": "assistant", "content": "b"}, user("c")]
    check = measure(template, conversations=[Conversation(thought), Conversation(plain)])
    assert check.verdict == "pass", check.sentence
    assert check.figures["left_out"] == 2 and check.figures["compared"] == 2


SPACED = tiny.CHATML.replace("<|im_end|>\\n", "<|im_end|> \\n")
NO_SYSTEM = tiny.CHATML.replace("{% if loop.first", "{% if false")
OTHER = "is not the one of training"


@pytest.mark.parametrize(
    ("served", "trained", "cause"),
    [
        (SPACED, tiny.CHATML, f"{OTHER} (its white space is 2 characters longer;"),
        (tiny.CHATML, NO_SYSTEM, f"{OTHER} (it has a default system prompt more)"),
        (NO_SYSTEM, tiny.CHATML, f"{OTHER} (it has a default system prompt less)"),
        (tiny.CHATML.replace("im_start", "im_begin"), tiny.CHATML, "it says other words"),
        (DATED + tiny.CHATML, DATED + tiny.CHATML, "llama-server says today's date (date_string)"),
        (None, tiny.CHATML, "model-F16.gguf has no chat template: run the stages merge and convert again."),
    ],
)
def test_a_planted_difference_is_caught_and_explained(
    served: str | None, trained: str, cause: str, measure: Measure
) -> None:
    answered = [user("Why?"), {"role": "assistant", "content": "So."}]
    conversations = [Conversation([user("Hi")]), Conversation(answered)]
    if served is None:
        trained = tiny.CHATML.replace("You are a helpful assistant.", "")  # llama-server takes a plain ChatML
    check = measure(served, trained, conversations)
    assert (check.verdict, check.figure) == ("fail", 4.0)
    assert cause in check.remedy
    assert "first difference: at " in check.sentence


@pytest.mark.parametrize("name", ["3.1-8B", "3.2-3B"])
def test_a_template_with_a_fixed_date_is_the_same_text(name: str, measure: Measure, tools: Toolchain) -> None:
    """llama-server tells both its date; the second asks for it too."""
    file = tools.source / "models" / "templates" / f"meta-llama-Llama-{name}-Instruct.jinja"
    fixed = without_clock(file.read_text(encoding="utf-8"), date(2001, 2, 3))
    check = measure(fixed, conversations=[Conversation([user("Hi")])])
    assert check.verdict == "pass", check.sentence


def test_a_template_that_thinks_only_when_asked_is_named(measure: Measure, tools: Toolchain) -> None:
    """llama-server asks where the template knows thinking; training does not."""
    template = (tools.source / "models" / "templates" / "Qwen-QwQ-32B.jinja").read_text(encoding="utf-8")
    check = measure(template, conversations=[Conversation([user("Hi")])])
    assert check.verdict == "fail"
    assert "enable_thinking" in check.remedy


def test_a_beginning_of_text_is_there_once(measure: Measure) -> None:
    """llama-server takes it off the text and puts it before the tokens."""
    template = "{{ bos_token }}" + tiny.CHATML.replace("<|im_start|>", "<|endoftext|>")
    assert measure(template, tokenizer__ggml__add_bos_token=True).verdict == "pass"


def test_what_can_not_be_compared_is_counted(measure: Measure) -> None:
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
    refuses += tiny.CHATML
    system = user("Be brief.") | {"role": "system"}
    conversations = [Conversation([system, user("Hi")]), Conversation([user("Hi")])]
    check = measure(refuses, conversations=conversations)
    assert (check.verdict, check.figures["compared"], check.figures["left_out"]) == ("pass", 2.0, 2.0)
    assert "2 refused" in check.sentence
    assert measure(refuses, conversations=conversations[:1]).verdict == "not measured"


TRIMS = tiny.CHATML.replace("message['content']", "message['content'] | trim")


def test_white_space_beyond_ascii_is_llama_servers_own_way(measure: Measure) -> None:
    check = measure(TRIMS, conversations=[Conversation([user("\u00a0\u3000x\u2028")], held_out=True)])
    assert (check.verdict, check.figures["rewritten_held_out"]) == ("pass", 2.0)


def test_its_own_way_excuses_nothing_else(measure: Measure) -> None:
    spaced = TRIMS.replace("<|im_end|>\\n", "<|im_end|> \\n")
    check = measure(spaced, TRIMS, [Conversation([user("\u00a0x")])])
    assert (check.verdict, check.figure, check.figures["rewritten"]) == ("fail", 2.0, 0.0)


def test_an_answer_at_the_end_is_not_gone_on_with(measure: Measure) -> None:
    """llama-server would take it for one to be continued: one more question follows it."""
    answered = [user("a"), {"role": "assistant", "content": "b"}]
    check = measure(tiny.CHATML, conversations=[Conversation(answered)])
    assert (check.verdict, check.figures["compared"], check.figures["rewritten"]) == ("pass", 2.0, 0.0)

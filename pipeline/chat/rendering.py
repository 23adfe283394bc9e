"""Conversations as the base's own template shows them, and which ranges of that text are trained.

The ranges come from rendering, not from looking for markers: the text up to an assistant turn (with the
generation prompt) must be a prefix of the text with that turn; what the turn adds, up to and including its
end-of-turn token, is what is trained; of an answer whose end was cut off, up to its last character. Where the
template shows earlier turns differently once more turns follow (Qwen3 takes their reasoning out), a
conversation is unfolded: one text for each trained turn, ending with it, so that each is learned after the
exact text that a server shows the model at that point.
"""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pipeline.chat.new_tokens import text_tokens
from pipeline.chat.rows import is_unended
from pipeline.chat.template_probe import Message, Tools, probe, shown

UNFOLDED = (
    "template_rewrites",
    "template_drops",
)  # what may be cured by ending the conversation with the trained turn


class Unrenderable(ValueError):
    """A conversation that can't become a training row; `code` is the stable reason, the text says more."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Rendered:
    """A conversation as text; `spans` are the character ranges [start, end) that are trained.

    `messages` are the turns that are in it. Of the turns before `since` the template may have taken the
    reasoning out. `part` counts the texts of an unfolded conversation, from 1.
    """

    text: str
    spans: list[tuple[int, int]]
    messages: list[Message]
    since: int = 0
    part: int | None = None


def render(
    tokenizer: Any,
    messages: list[Message],
    tools: Tools = None,
    *,
    add_generation_prompt: bool = False,
    **recorded: Any,
) -> str:
    """The conversation as text by the model's own template, which is `recorded` what else it asks for. Raises
    `Unrenderable` if it refuses.
    """
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        raise Unrenderable("template_refuses", "the base has no chat template, which chats need")
    try:
        return str(
            tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt, **recorded
            )
        )
    except (  # a template is a program
        TemplateError,
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise Unrenderable(
            "template_refuses", f"the chat template says: {str(error) or type(error).__name__}"
        ) from error


def trained_turns(messages: list[Message]) -> list[int]:
    """The places of the assistant turns that are to be trained: all but those with `train: false`."""
    return [
        turn
        for turn, message in enumerate(messages)
        if message["role"] == "assistant" and message.get("train") is not False
    ]


def renderings(tokenizer: Any, messages: list[Message], tools: Tools = None) -> list[Rendered]:
    """The conversation as one text where its trained turns stand in one, else unfolded: a text for each
    trained turn.

    Raises `Unrenderable` if there is nothing to train, if the template refuses the turns, drops what is said
    or rewrites it even in the text that ends with it, and if a turn doesn't end in the end-of-turn token.
    """
    trained = trained_turns(messages)
    if not trained:
        raise Unrenderable("nothing_to_train", "no assistant turn that is to be trained")
    try:
        return [_rendered(tokenizer, messages, tools, trained)]
    except Unrenderable as why:
        if why.code not in UNFOLDED:
            raise
    return [
        _rendered(tokenizer, messages[: turn + 1], tools, [turn], turn, part)
        for part, turn in enumerate(trained, start=1)
    ]


def _rendered(
    tokenizer: Any,
    messages: list[Message],
    tools: Tools,
    trained: list[int],
    since: int = 0,
    part: int | None = None,
) -> Rendered:
    text = render(tokenizer, messages, tools)
    _check_nothing_dropped(text, messages, since)
    spans = []
    for turn in trained:
        before = render(tokenizer, messages[:turn], tools, add_generation_prompt=True)
        after = text if turn + 1 == len(messages) else render(tokenizer, messages[: turn + 1], tools)
        if not after.startswith(before):
            raise Unrenderable(
                "template_rewrites",
                f"the template begins turn {turn + 1} differently than its generation prompt does",
            )
        if not text.startswith(after):
            raise Unrenderable(
                "template_rewrites",
                f"the template renders turn {turn + 1} differently once more turns follow",
            )
        # An answer whose end was cut off must not teach the model to stop there.
        last = messages[turn]["content"].strip() if is_unended(messages[turn]) else tokenizer.eos_token
        end = after.rfind(last)
        if end < len(before):
            raise Unrenderable("no_end_of_turn", f"turn {turn + 1} does not end in {last[-60:]}")
        spans.append((len(before), end + len(last)))
    return Rendered(text, spans, messages, since, part)


def _check_nothing_dropped(text: str, messages: list[Message], since: int) -> None:
    """Raise `Unrenderable` unless `text` shows all that is said, turn after turn (trimmed or as a JSON
    string, if the template likes).
    """
    position = 0
    for number, message in enumerate(messages, start=1):
        in_order = message["role"] != "system"  # templates move system turns
        for key, start in (("reasoning_content", 0), ("content", position if in_order else 0)):
            words = message.get(key, "").strip() if key == "content" or number > since else ""
            place = text.find(words, start)
            if place < 0:
                words = json.dumps(words, ensure_ascii=False)[1:-1]
                place = text.find(words, start)
            if place < 0:
                raise Unrenderable(
                    "template_drops", f"the chat template does not show the {key} of turn {number}"
                )
        position = place + len(words) if in_order else position


def control_ids(tokenizer: Any, ids: list[int]) -> list[int]:
    """Those of `ids` that are control tokens."""
    added = _added_ids(tokenizer)
    return [token for token in ids if token in added]


def implied_ids(tokenizer: Any, messages: list[Message], tools: Tools, since: int) -> list[int]:
    """The ids of control tokens that the turns imply, whatever is said in them, in order.

    Raises `Unrenderable` if the template doesn't show something of the turns or tools.
    """
    return _implied_ids(tokenizer, str(tokenizer.chat_template), json.dumps(probe(messages, tools)), since)


@lru_cache(maxsize=4096)
def _implied_ids(tokenizer: Any, template: str, bare: str, since: int) -> list[int]:
    """`implied_ids` of a template probe (JSON of messages and tools) under `template`, which are few."""
    messages, tools = json.loads(bare)
    text = render(tokenizer, messages, tools)
    for what, stand_in in shown(messages, tools, since):
        if stand_in not in text:
            raise Unrenderable("template_drops", f"the chat template does not show {what}")
    keys = [
        key
        for message in messages
        for call in message.get("tool_calls", ())
        for key in call["function"]["arguments"]
    ]
    if any(f"'{key}':" in text for key in keys):
        raise Unrenderable(
            "template_not_json", "the chat template writes the arguments of a call as Python, not as JSON"
        )
    return control_ids(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"])


@lru_cache(maxsize=8)
def _added_ids(tokenizer: Any) -> frozenset[int]:
    """The ids of the tokenizer's added tokens, without the harmless: white space (runs of it, as "  " or
    "▁▁"), single letters, and those that `base.new_tokens` added as text.
    """
    text = text_tokens(tokenizer)
    return frozenset(
        number
        for token, number in tokenizer.get_added_vocab().items()
        if len(token) > 1 and token.replace("▁", " ").strip() and token not in text
    )


def own_system_prompt(tokenizer: Any) -> str | None:
    """The system prompt that the template puts before a conversation without one; None if it puts none, or
    refuses system turns.

    Found by rendering the same user's turn with and without a system turn before it: what stands there
    without one, between the same markup.
    """
    question, stated = {"role": "user", "content": "q00000002"}, {"role": "system", "content": "q00000001"}
    try:
        bare = render(tokenizer, [question])
        opening, _, rest = render(tokenizer, [stated, question]).partition(stated["content"])
    except Unrenderable:
        return None
    head, closing = bare.partition(question["content"])[0], rest.partition(question["content"])[0]
    own = re.fullmatch(f"{re.escape(opening)}(.*){re.escape(closing)}", head, re.DOTALL)
    if not opening or not closing or not own:
        return None
    # Llama 3.1 has its own words before the place where the system turn goes
    return own[1].strip() or _without_markup(tokenizer, opening)


def _without_markup(tokenizer: Any, text: str) -> str | None:
    """What a template says beside control tokens and the role's name, if it says something."""
    for token in tokenizer.get_added_vocab():
        text = text.replace(token, "")
    return text.strip().removeprefix("system").strip() or None

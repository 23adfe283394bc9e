"""Conversations as the base's own template renders them, and the ranges of that text that are trained.

The ranges come from rendering, not from searching for markers. The text up to an assistant turn (with the
generation prompt) must be a prefix of the text with that turn. The text that the turn adds, up to and
including its end-of-turn token, is trained. For a truncated answer it is the text up to its last character.
Some templates render earlier turns differently once more turns follow (Qwen3 removes their reasoning). Such a
conversation is unfolded: one text for each trained turn, ending with it. So each turn is learned after the
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
)  # reasons that may disappear if the conversation ends with the trained turn


class Unrenderable(ValueError):
    """Error for a conversation that can't become a training row.

    `code` is the stable reason, the text gives details.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Rendered:
    """A conversation as text. `spans` are the character ranges [start, end) that are trained.

    `messages` are the turns in the text. The template may have removed the reasoning of the turns before
    `since`. `part` counts the texts of an unfolded conversation, from 1.
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
    """Return the conversation as text by the model's own template.

    `recorded` are other variables of the template. Raises `Unrenderable` if the template refuses the
    conversation.
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
    except (  # A template is a program.
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
    """Return the indices of the assistant turns to train: all but those with `train: false`."""
    return [
        turn
        for turn, message in enumerate(messages)
        if message["role"] == "assistant" and message.get("train") is not False
    ]


def renderings(tokenizer: Any, messages: list[Message], tools: Tools = None) -> list[Rendered]:
    """Return the conversation as one text if it contains all trained turns, otherwise unfolded: a text for
    each trained turn.

    Raises `Unrenderable` if there is nothing to train, or if the template refuses the turns. It is also
    raised if the template drops or rewrites content even in the text that ends with it, or if a turn doesn't
    end in the end-of-turn token.
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
        # A truncated answer must not teach the model to stop there.
        last = messages[turn]["content"].strip() if is_unended(messages[turn]) else tokenizer.eos_token
        end = after.rfind(last)
        if end < len(before):
            raise Unrenderable("no_end_of_turn", f"turn {turn + 1} does not end in {last[-60:]}")
        spans.append((len(before), end + len(last)))
    return Rendered(text, spans, messages, since, part)


def _check_nothing_dropped(text: str, messages: list[Message], since: int) -> None:
    """Raise `Unrenderable` unless `text` shows all content, turn after turn.

    The template may trim it or write it as a JSON string.
    """
    position = 0
    for number, message in enumerate(messages, start=1):
        in_order = message["role"] != "system"  # Templates move system turns.
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
    """Return those of `ids` that are control tokens."""
    added = _added_ids(tokenizer)
    return [token for token in ids if token in added]


def implied_ids(tokenizer: Any, messages: list[Message], tools: Tools, since: int) -> list[int]:
    """Return the ids of control tokens that the turns imply, whatever their content, in order.

    Raises `Unrenderable` if the template doesn't show a part of the turns or tools.
    """
    return _implied_ids(tokenizer, str(tokenizer.chat_template), json.dumps(probe(messages, tools)), since)


@lru_cache(maxsize=4096)
def _implied_ids(tokenizer: Any, template: str, bare: str, since: int) -> list[int]:
    """Return `implied_ids` of a template probe (JSON of messages and tools) under `template`. Probes are few,
    so the results are cached.
    """
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
    """Return the ids of the tokenizer's added tokens, without the harmless ones.

    Harmless are white space (two spaces or "▁▁", for example), single letters, and the tokens that
    `base.new_tokens` added as text.
    """
    text = text_tokens(tokenizer)
    return frozenset(
        number
        for token, number in tokenizer.get_added_vocab().items()
        if len(token) > 1 and token.replace("▁", " ").strip() and token not in text
    )


def own_system_prompt(tokenizer: Any) -> str | None:
    """Return the system prompt that the template puts before a conversation without one.

    None if it puts none, or refuses system turns. The same user's turn is rendered with and without a system
    turn before it. The text that is there without one, between the same markup, is the template's own prompt.
    """
    question = {"role": "user", "content": "q00000002"}
    stated = {"role": "system", "content": "q00000001"}
    try:
        bare = render(tokenizer, [question])
        opening, _, rest = render(tokenizer, [stated, question]).partition(stated["content"])
    except Unrenderable:
        return None
    head = bare.partition(question["content"])[0]
    closing = rest.partition(question["content"])[0]
    prompt = re.fullmatch(f"{re.escape(opening)}(.*){re.escape(closing)}", head, re.DOTALL)
    if not opening or not closing or not prompt:
        return None
    # Llama 3.1 has its own words before the place of the system turn.
    return prompt[1].strip() or _without_markup(tokenizer, opening)


def _without_markup(tokenizer: Any, text: str) -> str | None:
    """Return the text of a template besides control tokens and the role's name; None if there is none."""
    for token in tokenizer.get_added_vocab():
        text = text.replace(token, "")
    return text.strip().removeprefix("system").strip() or None

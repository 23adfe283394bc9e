"""Rewriting of chat templates so that the model, not the generation prompt, decides if it reasons.

Qwen3.5's prompt ends in `<think>` and a line break. An answer without reasoning continues with another line
break, which is one token with the first, so no plain chat could be trained. DeepSeek-R1's distills open a
block of reasoning that no earlier answer has. And if `enable_thinking` changes the prompt, llama-server,
which sets it to true by itself, serves another text than transformers, which doesn't set it, trains. With the
tag removed from the prompt the model writes it, as Qwen3 does. Both kinds of chats can then be trained and
are served alike.

The rewritten template is found by trying: a text of the template is cut short. The result must be the same
for whole conversations, and a shorter prompt for a question.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pipeline.chat.rendering import Unrenderable, render
from pipeline.chat.template import environment
from pipeline.chat.template_probe import Message
from pipeline.chat.trial import CHATS, QUESTION, USUAL, failures, trained_header

SWITCH = "enable_thinking"
# Text before a template that reads the switch: nothing, the value that llama-server sets by default, or the
# value off for good. Each is a line of its own, and its line break belongs to the tag.
LINES = (
    "",
    f"{{%- set {SWITCH} = {SWITCH} | default(true) %}}\n",
    f"{{%- set {SWITCH} = false %}}\n",
)


@dataclass(frozen=True)
class FreePrompt:
    """A template whose generation prompt leaves it to the model to reason. `removed` is the former end of the
    prompt, "" if only the switch had to be set.
    """

    template: str
    removed: str


def free_prompt(tokenizer: Any) -> FreePrompt | None:
    """Return the tokenizer's template with a generation prompt that both kinds of answers can follow, and
    that is the same with `enable_thinking` as without.

    None if that is so already, or impossible.
    """
    template = tokenizer.chat_template
    if not isinstance(template, str) or not _prompt(tokenizer):
        return None
    best = _score(tokenizer)
    if best.is_sound:
        return None
    template = template.replace("\r\n", "\n").replace("\r", "\n")  # jinja2 reads line breaks so.
    free = None
    whole = _conversations(tokenizer)
    for line in LINES if SWITCH in template else LINES[:1]:
        with _using(tokenizer, line + template):
            prompt = _prompt(tokenizer)
        for removed, shorter in [("", template), *_cut(tokenizer, template, prompt)]:
            with _using(tokenizer, line + shorter):
                opening = _prompt(tokenizer)
                if _conversations(tokenizer) != whole or not opening or not prompt.startswith(opening):
                    continue
                score = _score(tokenizer, is_cut=bool(removed))
            if score.is_sound and score < best:
                best = score
                free = FreePrompt(line + shorter, removed)
        if best.is_sound and not best.failed:
            break
    return free


@dataclass(frozen=True, order=True)
class _Score:
    """The distance of a template from one that all kinds of chats can be trained with; less is better."""

    is_unlike: bool  # True if the switch, which llama-server sets, changes the texts
    is_header_trained: bool
    usual_failed: int
    failed: int
    is_cut: bool = False

    @property
    def is_sound(self) -> bool:
        """Return True if usual chats can be trained and are served as they were trained."""
        return not (self.is_unlike or self.is_header_trained or self.usual_failed)


def _score(tokenizer: Any, *, is_cut: bool = False) -> _Score:
    """Return the score of the template that the tokenizer has now."""
    failed = failures(tokenizer)
    return _Score(
        is_unlike=not _is_served_alike(tokenizer),
        is_header_trained=trained_header(tokenizer) is not None,
        usual_failed=len([kind for kind in USUAL if kind in failed]),
        failed=len(failed),
        is_cut=is_cut,
    )


@contextmanager
def _using(tokenizer: Any, template: str) -> Iterator[None]:
    """Give the tokenizer another template for a while."""
    original = tokenizer.chat_template
    tokenizer.chat_template = template
    try:
        yield
    finally:
        tokenizer.chat_template = original


def _is_served_alike(tokenizer: Any) -> bool:
    """Return True if the texts of all chats are the same with the switch on as without it."""
    if SWITCH not in tokenizer.chat_template:
        return True
    return _texts(tokenizer) == _texts(tokenizer, **{SWITCH: True})


def _texts(tokenizer: Any, **switch: bool) -> list[str | None]:
    """Return every chat of the trial as text, whole and up to its first question."""
    return [
        *_conversations(tokenizer, **switch),
        _rendered(tokenizer, [QUESTION], add_generation_prompt=True, **switch),
    ]


def _conversations(tokenizer: Any, **switch: bool) -> list[str | None]:
    """Return every chat of the trial as text; None for one that the template refuses."""
    return [_rendered(tokenizer, row["messages"], row.get("tools"), **switch) for row in CHATS.values()]


def _rendered(tokenizer: Any, messages: list[Message], *tools: Any, **more: Any) -> str | None:
    """Return the messages as text; None if the template refuses them."""
    try:
        return render(tokenizer, messages, *tools, **more)
    except Unrenderable:
        return None


def _prompt(tokenizer: Any) -> str:
    """Return the text of the template for the generation prompt; "" if it does not show one."""
    question = _rendered(tokenizer, [QUESTION])
    opened = _rendered(tokenizer, [QUESTION], add_generation_prompt=True)
    if question is None or opened is None or not opened.startswith(question):
        return ""
    return opened[len(question) :]


def _cut(tokenizer: Any, template: str, prompt: str) -> list[tuple[str, str]]:
    """Return the endings of the generation prompt that begin with a control token and are in one text of the
    template, shortest first, each with the template without that text.
    """
    tokens = sorted(filter(str.strip, tokenizer.get_added_vocab()), key=len, reverse=True)
    written = list(_written(template))
    cut = []
    for start in reversed(range(len(prompt))):
        ending = prompt[start:]
        token = next((token for token in tokens if ending.startswith(token)), None)
        if token is None:
            continue
        for first, last in written:
            place = template.find(token, first, last)
            if place >= 0 and _unescaped(template[place:last]).strip() == ending.strip():
                cut.append((ending, template[:place] + template[last:]))
    return cut


def _written(template: str) -> Iterator[tuple[int, int]]:
    """Yield the places [first, last) of the texts in a template: the content of the quotes of strings, and
    text outside of tags.
    """
    place = 0
    for _, kind, value in environment().lex(template):
        # Only white space is left out between two tokens.
        place = template.index(value, place)
        if kind == "string":
            yield place + 1, place + len(value) - 1
        elif kind == "data":
            yield place, place + len(value)
        place += len(value)


def _unescaped(text: str) -> str:
    """Return the value of a text in a template, with its line breaks."""
    return text.replace("\\n", "\n")

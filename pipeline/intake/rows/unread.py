"""Keys that say something and that a row's format does not read: they repeat its content or are refused."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from pipeline.chat.rows import OTHERS, TURN_LISTS, BadRow
from pipeline.intake.rows.chats import LONG
from pipeline.intake.rows.choices import FEW, choices_among
from pipeline.intake.rows.pairs import PROMPTS
from pipeline.intake.rows.turns import is_list
from pipeline.intake.rows.values import UNREAD, Value, is_blank, items

OF_CHOICES = "may be choices, which would be lost: put them below the question by curate.fields"
PROMPT_KEYS = frozenset((*PROMPTS, "context", "history", "system", "system_prompt"))
ANSWER_KEYS = ("answer", "completion", "output", "response")
SAYING_KEYS = PROMPT_KEYS.union(ANSWER_KEYS)
# Without its choices a question means nothing, and its answer may be the number of one.
OFFERS = ("choices", "options")
ABOUT = ("article", "document", "paragraph", "passage", "story")  # topic of a question, if it is long
OF_QUESTIONS = frozenset((*OFFERS, *ABOUT))
SPOKEN = ("content", "value", "text", "messages")  # keys of a turn or part with its text
MOST_QUOTED = 64  # texts of a prompt's key that are searched in others


def check_unread(
    value: Value, keys: tuple[str, ...], content: Mapping[str, Any], offers: frozenset[str]
) -> None:
    """Check that each key that is a prompt or answer in some format was read, or repeats the row's content.

    The same is required of `offers`, keys with the choices of a question or its topic. Raises `BadRow`
    (`unsupported_field`) for one that would be dropped.
    """
    others = [key for key in value if key in SAYING_KEYS and key not in keys and value[key]]
    for key in offers.intersection(value):
        stated = value[key]
        is_long = key in ABOUT and isinstance(stated, str) and len(stated) >= LONG
        if stated and (is_long or isinstance(stated, list | dict) or is_list(stated)):
            others.append(key)
    if not others:
        return
    turns = [turn for field in TURN_LISTS for turn in content.get(field, ())]
    texts = [turn["content"] for turn in turns]
    texts += [turn["reasoning_content"] for turn in turns if "reasoning_content" in turn]
    texts += [segment["text"] for segment in content.get("segments", ())]
    if "answer" in content:
        texts.append(content["answer"])
    texts += content.get(OTHERS, ())
    whole = {text.strip() for text in texts}
    for key in sorted(others):
        stated = value[key]
        plain = isinstance(stated, str) and not is_list(stated)
        strings = (stated.strip(),) if plain else _strings(stated)
        quoted = [words for words in strings if words and words not in whole]
        if len(quoted) > MOST_QUOTED or not all(any(words in text for text in texts) for words in quoted):
            raise BadRow("unsupported_field", f"{key} {UNREAD}")


def check_choices(value: Value, keys: tuple[str, ...], content: Mapping[str, Any]) -> None:
    """Check that a question contains its choices, if the row has these in columns of their own.

    Raises `BadRow` (`unsupported_field`) if they would be dropped.
    """
    choices = [key for key in choices_among(tuple(value)) if not is_blank(value[key]) and key not in keys]
    if len(choices) < FEW:
        return
    asked = "\n".join(turn["content"] for turn in content["messages"])
    if not all(str(value[key]).strip() in asked for key in choices):
        raise BadRow("unsupported_field", f"{', '.join(choices)} {OF_CHOICES}")


def _strings(value: Any) -> Iterator[str]:
    """Yield the texts of a prompt's key: its own, or those of its turns, pairs or parts."""
    if isinstance(value, str) and is_list(value):
        with suppress(BadRow):
            value = items(value, "")
    if isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        spoken = next((value[key] for key in SPOKEN if value.get(key) is not None), None)
        if spoken is not None or not value.keys() & {"role", "from"}:
            yield from _strings(json.dumps(value) if spoken is None else spoken)
    elif value is not None:
        yield value.strip() if isinstance(value, str) else json.dumps(value)

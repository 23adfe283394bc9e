"""Chats for trying a base's template and tokenizer, before gigabytes are fetched and data is curated.

They are encoded by the functions of stage `preprocess`. A base that fails here would lose every row there, or
would be trained to write the header of its own turns.
"""

import json
import re
from collections.abc import Collection
from typing import Any

from pipeline.chat.rendering import Unrenderable, render
from pipeline.chat.template_probe import Message
from pipeline.chat.tokens import IGNORED, Row, encode
from pipeline.core.errors import DataError
from pipeline.core.text import common_start

QUESTION: Message = {"role": "user", "content": "Which river is the longest?"}
ANSWER: Message = {"role": "assistant", "content": "The Nile."}
MORE: list[Message] = [
    {"role": "user", "content": "And which lake is the deepest?"},
    {"role": "assistant", "content": "Lake Baikal."},
]
CALL = {
    "type": "function",
    "function": {"name": "length_of", "arguments": {"river": "Nile"}},
    "id": "c00000001",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "length_of",
        "description": "Return the length of a river.",
        "parameters": {
            "type": "object",
            "properties": {"river": {"type": "string", "description": "its name"}},
            "required": ["river"],
        },
    },
}
RESULT: Message = {"role": "tool", "content": "6650", "name": "length_of", "tool_call_id": "c00000001"}
CALLED = [QUESTION, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT, ANSWER]
PLAIN = "chats without reasoning"
TURNS = "chats of several turns"
USUAL = (PLAIN, TURNS)  # kinds that any data set has
# A base needs only one of these kinds: many templates support no reasoning and no tools, and a few nothing
# else.
CHATS: dict[str, Row] = {
    PLAIN: {"messages": [QUESTION, ANSWER]},
    TURNS: {"messages": [QUESTION, ANSWER, *MORE]},
    "system turns": {"messages": [{"role": "system", "content": "Be brief."}, QUESTION, ANSWER]},
    "reasoning": {"messages": [QUESTION, ANSWER | {"reasoning_content": "It flows through Africa."}]},
    "tools": {"messages": CALLED, "tools": [TOOL]},
}
# Reasons of `Unrenderable` that are faults of the base if every row has them.
OF_THE_BASE = (
    "no_end_of_turn",
    "not_read_back",
    "template_drops",
    "template_not_json",
    "template_refuses",
    "template_rewrites",
    "token_across_turns",
)
SHOWN = 16  # characters of a text on either side of a border
ANOTHER = "or take another model"


def why_no_chats(tokenizer: Any, owner: str) -> str | None:
    """Return a sentence on why no chat can be trained on `owner`, a base that can still train texts; None if
    chats can be trained.
    """
    if not tokenizer.chat_template:
        return f"{owner} has no chat template"
    try:
        need_trainable(tokenizer, owner)
    except DataError as error:
        return error.sentence
    return None


def need_trainable(tokenizer: Any, owner: str) -> str | None:
    """Return a sentence on the usual kind of chats that `owner`'s template and tokenizer can't train.

    Raises `DataError` if no kind can be trained, and if an answer would be trained with its turn's header.
    """
    header = trained_header(tokenizer)
    if header:
        raise DataError(
            "Q-BASE-038",
            f"the chat template of {owner} opens no answer: with add_generation_prompt it does not write all "
            f"of {header!r}, which would be trained, and served, as part of every answer: let it end in "
            "{% if add_generation_prompt %}…{% endif %} with the header of an assistant's turn, "
            f"{ANOTHER}",
        )
    failed = failures(tokenizer)
    if len(failed) == len(CHATS):
        raise base_fault(tokenizer, failed[PLAIN], owner)
    untrained = next((kind for kind in USUAL if kind in failed), None)
    if untrained is None:
        return None
    reason = base_fault(tokenizer, failed[untrained], owner).sentence
    return f"{untrained} will be left out by stage preprocess, and others can be trained: {reason}"


def failures(tokenizer: Any) -> dict[str, Unrenderable]:
    """Return each kind of `CHATS` that can't be trained, with the reason."""
    failed = {}
    for kind, (row, encoded) in zip(CHATS, encode(tokenizer, CHATS.values()), strict=True):
        if isinstance(encoded, Unrenderable):
            failed[kind] = encoded
            continue
        trained = [label for sequence in encoded for label in sequence.labels if label != IGNORED]
        text = tokenizer.decode(trained)
        lost = [
            turn["content"]
            for turn in row["messages"]
            if turn["role"] == "assistant" and turn["content"] not in text
        ]
        if lost:
            failed[kind] = Unrenderable(
                "not_read_back", f"the tokenizer makes {text[:60]!r} of the answer {lost[0]!r}"
            )
    return failed


def trained_header(tokenizer: Any) -> str | None:
    """Return the header of an assistant's turn if the template writes it as a part of the answer.

    A template whose user's turn ends at the beginning of the answer (Mistral's) has no header. A template
    that writes `<think></think>` or a channel before an answer means it to be trained.
    """
    texts = _opened_and_whole(tokenizer)
    if texts is None or not texts[1].startswith(texts[0]):
        return None
    opened, whole = texts
    question = render(tokenizer, [QUESTION])
    header, separator, _ = whole[len(opened) :].partition(ANSWER["content"])
    is_header = opened == question or ANSWER["role"] in header.lower()
    return header if separator and header.strip() and is_header else None


def base_fault(tokenizer: Any, why: Unrenderable, owner: str) -> DataError:
    """Return the error on why no chat can be trained on `owner`, a base."""
    match why.code:
        case "no_end_of_turn":
            return _without_end(tokenizer, why, owner)
        case "token_across_turns":
            return DataError(
                "Q-BASE-040",
                f"the tokenizer of {owner} makes one token of the end of the chat template's generation "
                f"prompt and the beginning of an answer{_border(tokenizer)}, so no answer can be trained by "
                "itself: correct the template so that the prompt ends where a token does, "
                f"{ANOTHER}",
            )
        case "template_rewrites" if border := _other_beginning(tokenizer):
            opened, begins = border
            return DataError(
                "Q-BASE-041",
                f"the generation prompt of {owner}'s chat template ends in {opened!r}, and an answer that is "
                f"trained begins with {begins!r}: correct the template so that both are the same, {ANOTHER}",
            )
    return DataError(
        "Q-BASE-041",
        f"no chat can be trained on {owner}: {why}: correct its chat template, {ANOTHER}",
    )


def _without_end(tokenizer: Any, why: Unrenderable, owner: str) -> DataError:
    """Return the error of a base whose turns do not end in the tokenizer's end of turn."""
    end = tokenizer.eos_token
    written = _after_answer(tokenizer)
    named = f"its tokenizer's eos_token is {end}"
    if written is None or end in written:
        return DataError(
            "Q-BASE-039", f"no chat can be trained on {owner}: {why}: correct its chat template, {ANOTHER}"
        )
    if not written:
        return DataError(
            "Q-BASE-039",
            f"the chat template of {owner} writes nothing after an answer, so a model could not learn to end "
            f"one: let it write {end} there, {ANOTHER}",
        )
    tokens = _control_tokens(tokenizer, written)
    if tokens:
        return DataError(
            "Q-BASE-039",
            f"the chat template of {owner} ends a turn with {tokens[0]}, and its end of turn is {end}: set "
            "base.end_of_turn to null, or to a token that the template writes there",
        )
    return DataError(
        "Q-BASE-039",
        f"the chat template of {owner} ends a turn with {written!r}, which holds no control token, and "
        f"{named}: let it write {end} there, {ANOTHER}",
    )


def end_of_turn(tokenizer: Any, stops: Collection[int] = ()) -> str | None:
    """Return the control token that the template ends an answer with, unless the eos_token is there.

    Of several it is the first at which generation stops (`stops`), otherwise the first. Gemma's tokenizers
    name the end of a text (`<eos>`) and their templates write `<end_of_turn>`. Base models that come with
    ChatML do the same.
    """
    written = _after_answer(tokenizer)
    named = tokenizer.eos_token
    if not written or (named and named in written):
        return None
    tokens = _control_tokens(tokenizer, written)
    stopped_at = [token for token in tokens if tokenizer.convert_tokens_to_ids(token) in stops]
    return next(iter([*stopped_at, *tokens]), None)


def with_own_end(tokenizer: Any, end: str) -> str | None:
    """Return the tokenizer's template with the present value of `eos_token`, if the template writes `end`
    after an answer by itself, and something else if `eos_token` is `end`; None otherwise.

    Phi-3.5's template ends every turn with `<|end|>` and a conversation with `eos_token`, so that an answer
    would be trained to end twice.
    """
    template = tokenizer.chat_template
    named = tokenizer.eos_token
    written = _after_answer(tokenizer)
    if not isinstance(template, str) or not written or end not in written:
        return None
    before = _conversation(tokenizer)
    tokenizer.eos_token = end
    after = _conversation(tokenizer)
    tokenizer.eos_token = named
    if before == after:
        return None
    line = f"{{%- set eos_token = {json.dumps(named or '', ensure_ascii=False)} %}}\n"
    return line + template


def with_beginning(tokenizer: Any) -> str | None:
    """Return the tokenizer's template with the beginning of text in front, if the tokenizer puts that before
    every text and the template does not write it; None otherwise.

    llama-server puts it before every prompt, so the model would be served a text that it was not trained on:
    ChatML on a Llama 3 or a Mistral.
    """
    begin = tokenizer.bos_token
    template = tokenizer.chat_template
    adds = begin and tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id]
    if not adds or not isinstance(template, str):
        return None
    try:
        text = render(tokenizer, [QUESTION, ANSWER])
    except Unrenderable:
        return None
    return None if begin in text else "{{ bos_token }}" + template


def _after_answer(tokenizer: Any) -> str | None:
    """Return the text of the template after an answer; None if it does not show one."""
    try:
        text = render(tokenizer, [QUESTION, ANSWER])
    except Unrenderable:
        return None
    _, separator, written = text.rpartition(ANSWER["content"])
    return written.strip() if separator else None


def _conversation(tokenizer: Any) -> str | None:
    """Return two turns as the template writes them; None if it refuses."""
    try:
        return render(tokenizer, CHATS[TURNS]["messages"])
    except Unrenderable:
        return None


def _control_tokens(tokenizer: Any, text: str) -> list[str]:
    """Return the tokenizer's added tokens in `text`, in order; the longest of those that begin at a place."""
    words = sorted(filter(str.strip, tokenizer.get_added_vocab()), key=len, reverse=True)
    return re.findall("|".join(map(re.escape, words)) or "(?!)", text)


def _opened_and_whole(tokenizer: Any) -> tuple[str, str] | None:
    """Return a question with the generation prompt and the same with its answer; None if one is refused."""
    try:
        opened = render(tokenizer, [QUESTION], add_generation_prompt=True)
        return opened, render(tokenizer, [QUESTION, ANSWER])
    except Unrenderable:
        return None


def _border(tokenizer: Any) -> str:
    """Return the characters on both sides of the border between prompt and answer, in brackets."""
    texts = _opened_and_whole(tokenizer)
    if texts is None or not texts[1].startswith(texts[0]):
        return ""
    opened, whole = texts
    return f" ({opened[-SHOWN:]!r} and {whole[len(opened) :][:SHOWN]!r})"


def _other_beginning(tokenizer: Any) -> tuple[str, str] | None:
    """Return the generation prompt's end and the beginning of the answer's turn there; None if they agree."""
    texts = _opened_and_whole(tokenizer)
    if texts is None or texts[1].startswith(texts[0]):
        return None
    opened, whole = texts
    start = max(common_start(opened, whole) - SHOWN, 0)
    return opened[start:], whole[start:][: 2 * SHOWN]

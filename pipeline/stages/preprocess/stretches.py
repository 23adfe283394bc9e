"""Stretches of trained and of masked text: the template's own, compared with what was written."""

import json
import re
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from pipeline.chat.rows import is_unended
from pipeline.chat.tokens import IGNORED, Row
from pipeline.core.errors import DataError
from pipeline.core.text import common_start

SHOWN = 60  # characters of a text in a message
Stretch = tuple[bool, str]  # True if trained, and the text
# name, written sequence, expected stretches, number of trained turns
Claim = tuple[str, Any, list[Stretch], int]


@dataclass(frozen=True)
class Base:
    """Parts of the base that the proof needs: its tokenizer, the tokenizer of `tokenizer.json` by itself, the
    number of rows of embeddings, a pattern of control tokens.
    """

    tokenizer: Any
    plain: Any
    embeddings: int
    control: re.Pattern[str]


def check_claims(claims: list[Claim], base: Base, file: str) -> None:
    """Raise `DataError` unless every sequence decodes, stretch by stretch, to its expected text."""
    cut = [_stretches(*pair) for _, pair, _, _ in claims]
    texts = iter(
        base.plain.decode_batch([ids for stretches in cut for _, ids in stretches], skip_special_tokens=False)
    )
    for (name, (ids, labels), expected, turns), stretches in zip(claims, cut, strict=True):
        seen = [(trained, next(texts)) for trained, _ in stretches]
        where = f"row {name} of {file}"
        ends = int((labels == base.tokenizer.eos_token_id).sum())
        bos = base.tokenizer.bos_token_id
        if bos is not None and len(ids) > 1 and ids[0] == ids[1] == bos:
            raise DataError(
                "Q-PREPROCESS-009",
                f"{where} begins with {base.tokenizer.bos_token} twice: the template and the tokenizer both "
                "add it",
            )
        if not any(trained for trained, _ in seen):
            raise DataError("Q-PREPROCESS-010", f"nothing is trained in {where}: its loss would be 0")
        if ends < turns:
            raise DataError(
                "Q-PREPROCESS-011",
                f"the end of turn ({base.tokenizer.eos_token}) is not trained in {where}: {ends} of {turns} "
                "are",
            )
        expected = _joined(expected)
        if not _same_stretches(seen, expected, base):
            raise DataError("Q-PREPROCESS-012", _difference(where, seen, expected))
        if ends > turns:
            raise DataError(
                "Q-PREPROCESS-011",
                f"{where} trains {ends} ends of turn in {turns} turns: the template writes "
                f"{base.tokenizer.eos_token} inside a turn",
            )


def _same_stretches(seen: list[Stretch], expected: list[Stretch], base: Base) -> bool:
    if len(seen) != len(expected):
        return False
    for (seen_trained, seen_text), (trained, text) in zip(seen, expected, strict=True):
        if seen_trained != trained or not same(seen_text, text, base):
            return False
    return True


def _stretches(ids: Any, labels: Any) -> list[tuple[bool, list[int]]]:
    """Return the runs of trained and of masked tokens, in order."""
    trained = labels != IGNORED
    edges = [0, *(np.flatnonzero(np.diff(trained)) + 1).tolist(), len(ids)]
    return [(bool(trained[start]), ids[start:end].tolist()) for start, end in pairwise(edges) if end > start]


def _joined(stretches: list[Stretch]) -> list[Stretch]:
    """Return the stretches with neighbors of one kind joined and empty ones left out."""
    runs = groupby(((trained, text) for trained, text in stretches if text), key=itemgetter(0))
    return [(trained, "".join(text for _, text in run)) for trained, run in runs]


def same(decoded: str, text: str, base: Base) -> bool:
    """Return True if both are one text to a tokenizer that may compose (NFC) or change outer spaces."""
    if decoded == text:
        return True
    again: str = base.plain.decode(
        base.plain.encode(text, add_special_tokens=False).ids, skip_special_tokens=False
    )
    return decoded == again or (
        _drops_a_space(base.plain) and again in (f" {decoded}", decoded.removeprefix(" "))
    )


def _drops_a_space(plain: Any) -> bool:
    """Return True if a stretch that begins with a space is decoded without it, as by Llama 2's tokenizer."""
    ids = plain.encode("b a", add_special_tokens=False).ids
    return all(plain.decode(ids[start:], skip_special_tokens=False) != " a" for start in range(len(ids)))


def _difference(where: str, seen: list[Stretch], wanted: list[Stretch]) -> str:
    """Return the first difference in words."""
    trained = "".join(text for is_trained, text in seen if is_trained)
    expected = "".join(text for is_trained, text in wanted if is_trained)
    if trained != expected:
        at = common_start(trained, expected)
        if len(trained) > len(expected):
            return (
                f"a token that is not the assistant's is trained in {where}: {short(trained[at:])}, "
                f"where {short(expected[at:])} should be"
            )
        return (
            f"a token of the assistant's is not trained in {where}: {short(expected[at:])} should be, "
            f"{short(trained[at:])} is"
        )
    written = "".join(text for _, text in seen)
    template_text = "".join(text for _, text in wanted)
    at = common_start(written, template_text)
    return (
        f"{where} has a masked text that is not the template's, a system prompt perhaps: "
        f"{short(written[at:])}, not {short(template_text[at:])}"
    )


def short(text: str) -> str:
    """Return the beginning of a text, quoted."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")


def of_turns(messages: list[Any], tools: Any, learned: list[int], base: Base, name: str) -> list[Stretch]:
    """Return a conversation's text in stretches, trained from the prompt's end to a turn's own end."""

    def text(turns: list[Any], prompt: bool = False) -> str:
        return str(
            base.tokenizer.apply_chat_template(
                turns, tools=tools, tokenize=False, add_generation_prompt=prompt
            )
        )

    for number, message in enumerate(messages, start=1):
        token = base.control.search(message["content"])
        if token:
            raise DataError(
                "Q-PREPROCESS-007",
                f"row {name}: turn {number} says {token[0]}, a control token of the base, which would end "
                "or begin a turn there",
            )
    eos = base.tokenizer.eos_token
    conversation = text(messages)
    at = 0
    stretches = list[Stretch]()
    for turn in learned:
        before = text(messages[:turn], prompt=True)
        after = conversation if turn + 1 == len(messages) else text(messages[: turn + 1])
        answer = after.removeprefix(before)
        content = messages[turn]["content"].strip()
        last = content if is_unended(messages[turn]) else eos
        answer = answer[: answer.rfind(last) + len(last)]
        if content not in answer and json.dumps(content, ensure_ascii=False)[1:-1] not in answer:
            raise DataError(
                "Q-PREPROCESS-008",
                f"row {name}: turn {turn + 1} says {short(content)}, which the template does not show in "
                "what is trained",
            )
        if conversation[at : len(before)] != before[at:] or not conversation.startswith(answer, len(before)):
            raise DataError(
                "Q-PREPROCESS-008",
                f"row {name}: the template shows turn {turn + 1} differently once more turns follow, so it "
                "can't be learned in one text",
            )
        stretches += [(False, before[at:]), (True, answer)]
        at = len(before) + len(answer)
    return [*stretches, (False, conversation[at:])]


def ended(messages: list[Any], learned: list[int]) -> int:
    """Count the turns with a trained end of turn: all whose end was not cut off."""
    return sum(not is_unended(messages[turn]) for turn in learned)


def with_prompt(claim: Claim, row: Row, base: Base) -> Claim:
    """Return the claim with the prompt trained too. Turns with `train: false` stay masked. Of an unfolded
    row's later parts only the answer is trained.
    """
    name, pair, stretches, turns = claim
    messages = row.get("messages", [])
    if name.rpartition("#")[2].isdecimal() and "#" in name and not name.endswith("#1"):
        return name, pair, stretches, turns
    masked = [turn for turn, message in enumerate(messages) if message.get("train") is False]
    answers = stretches
    if masked:
        stretches = [
            (not is_masked, text)
            for is_masked, text in of_turns(messages, row.get("tools"), masked, base, name)
        ]
    else:
        stretches = [(True, text) for _, text in stretches]
    if any(map(is_unended, messages)):
        stretches = _without_ends(stretches, _ends_cut_off(answers, messages, base))
    return name, pair, stretches, ends_of(stretches, base)


def _ends_cut_off(stretches: list[Stretch], messages: list[Any], base: Base) -> list[tuple[int, int]]:
    """Return the character ranges from the end of each cut-off answer to the end of its turn."""
    turns = [turn for turn in messages if turn["role"] == "assistant" and turn.get("train") is not False]
    eos = base.tokenizer.eos_token
    places = []
    start = answer = 0
    for trained, text in stretches:
        end = start + len(text)
        if trained:
            if is_unended(turns[answer]):
                places.append((end, end))
            answer += 1
        elif places and places[-1] == (start, start):
            places[-1] = (start, start + text.index(eos) + len(eos))
        start = end
    return places


def _without_ends(stretches: list[Stretch], places: list[tuple[int, int]]) -> list[Stretch]:
    """Return the stretches, with the characters at `places` not trained."""
    kept: list[Stretch] = []
    start = 0
    for trained, text in stretches:
        at = start
        for first, last in places:
            if start <= first < start + len(text):
                kept += [
                    (trained, text[at - start : first - start]),
                    (False, text[first - start : last - start]),
                ]
                at = last
        kept.append((trained, text[at - start :]))
        start += len(text)
    return kept


def ends_of(stretches: list[Stretch], base: Base) -> int:
    """Count the ends of turn in the trained stretches."""
    return sum(text.count(base.tokenizer.eos_token) for trained, text in stretches if trained)


def of_segments(segments: list[Any], base: Base) -> list[Stretch]:
    """Return text without a template, between the tokenizer's beginning and, if that is learned, its end."""
    tokenizer = base.tokenizer
    stretches = [(segment["train"], segment["text"]) for segment in segments]
    texts = [text for _, text in stretches if text]
    adds_bos = tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id]
    if adds_bos and not texts[0].startswith(tokenizer.bos_token):
        stretches.insert(0, (False, tokenizer.bos_token))
    if segments[-1]["train"] and not texts[-1].endswith(tokenizer.eos_token):
        stretches.append((True, tokenizer.eos_token))
    return stretches

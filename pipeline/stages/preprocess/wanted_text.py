"""What the proof wants of a row: the template's own text in stretches, trained and masked."""

import json
from typing import Any

from pipeline.chat.tokens import Row
from pipeline.core.errors import DataError
from pipeline.stages.preprocess.stretches import Base, Claim, Stretch, short


def of_turns(messages: list[Any], tools: Any, learned: list[int], base: Base, name: str) -> list[Stretch]:
    """The text of a conversation in stretches, trained from the end of the prompt to a turn's own end."""

    def text(turns: list[Any], prompt: bool = False) -> str:
        return str(
            base.tokenizer.apply_chat_template(
                turns, tools=tools, tokenize=False, add_generation_prompt=prompt
            )
        )

    for number, message in enumerate(messages, start=1):
        if found := base.control.search(message["content"]):
            raise DataError(
                "Q-PREPROCESS-007",
                f"row {name}: turn {number} says {found[0]}, a control token of the base, which would end "
                "or begin a turn there",
            )
    eos = base.tokenizer.eos_token
    shown, at, stretches = text(messages), 0, list[Stretch]()
    for turn in learned:
        before = text(messages[:turn], prompt=True)
        after = shown if turn + 1 == len(messages) else text(messages[: turn + 1])
        answer = after.removeprefix(before)
        answer = answer[: answer.rfind(eos) + len(eos)]
        stated = messages[turn]["content"].strip()
        if stated not in answer and json.dumps(stated, ensure_ascii=False)[1:-1] not in answer:
            raise DataError(
                "Q-PREPROCESS-008",
                f"row {name}: turn {turn + 1} says {short(stated)}, which the template does not show in what "
                "is trained",
            )
        if shown[at : len(before)] != before[at:] or not shown.startswith(answer, len(before)):
            raise DataError(
                "Q-PREPROCESS-008",
                f"row {name}: the template shows turn {turn + 1} differently once more turns follow, so it "
                "can't be learned in one text",
            )
        stretches += [(False, before[at:]), (True, answer)]
        at = len(before) + len(answer)
    return [*stretches, (False, shown[at:])]


def with_prompt(claim: Claim, row: Row, base: Base) -> Claim:
    """The claim where what is asked is trained too: all of it but turns with `train: false`, and of an
    unfolded row's later parts the answer alone.
    """
    name, pair, stretches, turns = claim
    messages = row.get("messages", [])
    if name.rpartition("#")[2].isdecimal() and "#" in name and not name.endswith("#1"):
        return name, pair, stretches, turns
    held = [turn for turn, message in enumerate(messages) if message.get("train") is False]
    if held:
        stretches = [
            (not is_held, text) for is_held, text in of_turns(messages, row.get("tools"), held, base, name)
        ]
    else:
        stretches = [(True, text) for _, text in stretches]
    ends = sum(text.count(base.tokenizer.eos_token) for trained, text in stretches if trained)
    return name, pair, stretches, ends


def of_segments(segments: list[Any], base: Base) -> list[Stretch]:
    """Text without a template, between the tokenizer's own beginning and its end, if that is learned."""
    tokenizer = base.tokenizer
    stretches = [(segment["train"], segment["text"]) for segment in segments]
    if tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id] and not segments[0]["text"].startswith(
        tokenizer.bos_token
    ):
        stretches.insert(0, (False, tokenizer.bos_token))
    if segments[-1]["train"] and not segments[-1]["text"].endswith(tokenizer.eos_token):
        stretches.append((True, tokenizer.eos_token))
    return stretches

"""Exchanges of a conversation: a question of the user and everything up to the next question."""

from pipeline.chat.rows import Message
from pipeline.core.jsonl import dump_line

Turns = list[Message]

MARKUP = 24  # approximate characters that a template adds to a turn


def exchanges_of(messages: Turns) -> tuple[Turns, list[Turns]]:
    """Return the leading system turns, and the rest cut in front of each user's turn that follows an answer.

    A system turn in the middle stays with the user's turn after it, a greeting with the first one.
    """
    start = next((i for i, turn in enumerate(messages) if turn["role"] != "system"), len(messages))
    exchanges: list[Turns] = [[]]
    waiting: Turns = []  # system turns that are not assigned to an exchange yet
    has_asked = False
    last_role = ""  # role of the last turn that is not a system turn
    for turn in messages[start:]:
        if turn["role"] == "system":
            waiting.append(turn)
            continue
        if turn["role"] == "user":
            if has_asked and last_role == "assistant":
                exchanges.append([])
            has_asked = True
        exchanges[-1] += [*waiting, turn]
        waiting = []
        last_role = turn["role"]
    exchanges[-1] += waiting
    return messages[:start], [exchange for exchange in exchanges if exchange]


def text_of(turn: Message) -> str:
    """Return all text that a template may show of a turn."""
    content = turn["content"]
    if len(turn) == 2:
        return content
    calls = dump_line({"": turn["tool_calls"]}).decode() if "tool_calls" in turn else ""
    return f"{content} {turn.get('reasoning_content', '')} {calls}"


def weight_of(turn: Message) -> int:
    """Return the cost of a turn in characters."""
    return len(text_of(turn)) + MARKUP

"""Rows of two answers of which one is better, as the content of a preference."""

import re
from itertools import product

from pipeline.chat.rows import BadRow
from pipeline.core.text import plural
from pipeline.intake.rows.chats import CONVERSATIONS, Content, question_of, with_tools
from pipeline.intake.rows.markup import is_rendered
from pipeline.intake.rows.turns import (
    SPEAKER,
    Turn,
    read_turns,
    shared_prompt,
    system_turn,
    transcript,
    turn,
    turns_of,
)
from pipeline.intake.rows.values import Value, answer_text

PAIRS = (
    ("chosen", "rejected"),
    ("chosen_response", "rejected_response"),
    ("preferred_output", "non_preferred_output"),
)
# A conversation, and a worse last answer or the same conversation with it.
WORSE = tuple(product(CONVERSATIONS, ("rejected_response", "rejected_messages")))
UNDECIDED = (  # Marks name the better side.
    ("response_a", "response_b"),
    ("response_1", "response_2"),
    ("response_0", "response_1"),
    ("conversation_a", "conversation_b"),
)
PREFERRED = ("preference", "preferred", "winner", "choice", "chosen", "better", "better_response_id")
TIES = ("tie", "tied", "equal", "both", "same", "none", "neither")
ANSWERERS = ("answer", "assistant", "candidate", "completion", "model", "option", "output", "response")
QUESTIONS = ("instruction", "question", "query")  # Read by `question_of`, with input, context and history.
# keys for the prompt of a pair, of which the first present one is read
PROMPTS = ("prompt", *CONVERSATIONS, *QUESTIONS, "input")


def preference(value: Value, *sides: str) -> Content:
    """Return the content of a pair. The turns that both conversations share are the prompt, after the row's
    own prompt unless they contain that already.
    """
    if sides in WORSE:
        return _worse_answer(value, *sides)
    asked = value.get("input")
    if isinstance(asked, dict):  # OpenAI's form: the conversation's turns and tools.
        value = {**value, "input": asked.get("messages"), "tools": asked.get("tools") or value.get("tools")}
    prompt = system_turn(value) + _prompt_turns(value)
    better, worse = sides
    if sides in UNDECIDED:
        better, worse = _preferred(value, sides)
    chosen = _side(value, better, prompted=bool(prompt))
    rejected = _side(value, worse, prompted=bool(prompt))
    if chosen == rejected:
        raise BadRow("no_preference", f"{better} and {worse} are the same")
    messages, chosen, rejected = shared_prompt(prompt, chosen, rejected)
    return "preference", with_tools(value, messages) | {"chosen": chosen, "rejected": rejected}


def _worse_answer(value: Value, field: str, worse: str) -> Content:
    """Return a pair of the conversation below `field`, and the same with a worse last answer (ms-swift)."""
    chosen = read_turns(value[field], field)
    if not chosen or chosen[-1]["role"] != "assistant":
        raise BadRow(
            "bad_shape", f"{field} does not end with an answer, to which {worse} would be the worse one"
        )
    rejected = turns_of(value, worse, "assistant")
    if rejected and rejected[0]["role"] == "assistant":
        rejected = chosen[:-1] + rejected
    if chosen == rejected:
        raise BadRow("no_preference", f"the last answer of {field} and {worse} are the same")
    messages, chosen, rejected = shared_prompt(system_turn(value), chosen, rejected)
    return "preference", with_tools(value, messages) | {"chosen": chosen, "rejected": rejected}


def _prompt_turns(value: Value) -> list[Turn]:
    """Return the turns of a pair's own prompt, by any of its names; none if it has no prompt."""
    field = next((key for key in PROMPTS if value.get(key) is not None), None)
    if field is None:
        return []
    return question_of(value, field) if field in QUESTIONS else turns_of(value, field, "user")


def _side(value: Value, field: str, *, prompted: bool) -> list[Turn]:
    """Return the turns of one of a pair's answers, which is turns, text, a number, true or false.

    Without a prompt, a text is an entire conversation: a transcript, or a rendered chat, which the rule
    `markup` parses.
    """
    stated = value[field]
    if not prompted and isinstance(stated, str) and (SPEAKER.match(stated) or not is_rendered(stated)):
        return transcript(stated, field)
    if isinstance(stated, dict | list):
        return turns_of(value, field, "assistant")
    return [turn("assistant", answer_text(stated, field), field)]


def _preferred(value: Value, sides: tuple[str, ...]) -> tuple[str, str]:
    """Return the better and the worse of two sides such as `response_a` and `response_b`.

    Raises `BadRow` if there is no mark of the better side, or none that is certain.
    """
    marks = [key for key in PREFERRED if value.get(key) is not None]
    if len(marks) != 1:
        raise BadRow(
            "no_preference",
            f"{plural(len(marks), 'key')} of {', '.join(PREFERRED)} says whether {sides[0]} or {sides[1]} is "
            "better: write one",
        )
    # `response_b`, `model_b` and `B` name the second side. A bare number may count from 0 or from 1.
    words = re.findall(r"[^\W_]+", str(value[marks[0]]).lower()) or [""]
    *before, name = words
    if words[0] in TIES:
        raise BadRow("no_preference", f"{marks[0]} says that both are equally good")
    better = [side for side in sides if side.rpartition("_")[2] == name]
    is_name = not before or (len(before) == 1 and before[0] in ANSWERERS)
    is_certain = before or not name.isdigit() or sides[0].endswith("_0")
    if not better or not is_name or not is_certain:
        raise BadRow("unsupported_field", f"{marks[0]} is neither {sides[0]} nor {sides[1]}")
    return better[0], next(side for side in sides if side != better[0])

"""Reasons to drop a written text, found from the text and the row that it was written to."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.chat.rows import other_references
from pipeline.config.sections import AugmentKind, Evaluate
from pipeline.core.jsonl import can_be_read
from pipeline.metrics.asking import score_answers
from pipeline.metrics.refusals import is_refusal
from pipeline.metrics.text_scorers import rouge_l
from pipeline.stages.augment.instructions import TEXTS, Call, asked_turns, question_of, right_answer
from pipeline.stages.augment.journal import Text

# ROUGE-L of a reworded question with the original. Above this nothing was reworded.
NEAR = 0.9
RIGHT = 0.9  # points from which a flawed answer counts as right
LONG_ANSWER = 20  # characters of an answer that can't occur in a question by chance
WORD = re.compile(r"\w+")
NUMBER = re.compile(r"\d+")
OF_THE_TASK = re.compile(
    r"\b(?:right|wrong|correct|incorrect|flawed|vague|incomplete|another|original) answer\b", re.IGNORECASE
)
REASONS = {
    "cut_off": "it did not end within augment.max_new_tokens",
    "calls_a_tool": "a tool is called instead",
    "empty": "nothing was written",
    "unreadable": "it holds a control character",
    "refusal": "it is nothing but a stock refusal",
    "repeats_instruction": "it is nothing but words of the instruction",
    "speaks_of_the_task": "it says that it is a flawed answer, which no answer of a model's would",
    "repeats_question": "it is the question itself, not an answer",
    "near_copy": "it says what the row itself says, in nearly the same words",
    "same_as_another": "the same text was written to this row before",
    "numbers_changed": "the question in other words has other numbers",
    "gives_answer": "the question in other words holds the answer",
    "right": f"the scorer gives the flawed answer {RIGHT} points or more",
    "shared_with_held_out": "it shares 13 words in a row with a row of another split",
    "near_held_out": "it asks what a row of another split asks, in nearly the same words",
}


def written_text(text: Text) -> str:
    """Return what was written, without white space around it."""
    return str(text["turn"]["content"]).strip()


def problem_of(kind: AugmentKind, call: Call, text: Text) -> str | None:
    """Return the reason to drop a text, judged by itself and its row; None if there is none."""
    written = written_text(text)
    if text["calls"]:
        return "calls_a_tool"
    if not text["stopped"]:
        return "cut_off"
    if not written:
        return "empty"
    if not can_be_read({"text": written}):
        return "unreadable"
    if _repeats(written, TEXTS[call.instruction]):
        return "repeats_instruction"
    # A vague answer may well be a refusal, and is not a worse answer to reject.
    if kind != "rejected" and is_refusal(written):
        return "refusal"
    if kind == "questions":
        return _problem_of_question(call, written)
    if kind == "rejected":
        return _problem_of_answer(call, written)
    return None


def _problem_of_answer(call: Call, written: str) -> str | None:
    answer = right_answer(call.row)
    if same_words(written, answer):
        return "near_copy"
    if same_words(written, asked_turns(call.row)[-1]["content"]):
        return "repeats_question"
    if OF_THE_TASK.search(written) and not OF_THE_TASK.search(answer):
        return "speaks_of_the_task"
    return None


def _problem_of_question(call: Call, written: str) -> str | None:
    question = question_of(call.row)
    if same_words(written, question) or _overlap(question, written) >= NEAR:
        return "near_copy"
    answer = right_answer(call.row).strip()
    if len(answer) >= LONG_ANSWER and answer in written and answer not in question:
        return "gives_answer"
    if sorted(NUMBER.findall(written)) != sorted(NUMBER.findall(question)):
        return "numbers_changed"
    return None


def _overlap(question: str, written: str) -> float:
    try:
        return rouge_l(question, written, {}).points or 0.0
    except ValueError:  # no words
        return 0.0


def same_words(first: str, second: str) -> bool:
    """Return True if two texts differ in case, white space and punctuation only.

    Texts without words must be equal.
    """
    first_words = WORD.findall(first.casefold())
    second_words = WORD.findall(second.casefold())
    if not first_words and not second_words:
        return first.strip() == second.strip()
    # In code and commands the signs carry the meaning.
    return first_words == second_words and _signs(first) == _signs(second)


def _repeats(written: str, instruction: str) -> bool:
    """Return True if a text is only words of the instruction, which small models sometimes write."""
    written_words = " ".join(WORD.findall(written.casefold()))
    instruction_words = " ".join(WORD.findall(instruction.casefold()))
    return " " in written_words and f" {written_words} " in f" {instruction_words} "


def _signs(text: str) -> str:
    """Return the signs of a text that carry meaning, without those that end a sentence or quote it."""
    return re.sub(r"[\w\s.,;:!?\"'`´’“”*]", "", text)


def found_right(
    calls: Sequence[Call], texts: Sequence[str], settings: Evaluate, root: Path
) -> list[float | None]:
    """Return each flawed answer's points by the first of `evaluate.scorers`; None if not measured.

    Raises the errors of `score_answers`.
    """
    if not settings.scorers or not calls:
        return [None] * len(calls)
    answers: list[dict[str, Any]] = [
        {
            "id": call.row["id"],
            "domain": call.row.get("domain"),
            "prompt": asked_turns(call.row)[-1]["content"],
            "reference": right_answer(call.row),
            **other_references(call.row),
            "answer": text,
            "stopped": True,
            "refused": False,
        }
        for call, text in zip(calls, texts, strict=True)
    ]
    score_answers(answers, [settings.scorer], judge=settings.judge, external=settings.external, root=root)
    return [answer["score"] for answer in answers]

"""Counts of what the clean rows answer: the different answers, while they are few."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import regex  # type: ignore[import-untyped]

from pipeline.chat.rows import Row
from pipeline.core.text import listed, plural

MOST_ANSWERS = 50
LONGEST = 100  # characters of an answer that is one of few
MANY = ""  # key for the rows once their answers are more, or longer, than that
FEWEST_ROWS = 2  # rows for each different answer, on average
BETWEEN_WORDS = re.compile(r"(?<=[^\W_])[\s_-]+(?=[^\W_])")
UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue"})
MISSPELT = 10  # times as many rows as a misspelling of it
SHORTEST = 5  # letters of an answer in which a letter may be wrong


def count_answer(row: Row, answers: Counter[str]) -> None:
    """Count the last answer of a chat, or the expected one of a prompt. Other rows have none."""
    answer = row.get("answer", "")
    if row["kind"] in ("chat", "feedback") and row["messages"][-1]["role"] == "assistant":
        answer = row["messages"][-1]["content"]
    if answer.strip():
        answers[answer if len(answer) <= LONGEST else MANY] += 1
        bound(answers)


def bound(answers: Counter[str]) -> None:
    """Keep only the number of rows of answers that are too many or too long to be counted one by one."""
    if len(answers) > MOST_ANSWERS or MANY in answers:
        total = answers.total()
        answers.clear()
        answers[MANY] = total


def labels_of(files: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Return the counts of the files whose different answers are few, together."""
    together = Counter[str]()
    for answers in files:
        if few_answers(answers):
            together.update(answers)
    return together


def few_answers(answers: Mapping[str, int]) -> list[dict[str, Any]] | None:
    """Return the different answers, the commonest first, each with its rows.

    Returns None if they are not few, or if most rows have their own.
    """
    if not answers or MANY in answers or sum(answers.values()) < FEWEST_ROWS * len(answers):
        return None
    in_order = sorted(answers.items(), key=lambda item: (-item[1], item[0]))
    return [{"answer": answer, "rows": rows} for answer, rows in in_order]


def near_equals(answers: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the groups of answers, the commonest first in each, that seem to be spellings of one: they
    differ only in case, accents or what is between their words, or a rare one is a common one misspelt.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in sorted(answers, key=lambda entry: -entry["rows"]):
        name = _folded(entry["answer"])
        common = (other for other in groups if groups[other][0]["rows"] >= MISSPELT * entry["rows"])
        meant = next((other for other in common if _is_misspelling(name, other)), name)
        groups.setdefault(name if name in groups else meant, []).append(entry)
    return [group for group in groups.values() if len(group) > 1]


def _folded(answer: str) -> str:
    """Return an answer in small letters, without accents (ae for ä) and what is between its words."""
    letters = answer.strip().casefold().translate(UMLAUTS)
    plain = "".join(
        letter for letter in unicodedata.normalize("NFKD", letters) if not unicodedata.combining(letter)
    )
    return BETWEEN_WORDS.sub("", plain)


def _is_misspelling(name: str, other: str) -> bool:
    """Return True if a name is another with one letter wrong, too many or lacking, or with its letters in
    another order. Names whose digits differ are different ones.
    """
    if len(name) < SHORTEST or re.findall(r"\d", name) != re.findall(r"\d", other):
        return False
    has_one_wrong = regex.fullmatch(f"(?:{regex.escape(other)}){{e<=1}}", name)
    return bool(has_one_wrong) or sorted(name) == sorted(other)


def near_equals_sentences(answers: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a sentence on each group of answers that seem to be spellings of one."""
    sentences = []
    for group in near_equals(answers):
        spellings = [f"{written(entry['answer'])} ({entry['rows']:,})" for entry in group]
        sentences.append(
            f"{listed(spellings)} look like one answer, and are learned as different ones: if they are one, "
            f"write {written(' '.join(group[0]['answer'].split()))} in all of these rows, in data/raw or by "
            "curate.transform."
        )
    return sentences


def written(answer: str) -> str:
    """Return an answer in quotes if white space around it or a line break in it would not be seen."""
    return answer if answer == " ".join(answer.split()) else json.dumps(answer, ensure_ascii=False)


def several_answers(rows: int) -> str:
    """Return a sentence on the rows of which each has a list of answers."""
    return (
        f"{plural(rows, 'row has', 'rows have')} a list of answers: the first is trained, and any of them "
        "counts as right when it is measured. Labels that all apply are one answer: join them into one text."
    )

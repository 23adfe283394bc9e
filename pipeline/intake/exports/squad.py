"""SQuAD as its authors publish it: one object with articles, their paragraphs, and questions on each.

After <https://rajpurkar.github.io/SQuAD-explorer/> (1.1 and 2.0): `data`, `paragraphs`, `context`, `qas` with
`question`, `answers` and, since 2.0, `is_impossible`. Each question with an answer is a row. In a file that
is one object with all articles, each article is a record, so that no split divides one. Other data sets have
this form too (TyDi QA, XQuAD, GermanQuAD).
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.export import Conversation, Export, Notes, Record, any_record
from pipeline.intake.exports.view import View


def _has_articles(value: View) -> bool:
    return any(map(_is_article, _articles(value)))


def _is_article(value: View) -> bool:
    return any("context" in paragraph and "qas" in paragraph for paragraph in value.objects("paragraphs"))


def _articles(value: View) -> list[View]:
    return value.elements("data") if value.has("data", list) else [value]


def read(records: Iterable[Record], notes: Notes) -> Iterator[Conversation]:
    """Yield a row for each question that has an answer."""
    rest = iter(records)
    first = list(islice(rest, 2))
    for record in chain(first, rest):
        try:
            value = record.view()
        except BadLine as why:
            yield Conversation(record.number, record.offset, why)
            continue
        is_whole = len(first) == 1 and "data" in value
        for place, article in enumerate(_articles(value)):
            number = record.number + place if is_whole else record.number
            for row in _rows(article):
                if isinstance(row, dict) and not row["completion"]:
                    notes["questions_without_answer"] += 1
                else:
                    yield Conversation(number, record.offset, row)


def _rows(article: View) -> Iterator[dict[str, Any] | BadLine]:
    """Yield the rows of an article, one for each question, and one for parts without questions."""
    if not article.has("paragraphs", list):
        yield BadLine("bad_shape", "an article of SQuAD has a list paragraphs")
        return
    for paragraph in article.elements("paragraphs"):
        if paragraph.has("context", str) and paragraph.has("qas", list):
            yield from (_row(paragraph["context"], question) for question in paragraph.elements("qas"))
        else:
            yield BadLine("bad_shape", "a paragraph of SQuAD has a context and a list qas")


def _row(context: str, question: View) -> dict[str, Any] | BadLine:
    words = question.texts("question").strip()
    if not words:
        return BadLine("bad_shape", "an entry of qas has no question")
    answers: list[str] = []
    if question.get("is_impossible") is not True:
        references = question.elements("answers")
        if not question.has("answers", list) or not all(entry.has("text", str) for entry in references):
            return BadLine("bad_shape", "an entry of qas has no list of answers with text")
        answers = [reference["text"].strip() for reference in references]
    return {
        "prompt": f"{context.strip()}\n\n{words}",
        "completion": [answer for answer in dict.fromkeys(answers) if answer],
    }


EXPORT = Export("squad", any_record(_has_articles), read, large_keys=(b'"data"', b'"paragraphs"'))

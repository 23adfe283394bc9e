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
from pipeline.intake.exports.export import Conversation, Export, Head, Notes, Record
from pipeline.intake.exports.view import objects


def is_head(head: Head) -> bool:
    """Return True if a record has articles with paragraphs, or is such an article."""
    return any(_is_article(article) for value in head.objects() for article in _articles(value))


def _is_article(value: Any) -> bool:
    paragraphs = objects(value.get("paragraphs")) if isinstance(value, dict) else []
    return any("context" in paragraph and "qas" in paragraph for paragraph in paragraphs)


def _articles(value: dict[str, Any]) -> list[Any]:
    listed = value.get("data")
    return listed if isinstance(listed, list) else [value]


def read(records: Iterable[Record], notes: Notes) -> Iterator[Conversation]:
    """Yield a row for each question that has an answer."""
    rest = iter(records)
    first = list(islice(rest, 2))
    for number, offset, value in chain(first, rest):
        if isinstance(value, BadLine):
            yield Conversation(number, offset, value)
            continue
        articles = _articles(value) if isinstance(value, dict) else [value]
        is_whole = len(first) == 1 and isinstance(value, dict) and "data" in value
        for place, article in enumerate(articles):
            for row in _rows(article):
                if isinstance(row, dict) and not row["completion"]:
                    notes["questions_without_answer"] += 1
                else:
                    yield Conversation(number + place if is_whole else number, offset, row)


def _rows(article: Any) -> Iterator[dict[str, Any] | BadLine]:
    """Yield the rows of an article, one for each question, and one for parts without questions."""
    paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
    if not isinstance(paragraphs, list):
        yield BadLine("bad_shape", "an article of SQuAD has a list paragraphs")
        return
    for paragraph in paragraphs:
        context = paragraph.get("context") if isinstance(paragraph, dict) else None
        questions = paragraph.get("qas") if isinstance(paragraph, dict) else None
        if not isinstance(context, str) or not isinstance(questions, list):
            yield BadLine("bad_shape", "a paragraph of SQuAD has a context and a list qas")
            continue
        yield from (_row(context, question) for question in questions)


def _row(context: str, question: Any) -> dict[str, Any] | BadLine:
    words = question.get("question") if isinstance(question, dict) else None
    if not isinstance(words, str) or not words.strip():
        return BadLine("bad_shape", "an entry of qas has no question")
    is_impossible = question.get("is_impossible") is True
    listed = [] if is_impossible else question.get("answers")
    if not isinstance(listed, list) or any(not isinstance(_answer(reference), str) for reference in listed):
        return BadLine("bad_shape", "an entry of qas has no list of answers with text")
    answers = dict.fromkeys(_answer(reference).strip() for reference in listed)
    return {
        "prompt": f"{context.strip()}\n\n{words.strip()}",
        "completion": [answer for answer in answers if answer],
    }


def _answer(answer: Any) -> Any:
    return answer.get("text") if isinstance(answer, dict) else None


EXPORT = Export("squad", is_head, read, large_keys=(b'"data"', b'"paragraphs"'))

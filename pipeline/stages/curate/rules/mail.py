"""The rule that takes what mail programs add out of a help desk's rows: HTML, quoted mails, signatures and
closings.

A help desk's export has mails in its cells. A row that asks for a letter, or about a mail or HTML, looks the
same, in any language. So a file's first rows decide together: in a help desk's file customers write mails,
and most answers end as mails do.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Literal

from pipeline.chat.rows import TURN_LISTS, Row
from pipeline.intake.exports.mail_text import (
    ends_as_mail,
    is_mail,
    keeps_closing,
    keeps_quotation,
    may_be_mail,
    without_end,
    without_quotes,
)
from pipeline.intake.exports.markdown import markdown_of
from pipeline.intake.files.notes import MAILS_LEFT
from pipeline.stages.curate.rules.changes import Change, Changes, excerpts

WRITERS = ("user", "assistant")
ROWS_SEEN = 200  # first rows of a file that decide about it
# Shares of these rows. Few users of a chat write mails to it, and many customers write only a sentence.
QUESTIONS = 0.1
ANSWERS = 0.5
KNOWN_FILES = 256  # files about which it is known
# Text that is all HTML, in which nothing but prose is marked up.
HTML = re.compile(r"\s*<(?:!doctype|html|body|div|p|span|table|ul|ol|br|blockquote|font)\b", re.IGNORECASE)
NO_PROSE = re.compile(r"<(?:pre|code|script|form|input|button|svg|canvas)\b", re.IGNORECASE)
# What mail programs write between angle brackets; all other words in them are markup that is spoken of.
ADDRESS = re.compile(r"<(?:[^<>\s]+@[^<>\s]+|\[EMAIL[^<>]*|(?:https?|mailto):[^<>\s]*)>")
OF_MARKUP = re.compile(r"\b(?:(?i:html|css|xml|markup|markdown)|tags?|divs?|spans?)\b")  # not Guten Tag
Turn = dict[str, Any]


class Mail:
    """Rule for turns that are mails: `auto` asks `are_mails` for the row's file, `always` takes all rows for
    mails.
    """

    def __init__(self, mode: Literal["auto", "always"], are_mails: Callable[[str], bool]) -> None:
        self.mode = mode
        self.are_mails = lru_cache(KNOWN_FILES)(are_mails)
        self.counts = Counter[str]()

    def take_counts(self) -> Counter[str]:
        """Return counts of texts since the last call: `mail_html`, `quotes`, `signatures`, `closings`, and of
        what stays: `mail_html_left`, texts that begin with HTML, `closings_left`, `quotes_left`, and
        `mails_left`, mails in other files than a help desk's.
        """
        counts = self.counts
        self.counts = Counter()
        return counts

    def __call__(self, row: Row, changes: Changes) -> Row:
        """Return the row with the own words of its turns. A turn that has none stays as it is."""
        written = [turn["content"] for field in TURN_LISTS for turn in _written(row.get(field, ()))]
        if not any(may_be_mail(text) or HTML.match(text) for text in written):
            return row
        if self.mode == "auto" and not self.are_mails(row["source"].rpartition(":")[0]):
            self._count(MAILS_LEFT, sum(map(is_mail, written)))
            self._count("mail_html_left", sum(1 for text in written if HTML.match(text)))
            return row
        edited = dict(row)
        for field in filter(row.__contains__, TURN_LISTS):
            edited[field] = [
                self._edited(turn, f"{field} {number}", changes)
                for number, turn in enumerate(row[field], start=1)
            ]
        left = [turn for field in TURN_LISTS for turn in _written(edited.get(field, ()))]
        self._count("mail_html_left", sum(1 for turn in left if HTML.match(turn["content"])))
        self._count("closings_left", sum(keeps_closing(turn["content"]) for turn in left))
        self._count("quotes_left", sum(keeps_quotation(turn["content"]) for turn in left))
        return row if edited == row else edited

    def _count(self, name: str, texts: int) -> None:
        if texts:
            self.counts[name] += texts

    def _edited(self, turn: Turn, place: str, changes: Changes) -> Turn:
        text = turn["content"]
        if turn["role"] not in WRITERS or not text:
            return turn
        counts = Counter[str]()
        words = _without_html(text)
        counts["mail_html"] += words != text
        every = self.mode == "always"
        words = without_quotes(words, counts, every=every, is_question=turn["role"] == "user")
        words = without_end(words, counts, every=every)
        if not words or not counts.total():
            return turn
        self.counts.update(+counts)
        changes.append(Change("mail", place, *excerpts(text, words)))
        return {**turn, "content": words}


def are_of_help_desk(rows: Iterable[Row]) -> bool:
    """Return True if the first rows of a file are a help desk's: customers write mails, and most answers end
    as mails do.
    """
    seen = 0
    questions = 0
    answers = 0
    for row in rows:
        texts: dict[str, list[str]] = {role: [] for role in WRITERS}
        for turn in _written(row["messages"]):
            texts[turn["role"]].append(_without_html(turn["content"]))
        if texts["user"] and texts["assistant"]:
            seen += 1
            questions += any(map(ends_as_mail, texts["user"]))
            answers += any(map(ends_as_mail, texts["assistant"]))
        if seen == ROWS_SEEN:
            break
    return questions > 0 and questions >= QUESTIONS * seen and answers >= ANSWERS * seen


def _written(turns: Iterable[Turn]) -> list[Turn]:
    """Return the turns that people or the model wrote."""
    return [turn for turn in turns if turn["role"] in WRITERS and turn["content"]]


def _without_html(text: str) -> str:
    """Return HTML that marks up nothing but prose as Markdown, and other text as it is."""
    if not HTML.match(text) or not text.rstrip().endswith(">") or NO_PROSE.search(text):
        return text
    words = markdown_of(text)
    return text if "<" in ADDRESS.sub("", words) or OF_MARKUP.search(words) else words

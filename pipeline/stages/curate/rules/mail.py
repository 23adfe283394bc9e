"""The rule that takes what mail programs add out of a help desk's rows: HTML, quoted mails, signatures and
closings.

A help desk's export has mails in its cells. A row that asks for a letter, or about a mail or HTML, looks the
same, in any language. So a file's first rows decide together: in a help desk's file customers write mails,
and most answers end as mails do. They also show lines that may be closings in a language that no list has.
Such a line is counted, and stays: what many answers say before a name may as well be their whole content.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Literal

from pipeline.chat.rows import TURN_LISTS, Row
from pipeline.intake.exports.mail_ends import (
    GREETING,
    UNKNOWN,
    Habits,
    habits_of,
    keeps_closing,
    without_end,
)
from pipeline.intake.exports.mail_quotes import keeps_quotation
from pipeline.intake.exports.mail_text import ends_as_mail, is_mail, may_be_mail, without_quotes
from pipeline.intake.exports.markdown import markdown_of
from pipeline.intake.files.notes import CLOSINGS_LEFT, MAILS_LEFT, NAMES_GREETED, QUOTES_LEFT
from pipeline.stages.curate.rules.changes import Change, Changes, excerpts

WRITERS = ("user", "assistant")
ROWS_SEEN = 200  # first rows of a file that decide about it
# Shares of these rows. Few users of a chat write mails to it, and many customers write only a sentence.
QUESTIONS = 0.1
ANSWERS = 0.5
KNOWN_FILES = 256  # files about which it is known
CAPITALIZED = re.compile(r"\b[A-ZÀ-ÞĀ-Ž][\w'’-]*")
# Text that is all HTML, in which nothing but prose is marked up; a subject may stand above it.
HTML = re.compile(
    r"(?P<subject>[^<\n]{1,200}\n\s*\n)?\s*<(?:!doctype|html|body|div|p|span|table|ul|ol|br|blockquote|font)\b",
    re.IGNORECASE,
)
# A paragraph that is a blank line. Programs that write it, such as Outlook, write each line as a paragraph.
BLANK_LINE = re.compile(r"<p\b[^>]*>(?:\s|&nbsp;|&#160;|<br\s*/?>|</?o:p>)*</p>", re.IGNORECASE)
NEXT_LINE = re.compile(r"</p>\s*<p\b[^>]*>", re.IGNORECASE)
LINE = 60  # characters of a line in an address
LINES_OF_END = 3  # of a closing, a name and an address, at least
NO_LINE = re.compile(r"^(?:[-*>|#`]|\d+\. )|[a-zß-ÿ]{2}\.$")
NO_PROSE = re.compile(r"<(?:pre|code|script|form|input|button|svg|canvas)\b", re.IGNORECASE)
# What mail programs write between angle brackets; all other words in them are markup that is spoken of.
ADDRESS = re.compile(r"<(?:[^<>\s]+@[^<>\s]+|\[EMAIL[^<>]*|(?:https?|mailto):[^<>\s]*)>")
OF_MARKUP = re.compile(r"\b(?:(?i:html|css|xml|markup|markdown)|tags?|divs?|spans?)\b")  # not Guten Tag
Turn = dict[str, Any]


@dataclass(frozen=True)
class HelpDesk:
    """A file whose rows may be a help desk's mails: `is_sure` if they are, and how they end."""

    is_sure: bool
    habits: Habits = UNKNOWN


class Mail:
    """Rule for turns that are mails: `auto` asks `desk_of` for the row's file, `always` takes all rows for
    mails, and also the closings out that their file's own texts show.
    """

    def __init__(self, mode: Literal["auto", "always"], desk_of: Callable[[str], HelpDesk]) -> None:
        self.mode = mode
        self.desk_of = lru_cache(KNOWN_FILES)(desk_of)
        self.counts = Counter[str]()

    def take_counts(self) -> Counter[str]:
        """Return counts of texts since the last call: `mail_html`, `quotes`, `signatures`, `closings`, and of
        what stays: `mail_html_left`, texts that begin with HTML, `names_greeted`, answers that greet by a
        name that the question had, `closings_left`, `kept_below_closings`, `quotes_left`, and `mails_left`,
        mails in other files than a help desk's.
        """
        counts = self.counts
        self.counts = Counter()
        return counts

    def __call__(self, row: Row, changes: Changes) -> Row:
        """Return the row with the own words of its turns. A turn that has none stays as it is."""
        written = [turn["content"] for field in TURN_LISTS for turn in _written(row.get(field, ()))]
        if not any(may_be_mail(text) or HTML.match(text) for text in written):
            return row
        desk = self.desk_of(row["source"].rpartition(":")[0])
        if self.mode == "auto" and not desk.is_sure:
            self._count(MAILS_LEFT, sum(map(is_mail, written)))
            self._count("mail_html_left", sum(1 for text in written if HTML.match(text)))
            return row
        habits = desk.habits if self.mode == "always" else Habits(None, desk.habits.endings)
        edited = dict(row)
        for field in filter(row.__contains__, TURN_LISTS):
            edited[field] = [
                self._edited(turn, f"{field} {number}", habits, changes)
                for number, turn in enumerate(row[field], start=1)
            ]
        left = [turn for field in TURN_LISTS for turn in _written(edited.get(field, ()))]
        self._count("mail_html_left", sum(1 for turn in left if HTML.match(turn["content"])))
        self._count(CLOSINGS_LEFT, sum(keeps_closing(turn["content"], desk.habits) for turn in left))
        self._count(QUOTES_LEFT, sum(keeps_quotation(turn["content"]) for turn in left))
        if edited == row:
            return row
        self._count(NAMES_GREETED, _lost_names(row["messages"], edited["messages"]))
        return edited

    def _count(self, name: str, texts: int) -> None:
        if texts:
            self.counts[name] += texts

    def _edited(self, turn: Turn, place: str, habits: Habits, changes: Changes) -> Turn:
        text = turn["content"]
        if turn["role"] not in WRITERS or not text:
            return turn
        counts = Counter[str]()
        words = _without_html(text)
        counts["mail_html"] += words != text
        every = self.mode == "always"
        is_question = turn["role"] == "user"
        words = without_quotes(words, counts, every=every, is_question=is_question, habits=habits)
        words = without_end(words, counts, every=every, habits=habits)
        if not words or not counts.total():
            return turn
        self.counts.update(+counts)
        changes.append(Change("mail", place, *excerpts(text, words)))
        return {**turn, "content": words}


def help_desk(rows: Iterable[Row]) -> HelpDesk:
    """Return what the first rows of a file show: they are a help desk's if customers write mails, and most
    answers end as mails do.
    """
    seen = list(islice(_exchanges(rows), ROWS_SEEN))
    habits = habits_of(chain.from_iterable(chain.from_iterable(seen)))
    questions = sum(any(ends_as_mail(text, habits) for text in asked) for asked, _ in seen)
    answers = sum(any(ends_as_mail(text, habits) for text in answered) for _, answered in seen)
    are_mails = questions >= QUESTIONS * len(seen) and answers >= ANSWERS * len(seen)
    return HelpDesk(bool(questions) and are_mails, habits)


def _exchanges(rows: Iterable[Row]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the texts of the user and those of the assistant of each row in which both write."""
    for row in rows:
        texts: dict[str, list[str]] = {role: [] for role in WRITERS}
        for turn in _written(row["messages"]):
            texts[turn["role"]].append(_without_html(turn["content"]))
        asked, answered = texts.values()
        if asked and answered:
            yield asked, answered


def _written(turns: Iterable[Turn]) -> list[Turn]:
    """Return the turns that people or the model wrote."""
    return [turn for turn in turns if turn["role"] in WRITERS and turn["content"]]


def _lost_names(turns: Iterable[Turn], edited: Iterable[Turn]) -> int:
    """Return how many answers greet by a name that users say in `turns`, and not in the `edited` ones."""
    left = _written(edited)
    names = _words_of_users(_written(turns)) - _words_of_users(left)
    return sum(
        1 for turn in left if turn["role"] == "assistant" and not names.isdisjoint(_greeted(turn["content"]))
    )


def _words_of_users(turns: Iterable[Turn]) -> set[str]:
    """Return the words in capitals that users say."""
    return {word for turn in turns if turn["role"] == "user" for word in CAPITALIZED.findall(turn["content"])}


def _greeted(text: str) -> list[str]:
    """Return the words in capitals behind the greeting that a text begins with."""
    line = text.partition("\n")[0]
    greeting = GREETING.match(line)
    return CAPITALIZED.findall(line, greeting.end()) if greeting else []


def _with_joined_end(text: str) -> str:
    """Return a text with its last paragraphs of one short line each as the lines of one paragraph.

    Many mail programs write each line of a closing, a name and an address as a paragraph of HTML.
    """
    paragraphs = text.split("\n\n")
    first = len(paragraphs)
    while first and _is_line(paragraphs[first - 1]):
        first -= 1
    if len(paragraphs) - first < LINES_OF_END:
        return text
    return "\n\n".join([*paragraphs[:first], "\n".join(paragraphs[first:])])


def _is_line(paragraph: str) -> bool:
    """Return True for one line that may be of an address: it is short, and no sentence or item of a list."""
    is_one = len(paragraph) <= LINE and "\n" not in paragraph
    return is_one and not paragraph.endswith((":", "?", "!")) and not NO_LINE.search(paragraph)


def _without_html(text: str) -> str:
    """Return HTML that marks up nothing but prose as Markdown, and other text as it is."""
    html = HTML.match(text)
    if not html or not text.rstrip().endswith(">") or NO_PROSE.search(text):
        return text
    subject = html["subject"] or ""
    body = text[len(subject) :]
    if BLANK_LINE.search(body):
        body = NEXT_LINE.sub("<br>", body)
    words = subject + _with_joined_end(markdown_of(body))
    return text if "<" in ADDRESS.sub("", words) or OF_MARKUP.search(words) else words

"""The rule that takes what mail programs add out of turns that are mails: HTML, quoted mails, signatures and
closings.

A help desk's export has mails in its cells. Whether a row's turns are mails is decided by what surely is
mail in one of them (`is_mail`), or by a closing. A row that asks for a letter, or about a mail, HTML or code,
looks the same. So nothing is changed if the request asks for a text, or its texts speak of markup.
"""

import re
from collections import Counter
from typing import Any, Literal

from pipeline.chat.rows import TURN_LISTS, Row
from pipeline.stages.curate.exports.mail_text import (
    closing_of,
    has_form_of_mail,
    is_mail,
    may_be_mail,
    without_end,
    without_quotes,
)
from pipeline.stages.curate.exports.markdown import markdown_of
from pipeline.stages.curate.rules.changes import Change, Changes, excerpts

WRITERS = ("user", "assistant")
# Text that is all HTML, in which nothing but prose is marked up.
HTML = re.compile(r"\s*<(?:!doctype|html|body|div|p|span|table|ul|ol|br|blockquote|font)\b", re.IGNORECASE)
NO_PROSE = re.compile(r"<(?:pre|code|script|form|input|button|svg|canvas)\b", re.IGNORECASE)
# What mail programs write between angle brackets; all other words in them are markup that is spoken of.
ADDRESS = re.compile(r"<(?:[^<>\s]+@[^<>\s]+|\[EMAIL[^<>]*|(?:https?|mailto):[^<>\s]*)>")
OF_MARKUP = re.compile(r"\b(?:(?i:html|css|xml|markup|markdown)|tags?|divs?|spans?)\b")  # not Guten Tag
# Before an order: the beginning of a sentence, or who is asked. Mails have the same words elsewhere.
ORDERS = (
    r"(?:^[ \t]*|[.!?:][ \t]+|\b(?:please|bitte|and|und|you to|help me|(?:can|could|would|will) you"
    r"|(?:kannst|könntest) du)[ \t]+)"
)
# Not after it: "write me back", "schreib mir, wann". "Write me a poem" is an order.
AN_ANSWER = (
    r"(?:[ \t]+\w+){0,2}[ \t]+(?:back|zurück)\b"
    r"|[ \t]+(?:to[ \t]+)?(?:me|us|mir|uns)\b(?![ \t]+(?:an?|the|some|ein\w*|\d+)\b)"
)
ASKS_FOR_TEXT = re.compile(
    r"\b(?:rewrite|rephrase|translate|proofread|summari[sz]e|verfass\w*|formulier\w*|übersetz\w*)\b"
    rf"|{ORDERS}(?:write|draft|compose|schreibe?)\b(?!{AN_ANSWER})"
    r"|(?<!ich )\bfasse?\b[^.!?\n]{0,200}\bzusammen\b"
    r"|\bkorrigier\w*[^.!?\n]{0,60}\b(?:texte?|sätze?|satz|mails?|nachricht|briefe?|grammatik|rechtschreibung)\b"
    r"|\b(?:who(?:'s| is)|name|find|extract|identify|wer ist|nenne?)\b[^.!?\n]{0,30}\b(?:sender|absender)\b",
    re.IGNORECASE | re.MULTILINE,
)
NAMES_LETTERS = re.compile(
    r"\b(?:letters?|speech|essay|template|vorlage|anschreiben|an e-?mail|a (?:mail|message|note|reply)"
    r"|briefe?|eine (?:e-?mail|mail|nachricht))\b",
    re.IGNORECASE,
)
NAMES_PAGES = re.compile(
    r"\b(?:web ?(?:site|page)|page|site|banner|newsletter|(?:web)?seite)[sn]?\b",
    re.IGNORECASE,
)
Turn = dict[str, Any]


class Mail:
    """Rule for turns that are mails: `auto` decides by the row, `always` takes all rows for mails."""

    def __init__(self, mode: Literal["auto", "always"]) -> None:
        self.mode = mode
        self.counts = Counter[str]()

    def take_counts(self) -> Counter[str]:
        """Return counts of texts since the last call: `mail_html`, `quotes`, `signatures`, `closings`, and of
        what stays: `mail_html_left`, texts that begin with HTML, and `mails_left`, mails in rows that speak
        of a text to be written.
        """
        counts = self.counts
        self.counts = Counter()
        return counts

    def __call__(self, row: Row, changes: Changes) -> Row:
        """Return the row with the own words of its turns. A turn that has none stays as it is."""
        turns = [turn for field in TURN_LISTS for turn in row.get(field, ()) if turn["role"] in WRITERS]
        is_candidate = any(may_be_mail(turn["content"]) or HTML.match(turn["content"]) for turn in turns)
        if self.mode == "auto" and not is_candidate:
            return row
        asked = "\n".join(turn["content"] for turn in row["messages"] if turn["role"] in ("system", "user"))
        if self.mode == "auto" and not (_is_html_prose(turns, asked) or _are_mails(turns)):
            self._count_html(turns)
            self._count_mails(turns)
            return row
        edited = dict(row)
        for field in filter(row.__contains__, TURN_LISTS):
            edited[field] = [
                self._edited(turn, f"{field} {number}", changes)
                for number, turn in enumerate(row[field], start=1)
            ]
        self._count_html([turn for field in filter(row.__contains__, TURN_LISTS) for turn in edited[field]])
        return row if edited == row else edited

    def _count_html(self, turns: list[Turn]) -> None:
        left = sum(1 for turn in turns if turn["role"] in WRITERS and HTML.match(turn["content"]))
        if left:
            self.counts["mail_html_left"] += left

    def _count_mails(self, turns: list[Turn]) -> None:
        left = sum(is_mail(turn["content"]) for turn in turns)
        if left:
            self.counts["mails_left"] += left

    def _edited(self, turn: Turn, place: str, changes: Changes) -> Turn:
        text = turn["content"]
        if turn["role"] not in WRITERS or not text:
            return turn
        counts = Counter[str]()
        words = _without_html(text)
        counts["mail_html"] += words != text
        every = self.mode == "always"
        words = without_quotes(words, counts, every=every)
        words = without_end(words, counts, every=every)
        if not words or not counts.total():
            return turn
        self.counts.update(+counts)
        changes.append(Change("mail", place, *excerpts(text, words)))
        return {**turn, "content": words}


def _are_mails(turns: list[Turn]) -> bool:
    """Return True if one of the turns surely is a mail, and nobody asks for one."""
    asked = "\n".join(turn["content"] for turn in turns if turn["role"] == "user")
    if ASKS_FOR_TEXT.search(asked):
        return False
    texts = [_without_html(turn["content"]) for turn in turns]
    users = [text for turn, text in zip(turns, texts, strict=True) if turn["role"] == "user"]
    if any(map(is_mail, users)):
        return True
    return not NAMES_LETTERS.search(asked) and any(is_mail(text) or closing_of(text) for text in texts)


def _is_html_prose(turns: list[Turn], asked: str) -> bool:
    """Return True if all turns are HTML, or one is a mail in HTML, and no text is about markup."""
    if ASKS_FOR_TEXT.search(asked) or OF_MARKUP.search(asked.partition("<")[0]):
        return False
    texts = [turn["content"] for turn in turns if turn["content"]]
    converted = [words for text, words in zip(texts, map(_without_html, texts), strict=True) if words != text]
    if texts and len(converted) == len(texts):
        return True
    is_wanted = NAMES_LETTERS.search(asked) or NAMES_PAGES.search(asked)
    return not is_wanted and any(map(has_form_of_mail, converted))


def _without_html(text: str) -> str:
    """Return HTML that marks up nothing but prose as Markdown, and other text as it is."""
    if not HTML.match(text) or not text.rstrip().endswith(">") or NO_PROSE.search(text):
        return text
    words = markdown_of(text)
    return text if "<" in ADDRESS.sub("", words) or OF_MARKUP.search(words) else words

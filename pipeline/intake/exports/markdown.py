"""Conversion of an answer's HTML to Markdown, the form that models write.

It keeps paragraphs, lists, headings, code, tables, emphasis and the addresses of links.
"""

import re
from html.parser import HTMLParser

BLOCKS = ("p", "div", "ul", "ol", "table", "blockquote", "section", "article")
HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
MARKS = {"strong": "**", "b": "**", "em": "*", "i": "*"}
HIDDEN = ("script", "style")


def markdown_of(html: str) -> str:
    """Return the text of HTML in Markdown."""
    writer = _Writer()
    writer.feed(html)
    writer.close()
    text = "".join(writer.pieces)
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


class _Writer(HTMLParser):
    """Parser of HTML that writes Markdown. White space counts only within `pre`."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        # next number of each list that is open, None for a list without numbers
        self.lists: list[int | None] = []
        self.quotes: list[int] = []  # number of pieces before each quotation that is open
        self.hidden = 0
        self.in_pre = False
        self.cells = 0  # cells in the table's row
        self.link: tuple[int, str] | None = None  # number of pieces before an open link, and its address

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in HIDDEN:
            self.hidden += 1
        elif tag == "pre":
            self.in_pre = True
            self.pieces.append("\n\n```\n")
        elif tag == "code" and not self.in_pre:
            self.pieces.append("`")
        elif tag == "br":
            self.pieces.append("\n")
        elif tag == "hr":
            self.pieces.append("\n\n---\n\n")
        elif tag == "li":
            self._begin_item()
        elif tag == "tr":
            self.cells = 0
            self.pieces.append("\n|")
        elif tag in ("td", "th"):
            self.pieces.append(" ")
        elif tag == "a":
            address = dict(attrs).get("href") or ""
            self.link = (len(self.pieces), address) if address.startswith(("http://", "https://")) else None
        elif tag in HEADINGS:
            self.pieces.append(f"\n\n{HEADINGS[tag]}")
        elif tag in MARKS:
            self.pieces.append(MARKS[tag])
        elif tag in BLOCKS:
            is_nested = tag in ("ul", "ol") and bool(self.lists)
            if tag in ("ul", "ol"):
                self.lists.append(1 if tag == "ol" else None)
            if not is_nested:
                self._begin_block()
            if tag == "blockquote":
                self.quotes.append(len(self.pieces))

    def handle_endtag(self, tag: str) -> None:
        if tag in HIDDEN:
            self.hidden -= self.hidden > 0
        elif tag == "pre":
            self.in_pre = False
            self.pieces.append("\n```\n\n" if not self._ends_line() else "```\n\n")
        elif tag == "code" and not self.in_pre:
            self.pieces.append("`")
        elif tag == "a":
            self._end_link()
        elif tag in ("td", "th"):
            self.cells += 1
            self.pieces.append(" |")
        elif tag == "thead":
            self.pieces.append("\n|" + " --- |" * self.cells)
        elif tag in MARKS:
            self.pieces.append(MARKS[tag])
        elif tag in HEADINGS:
            self.pieces.append("\n\n")
        elif tag in BLOCKS:
            if tag in ("ul", "ol") and self.lists:
                self.lists.pop()
            if tag == "blockquote" and self.quotes:
                self._end_quote(self.quotes.pop())
            self._begin_block()

    def _end_quote(self, begin: int) -> None:
        """Write `>` before each line of a quotation, which are the pieces from `begin` on."""
        text = re.sub(r"\n{3,}", "\n\n", "".join(self.pieces[begin:])).strip()
        self.pieces[begin:] = ["\n".join(f"> {line}".rstrip() for line in text.split("\n"))] if text else []

    def _end_link(self) -> None:
        """Write the address of a link behind its words, unless they are the address."""
        if self.link is None:
            return
        begin, address = self.link
        self.link = None
        words = "".join(self.pieces[begin:]).strip()
        if words and words not in address:
            self.pieces[begin:] = [f"[{words}]({address})"]

    def handle_data(self, data: str) -> None:
        if self.hidden:
            return
        if self.in_pre:
            self.pieces.append(data)
            return
        words = re.sub(r"\s+", " ", data)
        if self._ends_line():
            words = words.lstrip()
        if words:
            self.pieces.append(words)

    def _begin_block(self) -> None:
        self.pieces.append("\n" if self.lists else "\n\n")

    def _begin_item(self) -> None:
        indent = "  " * (len(self.lists) - 1)
        number = self.lists[-1] if self.lists else None
        if number is not None:
            self.lists[-1] = number + 1
        self.pieces.append(f"\n{indent}{'- ' if number is None else f'{number}. '}")

    def _ends_line(self) -> bool:
        last = next((piece for piece in reversed(self.pieces) if piece), "\n")
        return last.endswith(("\n", "- ", ". ")) and not last.endswith("`")
